"""How long an engine may take for an operation: longer where one of its prompts is long.

An engine that computes reads a prompt of some ten thousand tokens in one operation, which on a CPU
takes minutes and is no hang.
"""

from __future__ import annotations

from cachewitness.core.trace_format import Extend, Op, Submit, length_of

LONG = 4096
"""The longest prompt, in tokens, for which the deadline is enough; twice as many have twice as
long."""


class Patience:
    """The deadline of each operation of one trace, in seconds."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._longest = LONG
        self._lengths: dict[str, int] = {}

    def seconds(self, op: Op) -> float:
        """Return how long this operation may take, behind all that came before it."""
        if isinstance(op, (Submit, Extend)):
            before = self._lengths.get(op.r, 0) if isinstance(op, Extend) else 0
            self._lengths[op.r] = before + length_of(op.prompt)
            self._longest = max(self._longest, self._lengths[op.r])
        return self._deadline * self._longest / LONG
