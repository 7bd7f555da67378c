"""The published vectors, loaded once."""

from __future__ import annotations

import functools
from typing import Any

from harness.vectors import store
from harness.vectors.form import File, Vector


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
