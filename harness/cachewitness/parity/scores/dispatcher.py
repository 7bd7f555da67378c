"""Answers requests of many threads by one thread that calls a backend with all that wait."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from cachewitness.engines.answers import Answer, Ask, Backend, BackendError

GATHER_S = 0.005
"""How long the first request waits for others to be answered with it."""
BATCH_MAX = 128
CLOSE_S = 5.0
"""How long an answer that is under way may hold up the end."""
_Waiting = tuple[Ask, Future[Answer]]


class Dispatcher:
    """Calls a backend for whoever asks, and counts what it answered: in tokens, but for
    `requests` and `batches`.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.queries = self.hits = self.from_tier = self.requests = self.batches = 0
        self._thread = threading.Thread(target=self._work, name="dispatcher", daemon=True)
        self._thread.start()

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer prompts, together with whatever else is waiting. Raises what the backend
        raises.
        """
        futures: list[Future[Answer]] = [Future() for _ in asks]
        for ask, future in zip(asks, futures, strict=True):
            self._waiting.put((msgspec.structs.replace(ask, id=f"{next(self._numbers)}"), future))
        return [future.result() for future in futures]

    def reset(self, *, external: bool = False) -> bool:
        """Forget every cached prefix, those of a second tier too if `external`, between two
        calls of the backend.
        """
        with self._lock:
            return self._backend.reset(external=external)

    def close(self) -> None:
        """End the thread."""
        self._waiting.put(None)
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while batch := self._gather():
            try:
                self._run(batch)
            except BackendError as error:
                if len(batch) == 1:
                    batch[0][1].set_exception(error)
                    continue
                for one in batch:  # one prompt that cannot be answered is nobody else's
                    self._alone(one)
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)

    def _alone(self, one: _Waiting) -> None:
        try:
            self._run([one])
        except Exception as error:
            one[1].set_exception(error)

    def _run(self, batch: Sequence[_Waiting]) -> None:
        with self._lock:
            answers = self._backend.answer([ask for ask, _ in batch])
        self.batches += 1
        for (_, future), answer in zip(batch, answers, strict=True):
            self.requests += 1
            self.queries += answer.prompt_tokens
            self.hits += answer.restored.get("", 0)
            self.from_tier += answer.from_tier
            future.set_result(answer)

    def _gather(self) -> list[_Waiting]:
        """Return the requests that wait now or come within a moment; none once the dispatcher is
        closed.
        """
        first = self._waiting.get()
        batch = [first] if first else []
        until = time.monotonic() + GATHER_S
        while batch and len(batch) < BATCH_MAX:
            try:
                item = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if item is None:
                self._waiting.put(None)
                break
            batch.append(item)
        return batch
