"""What releases of a system are known to do against a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Lists = Callable[[str, Mapping[str, str]], tuple[str, ...]]


@dataclass(frozen=True)
class KnownFindings:
    """The lists of expected failures that come with an engine.

    `lists(version, options)` returns those that belong to a release, as the engine reports it in
    its header, under the options of the engine's name: names of files in this package's
    `fixtures/expected`, or whole paths; none for a release that has no list.
    """

    lists: Lists


def by_release(files: Mapping[str, str]) -> Lists:
    """Return `lists` of a system that has one list for each release, by the beginning of the
    version: `5.23` is that of 5.23.1.
    """

    def lists(version: str, options: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(
            file for release, file in files.items() if f"{version}.".startswith(f"{release}.")
        )

    return lists
