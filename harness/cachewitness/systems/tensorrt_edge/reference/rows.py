"""A runtime of TensorRT-Edge-LLM's shape as the harness drives it: what its steps mean in slots.

A slot is a batch row, in every group's pool the same. A compaction is one copy before the runs, a
simultaneous permutation; a row that it reads stays held, as `copy:N`, until the step has run.

Captured system prompts lie in pools of another tier, one place each per group, held by `capture:N`:
they are restored by copies before the runs and saved by stores after them. Upstream keeps them on
the device as well; they are a tier because they are reached by copies alone. Their keys are the
runtime's, not the manager's, so nothing is published.

The states of a request that starts from nothing need no zeros: the worker, as a kernel does, starts
from none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from cachewitness.core.events import Header, Move
from cachewitness.core.trace_format import Step as StepOp
from cachewitness.core.trace_format import Submit
from cachewitness.engines.adapter import LOCAL, SECOND, Adapter, Asked, Refused, Scheduled
from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness_reference.tensorrt_edge.config import CacheError
from cachewitness_reference.tensorrt_edge.runtime import Request, Runtime, Step
from cachewitness_reference.tensorrt_edge.system_prompts import SavedPrompt


class Rows(Adapter):
    """The adapter: a runtime over the manager's books, and what its steps mean in slots."""

    def __init__(self, header: Header, runtime: Runtime, budget: int = 0) -> None:
        self.runtime = runtime
        self.budget = budget
        self.max_model_len = runtime.cache.config.kv_config.max_sequence_length
        self.holds = self.max_model_len - 1  # a request has a row of its own, as long as that
        self._groups = header.local_groups()
        self._aside = {
            group.source_group: group for group in header.groups if group.source_group >= 0
        }
        """Per group: the one of the other tier that keeps copies of its rows."""
        self._rows = runtime.cache.config.max_batch_size
        self._places = runtime.prompts.capacity
        self._step: Step | None = None
        self._moving: dict[int, set[int]] = {group.id: set() for group in self._groups}
        self._captures: dict[int, str] = {}
        self._copies = count(1)
        self._serial = count(1)

    # --- requests ---------------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in. The part that others share is its system prompt; if it shares none,
        the whole prompt is.
        """
        media = tuple((item.at, item.length, item.hash) for item in submit.media)
        request = Request(
            submit.r, tokens, shared or len(tokens), submit.adapter, submit.salt, media
        )
        try:
            self.runtime.add(request)
        except CacheError as error:
            raise Refused(str(error)) from None

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Append what a request generated."""
        self.runtime.requests[r].tokens += tokens

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go; its row is evicted when the next step begins."""
        self.runtime.end(r)
        self.diff.settle([r])

    def preempt(self, r: str) -> None:
        """Take a running request's row."""
        self.runtime.preempt(r)
        self.diff.settle([r])

    def running(self) -> list[str]:
        """Return the requests that have a row, in the order in which they came."""
        return [r for r, request in self.runtime.requests.items() if request.slot is not None]

    def reset(self, tier: str, *, running: bool) -> Iterable[tuple[str, bool]]:
        """Forget captures, if their tier is meant; on the device itself nothing outlives its
        request.
        """
        if running:
            self.engine.preempt_all()
        answers = {}
        if tier in ("", LOCAL):
            answers[LOCAL] = True
        if tier in ("", SECOND) and self._aside:
            self._forget()
            answers[SECOND] = True
        return answers.items()

    def renew(self) -> bool:
        """Forget captures: they are of other weights."""
        self.engine.preempt_all()
        self._forget()
        return True

    def _forget(self) -> None:
        self.runtime.prompts.forget_all()
        self._release_captures()
        self.diff.settle()

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: StepOp) -> Scheduled:
        """Plan a step: compaction and restores are copies before the runs, captures are stores
        after them.
        """
        limit = min(step.budget or self.budget, self.budget or step.budget)
        self._step = planned = self.runtime.begin_step(asked, limit)
        copies = self._compaction(planned)
        self._hold_captures(planned)
        for request in planned.joined:
            self._report(
                request, next((saved for saved, r in planned.restores if r is request), None)
            )
        self.diff.settle([request.request_id for request in self.runtime.running()])
        for saved, request in planned.restores:
            copies += [
                Move(saved.place, _row(request), self._aside[group.id].pool, group.pool)
                for group in self._groups
            ]
        stores = [
            Move(_row(request), saved.place, group.pool, self._aside[group.id].pool)
            for request, saved in planned.saves
            for group in self._groups
        ]
        return Scheduled(
            chunks={r: (start, stop) for r, (start, stop) in planned.chunks.items()},
            copies=copies,
            stores=stores,
        )

    def complete(self, scheduled: Scheduled) -> None:
        """Commit the step, and let go of the rows that moved."""
        assert self._step is not None
        self.runtime.end_step(self._step)
        for group, rows in self._moving.items():
            self.diff.release(group, sorted(rows), self._copy)
            rows.clear()
        self.diff.settle()

    def _compaction(self, step: Step) -> list[Move]:
        """Return the moves of every group, and hold the rows that they read until the step has
        run.
        """
        self._copy = f"copy:{next(self._copies)}"
        copies = []
        for group in self._groups:
            moves = step.moves.states if group.kind == "recurrent" else step.moves.kv
            copies += [Move(src, dst, group.pool, group.pool) for src, dst in moves]
            self._moving[group.id].update(move.src for move in moves)
            self.diff.hold(group.id, sorted(self._moving[group.id]), self._copy)
        return copies

    def _release_captures(self) -> None:
        """Report which captures are no more."""
        for saved in self.runtime.prompts.forgotten:
            holder = self._captures.pop(saved.place)
            for group in self._groups:
                self.diff.release(self._aside[group.id].id, [saved.place], holder)
        self.runtime.prompts.forgotten.clear()

    def _hold_captures(self, step: Step) -> None:
        """Report which places are to be captures, once those that made room are gone."""
        self._release_captures()
        for _, saved in step.saves:
            holder = self._captures[saved.place] = f"capture:{next(self._serial)}"
            for group in self._groups:
                self.diff.hold(self._aside[group.id].id, [saved.place], holder)

    def _report(self, request: Request, saved: SavedPrompt | None) -> None:
        rows = [[_row(request)] if saved is not None else [] for _ in self._groups]
        places = (
            [[int(saved.place)] if saved is not None else [] for _ in self._groups]
            if self._aside
            else []
        )
        tier = "local" if saved is None else SECOND
        self.diff.hit(request.request_id, request.computed, rows + places, tier=tier)

    # --- books ------------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the row of a request, in every group."""
        request = self.runtime.requests.get(r)
        return (
            [[_row(request)] for _ in self._groups]
            if request is not None and request.slot is not None
            else []
        )

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return nothing: the manager has no keys."""
        return {}

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool; a row that is still to be read by a compaction is not
        free.
        """
        taken = {_row(request) for request in self.runtime.running()}
        books = {}
        for group in self._groups:
            held = len(taken | self._moving[group.id])
            books[group.pool] = Count(self._rows - held, held, 0)
            if self._aside:
                captured = len(self.runtime.prompts.saved)
                books[self._aside[group.id].pool] = Count(self._places - captured, captured, 0)
        return books

    def references(self, pool: int, page: int) -> int | None:
        """Return nothing: rows are not counted."""
        return None


def _row(request: Request) -> int:
    assert request.slot is not None
    return int(request.slot)
