"""A campaign of several processes is the campaign of one: the same traces, findings, marks,
report and digest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cachewitness.cli import invoke
from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.expected import Expectations
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads.layouts import load
from suites.support.checkout import PYTHONPATH
from suites.support.sampled import chosen

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = 400
TIMES = {"seconds", "startup_seconds", "engine_seconds", "harness_seconds"}


def campaign(
    engine: EngineSpec, jobs: int, *, expected: Expectations | None = None, layout: str = ""
) -> Campaign:
    """Run a campaign; with a layout, on that alone."""
    chosen = Restriction([load(layout)] if layout else [], {})
    plan = Plan("vllm", ("manager", "scheduler"), chosen, seed=3)
    made = Campaign(engine, plan, jobs=jobs, beside=True, expected=expected or Expectations())
    made.run(operations=OPERATIONS)
    return made


def outcome(made: Campaign) -> tuple[object, ...]:
    """Return all that came of a campaign, but for times."""

    def timeless(value: object) -> object:
        if isinstance(value, dict):
            return {key: timeless(entry) for key, entry in value.items() if key not in TIMES}
        return [timeless(entry) for entry in value] if isinstance(value, list) else value

    return (
        made.digest,
        made.marks,
        made.traces,
        made.operations,
        timeless(msgspec.to_builtins(made.report)),
    )


@pytest.mark.parametrize("engine", ["reference", "reference:mutant=window-freed-early"])
def test_a_campaign_does_not_depend_on_the_number_of_processes(engine: str) -> None:
    """Clean and faulty: digest, marks, tallies, failures with their shrunk traces, what was left
    out and what had nothing.
    """
    one, *others = (outcome(campaign(parse(engine), jobs)) for jobs in chosen((1, 2, 3), 1, 3))
    assert others == [one] * len(others)


def test_a_rule_has_the_opportunities_of_all_processes() -> None:
    """What had nothing to judge is what no process had anything for, and opportunities are the
    sum over them.
    """
    one, two = (campaign(parse("reference"), jobs, layout="full") for jobs in (1, 2))
    assert one.report.tallies() == two.report.tallies()
    assert one.report.vacuous == two.report.vacuous
    assert one.report.exit_code == two.report.exit_code


def dying(die: Callable[[TraceHeader], None]) -> EngineSpec:
    """Return the reference, which may end its process when it is opened."""

    def opened(header: TraceHeader, options: object) -> Engine:
        die(header)
        return parse("reference").open(header)

    kind = EngineKind(name="dying", summary="", levels=("manager", "scheduler"), open=opened)
    return EngineSpec(kind, {}, "dying")


def test_a_killed_process_changes_nothing(tmp_path: Path) -> None:
    """`kill -9`, as the system does when memory is short: the trace is run again, and one line
    tells of it.
    """
    once = tmp_path / "once"
    lines = list[str]()

    def killed(header: TraceHeader) -> None:
        if header.name == "fuzz-3-2" and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    plan = Plan("vllm", ("manager", "scheduler"), Restriction(), seed=3)
    whole, patched = (
        Campaign(dying(die), plan, jobs=jobs, on_died=lines.append)
        for die, jobs in ((lambda _: None, 1), (killed, 2))
    )
    for one in (whole, patched):
        one.run(operations=OPERATIONS)
    assert outcome(patched) == outcome(whole)
    assert once.exists() and len(lines) == 1 and "signal 9" in lines[0]


def test_an_engine_that_ends_its_process_never_passes() -> None:
    """It leaves with exit code 0 in every process; the campaign ends as unknown and names the
    trace.
    """
    plan = Plan("vllm", ("manager",), Restriction(), seed=3)
    made = Campaign(
        dying(lambda header: os._exit(0) if header.name == "fuzz-3-2" else None), plan, jobs=2
    )
    made.run(operations=OPERATIONS)
    (line,) = [line for suite in made.report.suites for line in suite.crashed]
    assert line.startswith("trace 2 of the campaign: ") and made.traces == 2
    assert made.report.exit_code == 2


def _left(group: int) -> list[int]:
    """Return the processes of a session that still run."""
    left = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (
                (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit()
                else []
            )
        except OSError:
            continue
        if fields and int(fields[3]) == group and fields[0] != "Z":
            left.append(int(entry.name))
    return left


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_ctrl_c_leaves_no_process_and_tells_what_there_was(tmp_path: Path) -> None:
    """Interrupted while two processes run traces: exit code 130, the report until then, and
    nobody goes on.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "cachewitness.cli",
        "fuzz",
        "--jobs",
        "2",
        "--layout",
        "full",
        "--no-lockstep",
    ]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(_left(running.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "stopped before its end" in output and "again: cachewitness fuzz" in output
    while _left(running.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _left(running.pid) == []


def test_an_engine_whose_traces_are_run_in_turn_refuses_several_jobs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that only answers: one line that says why, exit code 4."""
    assert invoke(["fuzz", "--engine", "toy", "--jobs", "2"]) == 4
    assert (
        "--jobs 2: traces on toy are run one after another: it computes" in capsys.readouterr().err
    )
