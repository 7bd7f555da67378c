"""Where units are carried out: by processes of this machine, or by tasks of a Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import msgspec

from cachewitness._util import strays, workers
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.sessions.campaign.worker import READY, Answer, Task, carry_out

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from"
    " cachewitness.sessions.campaign.worker import main; sys.exit(main())"
)
LINE_MAX = 400
"""Characters of what a worker said last that are told."""
START = 60.0
"""Seconds in which a worker is ready for its first unit; then the time of the unit begins."""
LET_GO = 5.0
"""Seconds in which a worker that closed its output ends."""
EXIT_TOO_LONG = 75
"""The exit code of a task of a cluster whose unit took too long."""


class Ended(NamedTuple):
    """How a try at a unit ended: what was answered, or why nothing was, after how many tries.

    `refused`: it cannot be carried out there, and another try could not either; it was none.
    """

    key: str
    outcome: bytes = b""
    why: str = ""
    refused: bool = False
    tries: int = 1


class Executor(Protocol):
    """Has units carried out, each by a worker, and says how that ended."""

    def cores(self) -> int:
        """Return how many units it can carry out at a time now."""

    def submit(self, task: Task) -> None:
        """Have a unit carried out."""

    def wait(self, seconds: float) -> list[Ended]:
        """Return what ended, at the latest after so many seconds."""

    def stop(self) -> None:
        """End all workers at once, whatever they are at."""


def _ended(key: str, answer: Answer) -> Ended:
    if answer.refused:
        return Ended(key, why=answer.refused, refused=True, tries=0)
    return Ended(key, answer.outcome)


class _Process:
    """A process that carries out one unit after another. What it has to know goes through a pipe,
    since a store's name may have a password in it.
    """

    def __init__(self, answers: SimpleQueue[tuple[_Process, bytes]]) -> None:
        self.task: Task | None = None
        self.ready = False
        self.since = 0.0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._mark = strays.new()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(os.getpid()), json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, workers.MARK: workers.marked(self._mark)},
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=[answers], daemon=True).start()

    def _listen(self, answers: SimpleQueue[tuple[_Process, bytes]]) -> None:
        """Pass on its lines, and an empty one behind the last."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                answers.put((self, line))
        answers.put((self, b""))

    def begin(self, task: Task) -> None:
        """Have it carry out a unit; if it is gone, its output is at an end."""
        self.task = task
        self.since = time.monotonic()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
            self._process.stdin.flush()

    def late(self) -> bool:
        """Whether its unit takes longer than it may: native code can keep any clock of its own from
        running.
        """
        if self.task is None:
            return False
        most = self.task.deadline + (0.0 if self.ready else START)
        return time.monotonic() - self.since > most

    def how_it_ended(self) -> str:
        """Return how a process ended whose output is at an end."""
        try:
            code = self._process.wait(LET_GO)
        except subprocess.TimeoutExpired:
            return "closed its output"
        self._errors.seek(0)
        lines = self._errors.read()[-10 * LINE_MAX :].decode("utf-8", "replace").split("\n")
        last = next((line.strip()[:LINE_MAX] for line in reversed(lines) if line.strip()), "")
        how = f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"
        return f"{how}: {last}" if code > 0 and last else how

    def end(self) -> None:
        """Kill it, and what it has started."""
        self.task = None
        self._process.kill()
        self._process.wait()
        strays.end(self._mark)
        self._errors.close()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Processes:
    """Workers are processes of this machine, which end with this one."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._busy: list[_Process] = []
        self._answers: SimpleQueue[tuple[_Process, bytes]] = SimpleQueue()

    def cores(self) -> int:
        """Return how many cores this process may use."""
        return workers.cores()

    def submit(self, task: Task) -> None:
        """Have a unit carried out by a process that has none, or by a new one."""
        process = self._idle.pop() if self._idle else _Process(self._answers)
        self._busy.append(process)
        process.begin(task)

    def wait(self, seconds: float) -> list[Ended]:
        """Return what ended, and end processes whose units take too long."""
        ended = [one for process, line in self._heard(seconds) for one in self._read(process, line)]
        for process in [one for one in self._busy if one.late()]:
            assert process.task is not None
            why = f"took longer than {process.task.deadline:g} s"
            ended += self._lost(process, why)
        return ended

    def _heard(self, seconds: float) -> Iterator[tuple[_Process, bytes]]:
        """Yield what has come, the first of it after at most so many seconds."""
        with suppress(Empty):
            yield self._answers.get(timeout=seconds)
            while True:
                yield self._answers.get_nowait()

    def _read(self, process: _Process, line: bytes) -> list[Ended]:
        if process in self._idle and not line:
            self._idle.remove(process)
            process.end()
        if process not in self._busy:
            return []
        assert process.task is not None
        if line == READY:
            process.ready = True
            process.since = time.monotonic()
            return []
        if not line.endswith(b"\n"):  # half a line, and then nothing: it died
            return [] if line else self._lost(process, process.how_it_ended())
        self._busy.remove(process)
        self._idle.append(process)
        return [_ended(process.task.key, msgspec.json.decode(line, type=Answer))]

    def _lost(self, process: _Process, why: str) -> list[Ended]:
        assert process.task is not None
        self._busy.remove(process)
        lost = [Ended(process.task.key, why=why)]
        process.end()
        return lost

    def stop(self) -> None:
        """Kill every process, and what it has started."""
        for process in (*self._idle, *self._busy):
            process.end()
        self._idle = []
        self._busy = []


class Ray:
    """Workers are tasks of a Ray cluster, one core each; those that wait for a machine make an
    autoscaling cluster grow.

    Ray itself carries out a unit again whose worker or machine is lost, so often that there are
    `attempts`.
    """

    def __init__(self, address: str, attempts: int) -> None:
        try:
            import ray
        except ImportError:
            install = "pip install 'cachewitness[cluster]'"
            raise EngineMissing(
                f"--ray {address}: Ray is not installed; {install}", install
            ) from None
        self._ray: Any = ray
        self._attempts = attempts
        self._keys: dict[Any, str] = {}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"--ray {address}: cannot be reached ({' '.join(str(error).split())[:LINE_MAX]})"
            ) from None
        self._task: Any = ray.remote(num_cpus=1, max_retries=attempts - 1)(_carry_out)

    def cores(self) -> int:
        """Return how many cores the cluster has now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, task: Task) -> None:
        """Submit a task."""
        self._keys[self._task.remote(msgspec.json.encode(task))] = task.key

    def wait(self, seconds: float) -> list[Ended]:
        """Return what ended."""
        if not self._keys:
            return []
        done, _ = self._ray.wait(list(self._keys), num_returns=1, timeout=seconds)
        return [self._answer(handle, self._keys.pop(handle)) for handle in done]

    def _answer(self, handle: Any, key: str) -> Ended:
        try:
            return _ended(key, msgspec.json.decode(self._ray.get(handle), type=Answer))
        except self._ray.exceptions.RayError as error:
            raised = isinstance(error, self._ray.exceptions.RayTaskError)
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:LINE_MAX]}"
            return Ended(key, why=why, tries=1 if raised else self._attempts)

    def stop(self) -> None:
        """Kill every task."""
        for handle in self._keys:
            self._ray.cancel(handle, force=True)
        self._keys = {}


def _carry_out(content: bytes) -> bytes:
    """Carry out a unit in a task of Ray, which ends with its process if it takes too long."""
    task = msgspec.json.decode(content, type=Task)
    clock = threading.Timer(task.deadline, os._exit, [EXIT_TOO_LONG])
    clock.daemon = True
    clock.start()
    try:
        return msgspec.json.encode(carry_out(task))
    finally:
        clock.cancel()


TASK = f"ray::{_carry_out.__name__}"
"""How the command line of a process of Ray begins while it is at a task of a campaign."""
