"""Units of work: what a worker does in one go, told so completely that any machine does the same.

A unit's key is a digest of all of it: the version of the package, the digest of the engine, the
policy, the stream or suite, the seed and the range. So a unit that was done once, by whomever, need
not be done again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import Layout
from cachewitness.engines import policy as policies
from cachewitness.report.summary import NotRun, SuiteReport
from cachewitness.sessions.campaign.build_digest import forget, made_of, package
from cachewitness.sessions.campaign.engine_entry import EngineEntry
from cachewitness.sessions.campaign.findings import class_of
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads.configurations import Configuration


class Fuzzed(msgspec.Struct, frozen=True, kw_only=True, tag="fuzz"):
    """The traces `first` to `last` − 1 of a fuzz stream. `self-test`: the engine has a fault that
    must be found.
    """

    package: str
    engine: EngineEntry
    plan: Plan
    first: int
    last: int
    beside: bool = True
    self_test: bool = False

    @property
    def policy(self) -> str:
        """The policy whose rules apply."""
        return self.plan.policy

    @property
    def name(self) -> str:
        """What it is, in words."""
        return (
            f"fuzz {self.plan.stream}, seed {self.plan.seed}, traces {self.first} to"
            f" {self.last - 1}"
        )


class Chosen(msgspec.Struct, frozen=True):
    """A configuration, as far as it can be written down: the policy itself knows the rest."""

    layout: Layout
    options: dict[str, Any]
    policy: str

    @property
    def configuration(self) -> Configuration:
        """The configuration."""
        least = policies.get(self.policy).layouts.least_pages if self.policy else None
        return Configuration(self.layout, self.options, self.policy, least)


class SuiteUnit(msgspec.Struct, frozen=True, kw_only=True, tag="suite"):
    """The traces of a suite on some configurations.

    `named`: the user chose their layouts. `exact`: also their options, so that a refusal leaves the
    unit without a judgement.
    """

    package: str
    engine: EngineEntry
    policy: str
    suite: str
    seed: int
    first: int
    configurations: list[Chosen]
    named: bool = False
    exact: bool = False

    @property
    def name(self) -> str:
        """What it is, in words."""
        last = self.first + len(self.configurations) - 1
        return f"suite {self.suite}, seed {self.seed}, configurations {self.first} to {last}"


class Shrunk(msgspec.Struct, frozen=True, kw_only=True, tag="shrink"):
    """A finding whose trace is to be made as small as it gets; `trace` is its digest. `suite` is
    empty for a fuzzed trace.
    """

    package: str
    engine: EngineEntry
    policy: str
    suite: str
    trace: str
    finding: Finding
    self_test: bool = False

    @property
    def name(self) -> str:
        """What it is, in words."""
        return f"shrink {self.finding.anomaly}"


Unit = Fuzzed | SuiteUnit | Shrunk


class Met(msgspec.Struct, kw_only=True):
    """A finding as it was met: the id of what failed, the digest of its trace, its class, and how
    many like it there are.

    The digest is empty if the store did not take the trace.
    """

    id: str
    finding: Finding
    trace: str
    level: str
    kinds: list[str]
    count: int = 1

    @property
    def of_class(self) -> tuple[str, ...]:
        """The class of the finding."""
        return class_of(self.finding, self.level, self.kinds)


class Outcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What came of a unit. `digest` is of all but times, so it is the same wherever and however
    often it is done.

    `wrong` says why the engine could not be judged; `crashed` that the harness itself failed.
    `small` is the shrunk finding. `vacuous` names configurations that the engine ran at first and
    then refused, and stories without their main part. `unkept` says why the store did not take the
    trace of a finding. `refused` counts the configurations that the engine refused; of a suite
    `ran_on` and `refused_on` name them, each with the level.
    """

    digest: str = ""
    suites: list[SuiteReport] = []
    not_run: list[NotRun] = []
    refused: int = 0
    version: str = ""
    marks: dict[str, int] = {}
    met: list[Met] = []
    small: Met | None = None
    signature: str = ""
    why_long: str = ""
    wrong: str = ""
    crashed: str = ""
    vacuous: list[str] = []
    ran_on: list[tuple[str, str]] = []
    refused_on: list[tuple[str, str]] = []
    unkept: str = ""
    seconds: float = 0.0
    startup_seconds: float = 0.0
    engine_seconds: float | None = None

    @property
    def traces(self) -> int:
        """How many traces ran."""
        return sum(suite.traces for suite in self.suites)

    @property
    def judged(self) -> bool:
        """Whether the unit need not be done again: it came to an end, or to findings, and the store
        has their traces.

        An engine that refused everything may have been one that could run nothing there.
        """
        in_vain = bool(self.wrong or self.crashed or (self.refused and not self.traces))
        return not self.unkept and (not in_vain or bool(self.met))


_UNIT = msgspec.json.Decoder(Unit)
_OUTCOME = msgspec.json.Decoder(Outcome)


def entered(unit: Unit) -> tuple[str, bytes]:
    """Return the key of a unit, and the unit as it is stored."""
    spec = msgspec.json.encode(unit, order="deterministic")
    return _key(spec), spec


def _key(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


def read(spec: bytes, key: str) -> Unit:
    """Return a unit that was stored under a key. Raises UsageError if it is not of this version,
    or of another key.
    """
    if _key(spec) != key:
        raise UsageError("is not what was stored under this key")
    try:
        unit: Unit = _UNIT.decode(spec)
        return unit
    except msgspec.DecodeError as error:
        raise UsageError(
            f"cannot be read ({error}); another version of cachewitness planned it"
        ) from None


def stored(outcome: Outcome, key: str) -> bytes:
    """Return the outcome of the unit with that key as it is stored.

    A digest stands behind it, so that one that was changed since, or is of another unit, is not
    taken for it.
    """
    content = msgspec.json.encode(outcome)
    return content + b"\n" + _key(key.encode() + content).encode()


def outcome_of(written: bytes, key: str) -> Outcome:
    """Return an outcome that was stored. Raises UsageError if it was changed since, or is of
    another unit or version.
    """
    if not written:
        raise UsageError("is done without an outcome")
    content, _, digest = written.rpartition(b"\n")
    if digest != _key(key.encode() + content).encode():
        raise UsageError("has an outcome that is not as it was written")
    try:
        return _OUTCOME.decode(content)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"has an outcome that cannot be read ({error}); another version of cachewitness"
            " wrote it"
        ) from None


def check_same(unit: Unit, *, afresh: bool = False) -> None:
    """Raise UsageError if this machine has another package, or another engine, than the campaign
    was planned with.

    `afresh`: what was looked at before is looked at again.
    """
    if afresh:
        forget()
    if unit.package != package():
        raise UsageError(
            f"this machine has cachewitness {package()}; the campaign was planned with"
            f" {unit.package}"
        )
    if made_of(unit.engine.named(), unit.policy, unit.engine.label) != unit.engine.made_of:
        raise UsageError(
            f"engine {unit.engine.text} is another one here than where the campaign was planned "
            "(its files, options, or what is installed beside it)"
        )
