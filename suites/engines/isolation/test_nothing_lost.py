"""What was found is told and kept, whoever stops the run and whatever the disk does; and no
worker is left behind.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import EngineBroken, UsageError
from cachewitness._util.worker_pool import WorkerPool
from cachewitness.cli import invoke
from cachewitness.core import driving
from cachewitness.core import trace_format as traces
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import NoAnswer
from cachewitness.core.events import Event
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Finish, Op, Step, Submit, Trace, TraceHeader
from cachewitness.engines.isolation import serve
from cachewitness.engines.isolation.messages import Happened, Opened
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import answered
from cachewitness.report.summary import Failure
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import FuzzTrial, FuzzTrials, Plan
from cachewitness.sessions.run.minimize import smallest
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.store import Keeper
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample.engine import configurations
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from suites.support.checkout import PYTHONPATH
from suites.support.sampled import fewer

LEAK, SHORT = "reference:mutant=block-leaked", "reference:mutant=lookup-one-unit-short"
RANDOM = [suite for suite in SUITES if suite.name == "random"]
ROOT = Path(__file__).resolve().parents[3]


def start(
    folder: Path,
    *arguments: str,
    limit: Callable[[], None] | None = None,
    out: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Run the command line in a folder, in a session of its own."""
    surroundings = os.environ | {"PYTHONPATH": PYTHONPATH}

    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cachewitness.cli", *arguments],
        cwd=folder,
        env=surroundings,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=limit,
    )


def until(happened: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def of_session(leader: int) -> list[int]:
    """Return the processes of a session that still run, its leader aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z" and int(path.parent.name) != leader:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_tells_and_keeps_what_it_found(how: int, tmp_path: Path) -> None:
    """Exit code 130 with the witness and its trace, and a whole report."""
    child = start(
        tmp_path,
        "run",
        "--engine",
        LEAK,
        "--suite",
        "random",
        "--seconds",
        "600",
        "--report",
        "out",
    )
    until(lambda: list(tmp_path.glob("out/failures/*.history.jsonl")))
    child.send_signal(how)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert (
        "FAIL  " in out
        and "verdict: interrupted (exit code 130)" in out
        and "verdict: pass" not in out
    )
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert (report["interrupted"], report["exit_code"]) == (True, 130)
    stored = report["suites"][0]["failures"][0]["stored"]["trace"]
    assert traces.load(tmp_path / stored).ops


def test_an_interrupted_fuzz_is_no_pass(tmp_path: Path) -> None:
    child = start(tmp_path, "fuzz", "--seconds", "600", "--jobs", "2")
    until(lambda: len(of_session(child.pid)) >= 2)  # its workers are at it
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "verdict: interrupted (exit code 130)" in out and "verdict: pass" not in out


def interrupting(
    seen: list[tuple[Failure, bool]], keeper: Keeper
) -> Callable[[Failure, bool], None]:
    def on_failure(failure: Failure, final: bool) -> None:
        seen.append((failure, final))
        keeper.take(failure, final)
        raise KeyboardInterrupt

    return on_failure


def test_a_failure_is_on_disk_before_it_is_shrunk(tmp_path: Path) -> None:
    """Who interrupts the shrinking of the first failure has its whole trace, and the failure in
    the report.
    """
    spec = parse(LEAK)
    seen = list[tuple[Failure, bool]]()
    keeper = Keeper(spec, tmp_path)
    runner = Runner(spec, [Configuration(load("full"))], on_failure=interrupting(seen, keeper))
    report = runner.run(RANDOM)
    ((failure, final),) = seen
    assert not final and report.interrupted and report.exit_code == 130
    assert [kept.id for kept in report.suites[0].failures] == [failure.id] and report.suites[
        0
    ].tallies
    assert failure.why_long == "interrupted before it was shrunk"
    assert traces.load(Path(keeper.stored[failure.id].trace)).ops == failure.trace.ops


@pytest.mark.parametrize("failing", [True, False])
def test_a_failure_outranks_an_engine_that_cannot_be_used_any_more(failing: bool) -> None:
    """What was found is told, and that the rest was not run; without a failure the error is all
    there is to tell.
    """
    opened = count()

    def open_engine(header: TraceHeader, _: Mapping[str, str]) -> Engine:
        if next(opened) > fewer(400, 100):
            raise ValueError("boom")
        return parse(LEAK if failing else "reference").open(header)

    kind = EngineKind(name="flaky", summary="", levels=("manager",), open=open_engine)
    runner = Runner(EngineSpec(kind, {}, "flaky"), [Configuration(load("full"))], seconds=600)
    if not failing:
        with pytest.raises(
            EngineBroken, match=r"it raised ValueError: boom \(test_nothing_lost.py:"
        ):
            runner.run(RANDOM)
        return
    report = runner.run(RANDOM)
    assert report.exit_code == 1 and report.failures
    assert (
        next(entry.why for entry in report.not_run if entry.what == "the rest of the run").count(
            "ValueError: boom"
        )
        == 1
    )


@pytest.mark.parametrize(
    "opened", [NoAnswer("line 2 of its answers is none of the protocol"), BadEvents("no header")]
)
def test_an_engine_that_says_nonsense_when_it_is_opened_does_not_refuse(opened: UsageError) -> None:
    """A configuration that is refused is left out, and the others pass."""
    times = count()

    def open_engine(header: TraceHeader, _: Mapping[str, str]) -> Engine:
        if next(times) % 4 == 3:
            raise opened
        return parse("reference").open(header)

    spec = EngineSpec(
        EngineKind(name="odd", summary="", levels=("manager",), open=open_engine), {}, "odd"
    )
    with pytest.raises(EngineBroken, match=str(opened)):
        Runner(spec, [Configuration(load(name)) for name in ("full-mamba", "full")]).run(RANDOM)
    with pytest.raises(EngineBroken, match=str(opened)):
        Campaign(spec, Plan("vllm", ("manager",), Restriction(), 0)).run(operations=100_000)


class Babbling:
    """An engine that answers so many operations, and then says what is no answer; with 0, when
    it is let go of.
    """

    def __init__(self, engine: Engine, answers: int) -> None:
        self._engine = engine
        self._left = answers or -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def apply(self, op: Op) -> list[Event]:
        self._left -= 1
        if not self._left:
            raise NoAnswer("it babbles")
        return self._engine.apply(op)

    def close(self) -> None:
        if self._left < 0:
            raise NoAnswer("it babbles")


@pytest.mark.parametrize("answers", [0, 6])
@pytest.mark.parametrize("portion", [1, driving.PORTION])
def test_what_was_found_before_an_answer_that_is_none_counts(
    answers: int, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same trace; without a finding there is nothing but that answer."""
    monkeypatch.setattr(driving.BatchedRun.__init__, "__defaults__", (portion,))
    ops: list[Op] = [
        *(Submit("r1", "a:40"), Step([("r1", 40)]), Finish("r1")),
        *(Submit("r2", "a:40"), Step([("r2", 8)]), Step([("r2", 8)])),
    ]
    trace = Trace(TraceHeader("t", load("full"), pages=20), ops)
    with pytest.raises(driving.Stopped, match="it babbles") as stopped:
        driving.drive(trace, Babbling(parse(SHORT).open(trace.header), answers))
    assert [finding.anomaly for finding in stopped.value.result.findings] == ["lost-hit"]
    with pytest.raises(NoAnswer, match="it babbles"):
        driving.drive(trace, Babbling(parse("reference").open(trace.header), answers))


def test_what_was_found_in_answers_before_one_that_is_none_counts() -> None:
    """The engine tells no pages, and is judged beside its uncached baseline."""
    spec = parse("sample:mutant=name-of-the-first-block-and-the-length")
    trace = write(configurations()[0].shape("answers"), "parting", 0)
    whole = answered(trace, spec.open(trace.header), spec)
    assert whole.findings
    with pytest.raises(driving.Stopped, match="it babbles") as stopped:
        answered(trace, Babbling(spec.open(trace.header), 0), spec)
    assert [one.anomaly for one in stopped.value.result.findings] == [
        one.anomaly for one in whole.findings
    ]
    with pytest.raises(NoAnswer, match="it babbles"):
        answered(trace, Babbling(parse("sample").open(trace.header), 0), parse("sample"))


def test_a_failure_stays_though_the_engine_cannot_be_started_again() -> None:
    """As where a port that it had is not free yet."""
    trace = Trace(TraceHeader("t", load("full"), pages=20), [Submit("r1", "a:40"), Step()])
    finding = Finding(anomaly="leak", checker="ownership", sentence="…", seq=1, op=1)

    def refused(candidate: Trace, engine: EngineSpec) -> Finding | None:
        raise EngineBroken("address already in use")

    assert smallest(trace, parse("reference"), finding, refused)[:2] == (trace, finding)


def test_what_another_process_found_is_told_where_somebody_interrupts() -> None:
    """Its turn had not come, behind a trace that takes long."""
    trial = FuzzTrials(
        parse(LEAK),
        Plan("vllm", ("manager",), Restriction([load("full")], {}, historic=False), 0),
        False,
    ).run(1)
    assert trial.result and trial.result.findings

    class Interrupted(WorkerPool[int, FuzzTrial]):
        def in_order(self, items: object) -> Iterator[Any]:
            raise KeyboardInterrupt
            yield

        def finished(self) -> list[tuple[int, FuzzTrial]]:
            return [(0, FuzzTrial()), (1, trial)]

    campaign = Campaign(parse(LEAK), Plan("vllm", ("manager",), Restriction(), 0))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cachewitness.sessions.fuzz.campaign.WorkerPool", Interrupted)
        campaign.run(operations=1)
    assert (
        campaign.report.interrupted
        and [one.finding for one in campaign.report.failures] == trial.result.findings[:1]
    )


def test_a_campaign_keeps_what_it_was_shrinking(tmp_path: Path) -> None:
    spec = parse(LEAK)
    seen = list[tuple[Failure, bool]]()
    keeper = Keeper(spec, tmp_path)
    plan = Plan("vllm", ("manager",), Restriction([load("full")], {}, historic=False), 0)
    campaign = Campaign(spec, plan, on_failure=interrupting(seen, keeper))
    campaign.run(operations=100_000)
    assert campaign.report.interrupted and [failure.id for failure in campaign.report.failures] == [
        seen[0][0].id
    ]
    assert len(list(tmp_path.iterdir())) == 1


def test_the_smaller_trace_replaces_the_whole_one(tmp_path: Path) -> None:
    """One trace a failure is left, the smallest, under the name that the whole one had; the others
    of its anomaly are not kept unless everything is.
    """
    spec = parse(LEAK)
    keeper = Keeper(spec, tmp_path)
    names = set[str]()

    def take(failure: Failure, final: bool) -> None:
        keeper.take(failure, final)
        names.update(stored.trace for stored in keeper.stored.values())

    report = Runner(spec, [Configuration(load("full"))], on_failure=take).run(RANDOM)
    assert names == {str(path) for path in tmp_path.iterdir()}
    assert len(report.failures) > 1
    first = {failure.finding.anomaly: failure.shrunk.ops for failure in reversed(report.failures)}
    kept = [traces.load(path).ops for path in tmp_path.iterdir()]
    assert "leak" in first and len(kept) == len(first)
    assert all(ops in kept and len(ops) < 8 for ops in first.values())


def test_the_first_failure_of_an_anomaly_is_kept_however_many_others_are(tmp_path: Path) -> None:
    spec = parse(LEAK)
    keeper = Keeper(spec, tmp_path, everything=True, most=1)
    report = Runner(spec, [Configuration(load("full"))], on_failure=keeper.take, shrunk=0).run(
        RANDOM
    )
    first = {one.finding.anomaly: one.id for one in reversed(report.failures)}
    assert {*keeper.stored} == {*first.values()} and len(first) > 1
    assert keeper.left_out == {one.id for one in report.failures} - {*first.values()} != set()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_mutants_leaves_no_worker_behind(how: int, tmp_path: Path) -> None:
    child = start(tmp_path, "mutants", "--tensor-seconds", "0", "--jobs", "2", "--policy", "vllm")
    assert child.stderr is not None
    first = child.stderr.readline()
    assert "killed in" in first and len(of_session(child.pid)) >= 2
    os.kill(child.pid, how)
    out, err = child.communicate(timeout=60)
    until(lambda: not of_session(child.pid), 10)
    if how != signal.SIGKILL:
        assert (
            child.returncode == 130
            and "interrupted after" in err
            and first.partition(":")[0] in out
        )


def test_a_report_that_cannot_be_written_does_not_hide_the_verdict(tmp_path: Path) -> None:
    """The verdict comes first, then a line for each file; a pass without the report that was
    asked for is no 0.
    """

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    command = ("run", "--layout", "full", "--suite", "invariants", "--report", "out")
    child = start(tmp_path, *command, limit=small_files)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 4 and "verdict: pass (exit code 0)" in out
    assert (
        "cachewitness: out/report.json: cannot be written (File too large)" in err
        and "Traceback" not in err
    )
    assert not list((tmp_path / "out").glob("*.part"))
    failing = start(tmp_path, *command, "--engine", LEAK, limit=small_files)
    out, err = failing.communicate(timeout=60)
    assert failing.returncode == 1 and "FAIL  leak" in out and "cannot be written" in err


def test_failing_traces_that_cannot_be_kept_do_not_hide_the_verdict(tmp_path: Path) -> None:
    (tmp_path / ".cachewitness").write_text("a file where a folder is needed")
    for command in (
        ["run", "--layout", "full", "--suite", "random"],
        ["fuzz", "--layout", "full", "--seconds", "20"],
    ):
        child = start(tmp_path, *command, "--engine", LEAK)
        out, err = child.communicate(timeout=60)
        assert child.returncode == 1 and re.search("FAIL  (leak|refused-reset)", out)
        assert (
            err.count("cachewitness: .cachewitness/failures: cannot be written to") == 1
            and "Traceback" not in err
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_nobody_can_write_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        child = start(
            tmp_path, "run", "--layout", "full", "--suite", "invariants", out=full.fileno()
        )
        _, err = child.communicate(timeout=60)
    assert (
        child.returncode == 4
        and err == "cachewitness: the output cannot be written (No space left on device)\n"
    )


def test_the_report_of_an_earlier_run_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone as soon as a run begins, and what is not the harness's stays."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "failures").mkdir(parents=True)
    for name in ("report.json", "junit.xml", "failures/old.trace.jsonl", "failures/mine.txt"):
        (tmp_path / "out" / name).write_text("old")

    def crash(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("cachewitness.sessions.run.runner.Runner.run", crash)
    assert invoke(["run", "--layout", "full", "--report", "out"]) == 3
    assert [str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()] == [
        "failures/mine.txt"
    ]


def test_a_device_is_written_to_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["run", "--layout", "full", "--suite", "invariants", "--junit", "/dev/null"]) == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize(
    "answer", [Opened(header=object()), Happened([object()])], ids=["header", "events"]
)  # type: ignore[arg-type,list-item]
def test_what_a_process_cannot_write_down_is_no_refusal(answer: Opened | Happened) -> None:
    """Else a configuration whose header is none would be left out, and the others pass."""
    line = io.BytesIO()
    serve._Server(line)._say(answer)
    refused = json.loads(line.getvalue())
    assert refused["bad_events"] and "is not made of events" in refused["message"]
