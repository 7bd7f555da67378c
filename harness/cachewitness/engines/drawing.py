"""How a fuzzer draws the configurations of a policy that can do better than varying its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from cachewitness.core.trace_format import Layout, Level, TraceHeader
from cachewitness.workloads.source import Source


class Draw(Protocol):
    """How a fuzzer draws a policy's configurations."""

    def __call__(
        self, source: Source, layout: Layout | None, level: Level, *, historic: bool
    ) -> tuple[Layout, Iterable[dict[str, Any]]]:
        """Return a layout, the given one if there is one, and bundles of options, of which those
        that are refused are left out.

        The bundles are drawn while they are iterated. `historic`: options of older releases may be
        among them.
        """


@dataclass(frozen=True)
class Drawing:
    """`draw` draws the configurations; `refuse(header)` raises UsageError for one that the policy
    refuses, without opening its engine.
    """

    draw: Draw
    refuse: Callable[[TraceHeader], object]
