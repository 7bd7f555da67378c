"""Makes a failing trace small: fewer operations first, then shorter prompts, smaller steps, a smaller pool.

Every candidate is run on a fresh engine; it is kept if the same anomaly is still found. The order of attempts is fixed, so
the same failure shrinks to the same trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from harness.trace import Op, Step, Submit, Trace, length_of

Fails = Callable[[Trace], int]
"""Runs a trace and returns the index of the operation at which it fails as before, −1 if it does not."""


def shrink(trace: Trace, fails: Fails, seconds: float = 5.0) -> Trace:
    """Return a smaller trace that fails in the same way; the trace itself if it does not fail again.

    Stops after so many seconds with the smallest one so far.
    """
    at = fails(trace)
    if at < 0:
        return trace
    search = _Search(trace.with_ops(trace.ops[: at + 1]), fails, time.monotonic() + seconds)
    search.fixpoint()
    return search.best


class _Search:
    def __init__(self, trace: Trace, fails: Fails, deadline: float) -> None:
        self.best, self._fails, self._deadline = trace, fails, deadline

    def fixpoint(self) -> None:
        """Repeat all passes until none of them helps or time is up."""
        for r in [op.r for op in self.best.ops if isinstance(op, Submit)]:
            if self._left():
                self._try(list(_without(self.best.ops, r)))
        while self._left():
            before = _size(self.best)
            self._drop_operations()
            self._drop_requests()
            self._shrink_pool()
            self._merge_steps()
            self._simplify()
            if _size(self.best) == before:
                return

    def _left(self) -> bool:
        return time.monotonic() < self._deadline

    def _try(self, ops: list[Op], slots: int = 0) -> bool:
        header = msgspec.structs.replace(self.best.header, slots=slots) if slots else self.best.header
        candidate = Trace(header, ops)
        at = self._fails(candidate)
        if at < 0:
            return False
        self.best = candidate.with_ops(ops[: at + 1])
        return True

    def _shrink_pool(self) -> None:
        improved = True
        while improved and self._left():
            improved = any(self._try(self.best.ops, slots) for slots in _fewer(self.best.header.slots) if slots > 2)

    def _merge_steps(self) -> None:
        """Let one step do what several in a row ask of the same requests: all of a row at once, or pair by pair."""
        index = 0
        while index < len(self.best.ops) and self._left():
            ops = self.best.ops
            row = _row(ops, index)
            rest = ops[index + row :]
            merged = row > 1 and self._try([*ops[:index], _merged(ops[index : index + row]), *rest])
            if not merged and row > 2:
                merged = self._try([*ops[:index], _merged(ops[index : index + 2]), *ops[index + 2 :]])
            index += not merged

    def _drop_requests(self) -> None:
        """Leave requests out; those that only fill the pool, together with the room that they took."""
        for submit in [op for op in self.best.ops if isinstance(op, Submit)]:
            if self._left():
                ops, slots = list(_without(self.best.ops, submit.r)), self.best.header.slots
                room = length_of(submit.prompt) // min(group.block_size for group in self.best.header.layout.groups) + 1
                any(self._try(ops, slots - less) for less in range(min(room + 1, slots - 2)) if self._left())

    def _drop_operations(self) -> None:
        size = max(1, len(self.best.ops) // 2)
        while size and self._left():
            index = 0
            while index < len(self.best.ops) and self._left():
                ops = self.best.ops
                if not self._try(ops[:index] + ops[index + size :]):
                    index += size
            size //= 2

    def _simplify(self) -> None:
        for index in range(len(self.best.ops) - 1, -1, -1):
            improved = True
            while improved and self._left() and index < len(self.best.ops):
                ops = self.best.ops
                improved = any(self._try([*ops[:index], op, *ops[index + 1 :]]) for op in _simpler(ops[index]))


def _without(ops: list[Op], r: str) -> Iterator[Op]:
    for op in ops:
        if isinstance(op, Step):
            run = [entry for entry in op.run if entry[0] != r]
            if run or not op.run:
                yield msgspec.structs.replace(op, run=run, withdraw=[name for name in op.withdraw if name != r])
        elif getattr(op, "r", "") != r:
            yield op


def _row(ops: list[Op], index: int) -> int:
    """Return how many steps in a row, from an index on, ask for the same requests."""
    first = ops[index]
    if not isinstance(first, Step):
        return 0
    asked = [r for r, _ in first.run]
    last = index
    while last < len(ops):
        op = ops[last]
        if not isinstance(op, Step) or [r for r, _ in op.run] != asked or (last > index and op.withdraw):
            break
        last += 1
    return last - index


def _merged(steps: list[Op]) -> Step:
    run: dict[str, int] = {}
    budget = 0
    for step in steps:
        assert isinstance(step, Step)
        budget = max(budget, step.budget)
        for r, tokens in step.run:
            run[r] = run.get(r, 0) + tokens
    first = steps[0]
    assert isinstance(first, Step)
    return Step(run=list(run.items()), budget=budget, withdraw=first.withdraw)


def _simpler(op: Op) -> Iterator[Op]:
    if isinstance(op, Step):
        for index, (r, tokens) in enumerate(op.run):
            if len(op.run) > 1:
                yield msgspec.structs.replace(op, run=op.run[:index] + op.run[index + 1 :])
            for fewer in _fewer(tokens):
                yield msgspec.structs.replace(op, run=[*op.run[:index], (r, fewer), *op.run[index + 1 :]])
        if op.withdraw:
            yield msgspec.structs.replace(op, withdraw=op.withdraw[1:])
    elif isinstance(op, Submit):
        for field, nothing in (("salt", ""), ("adapter", ""), ("media", []), ("stream", "")):
            if getattr(op, field):
                yield msgspec.structs.replace(op, **{field: nothing})
        terms = op.prompt.split()
        for index, term in enumerate(terms):
            if len(terms) > 1:
                yield msgspec.structs.replace(op, prompt=" ".join(terms[:index] + terms[index + 1 :]))
            text, _, count = term.rpartition(":")
            for fewer in _fewer(int(count)):
                yield msgspec.structs.replace(op, prompt=" ".join([*terms[:index], f"{text}:{fewer}", *terms[index + 1 :]]))


def _fewer(count: int) -> Iterator[int]:
    """Yield smaller positive counts, the boldest first."""
    tried = set()
    for fewer in (1, count // 2, count * 3 // 4, count - 1):
        if 0 < fewer < count and fewer not in tried:
            tried.add(fewer)
            yield fewer


def _size(trace: Trace) -> tuple[int, int, int]:
    """Return the operations, the tokens that they ask for and the pool: what a smaller trace has less of."""
    weight = 0
    for op in trace.ops:
        if isinstance(op, Step):
            weight += sum(tokens + 1 for _, tokens in op.run)
        elif isinstance(op, Submit):
            weight += length_of(op.prompt) + len(op.prompt.split())
    return len(trace.ops), weight, trace.header.slots
