"""What a campaign came to: outcomes added up in the order of their units, findings that are one
counted as one, a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from cachewitness.core.checkers.finding import denied, idle, merge_tallies
from cachewitness.core.result import (
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    Activity,
    worst,
)
from cachewitness.report.arm_row import merge_rows
from cachewitness.report.control_row import merge_controls
from cachewitness.report.summary import DISAGREEMENT_NAMES, NotRun, Report, SuiteReport
from cachewitness.sessions.campaign.build_digest import package
from cachewitness.sessions.campaign.engine_entry import EngineEntry
from cachewitness.sessions.campaign.plan import Key, Planned, key_of
from cachewitness.sessions.campaign.unit import Fuzzed, Met, Outcome, Shrunk, Unit
from cachewitness.sessions.fuzz.campaign import RAN_LEAST, by_chance
from cachewitness.sessions.fuzz.watch import Watch

SUITE_OF_FUZZ = "fuzz:"
"""How the id of a finding begins that the fuzzer met."""
Class = tuple[str, ...]


class Distinct(msgspec.Struct, kw_only=True):
    """A finding that was shrunk: its signature, the first of the minimal traces that have it,
    and the engines that show it.
    """

    signature: str
    small: Met
    suite: str
    engines: list[EngineEntry]
    traces: int = 0
    why_long: str = ""


class Found(msgspec.Struct, kw_only=True):
    """All findings of one class: how often it was met, on which engines, and where first."""

    anomaly: str
    checker: str
    level: str
    kinds: list[str]
    met: int = 0
    engines: list[str] = []
    first: str = ""


class Stream(msgspec.Struct):
    """How many drawn configurations of a fuzz stream an engine ran and refused; `idle` are units
    of which it ran none.
    """

    ran: int = 0
    refused: int = 0
    idle: dict[str, int] = {}

    def add(self, unit: Fuzzed, outcome: Outcome) -> None:
        """Add what came of a unit."""
        self.ran += outcome.traces
        self.refused += outcome.refused
        if outcome.refused and not outcome.traces:
            self.idle[unit.name] = outcome.refused

    def changed(self, name: str) -> list[str]:
        """Return the units of which the engine ran nothing, if by its share elsewhere that
        cannot be chance.
        """
        elsewhere = self.refused - sum(self.idle.values())
        of_others = f"{elsewhere:,} of {elsewhere + self.ran:,} of stream {name} elsewhere"
        return [
            f"{unit}: the engine refused all {refused:,} drawn configurations, and {of_others}"
            for unit, refused in self.idle.items()
            if self.ran and not by_chance(refused, elsewhere, self.ran)
        ]


class Subject(msgspec.Struct, kw_only=True):
    """What came of one engine under one policy. `tier` is that of its name, from which something
    has to be loaded.
    """

    engine: str
    label: str
    policy: str
    tier: str = ""
    versions: list[str] = []
    suites: dict[str, SuiteReport] = {}
    not_run: list[NotRun] = []
    marks: dict[str, int] = {}
    streams: dict[str, Stream] = {}
    changed: list[str] = []
    ran_on: set[tuple[str, str]] = set()
    refused_on: set[tuple[str, str]] = set()
    reported_on: set[tuple[str, str]] = set()
    found: int = 0
    disagreed: int = 0
    wrong: dict[str, int] = {}
    crashed: dict[str, int] = {}
    unkept: str = ""
    undone: int = 0

    @property
    def report(self) -> Report:
        """The suites and what was left out, as of one run."""
        return Report(engine=self.engine, suites=list(self.suites.values()), not_run=self.not_run)

    def add(self, unit: Unit, outcome: Outcome) -> None:
        """Add what came of one unit."""
        for suite in outcome.suites:
            _add_suite(self.suites.setdefault(suite.name, SuiteReport(name=suite.name)), suite)
        for entry in outcome.not_run:
            same = next(
                (one for one in self.not_run if (one.what, one.why) == (entry.what, entry.why)),
                None,
            )
            if same is None:
                self.not_run.append(same := NotRun(entry.what, entry.why, 0))
            same.count += entry.count
        self.versions = sorted({*self.versions, *filter(None, outcome.version.split(", "))})
        self.marks = dict(Counter(self.marks) + Counter(outcome.marks))
        if isinstance(unit, Fuzzed):
            self.streams.setdefault(unit.plan.stream, Stream()).add(unit, outcome)
        self.ran_on.update(outcome.ran_on)
        self.refused_on.update(outcome.refused_on)
        self.reported_on.update(
            set(outcome.ran_on).intersection(outcome.refused_on)
        )  # by the unit itself, in `vacuous`
        self.changed += outcome.vacuous
        self.unkept = self.unkept or outcome.unkept
        self.found += sum(met.count for met in outcome.met)
        self.disagreed += sum(met.finding.anomaly in DISAGREEMENT_NAMES for met in outcome.met)
        for lines, line in ((self.wrong, outcome.wrong), (self.crashed, outcome.crashed)):
            if line:
                lines[line] = lines.get(line, 0) + 1

    @property
    def vacuous(self) -> list[str]:
        """Why a pass would mean nothing."""
        report = self.report
        lines = [
            f"checker {tally.checker} {idle(tally)}"
            for tally in report.tallies()
            if not (tally.not_applicable or tally.opportunities or tally.unjudged)
        ]
        lines += denied(report.tallies())
        if not any(suite.traces for suite in report.suites):
            lines.append("no trace ran")
        # A suite that was left out is listed as not run, with its reason; to call it vacuous too
        # would count it twice.
        left_out = {entry.what for entry in self.not_run}
        silent = [
            name
            for name, suite in self.suites.items()
            if not suite.traces and f"suite {name}" not in left_out
        ]
        lines += [f"suite {name} ran no trace" for name in silent]
        lines += [
            f"fuzz stream {name} ran no trace"
            for name, stream in self.streams.items()
            if not stream.ran
        ]
        lines += [
            f"arm {row.arm}: {why}"
            for suite in report.suites
            for row in suite.arms
            for why in row.missing
        ]
        lines += self.changed
        lines += [
            f"configuration {name}: the engine ran it at the {level} level in one unit, and"
            " refused it in another"
            for level, name in sorted((self.ran_on & self.refused_on) - self.reported_on)
        ]
        ran = sum(one.ran for one in self.streams.values())
        refused = sum(one.refused for one in self.streams.values())
        if ran < RAN_LEAST * (ran + refused):
            lines.append(
                f"the engine refused {refused:,} of {ran + refused:,} drawn configurations"
            )
        lines += [line for name, stream in self.streams.items() for line in stream.changed(name)]
        return lines + report.activity.shortfalls(self.tier)

    @property
    def exit_code(self) -> int:
        """The exit code that this engine alone would have."""
        if self.crashed or self.disagreed:
            return EXIT_INTERNAL
        if self.found:
            return EXIT_FAIL
        if self.report.bad_events:
            return EXIT_USAGE
        if self.wrong or self.undone or self.report.outcome == "unknown":
            return EXIT_UNKNOWN
        return EXIT_NOTHING_CHECKED if self.vacuous else EXIT_PASS

    @property
    def reasons(self) -> list[str]:
        """Why its exit code is not that of a pass, the first of each kind."""
        crashed = [line for suite in self.suites.values() for line in (*suite.crashed, *suite.open)]
        lacking = (
            f", of which some have no trace, since the store does not take it ({self.unkept})"
            if self.unkept
            else ""
        )
        lines = [
            *(
                f"the harness failed in {_units(count)}: {line}"
                for line, count in self.crashed.items()
            ),
            *([f"{self.found:,} findings{lacking}"] if self.found else []),
            *self.report.bad_events[:1],
            *(f"{_units(count)} came to nothing: {line}" for line, count in self.wrong.items()),
            *([f"{_units(self.undone)} not done"] if self.undone else []),
            *crashed[:1],
        ]
        return lines or self.vacuous


def _units(count: int) -> str:
    return f"{count:,} unit{'s' * (count != 1)}"


def _add_suite(into: SuiteReport, suite: SuiteReport) -> None:
    into.traces, into.seconds = into.traces + suite.traces, into.seconds + suite.seconds
    into.activity.add(suite.activity)
    into.tallies = merge_tallies(
        [*into.tallies, *(tally for tally in suite.tallies if tally.checker != Watch.name)]
    )
    into.crashed = sorted({*into.crashed, *suite.crashed})
    into.open = sorted({*into.open, *suite.open})
    into.bad_events += suite.bad_events
    into.arms = merge_rows([*into.arms, *suite.arms])
    into.controls = merge_controls([*into.controls, *suite.controls])


@dataclass
class Totals:
    """Everything that a campaign's summary tells. `wanted` are the units that count, whether
    they were done or not.
    """

    planned: Planned
    subjects: dict[Key, Subject] = field(default_factory=dict)
    found: dict[Class, Found] = field(default_factory=dict)
    distinct: dict[str, Distinct] = field(default_factory=dict)
    self_test: Found | None = None
    canary_ran: bool = False
    canary_not_shrunk: str = ""
    undone: list[str] = field(default_factory=list)
    interrupted: bool = False
    time_up: bool = False
    stopped: str = ""
    """Why the campaign could not go on."""

    def add(self, unit: Unit, outcome: Outcome) -> None:
        """Add what came of a unit, in the order of units; one that was not done is added by
        `miss`.
        """
        self_test = of_canary(unit)
        if not self_test:
            self._subject(unit).add(unit, outcome)
        self.canary_ran |= self_test
        for met in outcome.met:
            self._meet(unit, met, self_test=self_test)

    def miss(self, unit: Unit) -> None:
        """Note that a unit was not done."""
        self.undone.append(f"{unit.engine.text}, {unit.policy}: {unit.name}")
        if not of_canary(unit) and not isinstance(unit, Shrunk):
            self._subject(unit).undone += 1

    def small(self, unit: Shrunk, outcome: Outcome) -> None:
        """Add a finding that was shrunk; one that is as another one was is the same."""
        if outcome.crashed or outcome.wrong or outcome.small is None:
            if unit.self_test:
                self.self_test = None
                self.canary_not_shrunk = outcome.crashed or outcome.wrong or "it came to nothing"
            elif outcome.crashed:
                self._subject(unit).add(unit, Outcome(crashed=outcome.crashed))
            return
        if unit.self_test:
            return
        same = self.distinct.setdefault(
            outcome.signature,
            Distinct(
                signature=outcome.signature,
                small=outcome.small,
                suite=unit.suite,
                engines=[],
                why_long=outcome.why_long,
            ),
        )
        same.traces += 1
        if unit.engine not in same.engines:
            same.engines.append(unit.engine)

    def _subject(self, unit: Unit) -> Subject:
        key = key_of(unit)
        if key not in self.subjects:
            left_out = [
                NotRun(one.what, one.why, one.count) for one in self.planned.left_out.get(key, [])
            ]
            self.subjects[key] = Subject(
                engine=key[0],
                label=key[1],
                policy=key[2],
                tier=unit.engine.named().tier,
                not_run=left_out,
            )
        return self.subjects[key]

    def _meet(self, unit: Unit, met: Met, *, self_test: bool) -> None:
        named = (self.planned.self_test.mutant.anomaly, self.planned.self_test.mutant.checker)
        if self_test:
            if (met.finding.anomaly, met.finding.checker) != named:
                return
            entry = self.self_test = self.self_test or _found(met)
        else:
            entry = self.found.setdefault(met.of_class, _found(met))
        entry.met += met.count
        entry.first = entry.first or met.id
        if unit.engine.text not in entry.engines:
            entry.engines.append(unit.engine.text)

    @property
    def vacuous(self) -> list[str]:
        """Which suites the file names that ran on no engine."""
        ran = {
            suite.name
            for subject in self.subjects.values()
            for suite in subject.suites.values()
            if suite.traces
        }
        return [
            f"suite {name} was asked for and ran on no engine"
            for name in self.planned.asked
            if name not in ran
        ]

    @property
    def exit_code(self) -> int:
        """The exit code: that of the worst engine, and never a pass without the self-test's finding
        or with a unit undone.

        A finding fails the campaign, whether or not the self-test was found. A campaign whose time
        was up does not pass. Of a share 0 is no verdict: what it has nothing of, another one may
        have.
        """
        if self.interrupted:
            return EXIT_INTERRUPTED
        code = worst(subject.exit_code for subject in self.subjects.values())
        if code in (EXIT_INTERNAL, EXIT_FAIL):
            return code
        if self.self_test is None:
            return EXIT_NOTHING_CHECKED
        if code in (EXIT_USAGE, EXIT_UNKNOWN):
            return code
        if self.undone or self.time_up or self.stopped:
            return EXIT_UNKNOWN
        if self.planned.share:
            return EXIT_PASS
        return EXIT_NOTHING_CHECKED if self.vacuous else code

    @property
    def reasons(self) -> list[str]:
        """Why the exit code is not that of a pass."""
        unproved = "so it is not proved that a fault would have been seen"
        missed = [f"{self._canary_missed}, {unproved}"] if self.self_test is None else []
        if missed and self.exit_code == EXIT_NOTHING_CHECKED:
            return missed
        lines = [
            f"{subject.engine}: {line}"
            for subject in self.subjects.values()
            for line in subject.reasons[:1]
        ]
        lines += ["time was up"] if self.time_up else []
        lines += [self.stopped] if self.stopped else []
        lines += [f"{_units(len(self.undone))} not done"] if self.undone and not lines else []
        return lines + self.vacuous + missed

    @property
    def _canary_missed(self) -> str:
        name = self.planned.self_test.mutant.name
        if self.canary_not_shrunk:
            return (
                f"the self-test {name} was NOT found as it must be: its finding could not be shrunk"
                f" ({self.canary_not_shrunk})"
            )
        return f"the self-test {name} {'was NOT found' if self.canary_ran else 'was not run'}"

    @property
    def activity(self) -> Activity:
        """What happened on all engines."""
        total = Activity()
        for subject in self.subjects.values():
            total.add(subject.report.activity)
        return total

    @property
    def traces(self) -> int:
        """How many traces ran on all engines."""
        return sum(
            suite.traces for subject in self.subjects.values() for suite in subject.suites.values()
        )


def _found(met: Met) -> Found:
    return Found(
        anomaly=met.finding.anomaly, checker=met.finding.checker, level=met.level, kinds=met.kinds
    )


def to_shrink(planned: Planned, done: Iterable[tuple[Unit, Outcome]]) -> list[Unit]:
    """Return the units that shrink findings, in the order of units.

    Of each anomaly by each checker at each level on each engine, the first few with different
    kinds of cache groups; of the self-test one.
    """
    taken: dict[tuple[str, ...], set[Class]] = {}
    units: list[Unit] = []
    mutant = planned.self_test.mutant
    for unit, outcome in done:
        planted = of_canary(unit)
        for met in outcome.met:
            if not met.trace:
                continue
            if planted and (met.finding.anomaly, met.finding.checker) != (
                mutant.anomaly,
                mutant.checker,
            ):
                continue
            seen = taken.setdefault(
                (str(planted), unit.engine.made_of, unit.policy, *met.of_class[:3]), set()
            )
            if len(seen) < (1 if planted else planned.shrink) and met.of_class not in seen:
                seen.add(met.of_class)
                units.append(_shrunk(unit, met, self_test=planted))
    return units


def of_canary(unit: Unit) -> bool:
    """Whether a unit belongs to the self-test, whose findings are not the engine's."""
    return isinstance(unit, Fuzzed | Shrunk) and unit.self_test


def _shrunk(unit: Unit, met: Met, *, self_test: bool) -> Shrunk:
    suite = "" if met.id.startswith(SUITE_OF_FUZZ) else met.id.partition(":")[0]
    return Shrunk(
        package=package(),
        engine=unit.engine,
        policy=unit.policy,
        suite=suite,
        trace=met.trace,
        finding=met.finding,
        self_test=self_test,
    )
