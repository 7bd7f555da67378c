"""What a fuzzer draws for one engine, beyond what it draws for the engine's policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cachewitness.core.trace_format import Level
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Source


class DrawOwn(Protocol):
    """How a fuzzer goes on with a configuration that it drew for the policy."""

    def __call__(
        self,
        source: Source,
        configuration: Configuration,
        level: Level,
        given: Mapping[str, str],
        fixed: Collection[str],
    ) -> Configuration:
        """Return the configuration with what the engine has beside the policy's reference, and
        without what it has not.

        `given` are the options of the engine's name. What the user chose is `fixed` and stays:
        options by name, and `layout`. What goes together is decided here: a configuration that the
        engine refuses is one trace less.
        """


@dataclass(frozen=True)
class OwnDrawing:
    """`draw` draws for an engine.

    `own(options, given)` returns those of the user's options, by name, that the policy's reference
    is not asked for: it does not know them, or not beside the others.
    """

    draw: DrawOwn
    own: Callable[[Mapping[str, Any], Mapping[str, str]], Collection[str]]
