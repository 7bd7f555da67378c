"""The configurations that are an engine's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachewitness.workloads.configurations import Configuration


@dataclass(frozen=True)
class OwnConfigurations:
    """What an engine runs on beside the policy's configurations if the user chose none: options
    that the policy's reference has not.

    `of(options)` returns them for the options of the engine's name, which may be wrong: `open` says
    that too. `alone`: they are all that it runs on, as those of an engine that only answers always
    are.
    """

    of: Callable[[Mapping[str, str]], list[Configuration]]
    alone: bool = False
