"""A campaign tells what did not happen: half a unit, a stream without traces, findings beside a
crash, a self-test's shrink.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.engine import Engine
from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS, EXIT_UNKNOWN
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.summary import SuiteReport
from cachewitness.sessions.campaign import unit as units
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.campaign.totals import Totals
from cachewitness.sessions.campaign.unit import Met, Outcome, Shrunk, SuiteUnit
from cachewitness.sessions.run import runner as runners
from suites.support.campaigns import FAULTY, planned

SUITE = (
    'name = "a"\nsuites = ["invariants"]\n[[engines]]\nengine = "{}"\nlayouts ='
    ' ["full"]\n[budget]\nconfigurations = 1\n'
)
STREAMS = (
    'name = "a"\nstreams = ["m", "n"]\n[[engines]]\nengine = "reference"\nlayouts ='
    ' ["full"]\n[budget]\ntraces = 2\n'
)


def met(made: Planned, *, self_test: bool = False) -> Met:
    """Return a finding: that of the self-test, or one of an engine."""
    mutant = made.self_test.mutant
    anomaly, checker = (
        (mutant.anomaly, mutant.checker) if self_test else ("stale-hit", "safety-law")
    )
    return Met(
        id="fuzz:1@l",
        finding=Finding(anomaly=anomaly, checker=checker, sentence="…", seq=1, op=1),
        trace="0",
        level="manager",
        kinds=["full"],
    )


def ran(name: str, traces: int = 2) -> Outcome:
    return Outcome(suites=[SuiteReport(name=name, traces=traces)])


def added(
    made: Planned, *outcomes: Outcome, self_test: bool = True, time_up: bool = False
) -> Totals:
    """Return what a campaign came to whose units came to these outcomes; the self-test was found if
    so.
    """
    totals = Totals(made, time_up=time_up)
    if self_test:
        totals.add(made.units[0], Outcome(met=[met(made, self_test=True)]))
    for unit, outcome in zip(made.units[1:], outcomes, strict=True):
        totals.add(unit, outcome)
    return totals


def test_half_a_suite_is_no_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends the worker, so its unit is carried out again."""
    judge = runners.Runner._judge
    left = iter(range(2))

    def interrupted(self: runners.Runner, *asked: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        judge(self, *asked)

    monkeypatch.setattr(runners.Runner, "_judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        perform(
            planned(SUITE.format("reference"), tmp_path).units[1], opened(str(tmp_path / "traces"))
        )


def test_a_crash_keeps_what_was_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same command does not replace it by what another attempt comes to."""
    unit = planned(SUITE.format(FAULTY), tmp_path).units[1]
    judge = runners.Runner._judge

    def failing(self: runners.Runner, *asked: Any) -> None:
        if asked[-1].failures:
            raise ValueError("ours")
        judge(self, *asked)

    monkeypatch.setattr(runners.Runner, "_judge", failing)
    outcome = perform(unit, opened(str(tmp_path / "traces")))
    assert len(outcome.met) == 1 and "ValueError: ours" in outcome.crashed
    assert outcome.judged and not Outcome(crashed="x").judged and not Outcome(wrong="x").judged


def test_a_suite_that_fits_no_configuration_of_an_engine_is_told(tmp_path: Path) -> None:
    """Beside what the engine is judged by: it is not as if the file did not name the suite."""
    made = planned(
        STREAMS.replace("streams", 'suites = ["invariants", "answers"]\nstreams', 1), tmp_path
    )
    assert [unit.suite for unit in made.units if isinstance(unit, SuiteUnit)] == ["invariants"]
    totals = Totals(made)
    totals.add(made.units[1], ran("invariants"))
    (subject,) = totals.subjects.values()
    assert [(one.what, one.why) for one in subject.not_run] == [
        ("suite answers", "none of the configurations runs at the answers level")
    ]


def test_a_stream_without_a_trace_is_no_pass(tmp_path: Path) -> None:
    """Though a suite ran, or another stream; the policy may have refused every draw."""
    made = planned(STREAMS, tmp_path)
    totals = added(made, ran("fuzz-manager"), Outcome())
    assert totals.exit_code == EXIT_NOTHING_CHECKED and totals.reasons == [
        "reference: fuzz stream n ran no trace"
    ]
    assert added(made, ran("fuzz-manager"), ran("fuzz-manager")).exit_code == EXIT_PASS


def test_time_that_was_up_is_unknown(tmp_path: Path) -> None:
    made = planned(STREAMS, tmp_path)
    totals = added(made, ran("fuzz-manager"), ran("fuzz-manager"), time_up=True)
    assert totals.exit_code == EXIT_UNKNOWN and totals.reasons == ["time was up"]


def test_findings_are_told_without_the_canary(tmp_path: Path) -> None:
    made = planned(STREAMS, tmp_path)
    found = msgspec.structs.replace(ran("fuzz-manager"), met=[met(made)])
    totals = added(made, found, ran("fuzz-manager"), self_test=False)
    assert totals.exit_code == EXIT_FAIL
    first, second = totals.reasons
    assert first == "reference: 1 findings" and "was not run" in second


def test_a_configuration_that_was_refused_later_is_no_pass(tmp_path: Path) -> None:
    made = planned(STREAMS, tmp_path)
    changed = msgspec.structs.replace(ran("fuzz-manager"), vacuous=["it refused it after 2 traces"])
    totals = added(made, changed, ran("fuzz-manager"))
    assert totals.exit_code == EXIT_NOTHING_CHECKED and totals.reasons == [
        "reference: it refused it after 2 traces"
    ]


@pytest.mark.parametrize("outcome", [Outcome(crashed="it raised"), Outcome(wrong="it raised")])
def test_a_canary_that_cannot_be_shrunk_is_not_found(outcome: Outcome, tmp_path: Path) -> None:
    made = planned(STREAMS, tmp_path)
    totals = added(made, ran("fuzz-manager"), ran("fuzz-manager"))
    self_test = made.units[0]
    small = Shrunk(
        package=self_test.package,
        engine=self_test.engine,
        policy=self_test.policy,
        suite="",
        trace="0",
        finding=met(made, self_test=True).finding,
        self_test=True,
    )
    totals.small(small, outcome)
    assert (
        totals.exit_code == EXIT_NOTHING_CHECKED
        and "could not be shrunk (it raised)" in totals.reasons[0]
    )


def test_an_engine_that_refuses_everything_for_a_while_is_no_pass(tmp_path: Path) -> None:
    """As if memory were gone, or on one machine alone: of other units it ran most. The same
    command does such a unit again.
    """
    text = STREAMS.replace('["m", "n"]', '["m"]').replace(
        "traces = 2", "traces = 100\nper_unit = 20"
    )
    made = planned(text, tmp_path)
    whole = ran("fuzz-manager", 19)
    whole.refused = 1
    idle = Outcome(refused=20)
    assert whole.judged and not idle.judged
    assert added(made, *[whole] * 5).exit_code == EXIT_PASS
    totals = added(made, *[whole] * 4, idle)
    assert totals.exit_code == EXIT_NOTHING_CHECKED
    reason = "the engine refused all 20 drawn configurations, and 4 of 80 of stream m elsewhere"
    assert totals.reasons == [f"reference: fuzz m, seed 0, traces 80 to 99: {reason}"]


def test_an_engine_that_is_for_few_configurations_may_refuse_a_unit(tmp_path: Path) -> None:
    """Of 60 in 100 that it refuses, five in a row are chance; and so are two beside two others
    that it does not refuse.
    """
    text = STREAMS.replace('["m", "n"]', '["m"]').replace("traces = 2", "traces = 25\nper_unit = 5")
    made = planned(text, tmp_path)
    some = ran("fuzz-manager", 2)
    some.refused = 3
    assert added(made, *[some] * 4, Outcome(refused=5)).exit_code == EXIT_PASS
    some.refused = 0
    assert added(made, some, Outcome(refused=2), *[Outcome()] * 3).exit_code == EXIT_PASS


def test_a_configuration_that_another_unit_ran_is_not_refused(tmp_path: Path) -> None:
    made = planned(STREAMS, tmp_path)
    one = ran("fuzz-manager")
    other = ran("fuzz-manager")
    one.ran_on = [("manager", "full")]
    other.refused_on = [("scheduler", "full")]
    assert added(made, one, other).exit_code == EXIT_PASS  # at another level
    other.refused_on = one.ran_on
    totals = added(made, one, other)
    assert totals.exit_code == EXIT_NOTHING_CHECKED
    assert (
        "configuration full: the engine ran it at the manager level in one unit, and refused it in"
        " another" in str(totals.reasons)
    )


@pytest.mark.parametrize("text", [SUITE.format("reference"), STREAMS], ids=["suite", "fuzz"])
def test_a_machine_without_what_the_engine_needs_judges_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(self: EngineSpec, header: object) -> None:
        raise EngineMissing("libacme.so is not installed")

    monkeypatch.setattr(EngineSpec, "open", absent)
    outcome = perform(planned(text, tmp_path).units[1], opened(str(tmp_path / "traces")))
    assert outcome.wrong == "libacme.so is not installed" and not outcome.judged


def test_deadlines_of_an_engine_in_process_are_those_of_its_units(tmp_path: Path) -> None:
    made = planned(
        STREAMS.replace('"reference"', '"reference"\nisolate = "no"\ndeadline = 2.5'), tmp_path
    )
    within = made.units[1].engine.named().within
    assert within is not None and within.deadline == 2.5
    assert units.read(made.entries[1][1], made.entries[1][0]) == made.units[1]


def test_what_a_control_refuses_the_engine_itself_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is another model, which may take fewer configurations."""
    plain = EngineSpec.open

    def choosy(self: EngineSpec, header: TraceHeader) -> Engine:
        if "model" in self.options:
            raise UsageError("not in blocks of 16")
        return plain(self, header)

    monkeypatch.setattr(EngineSpec, "open", choosy)
    text = 'name = "a"\nsuites = ["answers"]\n[[engines]]\nengine = "sample"\npolicies = ["{}"]\n'
    made = planned(text.format((parse("sample").kind.policies or ("vllm",))[0]), tmp_path)
    outcome = perform(made.units[1], opened(str(tmp_path / "traces")))
    assert (
        outcome.traces
        and outcome.refused_on == []
        and any("not in blocks of 16" in one.why for one in outcome.not_run)
    )
