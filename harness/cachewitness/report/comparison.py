"""Two reports of runs compared, A before B: what fails anew, what is mended, what B no longer
checks, hit rates and speed.

A failure is the same in both if its id and its anomaly are. Random suites that ran another number
of traces, or other seeds, met other traces; there a failure is no news if A has the same anomaly
and cause in the same suite on the same configuration. Whatever A checked and B did not is named,
and then nothing is a pass: a finding that is gone is mended only if its trace ran in B.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from cachewitness.core.result import (
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    Activity,
)
from cachewitness.report.jsonreport import Document as Run
from cachewitness.report.jsonreport import FailureEntry, SuiteEntry

FORMAT = "cachewitness.comparison"
VERSION = 1
FEWER = 2
"""A random suite checked less if it ran fewer than one trace for so many of A's; how many fit into
a time differs from run to run."""
STOPPED = ("the rest of the run", "further traces")
Key = tuple[str, str]
"""The id and the anomaly of a failure."""


class Change(msgspec.Struct, kw_only=True):
    """A failure: of B if it is new, of A if it is gone. `line` is what happened in one line,
    `why` says why it counts as what it is listed for; either may be empty.
    """

    id: str
    anomaly: str
    cause: str = ""
    line: str = ""
    why: str = ""


class Side(msgspec.Struct, kw_only=True):
    """One of the two runs: its file, what it tested, and its verdict."""

    file: str
    engine: str
    engine_version: str
    cachewitness: str
    policy: str
    seed: int
    verdict: str
    exit_code: int


class Numbers(msgspec.Struct, kw_only=True):
    """What one run did in a suite, or in all. `hit_rate` is the part of look-ups that hit, from 0
    to 1, null without any; `hit_tokens` the tokens that hits restored. `operations_per_second` is
    of the wall clock, null if no time passed.
    """

    traces: int
    failures: int
    operations: int
    lookups: int
    hits: int
    hit_rate: float | None
    hit_tokens: int
    operations_per_second: float | None


class Row(msgspec.Struct, kw_only=True):
    """A suite in both runs; null: it did not run there."""

    suite: str
    a: Numbers | None
    b: Numbers | None


class Document(msgspec.Struct, kw_only=True):
    """Two runs compared. `new` fail in B and did not in A; `again` fail in B on other random traces
    than in A, as A's did; `mended` failed in A, ran in B and did not fail; `gone` failed in A, and
    nobody can tell of B; `excused` are failures of B that a list expects and that A had not,
    `remaining` the number of those that fail in both. `less` has a line for each thing that A
    checked and B did not, `open` one for what kept B from being judged, `differs` one for what the
    runs were given differently.
    """

    a: Side
    b: Side
    exit_code: int
    reasons: list[str]
    new: list[Change]
    again: list[Change]
    mended: list[Change]
    gone: list[Change]
    excused: list[Change]
    remaining: int
    less: list[str]
    open: list[str]
    differs: list[str]
    suites: list[Row]
    total: Row
    format: str = FORMAT
    version: int = VERSION


def compare(a: Run, b: Run, files: tuple[str, str], endless: Collection[str]) -> Document:
    """Return what changed from run `a` to run `b`; `endless` are the suites of random traces, and
    `files` is where the two were read from.
    """
    pair = _Pair(a, b, endless)
    less = pair.less()
    open_ = pair.open()
    new, again, excused = pair.failing()
    mended, gone = pair.passing()
    code, reasons = _verdict(pair, new, less, open_)
    return Document(
        a=_side(a, files[0]),
        b=_side(b, files[1]),
        exit_code=code,
        reasons=reasons,
        new=new,
        again=again,
        mended=mended,
        gone=gone,
        excused=excused,
        remaining=len(pair.failed_a.keys() & pair.failed_b.keys()),
        less=less,
        open=open_,
        differs=[*_differs(a, b)],
        suites=[_row(name, pair) for name in dict.fromkeys([*pair.suites_a, *pair.suites_b])],
        total=Row(suite="all", a=_all(a), b=_all(b)),
    )


def _verdict(
    pair: _Pair, new: list[Change], less: list[str], open_: list[str]
) -> tuple[int, list[str]]:
    """Return the exit code and its reasons: a failure that A had not outweighs all that is open."""
    if why := pair.incomparable():
        return EXIT_NOTHING_CHECKED, [f"nothing comparable: {why}"]
    if pair.b.exit_code == EXIT_INTERNAL != pair.a.exit_code:
        return EXIT_INTERNAL, ["the harness's own detectors disagree in B, or it crashed there"]
    if new:
        return EXIT_FAIL, [f"{_counted(new, 'new failure')}", *_shortfall(less)]
    if open_:
        return EXIT_UNKNOWN, [*open_, *_shortfall(less)]
    if less:
        return EXIT_NOTHING_CHECKED, ["no new failure in what B checked", *_shortfall(less)]
    if why := pair.unexplained():
        return pair.b.exit_code, [why]
    left = pair.failed_a.keys() & pair.failed_b.keys()
    both = [f"{_counted(left, 'failure')} in both"] if left else []
    return EXIT_PASS, ["no new failure, and B lacks no suite, configuration or rule of A", *both]


def _shortfall(less: list[str]) -> list[str]:
    return [f"B checked less than A: {less[0]}{' …' * (len(less) > 1)}"] if less else []


def _counted(what: Collection[object], name: str) -> str:
    return f"{len(what):,} {name}{'' if len(what) == 1 else 's'}"


class _Pair:
    """Both runs, and what is looked up in them."""

    def __init__(self, a: Run, b: Run, endless: Collection[str]) -> None:
        self.a = a
        self.b = b
        self._endless = endless
        self.suites_a = {suite.name: suite for suite in a.suites if suite.traces}
        self.suites_b = {suite.name: suite for suite in b.suites if suite.traces}
        self.failed_a = _failures(a)
        self.failed_b = _failures(b)
        self._configurations_b = {*b.configurations}
        self._not_run_b = {entry.what for entry in b.not_run}

    def incomparable(self) -> str:
        """Return why nothing in the two runs can be compared; empty if something can."""
        if self.a.policy != self.b.policy:
            return f"A follows the policy {self.a.policy}, B {self.b.policy}"
        if not self.suites_a.keys() & self.suites_b.keys():
            return "no suite ran in both"
        if self.a.configurations and not self._configurations_b & {*self.a.configurations}:
            return "no configuration is in both"
        return ""

    # --- failures ---------------------------------------------------------------------------------

    def failing(self) -> tuple[list[Change], list[Change], list[Change]]:
        """Return the failures of B that A had not: new ones, those like A's on other random traces,
        and those that a list expects.
        """
        new: list[Change] = []
        again: list[Change] = []
        excused: list[Change] = []
        for key, failure in self.failed_b.items():
            if key in self.failed_a:
                continue
            if failure.expected:
                excused.append(_change(failure, failure.expected))
            elif like := self._like(failure):
                again.append(_change(failure, f"A has it in {like}"))
            else:
                new.append(_change(failure))
        return new, again, excused

    def _like(self, failure: FailureEntry) -> str:
        """Return the id of a failure of A that is the same on another random trace; empty if there
        is none, or if both ran the same traces.
        """
        suite, _, configuration = _parts(failure.id)
        if suite not in self._endless or self._same_traces(suite):
            return ""
        for other in self.failed_a.values():
            where = (*_parts(other.id)[::2], other.anomaly, other.cause)
            if where == (suite, configuration, failure.anomaly, failure.cause):
                return other.id
        return ""

    def _same_traces(self, suite: str) -> bool:
        a = self.suites_a.get(suite)
        b = self.suites_b.get(suite)
        return bool(a and b and a.traces == b.traces) and self.a.seed == self.b.seed

    def passing(self) -> tuple[list[Change], list[Change]]:
        """Return the failures of A that B has not: those whose traces ran there and passed, and
        those of which nobody can tell.
        """
        mended: list[Change] = []
        gone: list[Change] = []
        ids = {failure.id: failure.anomaly for failure in self.failed_b.values()}
        for key, failure in self.failed_a.items():
            if key in self.failed_b:
                continue
            if failure.id in ids:
                gone.append(_change(failure, f"its trace fails in B with {ids[failure.id]}"))
            elif why := self._unseen(failure):
                gone.append(_change(failure, why))
            else:
                mended.append(_change(failure))
        return mended, gone

    def _unseen(self, failure: FailureEntry) -> str:
        """Return why nobody can tell whether the trace of a failure of A ran in B; empty if it
        did.
        """
        suite, _, configuration = _parts(failure.id)
        a = self.suites_a.get(suite)
        b = self.suites_b.get(suite)
        if b is None:
            return f"suite {suite} did not run in B"
        if self.b.interrupted or self.b.only:
            return "B ran only some of its traces"
        if any(what.endswith(STOPPED) for what in self._not_run_b):
            return "B stopped before its end"
        if configuration.partition("/")[0] not in self._configurations_b or (
            f"configuration {configuration}" in self._not_run_b
        ):
            return f"configuration {configuration} did not run in B"
        if suite in self._endless and self.a.seed != self.b.seed:
            return f"seed {self.b.seed} draws other random traces"
        if a is not None and b.traces < a.traces:
            return f"{suite} ran fewer traces in B"
        return ""

    # --- what B checked less ----------------------------------------------------------------------

    def less(self) -> list[str]:
        """Return a line for each thing that A checked and B did not."""
        return [
            *self._less_of_the_run(),
            *(line for name, suite in self.suites_a.items() for line in self._less_of(name, suite)),
            *self._less_not_run(),
            *self._less_judged(),
        ]

    def _less_of_the_run(self) -> Iterator[str]:
        if self.b.interrupted:
            yield "B was stopped before its end"
        if self.b.only and self.b.only != self.a.only:
            yield f"B ran only the traces of {', '.join(self.b.only)}"
        for name in self.a.configurations:
            if name not in self._configurations_b:
                yield f"configuration {name} is not in B"

    def _less_of(self, name: str, a: SuiteEntry) -> Iterator[str]:
        b = self.suites_b.get(name)
        if b is None:
            yield f"suite {name} ran {a.traces:,} traces in A and none in B"
            return
        fewer = b.traces * FEWER < a.traces if name in self._endless else b.traces < a.traces
        if fewer:
            yield f"suite {name} ran {a.traces:,} traces in A and {b.traces:,} in B"
        if a.activity.hits and not b.activity.hits:
            yield f"suite {name} had {a.activity.hits:,} hits in A and none in B"

    def _less_not_run(self) -> Iterator[str]:
        before = {entry.what for entry in self.a.not_run}
        for entry in self.b.not_run:
            what, _, name = entry.what.partition(" ")
            news = what == "configuration" and name not in self.a.configurations
            known = what == "suite" and name in self.suites_a  # it has a line of its own
            if entry.what not in before and not news and not known and not self.b.only:
                yield f"not run in B: {entry.what}: {entry.why}"

    def _less_judged(self) -> Iterator[str]:
        named = {f"suite {name}" for name in self.suites_a}
        judged = {tally.checker: tally for tally in self.b.checkers}
        for tally in self.a.checkers:
            now = judged.get(tally.checker)
            if tally.opportunities and (now is None or not now.opportunities):
                named.add(f"checker {tally.checker}")
                why = f" ({now.not_applicable})" if now and now.not_applicable else ""
                yield (
                    f"rule {tally.checker} was judged {tally.opportunities:,} times in A and never"
                    f" in B{why}"
                )
        for line in self.b.nothing_to_judge:
            about = " ".join(line.split()[:2])  # what has a line of its own needs no second one
            if line not in self.a.nothing_to_judge and about not in named:
                yield f"nothing checked in B: {line}"

    def unexplained(self) -> str:
        """Return that B ends otherwise than A and with nothing that is compared here, such as the
        tokens that `--baseline` misses; empty if it does not.
        """
        failing = any(not failure.expected for failure in self.failed_b.values())
        if failing or self.b.exit_code in (EXIT_PASS, self.a.exit_code):
            return ""
        return (
            f"B ends with exit code {self.b.exit_code}, A with {self.a.exit_code}; see B's report"
        )

    def open(self) -> list[str]:
        """Return what kept B from being judged, and not A; a line each."""
        before = {line for suite in self.a.suites for line in _unjudged(suite)}
        lines = [
            f"{suite.name}: {line}"
            for suite in self.b.suites
            for line in _unjudged(suite)
            if line not in before
        ]
        return list(dict.fromkeys(lines))


def _unjudged(suite: SuiteEntry) -> list[str]:
    return [*suite.crashed, *suite.open, *suite.bad_events]


def _failures(run: Run) -> dict[Key, FailureEntry]:
    return {
        (failure.id, failure.anomaly): failure for suite in run.suites for failure in suite.failures
    }


_ID = re.compile(r"([^:]*):([^@]*)@(.*)", re.DOTALL)


def _parts(name: str) -> tuple[str, str, str]:
    """Return the suite, the trace and the configuration of an id."""
    found = _ID.fullmatch(name)
    return (found[1], found[2], found[3]) if found else ("", name, "")


def _change(failure: FailureEntry, why: str = "") -> Change:
    return Change(
        id=failure.id,
        anomaly=failure.anomaly,
        cause=failure.cause,
        line=failure.line or failure.sentence,
        why=why,
    )


def _side(run: Run, file: str) -> Side:
    return Side(
        file=file,
        engine=run.engine,
        engine_version=run.engine_version,
        cachewitness=run.cachewitness,
        policy=run.policy,
        seed=run.seed,
        verdict=run.verdict,
        exit_code=run.exit_code,
    )


GIVEN: tuple[Literal["cachewitness", "engine", "seed", "environment", "settings"], ...] = (
    "cachewitness",
    "engine",
    "seed",
    "environment",
    "settings",
)
"""What two runs may be given differently, so that not the engine alone changed."""


def _differs(a: Run, b: Run) -> Iterator[str]:
    for name in GIVEN:
        before = getattr(a, name)
        after = getattr(b, name)
        if before != after:
            yield f"{name}: {_shown(before)} in A, {_shown(after)} in B"


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, list) else str(value)


def _row(name: str, pair: _Pair) -> Row:
    a = pair.suites_a.get(name)
    b = pair.suites_b.get(name)
    return Row(
        suite=name,
        a=numbers([a], a.seconds) if a else None,
        b=numbers([b], b.seconds) if b else None,
    )


def _all(run: Run) -> Numbers:
    return numbers(run.suites, run.seconds)


def numbers(suites: list[SuiteEntry], seconds: float) -> Numbers:
    """Return what a run did in some of its suites, in so many seconds."""
    total = Activity()
    for suite in suites:
        total.add(suite.activity)
    return Numbers(
        traces=sum(suite.traces for suite in suites),
        failures=sum(not failure.expected for suite in suites for failure in suite.failures),
        operations=total.operations,
        lookups=total.lookups,
        hits=total.hits,
        hit_rate=total.hits / total.lookups if total.lookups else None,
        hit_tokens=total.hit_tokens,
        operations_per_second=total.operations / seconds if seconds > 0 else None,
    )
