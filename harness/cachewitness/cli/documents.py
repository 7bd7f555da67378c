"""What commands print with `--json`: one document each, whose schema `cachewitness schema KIND`
prints.

`run`, `score` and `doctor` have documents of their own, in the rooms that make them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.result import Activity
from cachewitness.report import comparison, jsonreport
from cachewitness.report.summary import NotRun
from cachewitness.sessions.bisect import search as bisection
from cachewitness.sessions.fuzz.self_test import CanaryResult
from cachewitness.sessions.mutants.document import Hunt
from cachewitness.vectors.document import Consumed


class Judged(msgspec.Struct, kw_only=True):
    """A trace that `replay` ran, or a history that `check` read, and what every checker says of it.

    `expected` is the reason why its failure is on the list of expected ones, `bad_events` what of
    the engine's events cannot be followed, `not_run` what the engine cannot do, `replay` the
    command that runs it again, and `export` the outcome of a test that was asked for; each is empty
    if there is none.
    """

    file: str
    engine: str
    engine_version: str = ""
    exit_code: int
    reasons: list[str] = []
    findings: list[Finding] = []
    checkers: list[Tally] = []
    activity: Activity = msgspec.field(default_factory=Activity)
    expected: str = ""
    bad_events: str = ""
    not_run: str = ""
    replay: str = ""
    export: list[str] = []
    format: str = "cachewitness.judged"
    version: int = 1


class Checked(msgspec.Struct, kw_only=True):
    """Several histories that `check` read, in the order in which they were named, and what comes of
    them together.

    One that could not be read, or followed, has no engine, and says why in `bad_events`.
    """

    exit_code: int
    reasons: list[str]
    histories: list[Judged]
    format: str = "cachewitness.checked"
    version: int = 1


class Fuzzed(msgspec.Struct, kw_only=True):
    """A campaign: the run that it amounts to, the fault that was planted first, how often each mark
    was reached.

    `self-test` is null if no fault could be planted; `again` is the command that runs it again,
    with the same `digest`.
    """

    report: jsonreport.Document
    exit_code: int
    reasons: list[str]
    self_test: CanaryResult | None
    marks: dict[str, int]
    again: str
    digest: str
    format: str = "cachewitness.fuzz"
    version: int = 1


class Searched(msgspec.Struct, kw_only=True):
    """One configuration of an exhaustive search. `complete`: every state was seen and everything
    tried in it.
    """

    configuration: str
    states: int
    transitions: int
    depth: int
    complete: bool


class Search(msgspec.Struct, kw_only=True):
    """An exhaustive search; `failure` is null if nothing within the bound contradicts a rule.

    `not_run` has what the engine refuses or cannot be asked.
    """

    engine: str
    exit_code: int
    reasons: list[str]
    bound: dict[str, int]
    self_test: CanaryResult
    covered: list[Searched]
    failure: jsonreport.FailureEntry | None
    not_run: list[NotRun]
    seconds: float
    format: str = "cachewitness.search"
    version: int = 1


class Explained(msgspec.Struct, kw_only=True):
    """An anomaly, or what is wrong with a file: the first finding, null if nothing is, and all
    that is told, in lines.
    """

    anomaly: str = ""
    invariant: str = ""
    implies: str = ""
    finding: Finding | None = None
    picture: list[str] = []
    format: str = "cachewitness.explained"
    version: int = 1


class Problem(msgspec.Struct, kw_only=True):
    """What a program did wrongly: in which part, what it was asked, what came, and the section
    of docs/reference/protocol.md on it.
    """

    part: str
    asked: str
    came: str
    wrong: str
    section: str


class Rehearsed(msgspec.Struct, kw_only=True):
    """What a program answered: the number of answers by part, problems, and the capabilities
    that were not asked for.
    """

    command: list[str]
    exit_code: int
    answers: dict[str, int]
    problems: list[Problem]
    not_asked: list[str]
    levels: list[str]
    format: str = "cachewitness.rehearsed"
    version: int = 1


class Written(msgspec.Struct, kw_only=True):
    """Files that a command wrote; `counts` says by file how many vectors are in it, and `next`
    the command to go on with.
    """

    files: list[str]
    counts: dict[str, int] = {}
    next: str = ""
    format: str = "cachewitness.written"
    version: int = 1


class Serving(msgspec.Struct, kw_only=True):
    """Where an engine answers: a line that is printed when it listens."""

    url: str
    engine: str
    format: str = "cachewitness.serving"
    version: int = 1


class Plan(msgspec.Struct, kw_only=True):
    """What `plan` works out: `answer` in one line (empty if there is none), `results` by name, and
    under the same names their `units` and `how` each came about.
    """

    system: str
    release: str
    layout: str
    answer: str
    results: dict[str, int | float | str | bool | None]
    units: dict[str, str]
    how: dict[str, str]
    tables: dict[str, list[dict[str, int | float | str | bool | None]]]
    commands: list[str]
    notes: list[str]


class Routes(msgspec.Struct, kw_only=True):
    """What a router foresaw on one kind of `layouts`, and what engines hit; lengths in tokens.

    `more` and `less` are by how much too much and too little was foreseen, by cause; `equal` so
    many requests hit what was foreseen, `wrong_worker` so many were sent where less was than on
    another worker, `lost` tokens less in all.
    """

    layouts: str
    requests: int
    prompt: int
    foreseen: int
    hit: int
    equal: int
    wrong_worker: int
    lost: int
    more: dict[str, int]
    less: dict[str, int]


class MisjudgedRoute(msgspec.Struct, kw_only=True):
    """What a router did against its contract, and the command that runs the smallest trace
    again.
    """

    id: str
    finding: Finding
    replay: str


class Routed(msgspec.Struct, kw_only=True):
    """A router in front of a fleet: of `answers` that were judged, the first failure of each
    anomaly. `not_judged` are configurations, by the reason.
    """

    router: str
    engine: str
    workers: int
    exit_code: int
    answers: int
    traces: int
    failed: int
    routes: list[Routes]
    failures: list[MisjudgedRoute]
    not_judged: dict[str, list[str]]
    format: str = "cachewitness.routed"
    version: int = 1


class Listed(msgspec.Struct, kw_only=True):
    """One thing of those that `ls` lists; it has more fields, each kind its own."""

    name: str


KINDS: dict[str, tuple[str, Any]] = {
    "judged": ("a trace or a history, judged", Judged),
    "checked": ("several histories, judged", Checked),
    "fuzz": ("a fuzz campaign", Fuzzed),
    "search": ("an exhaustive search", Search),
    "bisection": ("the commit since which a trace fails", bisection.Document),
    "comparison": ("two runs compared", comparison.Document),
    "explained": ("what an anomaly is, or what is wrong with a file", Explained),
    "mutants": ("a hunt of seeded faults", Hunt),
    "rehearsed": ("what a program answered to the questions of the protocol", Rehearsed),
    "consumed": ("what an engine answered to test vectors", Consumed),
    "written": ("the files that a command wrote", Written),
    "serving": ("where an engine answers", Serving),
    "plan": ("what is worked out for a model", Plan),
    "routed": ("a router in front of a fleet, judged", Routed),
    "listed": ("what there is of a kind", list[Listed]),
}
"""By the name of its schema: what a document is, and its type."""
