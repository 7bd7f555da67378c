"""Worker processes that end with what they work for, however that ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

from cachewitness._util import strays

MARK = "CACHEWITNESS_WORKERS"
"""The environment variable by which what a pool's processes start is known: it may outlive them."""
_PR_SET_PDEATHSIG = 1
NOTICED_S = 5.0
"""Seconds in which it is noticed that the processes of a pool are gone."""


def die_with_the_parent() -> None:
    """Have the system kill this process when the one that started it is gone; Linux only."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def workers(
    count: int, begin: Callable[..., object] | None = None, *given: Any, method: str | None = None
) -> Iterator[Pool]:
    """Yield a pool of processes, each of which begins by `begin(*given)`; an exception, also
    Ctrl-C, ends them at once.

    `method` is how they are started ("spawn": without what this process has loaded), None: the
    system's own way (`context`).
    """
    pool = started(count, begin, *given, method=method)
    try:
        yield pool
    except BaseException:
        end(pool)
        raise
    pool.shutdown()
    strays.end(pool.mark)


def context(method: str | None = None) -> BaseContext:
    """Return how processes are started: by a fork on Linux unless a method is named, elsewhere as
    Python does it.

    From Python 3.14 on it has a server fork them on Linux, so that they would not be children of
    the one that they work for.
    """
    return multiprocessing.get_context(
        method or ("fork" if sys.platform.startswith("linux") else None)
    )


def started(
    count: int, begin: Callable[..., object] | None, *given: Any, method: str | None
) -> Pool:
    """Return such a pool; whoever has it ends it."""
    return Pool(count, begin, given, method)


def marked(mark: str) -> str:
    """Return what `MARK` says in a process with a mark, beside those of the processes above it."""
    return ",".join(filter(None, (os.environ.get(MARK), mark)))


class Pool(ProcessPoolExecutor):
    """A pool that Ctrl-C and SIGTERM do not reach while its processes are started, but right behind
    that.

    Python forgets an exception that is raised in what it calls around a fork, so the command would
    go on.
    """

    def __init__(
        self,
        count: int,
        begin: Callable[..., object] | None,
        given: tuple[Any, ...],
        method: str | None,
    ) -> None:
        self.mark = strays.new()
        initial = (os.getpid(), self.mark, begin, given)
        super().__init__(count, mp_context=context(method), initializer=_begin, initargs=initial)

    def _start_executor_manager_thread(self) -> None:
        if self._executor_manager_thread is None:
            with _later():
                super()._start_executor_manager_thread()


@contextmanager
def _later() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off until the block has ended; not in a thread beside the main one,
    whose they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    put_off = (signal.SIGINT, signal.SIGTERM)
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in put_off
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def end(pool: Pool) -> None:
    """End a pool and its processes at once, whatever they are at, and what they have started.

    A process may die in the middle of telling its result. The thread that reads results would wait
    for the rest for ever, and Python for that thread: it sees the end once nobody can write any
    more, this process included.
    """
    processes = list((pool._processes or {}).values())
    watching: Any = pool._executor_manager_thread
    results: Any = pool._result_queue
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
    if results is not None:
        results._writer.close()
    if watching is not None:
        watching.join(NOTICED_S)
    strays.end(pool.mark)


def _begin(
    parent: int, mark: str, begin: Callable[..., object] | None, given: tuple[Any, ...]
) -> None:
    """Leave signals to the process that started this one, and end if it did so before that could
    be arranged.
    """
    os.environ[MARK] = marked(mark)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_the_parent()
    if sys.platform.startswith("linux") and os.getppid() != parent:
        os._exit(1)
    if begin is not None:
        begin(*given)
