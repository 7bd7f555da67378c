"""Whatever an engine of another package does to its process is a finding or one line, never a
pass or the end of the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from cachewitness._util.errors import EngineMissing
from cachewitness.cli import invoke
from cachewitness.core import trace_format as traces
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import (
    GroupSpec,
    Layout,
    Preempt,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines import import_probe
from cachewitness.engines.isolation import engine as child_engine
from cachewitness.engines.isolation.engine import IDLE_MAX, Isolation, started
from cachewitness.engines.own_process import OwnProcess
from cachewitness.engines.registry import EngineSpec, kinds, parse
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from suites.support.foreign_engine import mortal  # noqa: F401
from suites.support.sampled import chosen

pytestmark = pytest.mark.usefixtures("mortal")


@pytest.fixture(autouse=True, params=["started", "forked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines' processes started, or forked from one that has imported a module."""
    monkeypatch.setenv("MORTAL_IMPORTS", "decimal" if request.param == "forked" else "")


one_way = pytest.mark.parametrize("way", chosen(["started", "forked"], "forked"), indirect=True)
"""For a test that takes long: what is done with a finding does not depend on how the process began.
"""
TRACE = Trace(
    TraceHeader(name="short", layout=Layout("full", [GroupSpec("full", 16)]), pages=9),
    [Submit("a", "x:20"), Step([("a", 20)]), Preempt("a"), Step([("a", 21)])],
)
DEATHS = {
    "exit-0": "ended its process with exit code 0",
    "exit-1": "ended its process with exit code 1",
    "sys-exit": "ended its process with exit code 0",
    "segfault": "was ended by SIGSEGV; it was in ",
    "killed": "was ended by SIGKILL",
    "abort": "was ended by SIGABRT; it was in ",
    "overflow": "was ended by SIGSEGV; it was in ",
    "memory": "raised MemoryError",
    "flood": "was ended by SIGABRT",
    "closed-pipe": (
        "ended its process with exit code 1; the last line of its standard error is 'OSError"
    ),
    "fork": "ended its process with exit code 0",
    "fork-in-a-session": "ended its process with exit code 0",
    "raise": "raised IndexError: list index out of range (mortal_engine.py:",
}
"""By what the engine does: what is said of it."""


def engine(how: str, at: str = "preempt", **limits: float) -> EngineSpec:
    return parse(f"mortal:how={how},at={at}").isolated(
        Isolation(**({"deadline": 20.0, "memory_gib": 4.0} | limits))
    )


def descendants() -> list[int]:
    """Return the processes that engines left behind and that are still there; one that was
    killed has a moment to go.
    """
    pids = Path(os.environ["PID_FILE"])
    end = time.monotonic() + 5
    left = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    while any(map(_runs, left)) and time.monotonic() < end:
        time.sleep(0.02)
    return list(filter(_runs, left))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", DEATHS)
def test_a_death_is_a_finding_at_its_operation(how: str) -> None:
    """It is reported as `engine-crashed`, with the operation, and how the process ended; nothing of it is
    left behind.
    """  # noqa: E501
    spec = engine(how)
    result = drive(TRACE, spec.open(TRACE.header))
    (finding,) = result.findings
    assert (finding.anomaly, finding.checker, finding.op, result.outcome) == (
        "engine-crashed",
        "engine",
        2,
        "fail",
    )
    assert (
        f"operation 3 (preempt a), which every engine must bear; however it {DEATHS[how]}"
        in finding.sentence
    )
    assert len(finding.output) < 200_000, "a flood is not kept"
    assert descendants() == []


@pytest.mark.parametrize("how", ["hang", "hang-holding-the-lock"])
def test_silence_is_a_finding_after_the_deadline(how: str) -> None:
    """Also if Python's lock is held and SIGTERM ignored; the report says where it hangs."""
    begun = time.monotonic()
    spec = engine(how, deadline=1.0)
    (finding,) = drive(TRACE, spec.open(TRACE.header)).findings
    assert (finding.anomaly, finding.op) == ("hung", 2)
    assert (
        'gave no answer within 1 seconds; it was in "' in finding.sentence
        and "mortal_engine.py" in finding.sentence
    )
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("how", ["slow", "chatty", "return-twice"])
def test_what_is_lawful_is_no_death(how: str) -> None:
    """An operation that takes most of its deadline, output, and a fork whose copy returns do not
    matter.
    """
    assert drive(TRACE, engine(how, deadline=5.0).open(TRACE.header)).findings == []


def test_a_death_while_closing_is_a_finding() -> None:
    (finding,) = drive(TRACE, engine("exit-0", at="close").open(TRACE.header)).findings
    assert finding.anomaly == "engine-crashed" and finding.sentence.startswith(
        "Let go of the engine after the last operation"
    )


def test_a_replay_finds_a_death_while_closing(capsys: pytest.CaptureFixture[str]) -> None:
    traces.save(TRACE, Path("trace.jsonl"))
    assert invoke(["replay", "trace.jsonl", "--engine", "mortal:how=raise,at=close"]) == 1
    assert "Let go of the engine" in capsys.readouterr().out


def test_one_child_serves_many_traces_and_is_replaced_when_it_died() -> None:
    calm = engine(
        "exit-0", at="reset", deadline=21.0
    )  # no other test leaves a child with this deadline
    first = started()  # no other test leaves a child with this deadline
    for _ in range(3):
        assert drive(TRACE, calm.open(TRACE.header)).findings == []
    assert started() - first == 1
    dying = engine("exit-0")
    second = started()
    for _ in range(3):
        assert drive(TRACE, dying.open(TRACE.header)).findings
    assert started() - second == 3


def test_a_process_that_goes_by_its_first_trace_serves_only_traces_alike() -> None:
    """An option that the engine says its process keeps decides which traces share a process."""
    calm = engine("exit-0", at="reset", deadline=22.0)
    first = started()
    keeping = replace(calm, kind=replace(calm.kind, process=OwnProcess(fixed=("max_num_seqs",))))
    for spec, values, processes in (
        (calm, (16, 32, 16), 1),
        (keeping, (16, 32, 16, 32), 3),
        (keeping, (None, 16), 4),
    ):
        for value in values:
            header = structs.replace(
                TRACE.header, options={} if value is None else {"max_num_seqs": value}
            )
            assert drive(Trace(header, TRACE.ops), spec.open(header)).findings == []
        assert started() - first == processes


@one_way
def test_of_many_engines_only_the_last_few_keep_their_process() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for opening in range(IDLE_MAX + 4):
        spec = engine("exit-0", at="reset", memory_gib=4.0 + opening)
        assert drive(TRACE, spec.open(TRACE.header)).findings == []
    assert descriptors() <= before + 4 * IDLE_MAX, "a child takes four pipes"


def test_two_engines_are_open_at_once() -> None:
    spec = engine("exit-0", at="reset")
    one = spec.open(TRACE.header)
    other = spec.open(TRACE.header)
    assert drive(TRACE, one).findings == drive(TRACE, other).findings == []


def run(*arguments: str) -> int:
    return invoke(
        ["run", "--layout", "full", "--suite", "random", "--deadline", "1", "--quiet", *arguments]
    )


@one_way
def test_the_trace_of_a_death_is_kept_and_shrunk(
    capsys: pytest.CaptureFixture[str],
    mortal: Path,  # noqa: F811
) -> None:
    """Exit code 1, never 0; the kept trace is small and fails again; the output lies beside it."""
    assert run("--engine", "mortal:how=segfault", "--fail-fast", "--report", "out") == 1
    assert "was ended by SIGSEGV" in " ".join(capsys.readouterr().out.split())
    report = json.loads(Path("out/report.json").read_bytes())
    assert report["held"] == "in a process of its own, 1 s for an operation"
    (failure,) = [failure for suite in report["suites"] for failure in suite["failures"]]
    assert (
        failure["anomaly"] == "engine-crashed"
        and failure["operations"] <= 4 < failure["operations_before_shrinking"]
    )
    stored = failure["stored"]
    assert "Segmentation fault" in Path(stored["output"]).read_text()
    assert invoke(["replay", stored["trace"], "--engine", "mortal:how=segfault"]) == 1
    assert invoke(["replay", stored["trace"], "--engine", "mortal"]) in (
        0,
        5,
    ), "nothing is found without it"


@one_way
def test_the_trace_of_a_hang_is_shrunk_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates get a part of the deadline; what is told was seen with all of it."""
    spec = engine("hang", deadline=1.5)
    assert spec.hurried().isolation is not None and spec.hurried().isolation.deadline == 1.0
    monkeypatch.setattr(child_engine, "HURRIED_MIN", 0.4)
    runner = Runner(spec, [Configuration(load("full"))], fail_fast=True)
    report = runner.run([suite for suite in SUITES if suite.name == "random"])
    (failure,) = report.suites[0].failures
    assert failure.finding.anomaly == "hung" and "within 1.5 seconds" in failure.finding.sentence
    assert len(failure.shrunk.ops) <= 4


@one_way
def test_a_run_on_an_engine_that_always_hangs_ends() -> None:
    """After three traces, and what is left is told as not run."""
    report = Runner(engine("hang", at="step", deadline=0.3), [Configuration(load("full"))]).run(
        [suite for suite in SUITES if suite.name in ("invariants", "random")]
    )
    assert [failure.finding.anomaly for failure in report.failures] == ["hung"] * 3
    why = "the engine hung in 3 traces, and each takes its deadline"
    assert {(entry.what, entry.why) for entry in report.not_run} >= {
        ("suite random", why)
    } and why in report.vacuous


@pytest.mark.parametrize("how", ["exit-0", "raise", "segfault"])
def test_an_engine_that_dies_when_it_is_opened_is_refused_in_one_line(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["run"], ["fuzz", "--operations", "50"]):
        assert invoke([*command, "--layout", "full", "--engine", f"mortal:how={how},at=open"]) == 4
        out, err = capsys.readouterr()
        assert (
            "pass" not in out
            and err.count("\n") == 1
            and f"mortal:how={how},at=open: cannot be built for trace" in err
        )


def test_garbage_is_refused_by_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--engine", "mortal:how=garbage") == 4
    out, err = capsys.readouterr()
    assert "pass" not in out and err.count("\n") == 1
    assert (
        "of its answers is none of the protocol: JSON is malformed" in err
        and "it begins with 'hello" in err
    )


@one_way
def test_in_process_is_possible_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(
        [
            "run",
            "--engine",
            "mortal",
            "--isolate",
            "no",
            "--layout",
            "full",
            "--suite",
            "invariants",
        ]
    ) in (0, 5)
    assert (
        "in process: a death of the engine ends the run without a verdict"
        in capsys.readouterr().out
    )
    assert invoke(["run", "--engine", "mortal", "--isolate", "no", "--memory-gib", "3"]) == 4
    assert "add --isolate yes" in capsys.readouterr().err
    assert invoke(["run", "--engine", "reference", "--deadline", "3"]) == 4
    assert (
        "--deadline: engine reference runs in the harness's own process; add --isolate yes or no"
        in capsys.readouterr().err
    )


@one_way
def test_the_same_seed_finds_the_same_in_either_process() -> None:
    """Isolation changes nothing of what is judged."""
    every = [suite for suite in SUITES if suite.name in ("invariants", "differential")]
    fault = "reference:mutant=block-leaked"
    reports = [
        Runner(spec, [Configuration(load("full-mamba"))]).run(every)
        for spec in (parse(fault), parse(fault).isolated(Isolation()))
    ]
    mine, its = (
        [
            (f.id, f.finding.sentence, traces.dump(f.shrunk))
            for suite in report.suites
            for f in suite.failures
        ]
        for report in reports
    )
    assert mine == its and mine
    assert [suite.activity for suite in reports[0].suites] == [
        suite.activity for suite in reports[1].suites
    ]


IMPORTS = {
    "os._exit(0)": "the import ends the process (exit status 0)",
    "os.kill(os.getpid(), 11)": "the import ends the process (SIGSEGV)",
    "sys.exit(0)": "the import ends the process (exit status 1)",
    "os.closerange(3, 65536); os._exit(0)": "the import ends the process (exit status 0)",
    "raise ValueError('not here')": "ValueError: not here",
}


def rewritten(does: str) -> None:
    """Have the module of the engine do something when it is imported."""
    Path("installed", "mortal_engine.py").write_text(f"import os, sys\n{does}\n")
    import_probe.died.cache_clear()


@pytest.mark.parametrize(("does", "message"), IMPORTS.items(), ids=IMPORTS.keys())
def test_an_engine_whose_import_ends_the_process_says_so_when_it_is_opened(
    does: str, message: str
) -> None:
    """And only then: other engines are found beside it."""
    rewritten(does)
    with pytest.raises(EngineMissing) as missing:
        parse("mortal").open(TRACE.header)
    assert message in str(missing.value)
    with pytest.raises(EngineMissing, match="cannot be imported"):
        parse("mortal:how=raise")
    assert (
        parse("reference").kind.name == "reference"
        and "cannot be imported" in kinds()["mortal"].summary
    )


def test_a_run_on_an_engine_that_cannot_be_imported_ends_with_a_line() -> None:
    """Not with the code that the import chose."""
    rewritten("os._exit(0)")
    path = os.pathsep.join(
        filter(None, (str(Path("installed").resolve()), os.environ.get("PYTHONPATH")))
    )
    command = [
        sys.executable,
        "-m",
        "cachewitness.cli",
        "run",
        "--engine",
        "mortal",
        "--suite",
        "invariants",
    ]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 4, done.stderr
    assert (
        "the import ends the process (exit status 0)" in done.stderr
        and done.stderr.count("\n") == 1
    )
