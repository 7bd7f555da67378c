"""Carries out one function for one item after another, in this process or in several, with the same
results.

Several processes are copies of this one (`fork`), so whatever is registered or planted here is
there too, and only items and results travel. A process that dies takes no result with it: what it
was at is carried out again, alone. If that process dies as well, it is the item that ends it, and
`WorkerDied` says so.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from cachewitness._util import workers

AHEAD = 3
"""So many items for each process are begun before the first result is asked for: they take longer
and shorter."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDied(Exception):
    """A process that carried out an item died, and another one that did it again died too. One
    line.
    """


def possible() -> bool:
    """Whether a process can be copied here without harm to what its libraries have started."""
    return sys.platform.startswith("linux")


class WorkerPool(Generic[Item, Result]):
    """So many processes (1: this one) that carry out `call`. `report` is given a line for each that
    died and was replaced.

    The first `here` items are carried out in this process one by one, and others are begun when
    their results are there.
    """

    def __init__(
        self,
        jobs: int,
        call: Callable[[Item], Result],
        report: Callable[[str], None] | None = None,
        *,
        here: int = 0,
    ) -> None:
        self.jobs = jobs if possible() else 1
        self.first_here = here
        """So many of the next items are carried out in this process, though there are others."""
        self.call = call
        self._report = report
        self._pool: _Processes | None = None
        self._waiting = deque[tuple[Item, Task[Item, Result]]]()

    @property
    def here(self) -> bool:
        """Whether the next item is carried out in this process."""
        return self.first_here > 0 or self.jobs == 1

    @property
    def ahead(self) -> int:
        """How many items to submit before the first result is asked for."""
        return 1 if self.here else AHEAD * self.jobs

    def submit(self, item: Item) -> Task[Item, Result]:
        """Begin with an item; in one process it is carried out when its result is asked for."""
        return Task(self, item)

    def in_order(self, items: Iterable[Item]) -> Iterator[tuple[Item, Task[Item, Result]]]:
        """Yield each item with what was begun of it, while a few further ones are under way."""
        waiting = self._waiting
        rest = iter(items)
        while True:
            waiting.extend(
                (item, self.submit(item))
                for item in islice(rest, max(self.ahead - len(waiting), 0))
            )
            if not waiting:
                return
            yield waiting.popleft()

    def finished(self) -> list[tuple[Item, Result]]:
        """Return those of the items that `in_order` has not come to of which the result is
        there, where it stops early.
        """
        return [(item, task.result()) for item, task in self._waiting if task.there]

    def begin(self, item: Item) -> tuple[_Processes, Future[Result]]:
        """Give an item to a process; return it with the processes that were there then."""
        if self._pool is None:
            self._pool = _Processes(self.jobs, self.call)
        return self._pool, self._pool.begin(item)

    def again(self, item: Item, died: _Processes) -> Result:
        """Carry out an item whose process died, in one that has nothing else to do. Raises
        WorkerDied if that one dies too.
        """
        if died is self._pool:
            if self._report:
                self._report(f"{died.how_they_died()}; what it was at is done again")
            self.end()
        alone = _Processes(1, self.call)
        try:
            result: Result = alone.begin(item).result()
        except BrokenProcessPool:
            raise WorkerDied(f"{alone.how_they_died()}, and it had nothing else to do") from None
        finally:
            alone.end()
        return result

    def end(self) -> None:
        """End all processes, whatever they are at."""
        if self._pool is not None:
            self._pool.end()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


class Task(Generic[Item, Result]):
    """An item that was submitted."""

    def __init__(self, worker_pool: WorkerPool[Item, Result], item: Item) -> None:
        self._crew = worker_pool
        self._item = item
        self._begun = None if worker_pool.here else worker_pool.begin(item)

    @property
    def there(self) -> bool:
        """Whether the result is there, and was brought by a process."""
        future = self._begun[1] if self._begun else None
        return (
            future is not None
            and future.done()
            and not future.cancelled()
            and future.exception() is None
        )

    def wait(self, seconds: float) -> bool:
        """Wait for the result so long; False if it is not there by then. What this process
        carries out is not waited for.
        """
        return self._begun is None or bool(wait([self._begun[1]], seconds).done)

    def result(self) -> Result:
        """Return what came of the item, or raise what it raised. Raises WorkerDied if it ended
        two processes.
        """
        if self._begun is None:
            try:
                return self._crew.call(self._item)
            finally:
                self._crew.first_here -= 1
        processes, future = self._begun
        try:
            return future.result()
        except (BrokenProcessPool, CancelledError):
            return self._crew.again(self._item, processes)


class _Processes:
    """So many copies of this process, which carry out `call`."""

    def __init__(self, count: int, call: Callable[[Any], Any]) -> None:
        self._pool = workers.started(count, _begin, call, method="fork")
        self._there: list[BaseProcess] = []

    def begin(self, item: Any) -> Future[Any]:
        try:
            future = self._pool.submit(_carry_out, item)
        except BrokenProcessPool as broken:
            future = Future()
            future.set_exception(broken)
        self._there = self._there or list(self._pool._processes.values())
        return future

    def how_they_died(self) -> str:
        """Return in words how one of them ended, by its exit code; the others are ended for
        that.
        """
        self._pool.shutdown()  # which waits for all of them: a broken pool ends those that are left
        codes = [
            process.exitcode
            for process in self._there
            if process.exitcode not in (None, -signal.SIGTERM)
        ]
        if not codes or codes[0] is None:
            return "a process of the run ended"
        how = (
            f"was ended by signal {-codes[0]}"
            if codes[0] < 0
            else f"left with exit code {codes[0]}"
        )
        return f"a process of the run {how}"

    def end(self) -> None:
        workers.end(self._pool)


_call: Callable[[Any], Any] | None = None
"""What the processes of a pool of workers carry out; in them alone."""


def _begin(call: Callable[[Any], Any]) -> None:
    global _call
    _call = call


def _carry_out(item: Any) -> Any:
    assert _call is not None
    return _call(item)
