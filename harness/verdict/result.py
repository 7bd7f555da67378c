"""Verdicts: what a run says in the end.

`fail` beats `unknown`, `unknown` beats `pass`: a checker that crashed has not cleared anybody, and what another checker
proved stays proved.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.history.events import History
from harness.trace.format import Trace

Outcome = Literal["pass", "unknown", "fail"]

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_UNKNOWN = 2
EXIT_INTERNAL = 3
EXIT_USAGE = 4
EXIT_NOTHING_CHECKED = 5


class Finding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One contradiction: which anomaly, seen by which checker, at which event of the history and operation of the trace."""

    anomaly: str
    sentence: str
    checker: str = ""
    r: str = ""
    seq: int = -1
    op: int = -1


class Measured(msgspec.Struct, kw_only=True):
    """What comparing logits came to. `floor`, `tolerance` and `largest` are differences in logits.

    Of `rows` compared, `restored_rows` were of requests that had hit something, and `beyond` differed by more than the
    tolerance; of `asked` tokens of requests that were looked up, `restored` were not computed.
    """

    floor: float = 0.0
    tolerance: float = 0.0
    largest: float = 0.0
    rows: int = 0
    restored_rows: int = 0
    beyond: int = 0
    asked: int = 0
    restored: int = 0

    def add(self, other: Measured) -> None:
        """Add another run's: counts add up, of differences the largest stays."""
        for field in self.__struct_fields__:
            mine, its = getattr(self, field), getattr(other, field)
            setattr(self, field, mine + its if isinstance(mine, int) else max(mine, its))


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a checker did in a run: how often it had something to judge, what it found, why it could not judge."""

    checker: str
    opportunities: int = 0
    findings: int = 0
    acceptable: int = 0
    crashed: str = ""
    not_applicable: str = ""
    measured: Measured | None = None


class Activity(msgspec.Struct, kw_only=True):
    """What happened in a run, so that nobody mistakes an idle run for a clean one.

    `from_tier` counts those of the hits to which another tier contributed.
    """

    operations: int = 0
    events: int = 0
    lookups: int = 0
    hits: int = 0
    from_tier: int = 0
    hit_tokens: int = 0
    restored: int = 0
    evictions: int = 0
    preemptions: int = 0

    def add(self, other: Activity) -> None:
        """Add another run's activity."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Result(msgspec.Struct, kw_only=True):
    """One trace, run and judged."""

    trace: Trace | None
    history: History
    findings: list[Finding]
    tallies: list[Tally]
    activity: Activity

    @property
    def outcome(self) -> Outcome:
        """Return fail if anything was found, unknown if a checker crashed, else pass."""
        if self.findings:
            return "fail"
        return "unknown" if any(tally.crashed for tally in self.tallies) else "pass"


def merge(outcomes: list[Outcome]) -> Outcome:
    """Return the worst of several outcomes; pass if there are none."""
    for outcome in ("fail", "unknown"):
        if outcome in outcomes:
            return outcome
    return "pass"


def merge_tallies(tallies: list[Tally]) -> list[Tally]:
    """Add up the tallies of several runs, by checker; not applicable only if it never applied."""
    merged: dict[str, Tally] = {}
    for tally in tallies:
        into = merged.setdefault(tally.checker, Tally(checker=tally.checker, not_applicable=tally.not_applicable))
        into.opportunities += tally.opportunities
        into.findings += tally.findings
        into.acceptable += tally.acceptable
        into.crashed = into.crashed or tally.crashed
        if not tally.not_applicable:
            into.not_applicable = ""
        if tally.measured is not None:
            into.measured = into.measured or Measured()
            into.measured.add(tally.measured)
    return list(merged.values())
