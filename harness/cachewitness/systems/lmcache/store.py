"""The installed LMCache: the modules that its server consists of, called in process, over pages in
this process's memory.

A call returns when what it asked for has happened. Look-ups are waited for. The thread that asks
every 5 ms which copies are over does not run; what it does is done here, behind each copy.

Sources: LMCache 0.5.6, `v1/multiprocess/modules/lookup.py`, `modules/lmcache_driven_transfer.py`;
`v1/distributed/l1_manager.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.systems.lmcache.modules import DEADLINE, InPlace, Sizes, close, evict, part, start

MODEL = "model"


class Group(NamedTuple):
    """A cache group as it is registered: the layers' tensors, the block in tokens, the window
    (−1: none), whether states.
    """

    tensors: Sequence[Any]
    block_size: int
    window: int
    recurrent: bool


class Store:
    """A server's modules, with the workers of one engine registered. `pages` is what the first
    level has for each share.

    By worker, `workers` are the groups of its caches. Each stores a share of its own, or, if all
    hold the same (`replicated`), the first one stores for all (`ParallelStrategy.kv_world_size`,
    `is_kv_writer`, `num_kv_readers`).
    """

    def __init__(
        self,
        workers: Sequence[Sequence[Group]],
        chunk: int,
        pages: int,
        *,
        replicated: bool,
        separate: bool,
        watermark: float,
        ratio: float,
    ) -> None:
        self._world, self._readers = (1, len(workers)) if replicated else (len(workers), 1)
        self.workers = range(len(workers))
        self.shares = range(self._world)
        """By number: who stores."""
        self._sizes = Sizes(chunk, pages * self._world, separate, watermark, ratio)
        self._modules = start(self._sizes)
        self.context, self.lookups, self.transfers = self._modules
        self.manager = self.context.storage_manager
        self.objects = self.manager._l1_manager._objects
        """What can be found, by key."""
        self._register(workers[0], [group.tensors for groups in workers for group in groups])
        numbers = part("v1.distributed.api", "_lookup_kv_ranks")
        self._numbers: list[int] = numbers(self.key("", (0,), 0, 0, "", worker=None))
        """By share: how LMCache's keys name it."""

    def _register(self, groups: Sequence[Group], tensors: Sequence[Sequence[Any]]) -> None:
        info = part("v1.multiprocess.group_view", "EngineGroupInfo")
        infos = []
        first = 0
        for index, group in enumerate(groups):
            layers = tuple(range(first, first + len(group.tensors)))
            infos.append(info(index, layers, group.block_size, group.window, 0, group.recurrent))
            first += len(group.tensors)
        kind = part("v1.multiprocess.modules.lmcache_driven_transfer", "EngineType").VLLM
        for worker in self.workers:
            mine = tensors[worker * len(groups) : (worker + 1) * len(groups)]
            mapped = [InPlace(tensor) for layers in mine for tensor in layers]
            self.transfers.register_kv_cache(
                worker, mapped, MODEL, self._world, kind, {"kv_layout": "NHD"}, infos
            )
        entry = self.transfers._cache_contexts[0]
        device = entry.cache_context.device
        self._event = entry.event_backend.export_event(
            entry.event_backend.create_event(device), device
        )
        self._streams = [
            self.transfers._cache_contexts[worker].cache_context.cupy_stream
            for worker in self.workers
        ]
        self._key = part("v1.multiprocess.custom_types", "IPCCacheServerKey")
        self._passed = False
        self.transfers.register_host_func("harness_has_waited", self._pass, int)
        self._submit = part("v1.multiprocess.native_completion", "submit_callback_to_stream")

    def key(
        self,
        r: str,
        tokens: Sequence[int],
        start: int,
        end: int,
        salt: str,
        *,
        worker: int | None = 0,
    ) -> Any:
        """Return the key of tokens [start, end) of a request; look-ups are no worker's."""
        share = None if worker is None else worker % self._world
        return self._key(
            MODEL, self._world, share, tuple(tokens), start, end, r, salt, None, self._readers
        )

    def of_share(self, key: Any, share: int) -> Any:
        """Return a worker's key as another share's."""
        return replace(key, worker_id=share)

    def named(self, name: Any, share: int) -> Any:
        """Return an object's key as another share's."""
        return replace(name, kv_rank=self._numbers[share])

    def holds(self, name: Any) -> bool:
        """Whether every share of an object is there."""
        return all(self.named(name, share) in self.objects for share in self.shares)

    def whole(self) -> list[Any]:
        """Return the keys of the first share whose other shares are there too."""
        return [
            name for name in self.objects if name.kv_rank == self._numbers[0] and self.holds(name)
        ]

    def lookup(self, key: Any) -> int:
        """Return how many chunks of a key's tokens LMCache serves; what that needs stays locked."""
        self.lookups.lookup(key, len(self.workers))
        chunks = self.lookups.wait_prefetch_status(key.request_id, DEADLINE)
        if chunks is None:
            raise EngineFailure(
                "hung", f"had its look-up of {key.request_id} not end within {DEADLINE:g} s"
            )
        return int(chunks)

    def locked(self, key: Any, chunks: int, windows: Sequence[int]) -> list[Any]:
        """Return what a look-up of so many chunks has locked, by LMCache's own rule."""
        resolve = part("v1.multiprocess.modules.lookup", "resolve_prefetched_obj_keys")
        return [*resolve(self.context, key, chunks, (), tuple(windows))]

    def free(self, key: Any) -> None:
        """Let go of what a look-up locked of the key's tokens."""
        self.lookups.free_lookup_locks(key, len(self.workers))

    def store(self, key: Any, worker: int, blocks: Sequence[Sequence[int]]) -> None:
        """Store the key's tokens from these blocks of a worker, by group."""
        self.transfers.store(key, worker, [[*row] for row in blocks], self._event)
        self._wait(worker)

    def retrieve(self, key: Any, worker: int, blocks: Sequence[Sequence[int]], skip: int) -> bool:
        """Retrieve the key's tokens into these blocks of a worker, by group; return what LMCache
        says of it.
        """
        _, done = self.transfers.retrieve(
            key, worker, [[*row] for row in blocks], self._event, skip
        )
        self._wait(worker)
        return bool(done)

    def _wait(self, worker: int) -> None:
        """Tell LMCache that a worker's copies are over, until it has been told of everything
        that was copied so far.
        """
        self._passed = False
        late = time.monotonic() + DEADLINE
        self._submit(self._streams[worker], "harness_has_waited", 1)
        while not self._passed:
            self.transfers._device_host_func_dispatcher._drain_once()
            if not self._passed and time.monotonic() > late:
                raise EngineFailure("hung", f"had a copy not be over within {DEADLINE:g} s")

    def _pass(self, number: int) -> None:
        self._passed = True

    def evict(self) -> None:
        """Let the eviction thread look once."""
        evict(self._modules, self._sizes)

    def close(self, requests: Sequence[str]) -> None:
        """Forget the workers, these requests that are left, and every object."""
        for r in requests:
            self.lookups.end_session(r)
        for worker in self.workers:
            self.transfers.unregister_kv_cache(worker)
        close(self._modules)
