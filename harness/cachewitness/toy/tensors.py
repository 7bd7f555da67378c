"""The device of the engine `toy`: carries steps out on tensors, in the order that the harness's
worker plays.

What a step does is in its `step_begin`; what became free is told by the engine's events and is
overwritten with poison. Not at once, though: steps that were scheduled before still run over the
page, and the device carries everything out in the order in which it was scheduled. So the poison
comes just before the first step that is scheduled afterwards.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from cachewitness.core.events import (
    Aborted,
    Accept,
    Event,
    Finished,
    Grow,
    Header,
    Move,
    Preempted,
    Run,
    StepBegin,
    Version,
)
from cachewitness.toy.culprit import Place
from cachewitness.toy.device import PlacedTables
from cachewitness.toy.holdings import Holdings, Page
from cachewitness.toy.model import Model
from cachewitness_reference.toy_model.chunk import NULL
from cachewitness_reference.toy_model.kernels import named
from cachewitness_reference.toy_model.paged import Chunk, Pools, Shelf, move, step
from cachewitness_reference.toy_model.watch import Watch

UNKNOWN = 0
"""The model's token that stands for one that the request ended without."""


class Tensors:
    """A model and the pools of every tier. `every_position`: logits of whole chunks are kept, not
    of what is sampled from.

    `kernels` are torch or triton. All pools of the device lie in one space of pages, one behind
    another; page 0 of the space stands for whatever is not there.
    """

    def __init__(
        self,
        header: Header,
        model: Model,
        *,
        every_position: bool = False,
        pad_rows: int = 1,
        kernels: str = "torch",
    ) -> None:
        self.model = model
        self.every_position = every_position
        self.pad_rows = pad_rows
        self.weights = model.weights
        self.kernels = named(kernels)
        self.places: dict[str, Place] = {}
        """With `every_position`: where the last step kept what it computed on its way, by request.
        """
        self.version = 0
        self._space, pages, null = laid_out(header)
        self.pools = model.pools(pages, null=null)
        self._shelves = {
            pool.id: Shelf(pool.pages) for pool in header.pools if pool.id not in self._space
        }
        self._of_group = [self._space.get(group.pool, []) for group in header.groups]
        self._tables = PlacedTables(self._of_group)
        self._holdings = Holdings(header)
        self._freed: dict[int, list[Page]] = {}
        self._open: dict[int, set[str]] = {}
        self._under_way: dict[int, Move] = {}
        """Copies that go on beside steps, by number."""
        self._orphans: set[tuple[int, str]] = set()

    def follow(self, events: Sequence[Event]) -> None:
        """Take in what the engine says, before the next step is carried out."""
        for event in events:
            if isinstance(event, Accept):
                continue  # most events are, and say nothing of pages
            self._holdings.follow(event)
            if isinstance(event, StepBegin):
                self._open[event.step] = {run.r for run in event.runs}
                self._freed[event.step], self._holdings.freed = self._holdings.freed, []
            elif isinstance(event, Grow):
                self._space[event.pool] += range(self.pools.pages, self.pools.pages + event.pages)
                self.pools.grow(event.pages)
            elif isinstance(event, Preempted | Aborted | Finished):
                self._orphans |= {
                    (step, event.r) for step, running in self._open.items() if event.r in running
                }
                self._tables.forget(event.r)
            elif isinstance(event, Version) and not event.adapter:
                self.version = event.weights
                self.weights = self.model.version(event.weights)

    def orphaned(self, step: int, r: str) -> bool:
        """Whether r ended, or lost its pages, while the step was in flight: nobody waits for
        what it computes.
        """
        return (step, r) in self._orphans

    def execute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, Sequence[int]]
    ) -> dict[str, Tensor]:
        """Carry a step out; return per request the logits [positions, vocab] of its last positions.

        `tokens[r]` are the model's tokens of r from 0 on. Without `every_position`, logits are of
        the last known token and of the drafts behind it.
        """
        # In the order of the ledger's worker (`core/worker.py`): the two detectors are compared
        # step by step.
        self._poison(self._freed.pop(begin.step, []))
        for pool, pages in begin.zeros:
            self.pools.zero([self._place((pool, page))[1] for page in pages])
        self._move(begin.copies)
        self._begin([entry for entry in begin.begun if entry[1].src_pool not in self._space])
        runs = [run for run in begin.runs if run.r not in withdrawn]
        chunks = [self._chunk(run, tokens[run.r]) for run in runs]
        logits: dict[str, Tensor] = {}
        if chunks:
            watch = Watch() if self.every_position else None
            rows = step(
                self.pools,
                chunks,
                self.weights,
                pad_rows=self.pad_rows,
                kernels=self.kernels,
                watch=watch,
            )
            self.places = (
                {run.r: Place(watch, index) for index, run in enumerate(runs)}
                if watch is not None
                else {}
            )
            parts = rows.split([chunk.outputs for chunk in chunks])
            logits = {run.r: part for run, part in zip(runs, parts, strict=True)}
        self._move(begin.stores)
        self._begin([entry for entry in begin.begun if entry[1].src_pool in self._space])
        self._move([self._under_way.pop(number) for number in begin.ended])
        for number in begin.failed:
            self._under_way.pop(number)
        self._open.pop(begin.step, None)
        return logits

    def settle(self, step: int) -> None:
        """Forget who was orphaned in a step that is over."""
        self._orphans = {(number, r) for number, r in self._orphans if number != step}

    def _move(self, moves: Sequence[Move]) -> None:
        move((*self._place((m.src_pool, m.src)), *self._place((m.dst_pool, m.dst))) for m in moves)

    def _begin(self, begun: Sequence[tuple[int, Move]]) -> None:
        """Begin copies that go on beside steps: what they fill holds nothing until they end
        well.
        """
        self._under_way.update(begun)
        self._poison([(move.dst_pool, move.dst) for _, move in begun])

    def _poison(self, freed: Collection[Page]) -> None:
        gone = [self._place(page) for page in dict.fromkeys(freed)]
        places: list[Pools | Shelf] = [self.pools, *self._shelves.values()]
        for pages in places:
            pages.poison([page for place, page in gone if place is pages])

    def _place(self, page: Page) -> tuple[Pools | Shelf, int]:
        """Return where a page lies: in the device's space or on a shelf."""
        pool, number = page
        space = self._space.get(pool)
        return (self._shelves[pool], number) if space is None else (self.pools, space[number])

    def tables(self, run: Run) -> list[array[int]]:
        """Return the tables of a run in the device's space."""
        return self._tables.of(run.r, run.tables)

    def _scratch(self, run: Run) -> list[list[int]]:
        pages = zip(run.scratch, self._of_group, strict=True)
        return [[space[page] if page >= 0 else NULL for page in row] for row, space in pages]

    def _chunk(self, run: Run, tokens: Sequence[int]) -> Chunk:
        start = run.start
        drafts = len(run.drafts)
        count = run.stop - start
        known = tokens[start : run.stop]
        if len(known) < count:
            known = [*known, *[UNKNOWN] * (count - len(known))]
        outputs = count if self.every_position else drafts + 1
        scratch = self._scratch(run) if run.scratch else ()
        return Chunk(known, start, self.tables(run), drafts, scratch, outputs)


def laid_out(header: Header) -> tuple[dict[int, list[int]], int, list[int]]:
    """Return where in one space each page of the device's pools lies, how many pages the space has,
    and which hold nothing.

    A single pool whose page 0 is a null page is the space; otherwise page 0 of the space is
    nobody's.
    """
    local = [pool for pool in header.pools if pool.tier == "local"]
    if len(local) == 1 and NULL in local[0].null:
        return {local[0].id: [*range(local[0].pages)]}, local[0].pages, list(local[0].null)
    space = {}
    pages = 1
    null = [NULL]
    for pool in local:
        space[pool.id] = [*range(pages, pages + pool.pages)]
        null += [space[pool.id][page] for page in pool.null]
        pages += pool.pages
    return space, pages, null
