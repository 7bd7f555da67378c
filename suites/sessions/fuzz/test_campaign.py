"""A campaign can be run again from one line, stops where it is told to, and keeps what fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.engine import Engine
from cachewitness.core.events import Event, Header
from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.core.trace_format import Op, TraceHeader
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.expected import Entry, Expectations
from cachewitness.report.terminal import reasons
from cachewitness.sessions.fuzz import coverage_points
from cachewitness.sessions.fuzz.campaign import Campaign, levels_of
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan


def _campaign(engine: str = "reference", seed: int = 0, policy: str = "vllm") -> Campaign:
    spec = parse(engine)
    return Campaign(spec, Plan(policy, levels_of(spec, policy), Restriction(), seed))


def test_a_campaign_cut_off_by_the_clock_is_run_again_by_its_operations() -> None:
    """Bit for bit: the same traces, events and marks."""
    first = _campaign(seed=3)
    again = _campaign(seed=3)
    other = _campaign(seed=4)
    first.run(seconds=0.5)
    again.run(operations=first.operations)
    other.run(operations=first.operations)
    assert (again.digest, again.operations, again.marks) == (
        first.digest,
        first.operations,
        first.marks,
    )
    assert other.digest != first.digest


def test_the_clean_reference_passes_and_almost_every_mark_is_reached() -> None:
    """In a few thousand operations nothing is found, every rule has something to judge, and the
    work is not idle.
    """
    campaign = _campaign(seed=1)
    campaign.run(operations=10_000)
    assert campaign.report.exit_code == EXIT_PASS, campaign.report.vacuous
    assert 10_000 <= campaign.operations < 11_200
    drawn = [name for area in coverage_points.drawn(own=False).values() for name in area]
    assert len([name for name in drawn if not campaign.marks[name]]) <= 5
    assert set(campaign.marks) <= set(coverage_points.ALL)


def test_a_campaign_stops_at_its_first_failure_and_shrinks_it() -> None:
    """The shrunk trace fails alike, with its last operation, and is no longer than the whole
    one.
    """
    campaign = _campaign("reference:mutant=tail-published-early")
    campaign.run(operations=50_000)
    assert campaign.report.exit_code == EXIT_FAIL and campaign.operations < 5_000
    (failure,) = [failure for suite in campaign.report.suites for failure in suite.failures]
    assert failure.finding.anomaly in (
        "partial-commit",
        "uncommitted-hit",
    )  # its key without content, or a hit on it
    assert failure.offending == len(failure.shrunk.ops) - 1 < len(failure.trace.ops)


def refusing(share: Callable[[int], bool]) -> Campaign:
    """Return a campaign on the reference that refuses the configurations whose numbers `share`
    picks.
    """
    numbers = count()

    def opened(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        if share(next(numbers)):
            raise UsageError("not this one")
        return parse("reference").open(header)

    spec = EngineSpec(
        EngineKind("choosy", "a reference that refuses", ("manager",), opened, replays=False),
        {},
        "choosy",
    )
    return Campaign(spec, Plan("vllm", ("manager",), Restriction(), 0))


def test_an_engine_that_refuses_most_of_what_is_drawn_was_not_checked() -> None:
    """One that takes a single trace has not passed the others; one that is for some layouts
    alone has passed them.
    """
    most = refusing(lambda number: number % 20 != 5)
    few = refusing(lambda number: number % 3 > 0)
    for campaign, operations in ((most, 1_000), (few, 3_000)):
        campaign.run(operations=operations)
    assert most.report.exit_code == EXIT_NOTHING_CHECKED
    assert any("drawn configurations, all but" in line for line in most.report.vacuous)
    assert few.report.exit_code == EXIT_PASS, few.report.vacuous
    assert any(
        entry.what == "configurations" and entry.why == "not this one"
        for entry in few.report.not_run
    )


def test_an_engine_that_ran_most_and_then_refuses_everything_was_not_checked() -> None:
    """As if its memory were gone. Most of what ran was checked, and nobody could say how much of
    the rest was.
    """
    campaign = refusing(lambda number: number > 20)
    campaign.only(0, 60)
    assert any(
        "refused the last 39 drawn configurations, and 0 of 21 before" in line
        for line in campaign.report.vacuous
    )


def test_what_an_engine_imports_before_it_refuses_is_start_up() -> None:
    """The first configuration is refused, after half a second: that is not the harness's time."""

    def slow(number: int) -> bool:
        time.sleep(0.5 if number == 0 else 0)
        return number == 0

    campaign = refusing(slow)
    campaign.run(operations=100)
    assert campaign.refused == 1 and campaign.report.startup_seconds >= 0.5


def test_a_campaign_goes_on_after_what_is_expected() -> None:
    """Every failure of the planted fault is counted and none ends the campaign; a list with
    another anomaly ends it.
    """

    def listed(anomaly: str) -> Expectations:
        return Expectations([Entry(pattern="fuzz:*", anomaly=anomaly, reason="known")])

    plain = _campaign("reference:mutant=denser-than-interval")
    known, other = (
        Campaign(plain.engine, plain.plan, expected=listed(name))
        for name in ("over-dense-retention", "stale-hit")
    )
    for campaign in (plain, known, other):
        campaign.run(operations=2_000)
    assert plain.operations == other.operations < 2_000 <= known.operations
    assert (known.report.exit_code, other.report.exit_code) == (EXIT_PASS, EXIT_FAIL)
    assert len(known.report.failures) > 1 and {
        failure.expected for failure in known.report.failures
    } == {"known"}
    assert "listed as over-dense-retention (known)" in " ".join(reasons(known.report))


def test_what_an_engine_refuses_is_left_out_and_told() -> None:
    """Every second configuration refused: the campaign goes on; all refused: an error that says
    why.
    """
    reference = parse("reference").kind

    def spec(refuses: object) -> EngineSpec:
        def open_engine(header: TraceHeader, options: object) -> object:
            assert callable(refuses)
            if refuses(header):
                raise UsageError("this engine has no such thing")
            return reference.open(header, {})

        kind = EngineKind(name="picky", summary="", levels=("manager",), open=open_engine)  # type: ignore[arg-type]
        return EngineSpec(kind, {}, "picky")

    plan = Plan("vllm", ("manager",), Restriction(), seed=0)
    some = Campaign(spec(lambda header: len(header.layout.groups) > 2), plan)
    some.run(operations=300)
    assert some.operations >= 300
    assert [(entry.why, entry.count > 0) for entry in some.report.not_run] == [
        ("this engine has no such thing", True)
    ]
    with pytest.raises(UsageError, match="no such thing"):
        Campaign(spec(lambda header: True), plan).run(operations=300)


def test_where_everything_is_refused_the_line_says_why_most_is() -> None:
    """A plug-in that is broken is not told as the one option that is refused for its own sake."""

    def broken(number: int) -> bool:
        if number % 3 == 2:
            raise UsageError("no such option")
        return True

    with pytest.raises(UsageError, match="not this one"):
        refusing(broken).run(operations=300)


def test_an_engine_is_asked_for_nothing_that_it_says_it_cannot() -> None:
    """One that can submit, step and finish is fuzzed; what is left out is told."""
    reference = parse("reference").kind
    asked: set[str] = set()

    class Modest:
        def __init__(self, header: TraceHeader) -> None:
            self.inner = reference.open(header, {})

        def describe(self) -> Header:
            return msgspec.structs.replace(self.inner.describe(), capabilities=[])

        def apply(self, op: Op) -> list[Event]:
            asked.add(type(op).__name__.lower())
            asked.update(
                name for name in ("salt", "adapter", "media", "withdraw") if getattr(op, name, None)
            )
            return self.inner.apply(op)

        def close(self) -> None:
            self.inner.close()

    kind = EngineKind(
        name="modest",
        summary="",
        levels=("manager", "scheduler"),
        open=lambda header, _: Modest(header),
    )
    campaign = Campaign(
        EngineSpec(kind, {}, "modest"),
        Plan("vllm", ("manager", "scheduler"), Restriction(), seed=0),
    )
    campaign.run(operations=6_000)
    assert not campaign.failed and asked == {"submit", "step", "finish"}
    left_out = {entry.what.split()[0] for entry in campaign.report.not_run}
    assert left_out == {
        "abort",
        "adapter",
        "media",
        "preempt",
        "reset",
        "salt",
        "update_weights",
        "withdraw",
        "cancel",
    }


def test_a_campaign_too_short_to_judge_anything_says_so() -> None:
    """One trace may give some rule nothing to judge: that is no pass."""
    codes = {}
    for seed in range(8):
        campaign = _campaign(seed=seed)
        campaign.run(operations=1)
        assert campaign.traces == 1
        assert campaign.report.exit_code == (
            EXIT_NOTHING_CHECKED if campaign.report.vacuous else EXIT_PASS
        )
        codes[seed] = campaign.report.exit_code
    assert EXIT_NOTHING_CHECKED in codes.values()


def test_progress_is_told_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachewitness.cli.status_line.StatusLine.EVERY", 0.0)
    assert invoke(["fuzz", "--operations", "300", "--seed", "1"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fuzz: ")]
    assert len(lines) > 1 and all(
        "operations" in line and "a second" in line and "marks" in line for line in lines
    )
