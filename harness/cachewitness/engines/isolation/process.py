"""A child process: it is started, asked line by line under a deadline, and ended with everything
that it started.

The two pipes of the conversation are not its standard streams, which belong to the engine and are
captured. It has a session of its own, so that Ctrl-C is the harness's alone to handle, and so that
whatever the engine forked ends with it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from cachewitness._util import strays
from cachewitness.engines.isolation import child_env
from cachewitness.engines.isolation.forked import Forked, Forks, template_of
from cachewitness.engines.isolation.messages import ANSWERS, ASKED, MARK
from cachewitness.engines.isolation.output import Output

LINE_MAX = 64 << 20
"""Bytes of one answer; more than that is no answer."""
CHUNK = 1 << 16
TICK = 0.25
"""Seconds after which somebody looks whether a silent child is still there: its descendants may
hold its pipes open."""
GRACE = 3.0
"""Seconds that a child has to end after it closed its pipe, or to write where it hangs; a busy
machine needs some."""


class Silent(Exception):
    """No answer came before the deadline."""


class Ended(Exception):
    """The child will not answer any more."""


class Overlong(Exception):
    """What it says has no end."""


class Unasked(Exception):
    """It said something that nobody asked for; the argument is what it said."""


class Process:
    """A command that runs as a child. `memory` limits its data, in bytes; 0: it does not.

    `named` are variables of the environment that it gets although they look like secrets. With
    `forks` it is forked of a template where it can be.
    """

    def __init__(
        self,
        command: Sequence[str],
        memory: int = 0,
        named: Sequence[str] = (),
        forks: Forks | None = None,
    ) -> None:
        asked, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        self._mark = strays.new()
        variables = {ASKED: str(asked), ANSWERS: str(answers), MARK: self._mark}
        try:
            self._process = self._started(
                command, child_env.passed(named=named), variables, (asked, answers), forks
            )
        except BaseException:
            os.close(self._asks)
            os.close(self._answers)
            raise
        finally:
            os.close(asked)
            os.close(answers)
        self._limit(memory)
        os.set_blocking(self._asks, False)
        self._received = bytearray()
        self._killed = False
        self._searched = 0
        self._listen()

    def _started(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        variables: dict[str, str],
        pipes: tuple[int, int],
        forks: Forks | None,
    ) -> subprocess.Popen[bytes] | Forked:
        if template := forks and template_of(forks, environment):
            return Forked(template, variables, pipes)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pipes,
            env=environment | variables,
            start_new_session=True,
        )

    def _listen(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        self.printed = Output()
        self.complained = Output()
        self._streams = {
            self._process.stdout.fileno(): self.printed,
            self._process.stderr.fileno(): self.complained,
        }
        self._poll = select.poll()
        for descriptor in (self._answers, *self._streams):
            self._poll.register(descriptor, select.POLLIN)

    def _limit(self, memory: int) -> None:
        """Limit memory and core files where the system can do that from outside, and offer the
        child to the OOM killer.
        """
        if hasattr(resource, "prlimit"):
            pid = self._process.pid
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
                if memory:
                    resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))
            with suppress(OSError):
                Path(f"/proc/{pid}/oom_score_adj").write_text("1000")

    # --- the conversation -------------------------------------------------------------------------

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Send a line, empty for none, and return the line that answers it.

        Raises Silent if none came in so many seconds, Ended if none will come, Overlong if it does
        not end, and Unasked if there was one before. Whatever it raises, the child is of no further
        use.
        """
        end = monotonic() + seconds
        if question:
            self._check_no_early_answer()
        left = memoryview(question)
        while left:
            left = left[self._write(left, end) :]
        while (line := self._line()) is None:
            self._wait(end)
        return line

    def _write(self, data: memoryview, end: float) -> int:
        try:
            return os.write(self._asks, data)
        except BlockingIOError:
            self._wait(end, TICK)
            return 0
        except BrokenPipeError:
            raise Ended from None

    def _line(self) -> bytes | None:
        end = self._received.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._received)
            if self._searched > LINE_MAX:
                raise Overlong
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line

    def _check_no_early_answer(self) -> None:
        for descriptor, _ in self._poll.poll(0):
            self._take(descriptor)
        if self._received:
            raise Unasked(bytes(self._received))

    def _wait(self, end: float, tick: float = TICK) -> None:
        """Take in what was said, or printed meanwhile."""
        left = end - monotonic()
        if left <= 0:
            raise Silent
        ready = self._poll.poll(1000 * min(left, tick))
        if not ready and self._process.poll() is not None:
            raise Ended
        for descriptor, _ in ready:
            if not self._take(descriptor) and descriptor == self._answers:
                raise Ended

    def _take(self, descriptor: int) -> bool:
        """Read from a pipe; return whether it is still open."""
        data = os.read(descriptor, CHUNK)
        if not data:
            self._poll.unregister(descriptor)
        elif descriptor == self._answers:
            self._received += data
        else:
            self._streams[descriptor].add(data)
        return bool(data)

    # --- the end ----------------------------------------------------------------------------------

    def how_it_ended(self) -> str:
        """Return how the process ended, in words; one that closed its pipe and runs on is said
        to have done that.
        """
        self._hear(GRACE)
        code = self._process.poll()
        if code is None:
            return "closed its pipe to the harness and ran on"
        if code >= 0:
            return f"ended its process with exit code {code}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"

    def show_stack(self) -> None:
        """Have a child that hangs write where it is, which Python's fault handler does when it
        is aborted.
        """
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGABRT)
        self._hear(GRACE)

    def hung_up(self) -> bool:
        """Close the pipe of questions; return whether the process ends, for which it has a
        while.
        """
        os.close(self._asks)
        self._asks = -1
        self._hear(GRACE)
        return self._process.poll() is not None

    def _hear(self, seconds: float) -> None:
        """Take in what is still printed, until the process has ended and nothing is left to be
        read.
        """
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            gone = self._process.poll() is not None
            ready = [
                descriptor for descriptor, _ in self._poll.poll(0 if gone else min(1000 * left, 50))
            ]
            heard = [
                self._take(descriptor)
                for descriptor in ready
                if descriptor in self._streams or not gone
            ]
            if gone and not any(heard):
                return

    def kill(self) -> None:
        """End the process, everything in its session and whatever else descends from it; once is
        enough.
        """
        if self._killed:
            return
        self._killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for descriptor in filter(lambda one: one >= 0, (self._asks, self._answers)):
            with suppress(OSError):
                os.close(descriptor)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._process.wait()
        strays.end(self._mark)  # those that went into a session of their own
