"""An earlier report of `run` as a baseline: what was restored then is restored again, on the same
traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cachewitness._util.errors import UsageError
from cachewitness.report import jsonreport
from cachewitness.report.reuse import ReuseComparison, ReuseRow


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

    Raises UsageError if the file is no report that this release reads, or has no rows of what was
    restored.
    """
    earlier = jsonreport.load(path)
    rows = {(suite.name, row.configuration): row for suite in earlier.suites for row in suite.reuse}
    if not rows:
        raise UsageError(f"--baseline: {path} does not say what was restored")
    return Baseline(path, loss, rows)


def _loss(suite: str, row: ReuseRow, before: ReuseRow, loss: float) -> list[str]:
    if row.tokens >= before.tokens * (1 - loss):
        return []
    return [
        f"{suite}@{row.configuration}: {row.tokens:,} tokens restored instead of"
        f" {before.tokens:,} ({row.hits:,} hits instead of {before.hits:,} in"
        f" {row.lookups:,} look-ups), {1 - row.tokens / before.tokens:.1%} less on the same"
        f" {row.traces:,} traces; at most {loss:.1%} may be lost"
    ]
