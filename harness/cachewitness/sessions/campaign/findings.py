"""Which findings are one: by a class, known when a finding is met, and by a signature, known when
its trace is small.

The class is the anomaly, the checker, the level and the kinds of the cache groups. The signature
is that of the minimal trace, and its operations without lengths and texts: requests, salts and
adapters are numbered as they appear, and an operation that is repeated stands there once. Engine,
sizes of the layout, pool and options are not in it, so that one fault in two engines, or on twenty
layouts, is one finding. Two faults that show in the same operations have one signature, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import (
    Extend,
    Op,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
)


def kinds_of(header: TraceHeader) -> list[str]:
    """Return the kinds of cache groups that a trace has."""
    return sorted({group.kind for group in header.layout.groups})


def class_of(finding: Finding, level: str, kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the class of a finding: its anomaly, its checker, the level and the kinds of cache
    groups.
    """
    return (finding.anomaly, finding.checker, level, *kinds)


def signature(finding: Finding, small: Trace) -> str:
    """Return the signature of a finding whose minimal trace is known."""
    header = small.header
    content = [finding.anomaly, finding.checker, header.level, kinds_of(header), normalised(small)]
    return sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:12]


def normalised(trace: Trace) -> list[list[Any]]:
    """Return what the operations of a trace are, without lengths and texts; the same operation
    several times in a row once.
    """
    numbers = _Numbers()
    operations = list[list[Any]]()
    for op in trace.ops:
        one = numbers.operation(op)
        if one != (operations[-1] if operations else None):
            operations.append(one)
    return operations


class _Numbers:
    """Numbers names as they appear, each kind of name by itself; no name is a name, too."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}

    def operation(self, op: Op) -> list[Any]:
        """Return what an operation is."""
        what: str = op.__struct_config__.tag  # type: ignore[assignment]  # every operation has one, a text
        if isinstance(op, Submit):
            identity = [
                self._of(field, getattr(op, field)) for field in ("salt", "adapter", "kernels")
            ]
            return [
                what,
                self._of("r", op.r),
                *identity,
                bool(op.media),
                bool(op.grammar),
                op.session,
                *(["prompt_logprobs"] if op.prompt_logprobs else []),
            ]
        if isinstance(op, Step):
            ran = [self._of("r", r) for r, _ in op.run]
            return [
                what,
                ran,
                *([self._of("r", r) for r in named] for named in (op.withdraw, op.cancel)),
                bool(op.fail),
            ]
        if isinstance(op, Reset):
            return [what, op.running, op.tier]
        if isinstance(op, UpdateWeights):
            return [what, self._of("adapter", op.adapter)]
        return [what, self._of("r", op.r), isinstance(op, Extend)]

    def _of(self, kind: str, name: str) -> int:
        known = self._known.setdefault(kind, {})
        return known.setdefault(name, len(known))
