"""`run` asks an engine for what it declares, and says of a rule that had nothing to judge which
events never came.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cachewitness.core import driving
from cachewitness.core.checkers.finding import idle, merge_tallies
from cachewitness.core.events import Event, Header
from cachewitness.core.trace_format import Op, Submit, Trace, TraceHeader
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.engines.registry import parse as reference
from cachewitness.sessions.run import trial
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from cachewitness.workloads.notation import parse


class Modest:
    """The reference, which declares less, and refuses what it did not declare."""

    def __init__(self, header: TraceHeader) -> None:
        self._engine = reference("reference").open(header)

    def describe(self) -> Header:
        header = self._engine.describe()
        return replace(
            header, capabilities=[name for name in header.capabilities if name != "media"]
        )

    def apply(self, op: Op) -> list[Event]:
        assert not (isinstance(op, Submit) and op.media), "asked for what was not declared"
        return self._engine.apply(op)

    def close(self) -> None:
        self._engine.close()


ONE = "pool 0: 4 pages, null 0\ngroup 0: full block 4\nsubmit r1 a:5\nacquire r1 | 1 2\n"
STEP = "step 1: r1 0..5 | 1 2\n"


def test_what_is_not_declared_is_not_asked_for_and_listed() -> None:
    kind = EngineKind("modest", "for a test", ("manager",), lambda header, options: Modest(header))
    manager = [suite for suite in SUITES if suite.name == "invariants" and suite.level == "manager"]
    report = Runner(EngineSpec(kind, {}, "modest"), [Configuration(load("full"))]).run(manager)
    assert report.exit_code == 0, report.failures
    assert any("media in traces" in entry.what for entry in report.not_run)


def test_a_rule_without_its_events_says_which() -> None:
    """Over several histories, the events that came in none of them."""
    whole = f"{ONE}hit r1 0 |\n{STEP}"
    one, other = (driving.check(parse(text)).tallies for text in (ONE + STEP, whole))
    reasons = {tally.checker: idle(tally) for tally in merge_tallies([*one, *other])}
    assert reasons["commit-order"] == "had nothing to judge: it looks at `publish`, and none came"
    assert "`hit`" in idle(next(tally for tally in one if tally.checker == "commit-order"))


class Steady(Modest):
    """The reference, which takes no request back."""

    def describe(self) -> Header:
        header = self._engine.describe()
        return replace(
            header, capabilities=[name for name in header.capabilities if name != "withdraw"]
        )

    def apply(self, op: Op) -> list[Event]:
        return self._engine.apply(op)


STEADY = EngineSpec(
    EngineKind("steady", "for a test", ("manager",), lambda header, options: Steady(header)),
    {},
    "steady",
)


def test_a_configuration_that_the_reference_refuses_is_left_out_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are compared as before, also where the engine cannot run some of their traces."""

    def refuses(trace: Trace, engine: Header) -> str:
        return "the reference has no such group" if trace.header.layout.name == "full" else ""

    monkeypatch.setattr(trial, "refused", refuses)
    suites = [suite for suite in SUITES if suite.name == "differential"]
    full, window = (Configuration(load(name)) for name in ("full", "full-swa"))
    report = Runner(STEADY, [full, window]).run(suites)
    alone = Runner(STEADY, [window]).run(suites)
    assert report.suites[0].traces == alone.suites[0].traces > 1 and report.exit_code == 0
    assert [one.what for one in report.not_run if "reference" in one.why] == [
        "differential: configuration full"
    ]
    nothing = Runner(STEADY, [full]).run(suites)
    assert [one.what for one in nothing.not_run] == [
        "suite differential"
    ] and nothing.exit_code == 5


def test_a_run_whose_time_is_over_has_run_a_trace_of_each_configuration() -> None:
    """Also where the engine cannot run the first ones: of every stream, the first asks for a
    withdrawal.
    """
    random = [suite for suite in SUITES if suite.name == "random"]
    names = ["full", "full-swa", "full-mamba"]
    report = Runner(STEADY, [Configuration(load(name)) for name in names], seconds=1e-9).run(random)
    assert report.suites[0].traces == len(names)
