"""The device of the engine `toy`: carries steps out on tensors, in the order that the harness's worker plays.

What a step does is in its `step_begin`; what became free is told by the engine's events and is overwritten with poison. Not at
once, though: steps that were scheduled before still run over the page, and the device carries everything out in the order in
which it was scheduled. So the poison comes just before the first step that is scheduled afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from harness.history import Aborted, Event, Finished, Header, Move, Preempted, Run, StepBegin, Version
from harness.toy.holdings import Holdings, Slot
from harness.toy.model import Model
from reference_impl.toy_model.paged import Chunk, Pools, Shelf, move, step

UNKNOWN = 0
"""The model's token that stands for one that the request ended without."""


class Tensors:
    """A model and the pools of every tier. `every_position`: logits of whole chunks are kept, not of what is sampled from."""

    def __init__(self, header: Header, model: Model, *, every_position: bool = False, pad_rows: int = 1) -> None:
        self.model, self.every_position, self.pad_rows = model, every_position, pad_rows
        self.weights = model.weights
        self.version = 0
        local = next(pool for pool in header.pools if pool.tier == "local")
        self.pools = model.pools(local.slots, null=local.null)
        aside = {pool.id: Shelf(pool.slots) for pool in header.pools if pool is not local}
        self._places: dict[int, Pools | Shelf] = {local.id: self.pools, **aside}
        self._holdings = Holdings(header)
        self._freed: dict[int, list[Slot]] = {}
        self._open: dict[int, set[str]] = {}
        self._orphans: set[tuple[int, str]] = set()

    def follow(self, events: Sequence[Event]) -> None:
        """Take in what the engine says, before the next step is carried out."""
        for event in events:
            self._holdings.follow(event)
            if isinstance(event, StepBegin):
                self._open[event.step] = {run.r for run in event.runs}
                self._freed[event.step], self._holdings.freed = self._holdings.freed, []
            elif isinstance(event, Preempted | Aborted | Finished):
                self._orphans |= {(step, event.r) for step, running in self._open.items() if event.r in running}
            elif isinstance(event, Version):
                self.version, self.weights = event.weights, self.model.version(event.weights)

    def orphaned(self, step: int, r: str) -> bool:
        """Whether r ended, or lost its pages, while the step was in flight: nobody waits for what it computes."""
        return (step, r) in self._orphans

    def execute(self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Carry a step out; return per request the logits [positions, vocab] of its last positions.

        `tokens[r]` are the model's tokens of r from 0 on. Without `every_position`, logits are of the last known token and of
        the drafts behind it.
        """
        freed = self._freed.pop(begin.step, [])
        for pool, pages in self._places.items():
            pages.poison(dict.fromkeys(slot for place, slot in freed if place == pool))
        for _, slots in begin.zeros:
            self.pools.zero(slots)
        self._move(begin.copies)
        runs = [run for run in begin.runs if run.r not in withdrawn]
        chunks = [self._chunk(run, tokens[run.r]) for run in runs]
        logits: dict[str, Tensor] = {}
        if chunks:
            rows = step(self.pools, chunks, self.weights, pad_rows=self.pad_rows)
            parts = rows.split([chunk.outputs for chunk in chunks])
            logits = {run.r: part for run, part in zip(runs, parts, strict=True)}
        self._move(begin.stores)
        self._open.pop(begin.step, None)
        return logits

    def settle(self, step: int) -> None:
        """Forget who was orphaned in a step that is over."""
        self._orphans = {(number, r) for number, r in self._orphans if number != step}

    def _move(self, moves: Sequence[Move]) -> None:
        move((self._places[m.src_pool], m.src, self._places[m.dst_pool], m.dst) for m in moves)

    def _chunk(self, run: Run, tokens: Sequence[int]) -> Chunk:
        known = list(tokens[run.start : run.stop])
        known += [UNKNOWN] * (run.stop - run.start - len(known))
        outputs = len(known) if self.every_position else len(run.drafts) + 1
        return Chunk(known, run.start, run.tables, len(run.drafts), run.scratch, outputs)
