"""Verdicts: the outcome of a run.

`fail` outweighs `bad events`, that `unknown`, and that `pass`: events that cannot be followed, and
a checker that crashed, have cleared nothing, and findings beside them stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from cachewitness.core.checkers.anomalies import DISAGREEMENTS
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.events import History
from cachewitness.core.trace_format import Trace

Outcome = Literal["pass", "unknown", "bad events", "fail"]

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_UNKNOWN = 2
EXIT_INTERNAL = 3
EXIT_USAGE = 4
EXIT_NOTHING_CHECKED = 5
EXIT_INTERRUPTED = 130
WORST_FIRST = (EXIT_INTERNAL, EXIT_FAIL, EXIT_USAGE, EXIT_UNKNOWN, EXIT_NOTHING_CHECKED, EXIT_PASS)
"""A finding stands whatever else is open; of the others, what has cleared least comes first."""


class Largest(msgspec.Struct, kw_only=True):
    """The largest values that one trace reached: tokens of a prompt and of an answer, requests and
    different images of one engine, and how often a page was handed out again.

    A fault that begins beyond them was not looked for.
    """

    prompt: int = 0
    answer: int = 0
    requests: int = 0
    images: int = 0
    reuses: int = 0

    def add(self, other: Largest) -> None:
        """Take over whatever is larger in another run."""
        for field in self.__struct_fields__:
            setattr(self, field, max(getattr(self, field), getattr(other, field)))


class Activity(msgspec.Struct, kw_only=True):
    """What happened in a run, so that nobody mistakes an idle run for a clean one.

    `from_tier` counts those of the hits to which another tier contributed, and `loaded_tokens`
    their tokens in blocks that came from there; `given_up` the requests that the engine ended early
    and nobody had asked it to; `drafts` those that were verified; `overlapped_steps` those that
    were scheduled before an earlier one had run. `sent_again` counts how often requests were sent
    once more, since a server was not there or had no time. Of the requests that go on after an
    earlier answer, `continued` were asked, and `left_out` not, since that answer was too short.
    """

    operations: int = 0
    events: int = 0
    requests: int = 0
    aborted_by_engine: int = 0
    lookups: int = 0
    hits: int = 0
    from_tier: int = 0
    hit_tokens: int = 0
    loaded_tokens: int = 0
    restored: int = 0
    evictions: int = 0
    preemptions: int = 0
    drafts: int = 0
    drafts_accepted: int = 0
    overlapped_steps: int = 0
    sent_again: int = 0
    continued: int = 0
    left_out: int = 0
    largest: Largest = msgspec.field(default_factory=Largest)

    def add(self, other: Activity) -> None:
        """Add another run's activity."""
        for field in COUNTS:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.largest.add(other.largest)

    @property
    def unexercised(self) -> str:
        """Say that no request went on after an earlier answer where some were to; empty if one
        did, or none was to.
        """
        if self.continued or not self.left_out:
            return ""
        return (
            f"none of {self.left_out:,} requests that go on after an earlier answer was asked, as"
            " that answer was too short"
        )

    def shortfalls(self, tier: str) -> list[str]:
        """Return why a pass would mean nothing.

        Most requests were given up, or none went on after an answer though some were to, or nothing
        came from a tier that was asked for. `tier` is how the engine's name asks for one
        (`EngineSpec.tier`); empty if it does not.
        """
        asked = self.requests
        gone = self.aborted_by_engine
        found = (
            [f"the engine gave up {gone:,} of {asked:,} requests, more than half"]
            if 2 * gone > asked
            else []
        )
        found += [self.unexercised] if self.unexercised else []
        return found + ([f"nothing was loaded by {tier}"] if tier and not self.from_tier else [])


COUNTS = tuple(name for name in Activity.__struct_fields__ if name != "largest")
"""The fields of `Activity` that add up."""

UNCOUNTED = (
    "the engine's count of free pages",
    "there are no `counts` among its events, so only who holds each page was judged",
)
"""What is not judged of a trace whose events have no counts, and why."""


class Result(msgspec.Struct, kw_only=True):
    """One trace, run and judged. The first of its findings is the gravest (`gravest_first`)."""

    trace: Trace | None
    history: History
    findings: list[Finding]
    tallies: list[Tally]
    activity: Activity
    counted: bool = True
    """Whether the engine ever reported how many pages it counts as free."""

    @property
    def outcome(self) -> Outcome:
        """Return fail if anything was found, unknown if a checker crashed or left something open,
        else pass.
        """
        if self.findings:
            return "fail"
        return "unknown" if any(tally.unjudged for tally in self.tallies) else "pass"


def merge(outcomes: list[Outcome]) -> Outcome:
    """Return the worst of several outcomes; pass if there are none."""
    for outcome in ("fail", "bad events", "unknown"):
        if outcome in outcomes:
            return outcome
    return "pass"


def worst(codes: Iterable[int]) -> int:
    """Return the worst of several exit codes; that of a pass if there are none."""
    return min(codes, key=WORST_FIRST.index, default=EXIT_PASS)


def exit_code(result: Result, bad: str = "") -> int:
    """Return the exit code of one judged trace.

    Nothing was checked if no checker at all had an opportunity, or no request went on after an
    answer though some were to, or the engine denies a rule that applies and no list expects that.
    `bad` is what was wrong with the engine's events, if they stopped
    the trace.
    """
    if {finding.anomaly for finding in result.findings} & {
        anomaly.name for anomaly in DISAGREEMENTS
    }:
        return EXIT_INTERNAL
    if result.outcome == "fail":
        return EXIT_FAIL
    if bad:
        return EXIT_USAGE
    if result.outcome == "unknown":
        return EXIT_UNKNOWN
    judged = (
        any(tally.opportunities for tally in result.tallies)
        and not result.activity.unexercised
        and not any(tally.denied and not tally.denial_listed for tally in result.tallies)
    )
    return EXIT_PASS if judged else EXIT_NOTHING_CHECKED
