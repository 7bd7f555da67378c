"""An engine that hangs in the harness's own process gets a verdict after its deadline, whatever
it hangs in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import deadline
from cachewitness.engines.deadline import Guarded, Limits
from cachewitness.engines.registry import parse
from cachewitness.workloads.layouts import load
from suites.support.foreign_engine import install

DEADLINE, BEYOND, STARTED = 2.0, 5.0, 20.0
"""The deadline, within how many seconds after it a verdict comes, and how long the command may take
for all else."""
HEADER = TraceHeader("t", load("full"), 9, "manager", "vllm", {})


class Ran(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str
    seconds: float


def run(folder: Path, how: str, *more: str) -> Ran:
    """Run scenarios on an engine that hangs in the first reset."""
    (folder / "installed").mkdir()
    path = os.pathsep.join([str(install(folder / "installed")), *sys.path])
    command = [
        sys.executable,
        "-m",
        "cachewitness.cli",
        "run",
        "--engine",
        f"mortal:how={how},at=reset",
        "--isolate",
        "no",
    ]
    command += [
        "--layout",
        "full",
        "--suite",
        "invariants",
        "--fail-fast",
        "--deadline",
        f"{DEADLINE:g}",
        *more,
    ]
    began = time.monotonic()
    surroundings = os.environ | {"PYTHONPATH": path}
    ran = subprocess.run(
        command,
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - began)


@pytest.mark.parametrize("how", ["hang", "hang-holding-the-lock", "hang-whatever-is-raised"])
def test_what_can_be_interrupted_is_a_finding_of_the_trace(how: str, tmp_path: Path) -> None:
    """Python code, and what it waits for in the system; the trace is kept, with the command that
    replays it.
    """
    ran = run(tmp_path, how)
    assert ran.code == 1 and ran.seconds < DEADLINE + BEYOND + STARTED
    words = " ".join(ran.out.split())
    assert (
        "in process: a death of the engine ends the run without a verdict, 2 s for an operation"
        in words
    )
    assert (
        "however it gave no answer within 2 seconds; it was in" in words
        and 'mortal_engine.py", line' in words
    )
    assert "--isolate no --deadline 2" in words and words.endswith("contradict a rule (hung in 1)")
    assert len(list((tmp_path / ".cachewitness" / "failures").glob("*.trace.jsonl"))) == 1


@pytest.mark.parametrize("how", ["hang-in-native-code", "hang-in-native-code-holding-the-lock"])
def test_what_cannot_be_interrupted_ends_the_run_with_one_line(how: str, tmp_path: Path) -> None:
    """Native code that no signal interrupts: where Python was stands in the line, or behind it."""
    ran = run(tmp_path, how)
    assert ran.code == 1 and ran.seconds < DEADLINE + BEYOND + STARTED
    (verdict,) = [line for line in ran.err.splitlines() if line.startswith("verdict: ")]
    assert verdict.startswith("verdict: FAIL (exit code 1): hung: the engine gave no answer within")
    assert verdict.endswith("what was found before is kept") and "lock_twice" in ran.err
    locked = "keeps Python's lock" in verdict
    assert locked == how.endswith("lock") and ("asked to reset in trace" in verdict) != locked


def test_a_verdict_comes_within_five_seconds_after_the_deadline() -> None:
    """Whatever it takes: the thread's look, or that of the fault handler, which was set at the
    thread's last one.
    """
    late = deadline.LATE_LOOKS * deadline.LOOKED_S
    assert late < deadline.LAST_S and deadline.LAST_S + deadline.LOOKED_S < BEYOND


STOOD_STILL = """
import threading
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.engines.deadline import call_within

print("ready", flush=True)
try:
    with call_within("wait", 1):
        threading.Event().wait()
except EngineFailure as failure:
    print(failure)
"""


def test_processes_that_stood_still_beyond_their_deadline_can_still_be_interrupted() -> None:
    """As on a machine whose processors are somewhere else for three seconds. Several, since which
    of a process's threads wakes first is chance.
    """
    command = [sys.executable, "-c", STOOD_STILL]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(8)
        ]
        outputs = [process.stdout for process in processes if process.stdout is not None]
        assert [output.readline() for output in outputs] == ["ready\n"] * 8
        for sent, pause in ((signal.SIGSTOP, 3.0), (signal.SIGCONT, 0.0)):
            for process in processes:
                process.send_signal(sent)
            time.sleep(pause)
        lines = {output.read()[:33] for output in outputs}
        assert lines == {"gave no answer within 1 seconds; "}
    assert [process.returncode for process in processes] == [0] * 8


COPIED = """
import os, time
from cachewitness.engines import deadline

deadline.IDLE_S = 0.2
with deadline.call_within("work", 5):
    pass
if os.fork() == 0:
    time.sleep(20)
    os._exit(0)
time.sleep(3 * deadline.LOOKED_S)
began = time.monotonic()
with deadline.call_within("work", 5):
    pass
print(time.monotonic() - began)
"""


def test_a_call_does_not_wait_for_a_copy_of_the_process_that_lives_on() -> None:
    """The copy has all that the watch had open when it was made."""
    with subprocess.Popen(
        [sys.executable, "-c", COPIED], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and float(process.stdout.readline()) < 2
        os.killpg(process.pid, signal.SIGKILL)


class Slow:
    """An engine that takes so many seconds for an operation, and counts how often it was closed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.closed = 0
        self.threads = threading.active_count()

    def describe(self) -> Any:
        return None

    def apply(self, op: Any) -> Any:
        time.sleep(self.seconds)
        return []

    def close(self) -> None:
        self.closed += 1


def test_an_engine_in_time_is_not_disturbed_and_one_that_hung_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing of the watch is left when no engine was called for a while."""
    monkeypatch.setattr(deadline, "IDLE_S", 0.1)
    slow = Slow(0.05)
    engine = Guarded(slow, HEADER, Limits(0.5))
    assert engine.apply(None) == [] and engine.seconds == 0.05
    engine.close()
    slow.seconds = 30
    with pytest.raises(
        EngineFailure,
        match=r'gave no answer within 0.5 seconds; it was in ".*test_deadline.py", line \d+ in apply',  # noqa: E501
    ):
        engine.apply(None)
    engine.close()
    assert slow.closed == 1
    time.sleep(3 * deadline.LOOKED_S)
    assert threading.active_count() == slow.threads


def test_a_limit_goes_with_the_command_that_replays() -> None:
    """The usual one is left out."""
    words = [
        parse("sample").__class__(parse("sample").kind, {}, "sample", None, limits).arguments
        for limits in (Limits(), Limits(7))
    ]
    assert words == ["--engine sample --isolate no", "--engine sample --isolate no --deadline 7"]
