"""What the tests of one function did together, and whether that was anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from cachewitness.api.cases import Case
from cachewitness.core.checkers.finding import Tally, merge_tallies, unjudged
from cachewitness.core.result import Activity


class Did(msgspec.Struct):
    """What one test did: which trace of which function it ran, of how many, on what tier, what
    happened and what was judged.
    """

    function: str
    trace: str
    configuration: str
    refused: bool
    tests: int
    tier: str
    activity: Activity
    tallies: list[Tally]


@dataclass
class Function:
    """The tests of a function so far; `tests` is how many there are, `tier` what their engine
    was asked to load from.
    """

    tests: int
    tier: str
    seen: set[str] = field(default_factory=set)
    """Which traces; one may be run again, or once for each parameter of the function."""
    taken: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Configurations of which the engine took a trace, and refused one."""
    activity: Activity = field(default_factory=Activity)
    tallies: list[Tally] = field(default_factory=list)

    def add(self, did: Did) -> None:
        """Take in another test."""
        self.seen.add(did.trace)
        (self.refused if did.refused else self.taken).add(did.configuration)
        self.activity.add(did.activity)
        self.tallies = merge_tallies([*self.tallies, *did.tallies])

    @property
    def ran(self) -> int:
        """How many of its traces ran."""
        return len(self.seen)

    @property
    def vacuous(self) -> list[str]:
        """Return what there was nothing to judge of, if every test of the function ran."""
        if self.ran < self.tests:
            return []
        found = (
            []
            if self.activity.hits
            else [f"none of {self.activity.lookups:,} look-ups hit anything"]
        )
        found += [
            f"{name}: the engine took some traces of it and refused others"
            for name in sorted(self.taken & self.refused)
        ]
        found += self.activity.shortfalls(self.tier)
        return found + unjudged(self.tallies)

    def line(self, name: str) -> str:
        """Return what was done, in a line."""
        did = self.activity
        done = f"{self.ran:,} of {self.tests:,} traces, {did.operations:,} operations"
        return f"cachewitness: {name}: {done}, {did.hits:,} hits in {did.lookups:,} look-ups"


def run(
    case: Case, function: str, tests: int, tell: Callable[[str], None]
) -> tuple[str, list[str], str]:
    """Run a trace; return what it did as JSON, the lines that say why it fails, and why it was
    not run. `tell` is told of what takes a while.
    """
    report, lines = case.run(tell)
    refused = any(one.what.startswith("configuration ") for one in report.not_run)
    place = f"configuration {case.configuration.name} at {case.suite.level} level"
    did = Did(
        function,
        case.id,
        place,
        refused,
        tests,
        case.engine.tier,
        report.activity,
        report.tallies(),
    )
    ran = any(suite.traces for suite in report.suites)
    why = "; ".join(f"{one.what}: {one.why}" for one in report.not_run) or "the engine ran nothing"
    return msgspec.json.encode(did).decode(), lines, "" if ran else why


def gathered(texts: list[str]) -> dict[str, Function]:
    """Return what tests did, by their function."""
    functions: dict[str, Function] = {}
    for text in texts:
        did = msgspec.json.decode(text, type=Did)
        functions.setdefault(did.function, Function(did.tests, did.tier)).add(did)
    return functions
