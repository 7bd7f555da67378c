"""The installed LMCache: the modules that its server consists of, called in process, over pages in this process's memory.

A call returns when what it asked for has happened. Look-ups are waited for. The thread that asks every 5 ms which copies are
over does not run; what it does is done here, behind each copy.

Sources: LMCache 0.5.6, `v1/multiprocess/modules/lookup.py`, `modules/lmcache_driven_transfer.py`;
`v1/distributed/l1_manager.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.engines.failure import EngineFailure
from harness.engines.real_lmcache.modules import DEADLINE, InPlace, Sizes, close, evict, part, start

MODEL, INSTANCE, WORLD = "model", 1, 1


class Group(NamedTuple):
    """A cache group as it is registered: the layers' tensors, the block in tokens, the window (−1: none), whether states."""

    tensors: Sequence[Any]
    block_size: int
    window: int
    recurrent: bool


class Store:
    """A server's modules, with one engine registered. `pages` is the size of the first level."""

    def __init__(
        self, groups: Sequence[Group], chunk: int, pages: int, *, separate: bool, watermark: float, ratio: float
    ) -> None:
        self._sizes = Sizes(chunk, pages, separate, watermark, ratio)
        self._modules = start(self._sizes)
        self.context, self.lookups, self.transfers = self._modules
        self.manager = self.context.storage_manager
        self.objects = self.manager._l1_manager._objects
        """What can be found, by key."""
        self._register(groups)

    def _register(self, groups: Sequence[Group]) -> None:
        info, infos, first = part("v1.multiprocess.group_view", "EngineGroupInfo"), [], 0
        for index, group in enumerate(groups):
            layers = tuple(range(first, first + len(group.tensors)))
            infos.append(info(index, layers, group.block_size, group.window, 0, group.recurrent))
            first += len(group.tensors)
        tensors = [InPlace(tensor) for group in groups for tensor in group.tensors]
        kind = part("v1.multiprocess.modules.lmcache_driven_transfer", "EngineType").VLLM
        self.transfers.register_kv_cache(INSTANCE, tensors, MODEL, WORLD, kind, {"kv_layout": "NHD"}, infos)
        entry = self.transfers._cache_contexts[INSTANCE]
        device = entry.cache_context.device
        self._event = entry.event_backend.export_event(entry.event_backend.create_event(device), device)
        self._stream, self._key = entry.cache_context.cupy_stream, part("v1.multiprocess.custom_types", "IPCCacheServerKey")
        self._passed = False
        self.transfers.register_host_func("harness_has_waited", self._pass, int)
        self._submit = part("v1.multiprocess.native_completion", "submit_callback_to_stream")

    def key(self, r: str, tokens: Sequence[int], start: int, end: int, salt: str, *, worker: int | None = 0) -> Any:
        """Return the key of tokens [start, end) of a request; look-ups are no worker's."""
        return self._key(MODEL, WORLD, worker, tuple(tokens), start, end, r, salt, None, 1)

    def lookup(self, key: Any) -> int:
        """Return how many chunks of a key's tokens LMCache serves; what that needs stays locked."""
        self.lookups.lookup(key, WORLD)
        chunks = self.lookups.wait_prefetch_status(key.request_id, DEADLINE)
        if chunks is None:
            raise EngineFailure("hung", f"had its look-up of {key.request_id} not end within {DEADLINE:g} s")
        return int(chunks)

    def locked(self, key: Any, chunks: int, windows: Sequence[int]) -> list[Any]:
        """Return what a look-up of so many chunks has locked, by LMCache's own rule."""
        resolve = part("v1.multiprocess.modules.lookup", "resolve_prefetched_obj_keys")
        return [*resolve(self.context, key, chunks, (), tuple(windows))]

    def free(self, key: Any) -> None:
        """Let go of what a look-up locked of the key's tokens."""
        self.lookups.free_lookup_locks(key, WORLD)

    def store(self, key: Any, blocks: Sequence[Sequence[int]]) -> None:
        """Store the key's tokens from these blocks, by group."""
        self.transfers.store(key, INSTANCE, [[*row] for row in blocks], self._event)
        self._wait()

    def retrieve(self, key: Any, blocks: Sequence[Sequence[int]], skip: int) -> bool:
        """Retrieve the key's tokens into these blocks, by group; return what LMCache says of it."""
        _, done = self.transfers.retrieve(key, INSTANCE, [[*row] for row in blocks], self._event, skip)
        self._wait()
        return bool(done)

    def _wait(self) -> None:
        """Tell LMCache that copies are over, until it has been told of everything that was copied so far."""
        self._passed, late = False, time.monotonic() + DEADLINE
        self._submit(self._stream, "harness_has_waited", 1)
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
        """Forget the engine, these requests that are left, and every object."""
        for r in requests:
            self.lookups.end_session(r)
        self.transfers.unregister_kv_cache(INSTANCE)
        close(self._modules)
