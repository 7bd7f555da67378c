"""Where workers run: processes of this machine, or tasks of a Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol

import msgspec

from cachewitness._util import strays, workers
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.result import EXIT_USAGE
from cachewitness.sessions.campaign import worker
from cachewitness.sessions.campaign.worker import EXIT_LOST, EXIT_TOO_LONG, FindingsLost, Given

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from"
    " cachewitness.sessions.campaign.worker import main; sys.exit(main())"
)
LINE_MAX = 400
"""Characters of what a worker said last that are told."""


class Ended(NamedTuple):
    """How a worker ended. `refused`: it cannot work here, and another one in its place could not
    either.

    `lost`: it met findings that it could not enter.
    """

    why: str
    refused: bool = False
    lost: bool = False


class Executor(Protocol):
    """Starts workers, says how they ended, and ends them."""

    def cores(self) -> int:
        """Return how many workers there is room for now."""

    def start(self, given: Given) -> Any:
        """Start a worker and return a handle of it."""

    def ended(self, handle: Any) -> Ended | None:
        """Return how a worker ended; None while it runs or waits for a machine."""

    def stop(self, handle: Any) -> None:
        """End a worker at once, whatever it is at."""


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    mark: str


class Processes:
    """Workers are processes of this machine, which end with this one."""

    def cores(self) -> int:
        """Return how many cores this process may use."""
        return workers.cores()

    def start(self, given: Given) -> _Process:
        """Start a process. What it has to know goes through a pipe, since a database's name may
        have a password in it.
        """
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        command = [sys.executable, "-c", _MAIN, json.dumps(sys.path)]
        mark = strays.new()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, workers.MARK: workers.marked(mark)},
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(
                msgspec.json.encode(msgspec.structs.replace(given, parent=os.getpid()))
            )
            process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already, which `ended` says
        return _Process(process, errors, mark)

    def ended(self, handle: _Process) -> Ended | None:
        """Return how a process ended; None while it runs."""
        code = handle.process.poll()
        if code is None:
            return None
        last = _last_line(handle.errors)
        if code in (EXIT_USAGE, EXIT_LOST):
            return Ended(last or "it was refused", refused=True, lost=code == EXIT_LOST)
        if code == EXIT_TOO_LONG:
            return Ended("its unit took too long")
        how = f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"
        return Ended(f"{how}{f': {last}' if code > 0 and last else ''}")

    def stop(self, handle: _Process) -> None:
        """Kill a process, and what it has started."""
        handle.process.kill()
        handle.process.wait()
        strays.end(handle.mark)
        handle.errors.close()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read()[-10 * LINE_MAX :].decode("utf-8", "replace").split("\n")
    return next((line.strip()[:LINE_MAX] for line in reversed(lines) if line.strip()), "")


class Ray:
    """Workers are tasks of a Ray cluster, one core each; those that wait for a machine make an
    autoscaling cluster grow.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            install = "pip install 'cachewitness[cluster]'"
            raise EngineMissing(
                f"--ray {address}: Ray is not installed; {install}", install
            ) from None
        self._ray: Any = ray
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"--ray {address}: cannot be reached ({' '.join(str(error).split())[:LINE_MAX]})"
            ) from None
        self._task: Any = ray.remote(num_cpus=1, max_retries=0)(_work)

    def cores(self) -> int:
        """Return how many cores the cluster has now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, given: Given) -> Any:
        """Submit a task."""
        return self._task.remote(msgspec.json.encode(given))

    def ended(self, handle: Any) -> Ended | None:
        """Return how a task ended; None while it runs or waits."""
        done, _ = self._ray.wait([handle], timeout=0)
        if not done:
            return None
        try:
            refused, lost = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return Ended(f"{type(error).__name__}: {' '.join(str(error).split())[:LINE_MAX]}")
        return Ended(refused or "it left", refused=bool(refused), lost=lost)

    def stop(self, handle: Any) -> None:
        """Kill a task."""
        self._ray.cancel(handle, force=True)


def _work(given: bytes) -> tuple[str, bool]:
    """Work in a task of Ray; return why it was refused, empty if it was not, and whether
    findings were lost.
    """
    try:
        worker.serve(msgspec.json.decode(given, type=Given))
    except UsageError as error:
        return str(error), isinstance(error, FindingsLost)
    return "", False


TASK = f"ray::{_work.__name__}"
"""How the command line of a process of Ray begins while it is at a task of a campaign."""
