"""How much of prompts a run restored, for each suite and configuration, and what a report says of
the comparison with an earlier one (`baseline` makes it).

A cache that restores less and less gives right answers all the same. What it restored before, on
traces that are equal to the byte, is the one measure that needs no rule of the engine's.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from cachewitness.core import trace_format as traces
from cachewitness.core.result import Result


class ReuseRow(msgspec.Struct, kw_only=True):
    """What the traces of one configuration restored: `hits` of `lookups`, and their tokens.

    Two runs had the same `traces`, in whatever order, exactly if the digests are equal.
    """

    configuration: str
    traces: int = 0
    lookups: int = 0
    hits: int = 0
    tokens: int = 0
    digest: str = ""

    def add(self, result: Result) -> None:
        """Take in one more trace."""
        assert result.trace is not None, "a suite runs traces"
        self.traces += 1
        self.lookups += result.activity.lookups
        self.hits += result.activity.hits
        self.tokens += result.activity.hit_tokens
        # A sum, since what failed last time runs before everything else.
        own = int.from_bytes(sha256(traces.dump(result.trace)).digest()[:8])
        self.digest = f"{(int(self.digest or '0', 16) + own) % 2**64:016x}"


class ReuseComparison(msgspec.Struct, kw_only=True):
    """What came of comparing with the report `file`: `compared` configurations of suites ran the
    same traces as then, `others` did not; `losses` says which restored less than a share `loss`
    allows.
    """

    file: str
    loss: float
    compared: int = 0
    others: int = 0
    tokens: int = 0
    tokens_before: int = 0
    losses: list[str] = []

    @property
    def line(self) -> str:
        """The comparison in one line."""
        other = f"; {self.others:,} had other traces, or none" if self.others else ""
        return (
            f"baseline {self.file}: {self.tokens:,} tokens restored, {self.tokens_before:,} before,"
            f" on the same traces of {self.compared:,} configuration{'s' * (self.compared != 1)} of"
            f" suites{other}"
        )
