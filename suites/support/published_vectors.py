"""The published vectors, loaded once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cachewitness.vectors import store
from cachewitness.vectors.form import File, Vector


@functools.cache
def files() -> dict[tuple[str, str], File]:
    """Return every published file by (policy, kind)."""
    loaded = [store.load(path) for path in store.find([store.folder()])]
    return {(file.info.policy, file.info.kind): file for file in loaded}


def vectors(policy: str, kind: str, result: str = "") -> list[Any]:
    """Return the vectors of a file, of one class if it is named."""
    found: list[Vector] = list(files()[policy, kind].vectors)
    return [vector for vector in found if result in ("", vector.result)]


def ids(vector: Any) -> str:
    """Return the name of a vector for a test's id."""
    return str(vector.id)


Holds = Callable[[Any], None]


def for_every(
    vectors: Sequence[Any], name: Callable[[Any], str] = ids
) -> Callable[[Holds], Callable[[], None]]:
    """Make one test of what is to hold of each vector: there are so many that a test for each would
    take longer than all.

    The test names all for which it does not hold, and says what is wrong with each. Raises
    ValueError if there is none.
    """
    if not vectors:
        raise ValueError("there is no vector to judge")

    def made(holds: Holds) -> Callable[[], None]:
        @functools.wraps(holds)
        def test() -> None:
            wrong = list[str]()
            for vector in vectors:
                try:
                    holds(vector)
                except (AssertionError, pytest.fail.Exception) as error:
                    wrong.append(f"{name(vector)}: {error}")
                except Exception as error:
                    error.add_note(f"vector {name(vector)}")
                    raise
            assert not wrong, f"{len(wrong)} of {len(vectors)} vectors\n" + "\n".join(wrong)

        del test.__wrapped__  # pytest would ask it for its parameters
        return test

    return made
