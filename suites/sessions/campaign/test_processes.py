"""Workers that are processes of this machine: how they end is told, and what they were at is not
lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign import executors
from cachewitness.sessions.campaign.executors import Ended, Processes
from cachewitness.sessions.campaign.unit import outcome_of
from cachewitness.sessions.campaign.worker import Task
from suites.support.campaigns import driven, planned, settings, task_of

TINY = (
    'name = "tiny"\nstreams = ["main"]\n[[engines]]\nengine = "reference"\nlayouts ='
    ' ["full"]\n[budget]\ntraces = 2\nper_unit = 2\n'
)
LONG = 300.0
WORKER = "from cachewitness.sessions.campaign import worker\n"


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.stop()


def ended(processes: Processes) -> list[Ended]:
    """Return what ends next."""
    until = time.monotonic() + LONG
    while not (found := processes.wait(0.1)):
        assert time.monotonic() < until
    return found


def that_does(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers carry out units by `code`, which has `os`, `sys` and the task."""
    lines = f"import ctypes, os, sys, time\n{WORKER}def carry_out(task):\n    {code}\n"
    main = "worker.carry_out = carry_out\nsys.exit(worker.main())"
    path = "import json, sys; sys.path[:] = json.loads(sys.argv.pop())\n"
    monkeypatch.setattr(executors, "_MAIN", path + lines + main)


def test_a_process_carries_out_one_unit_after_another(processes: Processes, tmp_path: Path) -> None:
    made = planned(TINY, tmp_path)
    pids = set()
    for place in (0, 1):
        task = task_of(made, place, tmp_path)
        processes.submit(task)
        pids.add(processes._busy[0]._process.pid)
        (one,) = ended(processes)
        assert one.key == task.key and outcome_of(one.outcome, one.key).traces and not one.why
    assert len(pids) == 1 and not processes._busy


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("sys.exit('it is broken')", "left with exit code 1: it is broken"),
        ("os._exit(0)", "left with exit code 0"),
        ("os.write(4, b'half'); os._exit(7)", "left with exit code 7"),
        ("raise ValueError('ours')", "left with exit code 1: ValueError: ours"),
    ],
)
def test_how_a_worker_ended_is_told(
    code: str, why: str, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    that_does(code, monkeypatch)
    task = task_of(planned(TINY, tmp_path), 1, tmp_path)
    processes.submit(task)
    assert [one._replace(why=one.why.partition(" (")[0]) for one in ended(processes)] == [
        Ended(task.key, why=why)
    ]


@pytest.mark.parametrize(
    "code", ["time.sleep(600)", "ctypes.PyDLL(None).sleep(600)", "os.kill(os.getpid(), 19)"]
)
def test_a_worker_whose_unit_takes_too_long_is_ended(
    code: str, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose own clock does not run, since native code keeps Python's lock, or that was
    stopped.
    """
    that_does(code, monkeypatch)
    task = task_of(planned(TINY, tmp_path), 1, tmp_path, deadline=1.0)
    processes.submit(task)
    assert ended(processes) == [Ended(task.key, why="took longer than 1 s")]
    assert not processes._busy and not processes._idle


def test_what_an_engine_prints_and_reads_is_not_the_campaigns(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor that of what it starts, which may outlive the worker."""
    that_does(
        "print('{}', flush=True); os.write(1, b'{}\\n'); assert sys.stdin.read() == '';"
        " os.fork() or time.sleep(600); os._exit(5)",
        monkeypatch,
    )
    task = task_of(planned(TINY, tmp_path), 1, tmp_path)
    processes.submit(task)
    assert ended(processes) == [Ended(task.key, why="left with exit code 5")]


def test_a_process_that_died_without_a_unit_is_nobodys(
    processes: Processes, tmp_path: Path
) -> None:
    made = planned(TINY, tmp_path)
    processes.submit(task_of(made, 0, tmp_path))
    ended(processes)
    os.kill(processes._idle[0]._process.pid, signal.SIGKILL)
    until = time.monotonic() + LONG
    while processes._idle:
        assert processes.wait(0.1) == [] and time.monotonic() < until
    processes.submit(task_of(made, 1, tmp_path))
    assert ended(processes)[0].outcome


def test_a_worker_that_hangs_at_every_unit_leaves_all_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    that_does("time.sleep(600)", monkeypatch)
    made = planned(TINY, tmp_path)
    kept = settings(tmp_path, workers=2, attempts=1)._replace(deadline=0.2)
    result = driven(made, kept, Processes())
    assert len(result.totals.undone) == 2 and result.progress.lost == 2
    assert any(
        "a worker at unit fuzz canary" in line and line.endswith("0.2 s; the unit is given up")
        for line in result.progress.incidents
    )


def test_a_machine_where_no_worker_starts_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    that_does("", monkeypatch)
    made = planned(TINY.replace("traces = 2", "traces = 60"), tmp_path)
    with pytest.raises(UsageError, match=r"no worker can go on; the last one said: left with"):
        driven(made, settings(tmp_path, workers=1, attempts=2), Processes())


def test_a_task_says_nothing_of_other_units(tmp_path: Path) -> None:
    """A unit whose content is not that of its key is refused, lest it count for another."""
    made = planned(TINY, tmp_path)
    mixed = Task(key=made.entries[0][0], spec=made.entries[1][1], traces="t", deadline=1.0)
    answer = executors.carry_out(mixed)
    assert answer.refused == "is not what was stored under this key" and not answer.outcome
