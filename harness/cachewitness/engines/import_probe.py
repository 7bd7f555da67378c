"""Imports a registration of another package in a forked process first, which may die of it instead
of the harness.

What is imported there is thrown away: only whether the import came to an end is learned. Where a
process cannot be forked, nothing is tried.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from functools import cache
from importlib.metadata import EntryPoint

SECONDS = 120.0
"""So long an import may take."""


@cache
def died(entry: EntryPoint) -> str:
    """Return how the process ended that imported a registration; empty if it outlived that, with
    or without an exception.
    """
    if entry.value.partition(":")[0] in sys.modules or not hasattr(os, "fork"):
        return ""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _import(entry, writer)
    os.close(writer)
    try:
        ended, _, _ = select.select([reader], [], [], SECONDS)
        alive = bool(ended) and os.read(reader, 1) != b""
    finally:
        os.close(reader)
    if alive:
        os.waitpid(pid, 0)
        return ""
    return _how(pid, hung=not ended)


def _import(entry: EntryPoint, tell: int) -> None:
    """Import the registration, say that this is over, and end the process without a word."""
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    try:
        entry.load()
    except Exception:  # the harness meets it again, and says what it is
        pass
    except BaseException:
        os._exit(1)
    os.write(tell, b"1")
    os._exit(0)


def _how(pid: int, *, hung: bool) -> str:
    """Return in words how a process ended; one that hangs, or does not end although it closed
    its pipe, is killed.
    """
    until = time.monotonic() + 1.0
    while not hung and time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            signalled = code < 0
            ending = signal.Signals(-code).name if signalled else f"exit status {code}"
            return f"the import ends the process ({ending})"
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return (
        f"the import does not end within {SECONDS:g} s"
        if hung
        else "the import leaves the process unusable"
    )
