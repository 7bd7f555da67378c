"""Tiers behind the CPU's memory of `OffloadingConnector` (`TieringOffloadingSpec`): what is stored
is written on to each of them, and what they have is read back before it can be loaded.

Everything is vLLM's, or that of a tier of another package, and bytes move: the memory that they
share is vLLM's own. Each store to it has a number. The number is written into the page when the
copy ends, at both its ends, so a number that appears in a page says what was put there, whoever
did it. What a store wrote lies in a further page of the history's pool, for as long as it may come
back: a page in which its number appears is copied from there. Bytes that are no number of a store
are the content of a page that nobody ever wrote.

A tier's jobs end in as many steps as other copies. Of `fs` the threads are replaced, of which
nobody could say when they are done; its files are real. Other tiers are waited for when the step
has run (`drain_jobs`).

Sources: vLLM 0.33.0, `v1/kv_offload/tiering/manager.py`, `spec.py`, `async_lookup.py`,
`fs/manager.py`, `fs/thread_pool.py`.
"""

from __future__ import annotations

import importlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.systems.vllm.plugged import imported
from cachewitness.systems.vllm.source import Source

TIERING = "TieringOffloadingSpec"
KEPT = 1 << 12
"""How many stores' content is kept."""
UNKNOWN = -1
PREFIX = "cachewitness-"
"""How the names of folders begin that the harness makes for `fs`."""


class Jobs:
    """In place of the threads of `fs`: a job is carried out when it has been under way for so many
    steps, one after the other.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._waiting: deque[list[Any]] = deque()
        self._finished: list[tuple[int, bool, float]] = []

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Iterable[Callable[[], None]]) -> None:
        """Take a job that reads."""
        self._waiting.append([self._steps, job_id, [*tasks]])

    enqueue_store = enqueue_load

    def advance(self) -> None:
        """Let a step pass."""
        for job in self._waiting:
            job[0] -= 1
        while self._waiting and self._waiting[0][0] <= 0:
            self._carry_out()

    def wait_idle(self) -> None:
        """Carry out what is under way."""
        while self._waiting:
            self._carry_out()

    def _carry_out(self) -> None:
        _, job_id, tasks = self._waiting.popleft()
        done = True
        for task in tasks:
            try:
                task()
            except Exception:
                # As vLLM's thread: a job whose file cannot be read or written has failed.
                done = False
        self._finished.append((job_id, done, 0.0))

    def get_finished(self) -> list[tuple[int, bool, float]]:
        """Return (job, whether it went well, seconds) of those that are over since this was last
        asked.
        """
        finished, self._finished = self._finished, []
        return finished

    def shutdown(self, wait: bool = True) -> None:
        """Leave what was not begun."""
        self._waiting.clear()


class Tiers:
    """The tiers of a manager, and the memory that they share with it.

    `first` is the page behind the memory's, from which on stores' content is kept; `blocks` pages
    make a chunk.
    """

    def __init__(self, source: Source, manager: Any, blocks: int, steps: int) -> None:
        self._manager = manager
        self._blocks = blocks
        region = manager.primary_tier._mmap_region
        # The memory goes with this process, however it ends.
        region._unlink()
        self.first = region.num_chunks * blocks
        self._expected = [0] * self.first
        self._count = 0
        self._jobs: list[Jobs] = []
        self._lookups: list[Any] = []
        self._others: list[Any] = []
        asks = source.part("v1.kv_offload.tiering.async_lookup", "AsyncLookupManager")
        files = source.part("v1.kv_offload.tiering.fs.manager", "FileSystemTierManager")
        for tier in manager.secondary_tiers:
            for asked in [value for value in vars(tier).values() if isinstance(value, asks)]:
                asked._lookup_queue.put(None)
                asked._thread.join()
                self._lookups.append(asked)
            if isinstance(tier, files):
                tier._pool.shutdown(wait=True)
                tier._pool = Jobs(steps)
                # Past the cache of the machine a file costs milliseconds, and shows nothing else.
                tier._use_o_direct = False
                self._jobs.append(tier._pool)
            else:
                self._others.append(tier)

    def kept_at(self, pages: Sequence[int]) -> list[int]:
        """Return pages, one for each of these, that keep what a store puts into them; until it is
        over, they hold nothing.
        """
        numbers = [1 + (self._count + index) % (KEPT - 1) for index in range(len(pages))]
        self._count += len(pages)
        self._mark(dict.fromkeys(pages, 0))
        return [self.first + number for number in numbers]

    def stored(self, pages: Iterable[int], kept: Iterable[int]) -> None:
        """Take note that stores into pages are over."""
        self._mark({page: at - self.first for page, at in zip(pages, kept, strict=True)})

    def look_again(self, pages: Iterable[int]) -> None:
        """Take what lies in pages for new."""
        for page in pages:
            self._expected[page] = UNKNOWN

    def advance(self) -> list[tuple[int, int]]:
        """Let a step pass, and return (page that keeps it, page) of all content that has come."""
        for asked in self._lookups:
            asked._lookup_queue.put(None)
            asked._worker()
        for jobs in self._jobs:
            jobs.advance()
        for tier in self._others:
            tier.drain_jobs()
        found = self._read()
        came = [page for page in range(self.first) if found[page] != self._expected[page]]
        for page in came:
            self._expected[page] = found[page]
        return [(self.first + found[page], page) for page in came]

    def close(self) -> None:
        """Let go of the memory, and of the folders that were made here."""
        folders = [
            Path(tier.file_mapper.base_path).parent
            for tier in self._manager.secondary_tiers
            if hasattr(tier, "file_mapper")
        ]
        self._manager.shutdown()
        for folder in folders:
            if folder.name.startswith(PREFIX):
                rmtree(folder, ignore_errors=True)

    def _words(self) -> Any:
        numpy = importlib.import_module("numpy")
        view = self._manager.primary_tier.get_kv_memoryview()
        return numpy.frombuffer(view, dtype=numpy.int64).reshape(view.shape[0], -1)

    def _mark(self, numbers: Mapping[int, int]) -> None:
        words = self._words()
        for page, number in numbers.items():
            chunk, place = divmod(page, self._blocks)
            words[chunk, place] = words[chunk, place - self._blocks] = number
            self._expected[page] = number

    def _read(self) -> list[int]:
        """Return the number in each page; 0 where there is none."""
        words = self._words()
        front = words[:, : self._blocks].ravel().tolist()
        back = words[:, -self._blocks :].ravel().tolist()
        return [
            number if number == other and 0 < number < KEPT else 0
            for number, other in zip(front, back, strict=True)
        ]


def with_tiers(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connector's configuration with tiers as vLLM names them: `module:Class` taken apart,
    and a folder for each `fs` that has none. Raises UsageError for a class that is not there.
    """
    tiers = extra.get("secondary_tiers", [])
    return {**extra, "secondary_tiers": [_named(tier) for tier in tiers]} if tiers else {**extra}


def tiers_named(text: str) -> list[Any]:
    """Return an option that is a JSON list of tiers. Raises UsageError for any other text."""
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, list) or any(
        not isinstance(tier, dict) or not isinstance(tier.get("type"), str) for tier in read
    ):
        raise UsageError(
            f"--engine vllm:secondary_tiers={text}: is no JSON list of objects with a `type`, such"
            ' as [{"type": "fs"}]'
        )
    return read


def _named(tier: Mapping[str, Any]) -> dict[str, Any]:
    if ":" in tier["type"]:
        found = imported("secondary_tiers", tier["type"])
        return {**tier, "type": found.__name__, "module_path": found.__module__}
    if tier["type"] == "fs" and "root_dir" not in tier:
        folder = mkdtemp(prefix=PREFIX)
        return {"n_read_threads": 1, "n_write_threads": 1, **tier, "root_dir": folder}
    return {**tier}


def spec_named(name: str, source: Source) -> dict[str, Any]:
    """Return how a connector's configuration names a spec: one of vLLM's by its name, another by
    `module:Class`.

    Raises UsageError if it is none.
    """
    if ":" not in name:
        factory = source.part("v1.kv_offload.factory", "OffloadingSpecFactory")
        if name not in factory._registry:
            raise UsageError(
                f"--engine vllm:spec={name}: vLLM has no such offloading spec; known are"
                f" {', '.join(factory._registry)}, and module:Class"
            )
        return {"spec_name": name}
    found = imported("spec", name)
    if not issubclass(found, source.part("v1.kv_offload.cpu.spec", "CPUOffloadingSpec")):
        raise UsageError(
            f"--engine vllm:spec={name}: does not derive from vLLM's CPUOffloadingSpec, whose"
            " memory is observed"
        )
    return {"spec_name": found.__name__, "spec_module_path": found.__module__}
