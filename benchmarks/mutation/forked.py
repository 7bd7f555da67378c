"""Runs work in a fork of this process, which is ended if it takes too long."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

MEMORY = 12 << 30
"""So many bytes of addresses a fork may have."""
ASLEEP = 15
"""A fork may take so many times its seconds by the clock: it may wait for nobody, and others use
the machine."""
LATE = (signal.SIGXCPU, signal.SIGVTALRM, signal.SIGALRM, signal.SIGKILL)
"""The signals of the limits."""
Say = Callable[[Any], None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Forked:
    """What came of a fork: what it sent, its CPU seconds, and why it ended: empty, `too long`, or
    the name of a signal or an exception.
    """

    sent: list[Any]
    seconds: float
    ended: str


def forked(work: Callable[[Say], None], seconds: float) -> Forked:
    """Run work in a fork for so many CPU seconds at most. What the work says, anything that JSON
    has, arrives even if the fork is ended afterwards.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        # Whoever forks may have handlers of its own; one that ends this process must end it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(read)
        _work(work, write, seconds)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        lines = pipe.read().splitlines(keepends=True)
    _, status, usage = os.wait4(child, 0)
    sent = [json.loads(line) for line in lines if line.endswith(b"\n")]
    ended = sent.pop()["raised"] if sent and _is_error(sent[-1]) else ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        late = number in LATE
        ended = "too long" if late else signal.Signals(number).name
    return Forked(sent, usage.ru_utime + usage.ru_stime, ended)


def in_shares(items: Sequence[Item], jobs: int, work: Callable[[Item], None]) -> None:
    """Work on items in so many forks at once. Raises SystemExit if one of these fails."""
    children = [_in_fork(items[number::jobs], work) for number in range(jobs)]
    ended = [os.waitpid(child, 0)[1] for child in children]
    if any(ended):
        raise SystemExit("a fork failed; what it says is above")


def _in_fork(items: Sequence[Item], work: Callable[[Item], None]) -> int:
    child = os.fork()
    if not child:
        status = 1
        try:
            for item in items:
                work(item)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def end_after(seconds: float) -> None:
    """End this fork, as one that takes too long, when it has run for so many CPU seconds from now,
    or for `ASLEEP` times as many by the clock, unless this is called again before.
    """
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, ASLEEP * seconds)


def _is_error(sent: Any) -> bool:
    return isinstance(sent, dict) and [*sent] == ["raised"]


def _work(work: Callable[[Say], None], pipe: int, seconds: float) -> None:
    """Do the work in the fork and end it, without what Python does at its end."""

    def say(value: Any) -> None:
        os.write(pipe, json.dumps(value).encode() + b"\n")

    status = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        end_after(seconds)
        limit = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        work(say)
        status = 0
    except BaseException as error:
        say({"raised": f"{type(error).__name__}: {error}"[:300]})
    finally:
        os._exit(status)
