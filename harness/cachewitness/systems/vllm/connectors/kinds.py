"""A connector of vLLM's as the harness drives it: one or several memories, and the worker that
copies from and to them.

The memories are one pool, the pages of one behind those of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from cachewitness.core.events import Move, Stores
from cachewitness.engines.observe_tier import TIER
from cachewitness.systems.vllm.connectors.copies import Copies, Job
from cachewitness.systems.vllm.connectors.model_runner import Forward, ModelRunner
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames, Memory


class CopiesOf:
    """The device's copies as one memory has them: its pages are numbered from `first` on."""

    def __init__(self, copies: Copies, first: int) -> None:
        self._copies = copies
        self._first = first

    def begin(
        self,
        src: Iterable[int],
        dst: Iterable[int],
        *,
        stores: bool,
        asked: bool = True,
        steps: int = 0,
    ) -> Job:
        """Begin to copy pages; see `Copies.begin`."""
        sources = [int(page) + (0 if stores else self._first) for page in src]
        targets = [int(page) + (self._first if stores else 0) for page in dst]
        return self._copies.begin(sources, targets, stores=stores, asked=asked, steps=steps)

    def wait(self, jobs: Iterable[Job]) -> None:
        """Let jobs be over before anybody runs."""
        self._copies.wait(jobs)

    def over_behind(self, job: Job) -> None:
        """Let a job that begins when the step has run be over with it."""
        self._copies.over_behind(job)

    @property
    def delay(self) -> int:
        """How many steps a copy takes."""
        return self._copies.delay

    def came(self, moves: Iterable[tuple[int, int]]) -> None:
        """Take note of (page, page) whose content is in the other now, both of the memory."""
        self._copies.before += [
            Move(src + self._first, dst + self._first, TIER, TIER) for src, dst in moves
        ]

    def fill_for(self, pages: Iterable[int], groups: Iterable[int]) -> None:
        """Note for which groups pages are filled."""
        self._copies.group_of.update(
            (int(page) + self._first, group) for page, group in zip(pages, groups, strict=False)
        )


class Side(Memory, Protocol):
    """One of vLLM's connectors, its scheduler side and its worker side, and its memory."""

    fenced: bool
    """Its copies do not hold the device's blocks: a step that has such a block anew waits for them.
    """
    unordered: bool
    """Its loads wait for no step in flight."""
    tells_failures: bool
    """Its own worker says which loads have failed."""
    once: bool
    """A request is looked up there once, until it has blocks."""
    drops: bool
    """Its hits give tokens back for EAGLE, as the device's do."""
    whole_chunks: bool
    """It loads nothing behind a hit that ends inside a chunk of attention."""
    reports: bool
    """It tells routers what its memory has."""
    describes: bool
    """Its events for routers have the tokens of every block of full attention."""
    waits: int
    """So many steps a request may wait for it because it is away."""

    @property
    def away(self) -> bool:
        """Whether nobody answers there now."""

    lacks: Sequence[str]
    """What a trace may need and its keys do not know."""
    null: Sequence[int]
    """Pages of its memory that nobody owns."""
    kept: int
    """How many pages there are behind those of its memory that keep what was put there."""

    @property
    def forward(self) -> Forward | None:
        """The forward pass that its worker is shown, None if it looks at none."""

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""

    def hold_back(self, *, held: bool) -> None:
        """Let it begin no store of its own accord while it is held back."""

    def tell(self, meta: Any) -> None:
        """Take note of what its worker is told with a step."""

    def close(self) -> Any:
        """Let go of what it keeps beside this process's objects."""


class VllmSide:
    """What holds of each connector that vLLM ships: its keys know what vLLM's know, and the
    harness says which loads fail.
    """

    tells_failures = once = drops = describes = reports = whole_chunks = False
    waits = kept = 0
    away = False
    lacks: Sequence[str] = ()

    def close(self) -> None:
        """Nothing is held outside this process."""


class Connector:
    """The connector that a scheduler has. `sides` are its children, or itself; each memory has so
    many `pages`.

    `chunk`: it serves prefixes of whole chunks of so many tokens. It loads `least` tokens at least.
    """

    patient = False
    """Who is aborted while something is loaded for it is aborted when that is there; a reset that
    left keys was refused."""
    stores: Stores | None = None
    """What is put into its memory; None: not known."""
    stored: Sequence[str] = ("full",)
    """The kinds of groups of which all that has a key is put there."""

    def __init__(
        self,
        runner: ModelRunner,
        sides: Sequence[Side],
        names: KeyNames,
        pages: int,
        chunk: int,
        least: int,
    ) -> None:
        self._runner = runner
        self._sides = sides
        self.names = names
        self._each = pages
        self.chunk = chunk
        self.least = least
        self.fenced = any(side.fenced for side in sides)
        self.unordered = all(side.unordered for side in sides)
        self.tells_failures = all(side.tells_failures for side in sides)
        self.once = any(side.once for side in sides)
        self.drops = all(side.drops for side in sides)
        self.whole_chunks = any(side.whole_chunks for side in sides)
        self.describes = all(side.describes for side in sides)
        self.reports = all(side.reports for side in sides)
        self.null = [first + page for first, side in self._placed() for page in side.null]

    @property
    def pages(self) -> int:
        """How many pages all memories have, with those that keep what was put there."""
        return sum(self._each + side.kept for side in self._sides)

    @property
    def waits(self) -> int:
        """So many steps a request may wait because a memory is away, or is asked for what is
        behind it.
        """
        return max(side.waits for side in self._sides)

    @property
    def lacks(self) -> set[str]:
        """What a trace may need and the memories' keys do not know."""
        return {name for side in self._sides for name in side.lacks}

    def _placed(self) -> list[tuple[int, Side]]:
        """Return the sides with their first pages."""
        return [(index * self._each, side) for index, side in enumerate(self._sides)]

    def attach(self, pool: Any, copies: Copies) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""
        self._copies = copies
        for first, side in self._placed():
            side.attach(pool, CopiesOf(copies, first))
            self._runner.forward = self._runner.forward or side.forward

    @property
    def away(self) -> bool:
        """Whether nobody answers at one of the sides now."""
        return any(side.away for side in self._sides)

    def hold_back(self, *, held: bool) -> None:
        """Let no memory begin stores of its own accord while it is held back: where each store
        makes room, they never end.
        """
        for side in self._sides:
            side.hold_back(held=held)

    def close(self) -> None:
        """Let go of every memory."""
        for side in self._sides:
            side.close()

    def work(self, output: Any, failing: Sequence[int]) -> Any:
        """Have the worker do a step of the scheduler's; return what it tells the scheduler
        (`KVConnectorOutput`).
        """
        meta = output.kv_connector_metadata
        for side, metadata in zip(self._sides, getattr(meta, "metadata", (meta,)), strict=True):
            side.tell(metadata)
        return self._runner.work(output, lambda: self._copies.advance(failing))

    def books(self) -> Books:
        """Return what all memories hold."""
        whole = Books({}, {}, 0)
        for first, side in self._placed():
            books = side.books()
            whole = Books(
                {
                    **whole.keys,
                    **{
                        (group, first + page, key): claim
                        for (group, page, key), claim in books.keys.items()
                    },
                },
                {
                    **whole.references,
                    **{first + page: count for page, count in books.references.items()},
                },
                whole.free + books.free,
            )
        return whole
