"""Routers in front of a fleet: the reference router is right, each of its faults is found, and what
a router says that it leaves out is not held against it.
"""

from __future__ import annotations

import ast
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cachewitness_reference.router as reference
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.cli.options import engine_of
from cachewitness.core.trace_format import Submit
from cachewitness.sessions.route.delivery import DELIVERIES, Channel
from cachewitness.sessions.route.fleet import Fleet, Routed
from cachewitness.sessions.route.router import load
from cachewitness.sessions.route.session import Planned, Report, Session, plan
from cachewitness.sessions.route.summary import causes
from cachewitness_faults.router import FAULTS, build
from suites.support.fleets import ENGINE, configuration, first_findings
from suites.support.sampled import ALL, sampled

LAYOUTS = ("full", "full-swa", "full-mamba")
LINES = 100
ARRIVING = {
    "KeepsBlocksOverARestart": "restart",
    "DropsARestartedWorker": "restart",
    "TakesMessagesTwice": "twice",
    "NeverAsksForMessages": "late",
    "CountsOtherMedia": "media",
}
"""How messages have to arrive for a fault to show; the others show anyhow."""


def planned(
    layouts: tuple[str, ...] = LAYOUTS, traces: int = 6, deliveries: tuple[str, ...] = ()
) -> list[Planned]:
    """Return traces, delivered in every way or as is said, those of the layouts in turn."""
    ways = deliveries or tuple(DELIVERIES)
    every = list(plan(ENGINE, [*map(configuration, layouts)], ways, traces, 0))
    return [one for index in range(traces) for one in every[index::traces]]


def run(make: Any, asked: list[Planned], workers: int = 2) -> Report:
    return Session(ENGINE, make, workers).run(asked)


class Sets(build("DoesNotCount")):  # type: ignore[misc]
    """A router that keeps a set of blocks, and says so."""

    counts = False


class FullAlone(build("FullAttentionAlone")):  # type: ignore[misc]
    """A router that looks at full attention alone, and says so."""

    all_groups = False


class SetsOfFullAlone(Sets):
    """Both, as routers that know nothing of hybrids are."""

    all_groups = False

    def resumes(self, worker: Any, digests: Any, length: int) -> bool:
        groups, self.groups = self.groups, [self.groups[0]]
        try:
            return bool(super().resumes(worker, digests, length))
        finally:
            self.groups = groups


class Forgetful(reference.Router):
    """Remembers no digest between two requests, so it is slower and no less right."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        return {
            name: known for name, known in super().foresee(tokens, salt, adapter).items() if known
        }


@pytest.mark.parametrize("make", [reference.Router, Sets, FullAlone, SetsOfFullAlone, Forgetful])
def test_a_router_that_does_as_it_says_is_not_blamed(make: Any) -> None:
    report = run(make, planned()[:: 1 if ALL else 3])
    assert report.failures == []
    assert report.judged > 100
    assert not report.not_judged


@pytest.mark.parametrize("fault", sampled(list(FAULTS), 3))
def test_a_fault_is_found(fault: str) -> None:
    """Each fault of a router is found for what it is; the run without it has nothing (above)."""
    make = build(fault)
    arriving = (ARRIVING[fault],) if fault in ARRIVING else ()
    found = first_findings(make, planned(traces=12, deliveries=arriving))
    if all(first.anomaly != FAULTS[fault].finding for _, first in found):
        pytest.fail(f"{fault} survives")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_can_be_built(fault: str) -> None:
    assert build(fault).__name__ == "Router"


def test_on_full_attention_what_is_foreseen_is_hit() -> None:
    """A request that nothing changes in front of hits exactly what was foreseen; no difference is
    the router's, the contract's or the engine's.
    """
    report = run(reference.Router, planned(("full",), 4))
    sums = report.sums["full attention alone"]
    assert sums.requests > 30
    assert sums.equal > sums.requests // 2
    assert {*sums.more, *sums.less} <= {"waited", "late"}
    assert sums.wrong == 0 or "late" in {*sums.more, *sums.less}


def test_on_hybrids_full_attention_alone_is_not_enough() -> None:
    """The difference is named, and requests go to the wrong worker."""
    report = run(FullAlone, planned(("full-mamba",), 2))
    sums = report.sums["hybrids"]
    assert sums.more["contract"] > 0
    assert report.failures == []


def test_causes_add_up() -> None:
    asked = planned(("full-swa",))[0]
    course = Fleet(ENGINE, asked.trace, FullAlone, 2, "gaps").run()
    looked_up = [one for one in course.routed if one.hit >= 0]
    assert looked_up
    assert all(sum(causes(one).values()) == one.foreseen - one.hit for one in looked_up)


def test_a_request_goes_where_most_is_foreseen() -> None:
    """With the reference router nobody is sent to a worker that has less, unless news is late."""
    asked = planned(("full",))[0]
    routed: list[Routed] = Fleet(ENGINE, asked.trace, reference.Router, 2, "whole").run().routed
    assert {one.worker for one in routed} == {0, 1}
    assert all(one.best == one.bounds.keys for one in routed if one.settled)


def test_a_restarted_worker_numbers_from_0() -> None:
    """And what it had before is promised no more."""
    restarts = planned(("full",), 2, ("restart",))
    fleets = [Fleet(ENGINE, one.trace, reference.Router, 1, one.delivery) for one in restarts]
    before = [fleet.workers[0] for fleet in fleets]
    assert all(fleet.run().findings == [] for fleet in fleets)
    assert any(fleet.workers[0] is not old for fleet, old in zip(fleets, before, strict=True))


@pytest.mark.parametrize(
    ("delivery", "arriving"),
    [
        ("whole", [[0], [1], [2], [3]]),
        ("late", [[], [], [2], [3]]),
        ("gaps", [[0], [], [2], [3]]),
        ("twice", [[0], [1, 1], [2], [3, 3, 2]]),
    ],
)
def test_how_messages_arrive(delivery: str, arriving: list[list[int]]) -> None:
    channel = Channel(delivery)
    cleared = [{"type": "AllBlocksCleared"}]
    assert [list(channel.publish(cleared)) for _ in range(4)] == arriving
    assert [number for number, _ in channel.replay(1)] == [1, 2, 3]


def test_where_events_contradict_keys_no_router_is_blamed() -> None:
    """The engine's own fault is named instead, and nothing was checked."""
    engine = engine_of("reference:mutant=key-event-of-eviction-lost", "vllm")
    asked = planned(("full",))
    report = Session(engine, reference.Router, 2).run(asked)
    assert report.failures == []
    assert any("the engine's own fault" in why for why in report.not_judged)


class Raises(reference.Router):
    """Raises where it is asked of a salt."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        if salt:
            raise KeyError(salt)
        return super().foresee(tokens, salt, adapter)


def test_a_router_that_raises_is_found_and_its_trace_shrunk() -> None:
    report = run(Raises, planned(("full",)))
    (failure,) = report.failures
    assert failure.finding.anomaly == "router-raised"
    assert "KeyError" in failure.finding.line
    assert len([op for op in failure.shrunk.ops if isinstance(op, Submit)]) == 1


class Ends(reference.Router):
    """Ends the process where it is asked, as a program does that gives up."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        sys.exit(0)


class Odd(BaseException):
    """No error of those that programs catch."""


class RaisesWhatNobodyCatches(reference.Router):
    """Raises what `except Exception` lets pass."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        raise Odd


class Stop(KeyboardInterrupt):
    """A router's own, and no Ctrl-C of the user."""


class StopsByAnInterruptOfItsOwn(reference.Router):
    """Raises what looks like the user's Ctrl-C."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        raise Stop


class EndsAtOnce(reference.Router):
    """Ends the process as soon as it is made."""

    def __init__(self, *_: Any) -> None:
        sys.exit(0)


class EndsAtAMessage(reference.Router):
    """Ends the process where events come."""

    def take(self, worker: int, number: int, events: Any) -> None:
        sys.exit(0)


class AnswersText(reference.Router):
    """Foresees text."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> Any:
        return {0: "16"}


class AnswersFractions(reference.Router):
    """Foresees half a token."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> Any:
        return {0: 0.5}


class Speechless(Exception):
    """An error whose text is an error."""

    def __str__(self) -> str:
        raise RuntimeError


class RaisesWhatSaysNothing(reference.Router):
    """Raises an error that cannot be printed."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        raise Speechless


@pytest.mark.parametrize(
    "make",
    [
        Ends,
        EndsAtOnce,
        EndsAtAMessage,
        AnswersText,
        AnswersFractions,
        RaisesWhatSaysNothing,
        RaisesWhatNobodyCatches,
        StopsByAnInterruptOfItsOwn,
    ],
)
def test_whatever_a_router_raises_or_answers_is_its_own_fault(make: Any) -> None:
    """It ends neither the command nor the judgement, and no fault of ours is made of it."""
    report = run(make, planned(("full",), traces=1))
    (failure,) = report.failures
    assert failure.finding.anomaly == "router-raised"
    assert report.exit_code == 1


class HangsWhenMade(reference.Router):
    """Is never made."""

    def __init__(self, *_: Any) -> None:
        threading.Event().wait()


class HangsAtAMessage(reference.Router):
    """Takes no message in."""

    def take(self, worker: int, number: int, events: Any) -> None:
        threading.Event().wait()


class HangsWhenAsked(reference.Router):
    """Foresees nothing, for ever, whatever interrupts it."""

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        while True:
            with suppress(Exception):
                threading.Event().wait()


@pytest.mark.parametrize("make", [HangsWhenMade, HangsAtAMessage, HangsWhenAsked])
def test_a_router_that_never_answers_is_found_and_the_session_over(make: Any) -> None:
    """No further trace waits for it."""
    report = Session(ENGINE, make, 2, seconds=0.5).run(planned(("full",), traces=3))
    (failure,) = report.failures
    assert failure.finding.anomaly == "router-raised"
    assert "gave no answer within 0.5 seconds" in failure.finding.line
    assert (report.exit_code, report.failed) == (1, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import threading\nthreading.Event().wait()", "it gave no answer within 0.5 seconds"),
        ("raise SystemExit(0)", "ends the process that imports it"),
        ("class Odd(BaseException): pass\nraise Odd", "cannot be imported (Odd"),
        (
            "class Mute(Exception):\n"
            "    def __str__(self):\n        raise RuntimeError\nraise Mute",
            "cannot be imported (Mute",
        ),
    ],
)
def test_a_router_whose_import_never_ends_or_fails_is_one_line(
    text: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_hostile_router.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as refused:
        load("a_hostile_router:Router", seconds=0.5)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


class EmptiesWhatItIsGiven(reference.Router):
    """Takes its arguments apart, as a program may that was written for its own copies."""

    def take(self, worker: int, number: int, events: Any) -> None:
        super().take(worker, number, events)
        events.clear()
        for _, message in self.replay(worker, 0):
            for event in message:
                event.clear()

    def foresee(self, tokens: Any, salt: str, adapter: str) -> dict[int, int]:
        tokens.clear()
        return {}


def test_what_a_router_is_given_is_not_what_it_is_judged_by() -> None:
    """A prompt without tokens would owe nothing."""
    report = run(EmptiesWhatItIsGiven, planned(("full",), traces=2))
    assert [failure.finding.anomaly for failure in report.failures] == ["missed-prefix"]


def test_a_module_that_ends_the_process_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gives_up_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    assert invoke(["route", "--router", "gives_up_at_once:Router"]) == 4
    assert "ends the process that imports it" in capsys.readouterr().err


def test_the_reference_router_is_short() -> None:
    """At most 100 lines without docstrings and blank lines: it is a sample to copy."""
    text = Path(reference.__file__).read_text(encoding="utf-8")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    written = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = text.splitlines()
    code = [line for at, line in enumerate(lines, 1) if line.strip() and at not in written]
    assert len(code) <= LINES


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--router", "nowhere"], 4, "is not of the form module:Class"),
        (["--router", "nowhere_at_all:Router"], 4, "cannot be imported (ModuleNotFoundError"),
        (["--router", "collections:OrderedDict"], 4, "does not declare `counts`"),
        (["--delivery", "lat"], 4, "'lat' is unknown"),
        (
            ["--layout", "full-mamba", "--option", "use_eagle=true", "--traces", "1"],
            5,
            "not judged",
        ),
    ],
)
def test_the_exit_code(
    words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["route", *words]) == code
    printed = capsys.readouterr()
    assert line in printed.out + printed.err


def test_the_trace_of_a_failure_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    router = "cachewitness_faults.router:ForgetsParents"
    words = ["route", "--router", router, "--layout", "full", "--traces", "1", "--workers", "1"]
    assert invoke(words) == 1
    printed = capsys.readouterr().out
    assert "FAIL  missed-prefix  found by router" in printed
    again = printed.partition("replay: cachewitness ")[2].splitlines()[0].split()
    assert invoke(again) == 1
    assert "missed-prefix" in capsys.readouterr().out
