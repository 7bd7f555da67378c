"""A pool of workers of processes gives what one process gives, in the same order, and loses
nothing when one of them dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachewitness._util import strays
from cachewitness._util.errors import EngineMissing
from cachewitness._util.worker_pool import Task, WorkerDied, WorkerPool, possible
from suites.support.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[2]


def squared(number: int) -> int:
    """Take the longer the smaller the number, so that later items are done first."""
    time.sleep(0.01 / number)
    if number == 13:
        raise EngineMissing("no such engine", mend="pip install it")
    return number * number


def whose(number: int) -> int:
    """Return the process that carries it out."""
    if number == 13:
        raise EngineMissing("no such engine")
    return os.getpid()


def results(worker_pool: WorkerPool[int, int], numbers: range) -> list[int]:
    tasks: list[Task[int, int]] = [worker_pool.submit(number) for number in numbers]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_results_come_in_the_order_of_items(jobs: int) -> None:
    """Whoever is done first."""
    with WorkerPool(jobs, squared) as worker_pool:
        assert results(worker_pool, range(1, 12)) == [number * number for number in range(1, 12)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_an_item_raises_is_raised_for_it(jobs: int) -> None:
    """With all that the exception says, and those before and after it have results."""
    with WorkerPool(jobs, squared) as worker_pool:
        before = worker_pool.submit(2)
        bad = worker_pool.submit(13)
        after = worker_pool.submit(3)
        assert before.result() == 4
        with pytest.raises(EngineMissing, match="no such engine") as raised:
            bad.result()
        assert raised.value.mend == "pip install it"
        assert after.result() == 9


def test_the_first_items_can_be_carried_out_here_and_the_others_are_not() -> None:
    """None is begun before their results are there; what one raises does not keep the others
    here.
    """
    for first in ((1, 2), (13, 1), (1, 13)):
        with WorkerPool(2, whose, here=2) as worker_pool:
            for item in first:
                assert worker_pool.ahead == 1
                task = worker_pool.submit(item)
                if item != 13:
                    assert task.result() == os.getpid()
                else:
                    with pytest.raises(EngineMissing):
                        task.result()
            assert worker_pool.ahead > 1
            assert worker_pool.submit(2).result() != os.getpid()


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_what_a_dead_process_was_at_is_done_again(how: str, tmp_path: Path) -> None:
    """Killed from outside, or left for a reason that is gone: every result is there, and one
    line tells of it.
    """
    once = tmp_path / "once"
    lines = list[str]()

    def mortal(number: int) -> int:
        if number == 5 and not once.exists():
            once.touch()
            os._exit(0) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
        return squared(number)

    with WorkerPool(2, mortal, lines.append) as worker_pool:
        assert results(worker_pool, range(1, 12)) == [number * number for number in range(1, 12)]
    assert len(lines) == 1 and lines[0].endswith("what it was at is done again")
    assert how == "exit" or "ended by signal 9" in lines[0]


def test_an_item_that_ends_every_process_is_named_and_takes_no_other_with_it() -> None:
    """`os._exit(0)` looks like success; the items beside it have their results all the same."""

    def deadly(number: int) -> int:
        if number == 4:
            os._exit(0)
        return number

    with WorkerPool(2, deadly) as worker_pool:
        tasks = [worker_pool.submit(number) for number in range(1, 8)]
        assert [task.result() for task in tasks[:3]] == [1, 2, 3]
        with pytest.raises(WorkerDied, match="exit code 0"):
            tasks[3].result()
        assert [task.result() for task in tasks[4:]] == [5, 6, 7]


def test_no_process_is_left_behind() -> None:
    """Whoever leaves the pool, with results or without, leaves no process that goes on."""

    def endless(number: int) -> int:
        time.sleep(60)
        return number

    with pytest.raises(KeyboardInterrupt), WorkerPool(2, endless) as worker_pool:
        worker_pool.submit(1)
        assert worker_pool._pool is not None
        there = list(worker_pool._pool._there)
        raise KeyboardInterrupt
    for process in there:
        process.join(5)
    assert there and [process.exitcode for process in there] == [-signal.SIGKILL] * len(there)


ENDED_WHILE_IT_TELLS = """
import sys, time
from cachewitness._util import workers

pool = workers.started(2, None, method="fork")
told = [pool.submit(bytes, 1 << 24) for _ in range(40)]
told[0].result()
workers.end(pool)
print("ended")
"""


@pytest.mark.skipif(not possible(), reason="processes are not copied here")
def test_processes_that_are_ended_while_they_tell_a_result_hold_nobody_up() -> None:
    """Half a result lies in the pipe; Python would wait for the rest of it when it ends."""
    surroundings = os.environ | {"PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-P", "-c", ENDED_WHILE_IT_TELLS]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


INTERRUPTED_AT_A_FORK = """
import os, signal, sys
from cachewitness._util import workers

sent = signal.Signals[sys.argv[1]]
signal.signal(sent, signal.default_int_handler)  # as the command line has it for both
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(sent))
try:
    with workers.workers(2, method="fork") as pool:
        pool.submit(abs, -1).result()
    print("went on")
except KeyboardInterrupt:
    print("ended", signal.getsignal(sent) is signal.default_int_handler)
"""


@pytest.mark.skipif(not possible(), reason="processes are not copied here")
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_ctrl_c_while_processes_are_started_is_not_lost(sent: str) -> None:
    """Python forgets what is raised around a fork."""
    surroundings = os.environ | {"PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-P", "-c", INTERRUPTED_AT_A_FORK, sent]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended True\n", "")


OTHERWISE = """
import multiprocessing, sys
from cachewitness.cli import invoke

multiprocessing.set_start_method("forkserver")
sys.exit(invoke(sys.argv[1:]))
"""
COMMANDS = {
    "fuzz --exhaustive --bound requests=1,pages=4 --jobs 2 --layout full": (
        5
    ),  # one request hits nothing
    "mutants --mutant block-leaked --tensor-seconds 0 --jobs 2": 0,
    "run --layout full --suite invariants --jobs 2": 0,
}


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere Python starts processes in one way"
)
@pytest.mark.parametrize("name", COMMANDS)
def test_processes_are_children_however_python_would_start_them(name: str, tmp_path: Path) -> None:
    """From Python 3.14 on, a server forks them by default; they end with the process that they
    work for all the same.
    """
    command = [sys.executable, "-c", OTHERWISE, *name.split()]
    surroundings = os.environ | {"PYTHONPATH": PYTHONPATH}
    ended = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == COMMANDS[name], ended.stderr


def test_results_behind_one_that_takes_long_are_there_when_it_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """As where somebody interrupts: what others have found meanwhile is not lost."""
    if not possible():
        pytest.skip("one process carries out everything in turn")

    def slow(number: int) -> int:
        while number == 1 and not (tmp_path / "over").exists():
            time.sleep(0.01)
        if number == 3:
            raise EngineMissing("no such engine")
        return number * number

    with WorkerPool(2, slow) as worker_pool:
        for number, task in worker_pool.in_order([1, 2, 3, 4]):
            if number == 1:
                assert not task.wait(0.05) and not task.there
                until(lambda: [item for item, _ in worker_pool.finished()] == [2, 4])
                assert worker_pool.finished() == [(2, 4), (4, 16)]
                (tmp_path / "over").touch()
                assert task.wait(30) and task.result() == 1
            elif number != 3:
                assert task.result() == number * number


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found by their environment in /proc"
)
def test_what_a_process_started_ends_with_the_crew() -> None:
    """Also in a session of its own, and though the process was killed that could have ended it."""

    def begin(number: int) -> int:
        return subprocess.Popen(["sleep", "777"], start_new_session=True).pid

    with WorkerPool(2, begin) as worker_pool:
        (pid,) = [task.result() for _, task in worker_pool.in_order([1])]
        assert Path(f"/proc/{pid}").exists()
    until(
        lambda: (
            not Path(f"/proc/{pid}/cmdline").exists()
            or not Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    )


@pytest.mark.parametrize("mark", ["", "PATH", "CACHEWITNESS_WORKERS="])
def test_what_is_no_mark_ends_nobody(mark: str) -> None:
    with pytest.raises(ValueError):
        strays.end(mark)


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
