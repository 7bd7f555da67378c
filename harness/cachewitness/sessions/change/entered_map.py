"""Which configurations enter which functions of a system's source, as it was measured on a release.

A map says where to look first; it decides nothing. `python -m benchmarks.entered_map` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec

from cachewitness._util import data, reading
from cachewitness._util.errors import UsageError
from cachewitness.workloads.configurations import named


class Configured(msgspec.Struct, frozen=True, omit_defaults=True):
    """A suite on a configuration: a layout with options of the policy. `engine` are the options of
    the engine's name, a connector for example.
    """

    suite: str
    layout: str
    options: dict[str, Any] = {}
    engine: dict[str, str] = {}

    @property
    def beside(self) -> str:
        """The options of the engine's name, in words; empty if it has none."""
        return ",".join(f"{name}={value}" for name, value in self.engine.items())

    @property
    def name(self) -> str:
        """The name of the configuration, as ids have it, with the options of the engine's name."""
        return "/".join(filter(None, [named(self.layout, self.options), self.beside]))


class Entered(msgspec.Struct, frozen=True):
    """Functions that the same configurations enter. `by` are their numbers, `0-35,40`."""

    by: str
    functions: list[str]


class EnteredMap(msgspec.Struct, frozen=True, dict=True):
    """The map of a release, `vLLM 0.33.0`. A function is called `module:Class.function`, its module
    without the package in front.
    """

    release: str
    configurations: list[Configured]
    entered: list[Entered]

    @cached_property
    def _by_function(self) -> dict[str, list[Configured]]:
        return {
            function: [self.configurations[number] for number in numbers(group.by)]
            for group in self.entered
            for function in group.functions
        }

    def entering(self, function: str) -> list[Configured]:
        """Return what enters a function; of one that the map does not have, what enters anything
        else of its module.
        """
        if function in self._by_function:
            return self._by_function[function]
        module = function.partition(":")[0]
        inside = {
            id(one): one
            for name, configured in self._by_function.items()
            if name.partition(":")[0] == module
            for one in configured
        }
        return [one for one in self.configurations if id(one) in inside]


def numbers(ranges: str) -> Iterator[int]:
    """Yield the numbers of ranges, `0-35,40`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def stored(engine: str) -> EnteredMap | None:
    """Return the map of an engine by its name; None if there is none.

    Raises UsageError if it cannot be read.
    """
    path = data.fixtures() / "entered" / f"{engine}.json"
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(reading.whole(path), type=EnteredMap)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}") from None
