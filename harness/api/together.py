"""What the tests of one function did together, and whether that was anything."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from harness.api.cases import Case
from harness.checkers.finding import Tally, idle, merge_tallies
from harness.verdict.result import Activity


class Did(msgspec.Struct):
    """What one test did: which function it belongs to, how many tests that has, what happened and what was judged."""

    function: str
    tests: int
    activity: Activity
    tallies: list[Tally]


@dataclass
class Function:
    """The tests of a function so far; `tests` is how many there are."""

    tests: int
    ran: int = 0
    activity: Activity = field(default_factory=Activity)
    tallies: list[Tally] = field(default_factory=list)

    def add(self, did: Did) -> None:
        """Take in another test."""
        self.ran += 1
        self.activity.add(did.activity)
        self.tallies = merge_tallies([*self.tallies, *did.tallies])

    @property
    def vacuous(self) -> list[str]:
        """Return what there was nothing to judge of, if every test of the function ran."""
        if self.ran < self.tests:
            return []
        found = [] if self.activity.hits else [f"none of {self.activity.lookups:,} look-ups hit anything"]
        idles = [tally for tally in self.tallies if not (tally.opportunities or tally.not_applicable or tally.crashed)]
        return found + [f"checker {tally.checker} {idle(tally)}" for tally in idles]

    def line(self, name: str) -> str:
        """Return what was done, in a line."""
        did = self.activity
        done = f"{self.ran:,} of {self.tests:,} traces, {did.operations:,} operations"
        return f"cachewitness: {name}: {done}, {did.hits:,} hits in {did.lookups:,} look-ups"


def run(case: Case, function: str, tests: int) -> tuple[str, list[str], str]:
    """Run a trace; return what it did as JSON, the lines that say why it fails, and why it was not run."""
    report, lines = case.run()
    activity = Activity()
    for suite in report.suites:
        activity.add(suite.activity)
    did = Did(function, tests, activity, report.tallies())
    ran = any(suite.traces for suite in report.suites)
    why = "; ".join(f"{one.what}: {one.why}" for one in report.not_run) or "the engine ran nothing"
    return msgspec.json.encode(did).decode(), lines, "" if ran else why


def gathered(told: list[str]) -> dict[str, Function]:
    """Return what tests did, by their function."""
    functions: dict[str, Function] = {}
    for text in told:
        did = msgspec.json.decode(text, type=Did)
        functions.setdefault(did.function, Function(did.tests)).add(did)
    return functions
