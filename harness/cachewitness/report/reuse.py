"""How much of prompts a run restored, for each suite and configuration, and the comparison with
what an earlier report says of the same traces.

A cache that restores less and less gives right answers all the same. What it restored before, on
traces that are equal to the byte, is the one measure that needs no rule of the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from cachewitness._util import reading
from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.result import Result


class ReuseRow(msgspec.Struct, kw_only=True):
    """What the traces of one configuration restored: `hits` of `lookups`, and their tokens.

    Two runs had the same `traces` exactly if the digests, of their bytes in their order, are equal.
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
        content = self.digest.encode() + traces.dump(result.trace)
        self.digest = sha256(content).hexdigest()[:16]


class SuiteReuse(msgspec.Struct):
    """What an earlier report says of one suite."""

    name: str
    reuse: list[ReuseRow] = []


class EarlierReport(msgspec.Struct):
    """The part of a report that is compared."""

    suites: list[SuiteReuse]


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


@dataclass(frozen=True)
class Baseline:
    """An earlier report, and what share of its restored tokens may be missing."""

    file: Path
    loss: float
    rows: dict[tuple[str, str], ReuseRow]

    def compare(self, suite_rows: Sequence[tuple[str, list[ReuseRow]]]) -> ReuseComparison:
        """Compare a run's rows, by suite, with those of the earlier report."""
        made = ReuseComparison(file=str(self.file), loss=self.loss)
        left = dict(self.rows)
        for suite, rows in suite_rows:
            for row in rows:
                before = left.pop((suite, row.configuration), None)
                if before is None or before.digest != row.digest:
                    made.others += 1
                    continue
                made.compared += 1
                made.tokens += row.tokens
                made.tokens_before += before.tokens
                made.losses += _loss(suite, row, before, self.loss)
        made.others += len(left)
        return made


def load(path: Path, loss: float) -> Baseline:
    """Read a report of `run --json` or `--report`; `loss` is a share, 0 to 1.

    Raises UsageError if the file is no such report, or was written before reports had this.
    """
    try:
        earlier = msgspec.json.decode(reading.whole(path), type=EarlierReport)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--baseline: {path}: no report of `cachewitness run` ({error})") from None
    rows = {(suite.name, row.configuration): row for suite, row in _rows(earlier)}
    if not rows:
        raise UsageError(
            f"--baseline: {path} does not say what was restored; write it again with --report or"
            " --json"
        )
    return Baseline(path, loss, rows)


def _rows(earlier: EarlierReport) -> Iterator[tuple[SuiteReuse, ReuseRow]]:
    return ((suite, row) for suite in earlier.suites for row in suite.reuse)


def _loss(suite: str, row: ReuseRow, before: ReuseRow, loss: float) -> list[str]:
    if row.tokens >= before.tokens * (1 - loss):
        return []
    return [
        f"{suite}@{row.configuration}: {row.tokens:,} tokens restored instead of"
        f" {before.tokens:,} ({row.hits:,} hits instead of {before.hits:,} in"
        f" {row.lookups:,} look-ups), {1 - row.tokens / before.tokens:.1%} less on the same"
        f" {row.traces:,} traces; at most {loss:.1%} may be lost"
    ]
