"""A deadline for an engine in the harness's own process.

A signal interrupts Python code, and what it waits for, so that a hang is a finding and the run goes
on. Native code that never comes back cannot be interrupted. Then a thread ends the process with one
line and the exit code of a failure; where that code keeps Python's lock, so that no thread runs,
Python's fault handler ends it, which needs no lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import EngineFailure, as_exception
from cachewitness.core.events import Event, Header
from cachewitness.core.trace_format import Op, TraceHeader
from cachewitness.engines.patience import Patience

AGAIN_S, LOOKED_S, IDLE_S = 1.0, 0.5, 5.0
"""A signal that an engine ignores comes again; the thread looks so often, and ends when no engine
was called for so long."""
LATE_LOOKS, LAST_S = 4, 4.0
"""Code that was not interrupted is given up when the thread has seen it so often beyond its
deadline; looks, not seconds, since a machine that stood still for a while wakes with the interrupt
still to come. Code that keeps Python's lock is given up so many seconds beyond."""
EXIT = 1
"""The exit code of a failure, as after every engine that hangs."""
VERDICT = f"verdict: FAIL (exit code {EXIT}): hung: the engine gave no answer within"
LOCKED = (
    f"{VERDICT} its deadline, and keeps Python's lock, so that nothing can interrupt it; what was"
    " found before is kept"
)
SPEAKER = 'trap "" INT TERM; read -r first && printf "%s\\n" "$1" >&2 && cat >&2'
"""Says a line when the fault handler begins to write, and repeats behind it where Python was."""

T = TypeVar("T")


class Limits(NamedTuple):
    """How many seconds an engine has for an operation, and to open."""

    deadline: float = 60.0
    opening: float = 600.0


class _TimeUp(BaseException):
    """Raised in an engine; no Exception, since an engine may catch all of these and go on."""


@dataclass
class _Call:
    """A call of an engine: what was asked, how long it may take, when it must be over, where it
    was when it was not, and how often it was seen beyond that.
    """

    asked: str
    seconds: float
    ends: float
    was_in: str = ""
    over: bool = False
    seen_late: int = 0


class _Watch:
    """Looks after the call that is under way in this process. A copy of the process has none of
    it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._call: _Call | None = None
        self._armed, self._latest = 0.0, 0.0
        self._main = threading.main_thread().ident
        self._speaker: subprocess.Popen[bytes] | None = None

    def begin(self, call: _Call) -> None:
        """Look after a call."""
        with self._lock:
            self._call = call
            self._latest = time.monotonic()
            if self._process != os.getpid():
                self._process = os.getpid()
                self._armed = 0.0
                command = ["sh", "-c", SPEAKER, "sh", LOCKED]
                self._speaker = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
                )
                threading.Thread(target=self._look, daemon=True).start()
            if self._armed != call.seconds:
                self._arm(call.seconds)

    def end(self) -> None:
        """Look after nothing."""
        self._call = None

    def _arm(self, seconds: float) -> None:
        assert self._speaker is not None and self._speaker.stdin is not None
        self._armed = seconds
        faulthandler.dump_traceback_later(seconds + LAST_S, exit=True, file=self._speaker.stdin)

    def _look(self) -> None:
        while True:
            time.sleep(LOOKED_S)
            with self._lock:
                call = self._call
                now = time.monotonic()
                if call is None and now > self._latest + IDLE_S:
                    self._rest()
                    return
                if call is not None and now > call.ends:
                    call.seen_late += 1
                    if call.seen_late == LATE_LOOKS:
                        self._give_up(call)
                self._arm(call.seconds if call is not None else self._armed)

    def _rest(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._process = 0
        assert self._speaker is not None and self._speaker.stdin is not None
        self._speaker.kill()  # a copy of this process may hold the pipe open
        self._speaker.stdin.close()
        self._speaker.wait()

    def _give_up(self, call: _Call) -> None:
        frame = sys._current_frames().get(self._main or 0)
        was_in = f"; it was in {_place(frame)}" if frame is not None else ""
        verdict = (
            f"{VERDICT} {call.seconds:g} seconds, asked to {call.asked}, and cannot be"
            f" interrupted{was_in}"
        )
        os.write(2, f"{verdict}; what was found before is kept\n".encode())
        os._exit(EXIT)


_WATCH = _Watch()


@contextmanager
def call_within(asked: str, seconds: float) -> Iterator[None]:
    """Give a call of an engine so many seconds. Raises EngineFailure if it takes more and can be
    interrupted.
    """
    call = _Call(asked, seconds, time.monotonic() + seconds)

    def up(number: int, frame: FrameType | None) -> None:
        if not call.over:
            call.was_in = call.was_in or _place(frame)
            raise _TimeUp

    can_signal = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGALRM, up) if can_signal else None
    _WATCH.begin(call)
    if can_signal:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    except _TimeUp:
        pass
    finally:
        call.over = True  # a signal that comes as the call ends interrupts nothing
        if can_signal:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        _WATCH.end()
    if call.was_in:
        raise EngineFailure(
            "hung", f"gave no answer within {seconds:g} seconds; it was in {call.was_in}"
        )


def _place(frame: FrameType | None) -> str:
    return (
        f'"{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
        if frame is not None
        else "no code"
    )


class Guarded:
    """An engine in the harness's own process whose calls have a deadline; whatever else it has
    is the engine's own.
    """

    def __init__(self, engine: Engine, trace: TraceHeader, limits: Limits) -> None:
        self.guarded = engine
        self._trace = trace.name
        self._seconds = limits.deadline
        self._patience = Patience(limits.deadline)
        self._lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.guarded, name)

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self._asked("describe", self.guarded.describe)

    def apply(self, op: Op) -> list[Event]:
        """Have one operation carried out. Raises EngineFailure if that takes too long, and
        whatever the engine raises.
        """
        seconds = self._patience.seconds(op)
        return self._asked(type(op).__name__.lower(), lambda: self.guarded.apply(op), seconds)

    def close(self) -> None:
        """Let go of the engine; one that hung is left as it is."""
        if not self._lost:
            self._asked("close", self.guarded.close)

    def _asked(self, what: str, call: Callable[[], T], seconds: float = 0.0) -> T:
        try:
            with call_within(f"{what} in trace {self._trace}", seconds or self._seconds):
                return call()
        except EngineFailure as failure:
            self._lost = failure.anomaly == "hung"
            raise
        except BaseException as error:
            raise as_exception(error) from None


def opened(trace: TraceHeader, limits: Limits, build: Callable[[], Engine]) -> Engine:
    """Build an engine for a trace, and hold it to its deadline. Raises EngineFailure if building
    it takes too long.
    """
    with call_within(f"open for trace {trace.name}", limits.opening):
        engine = build()
    return Guarded(engine, trace, limits)
