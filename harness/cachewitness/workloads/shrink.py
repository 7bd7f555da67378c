"""Makes a failing trace small: fewer operations first, then shorter prompts, smaller steps, a
smaller pool, fewer groups.

An engine that only answers schedules by itself, so what several requests at once find may not come
again. There the same requests are first asked one after the other, which goes the same way every
time.

Every candidate is run on a fresh engine; it is kept if the same anomaly is still found. The order
of attempts is fixed and their number is bounded, not their time, so the same failure shrinks to the
same trace on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Op, Submit, Trace, TraceHeader, length_of
from cachewitness.workloads.avoided import without_company
from cachewitness.workloads.shrink_candidates import (
    fewer,
    known,
    merged,
    plainer,
    prompted,
    row,
    shared_texts,
    simpler,
    size,
    unit_of,
    without,
)

Fails = Callable[[Trace], int]
"""Runs a trace and returns the index of the operation at which it fails as before, −1 if it does
not."""

ATTEMPTS = 5_000
"""Candidates that are run at most. A trace of the fuzzer is as small as it gets after some hundred.
"""


SHORT = 12
"""Operations of a trace that a person reads at a glance; of a longer one a report says why it is no
shorter."""


TRIES = 3
"""An engine that only answers gets so many chances to fail as before."""
AGAIN = "it did not fail again, so nothing was left out"


class Shrunk(NamedTuple):
    """The smallest trace that was found, and why it is not `SHORT`, or may not be the smallest;
    empty if it is both.
    """

    trace: Trace
    why_long: str


def shrink(trace: Trace, fails: Fails, attempts: int = ATTEMPTS) -> Trace:
    """Return a smaller trace that fails in the same way; the trace itself if it does not fail
    again.

    Stops after so many candidates with the smallest one so far; one more takes out what no longer
    does anything.
    """
    return shrink_and_tell(trace, fails, attempts).trace


def shrink_and_tell(trace: Trace, fails: Fails, attempts: int = ATTEMPTS) -> Shrunk:
    """Shrink a trace as `shrink` does, and say why it is long, or that attempts ran out."""
    starts = [trace]
    if trace.header.level == "answers":
        starts = [without_company(trace), *starts * TRIES]
    begun = next(((start, at) for start in starts if (at := fails(start)) >= 0), None)
    if begun is None:
        return Shrunk(trace, AGAIN)
    start, at = begun
    search = _Search(start.with_ops(start.ops[: at + 1]), fails, attempts)
    complete = search.fixpoint()
    search.leave_strangers_out()
    why = (
        "without any one of them it no longer fails"
        if complete
        else f"stopped after {attempts:,} attempts"
    )
    return Shrunk(search.best, "" if complete and len(search.best.ops) <= SHORT else why)


class _Search:
    def __init__(self, trace: Trace, fails: Fails, attempts: int) -> None:
        self.best = trace
        self._fails = fails
        self._attempts = attempts

    def fixpoint(self) -> bool:
        """Repeat all passes until none of them helps or no attempt is left; say whether attempts
        were left.
        """
        for r in [op.r for op in self.best.ops if isinstance(op, Submit)]:
            self._try(list(without(self.best.ops, r)))
        while self._left():
            before = size(self.best.header, self.best.ops)
            self._drop_operations()
            self._drop_requests()
            self._shrink_pool()
            self._merge_steps()
            self._prompt_what_is_generated()
            self._shorten_texts()
            self._simplify()
            self._plainer()
            if size(self.best.header, self.best.ops) == before:
                return self._left()
        return False

    def leave_strangers_out(self) -> None:
        """Ask nothing of requests that are no longer submitted, as is left if attempts ran out:
        nothing reads such a trace.
        """
        ops = list(known(self.best.ops))
        self._attempts = max(self._attempts, 1)
        if ops != self.best.ops:
            self._try(ops)

    def _left(self) -> bool:
        return self._attempts > 0

    def _try(self, ops: list[Op], pages: int = 0, header: TraceHeader | None = None) -> bool:
        """Keep a candidate if it fails; a configuration that the engine refuses does not."""
        if not self._left():
            return False
        self._attempts -= 1
        header = header or self.best.header
        candidate = Trace(msgspec.structs.replace(header, pages=pages) if pages else header, ops)
        try:
            at = self._fails(candidate)
        except UsageError:
            return False
        if at < 0:
            return False
        self.best = candidate.with_ops(ops[: at + 1])
        return True

    def _shrink_pool(self) -> None:
        improved = True
        while improved:
            improved = any(
                self._try(self.best.ops, pages)
                for pages in fewer(self.best.header.pages)
                if pages > 2
            )

    def _merge_steps(self) -> None:
        """Let one step do what several in a row ask of the same requests: all of a row at once,
        or pair by pair.
        """
        index = 0
        while index < len(self.best.ops) and self._left():
            ops = self.best.ops
            count = row(ops, index)
            rest = ops[index + count :]
            done = count > 1 and self._try(
                [*ops[:index], merged(ops[index : index + count]), *rest]
            )
            if not done and count > 2:
                done = self._try([*ops[:index], merged(ops[index : index + 2]), *ops[index + 2 :]])
            index += not done

    def _drop_requests(self) -> None:
        """Leave requests out; those that only fill the pool, together with the room that they
        took.
        """
        for submit in [op for op in self.best.ops if isinstance(op, Submit)]:
            ops = list(without(self.best.ops, submit.r))
            pages = self.best.header.pages
            room = (
                length_of(submit.prompt)
                // min(group.block_size for group in self.best.header.layout.groups)
                + 1
            )
            any(self._try(ops, pages - less) for less in range(min(room + 1, pages - 2)))

    def _drop_operations(self) -> None:
        count = max(1, len(self.best.ops) // 2)
        while count and self._left():
            index = 0
            while index < len(self.best.ops) and self._left():
                ops = self.best.ops
                if not self._try(ops[:index] + ops[index + count :]):
                    index += count
            count //= 2

    def _prompt_what_is_generated(self) -> None:
        """Give requests what they generate as a part of their prompts, where that takes fewer
        operations.
        """
        improved = True
        while improved:
            candidates = (ops for ops in prompted(self.best.ops) if len(ops) < len(self.best.ops))
            improved = any(self._try(ops) for ops in candidates)

    def _shorten_texts(self) -> None:
        improved = True
        while improved:
            candidates = shared_texts(self.best.ops, unit_of(self.best.header))
            improved = any(self._try(ops) for ops in candidates)

    def _simplify(self) -> None:
        for index in range(len(self.best.ops) - 1, -1, -1):
            improved = True
            while improved and index < len(self.best.ops):
                ops = self.best.ops
                unit = unit_of(self.best.header)
                improved = any(
                    self._try([*ops[:index], op, *ops[index + 1 :]])
                    for op in simpler(ops[index], unit)
                )

    def _plainer(self) -> None:
        improved = True
        while improved:
            improved = any(
                self._try(self.best.ops, header=header) for header in plainer(self.best.header)
            )
