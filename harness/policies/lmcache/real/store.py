"""The installed LMCache: the modules that its server consists of, called in process, over pages in this process's memory.

LMCache's threads are waited for: a call returns when what it asked for has happened. The thread that evicts once a second is
not started; it looks when it is told to.

Sources: LMCache 0.5.6, `v1/multiprocess/engine_context.py`, `modules/lookup.py`, `modules/lmcache_driven_transfer.py`,
`v1/distributed/l1_manager.py`, `storage_controllers/eviction_controller.py`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from threading import Event
from typing import Any, NamedTuple

from harness._util.errors import EngineMissing
from harness.engines.failure import EngineFailure

MODEL, INSTANCE, WORLD = "model", 1, 1
PAGE_BYTES = 4096
"""The size of a page of a group: LMCache rounds objects up to this, so an object of n blocks takes n pages."""
DEADLINE = 30.0
"""Seconds that LMCache's threads have for what they were asked for."""
QUIET = {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}


class Group(NamedTuple):
    """A cache group as it is registered: the layers' tensors, the block in tokens, the window (−1: none), whether states."""

    tensors: Sequence[Any]
    block_size: int
    window: int
    recurrent: bool


INSTALL = "ci/stage_lmcache.sh"


class InPlace(NamedTuple):
    """A tensor of this process where LMCache expects one of another's, to be mapped."""

    tensor: Any

    def to_tensor(self) -> Any:
        """Return it."""
        return self.tensor


def part(module: str, name: str) -> Any:
    """Return something of the installed LMCache. Raises EngineMissing, saying what to install."""
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        return getattr(importlib.import_module(f"lmcache.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise EngineMissing(
            f"lmcache cannot be imported: {error}; {INSTALL} installs 0.5.6, which is known to work", INSTALL
        ) from None


Modules = tuple[Any, Any, Any]
"""LMCache's context, its look-ups and its transfers."""

_PARKED: dict[tuple[Any, ...], Modules] = {}
"""Modules that nobody uses, empty, by how they were configured; one at most, because all modules of a process share a queue.

They are kept because LMCache's threads take a second to end.
"""


def _started(chunk: int, pages: int, separate: bool, watermark: float, ratio: float) -> Modules:
    """Return LMCache's modules, in place of those that are parked."""
    for old, _, moves in _PARKED.values():
        moves.close()
        old.close()
    _PARKED.clear()
    config = "v1.distributed.config"
    memory = part(config, "L1MemoryManagerConfig")(pages * PAGE_BYTES, False, shm_name="")
    eviction = part(config, "EvictionConfig")("LRU", trigger_watermark=watermark, eviction_ratio=ratio)
    whole = part(config, "StorageManagerConfig")(part(config, "L1ManagerConfig")(memory), eviction)
    controller = part("v1.distributed.storage_controllers.eviction_controller", "L1EvictionController")
    controller.start = controller.stop = lambda self: None
    make = part("v1.multiprocess.engine_context", "MPCacheServerContext")
    context = make(whole, chunk_size=chunk, separate_object_groups=separate)
    transfers = part("v1.multiprocess.modules.lmcache_driven_transfer", "LMCacheDrivenTransferModule")(context)
    return context, part("v1.multiprocess.modules.lookup", "LookupModule")(context), transfers


class Store:
    """A server's modules, with one engine registered. `pages` is the size of the first level."""

    def __init__(
        self, groups: Sequence[Group], chunk: int, pages: int, *, separate: bool, watermark: float, ratio: float
    ) -> None:
        self._named = chunk, pages, separate, watermark, ratio
        self.context, self.lookups, self.transfers = (
            _PARKED.pop(self._named) if self._named in _PARKED else _started(*self._named)
        )
        self.manager = self.context.storage_manager
        self.objects = self.manager._l1_manager._objects
        """What can be found, by key."""
        self._watermark, self._ratio = watermark, ratio
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
        self._passed = Event()
        self.transfers.register_host_func("harness_has_waited", lambda number: self._passed.set(), int)
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
        """Wait until LMCache has been told of everything that was copied so far."""
        self._passed.clear()
        self._submit(self._stream, "harness_has_waited", 1)
        if not self._passed.wait(DEADLINE):
            raise EngineFailure("hung", f"had a copy not be over within {DEADLINE:g} s")

    def evict(self) -> None:
        """Let the eviction thread look once, as it does each second (`L1EvictionController.eviction_loop`)."""
        used, total = self.manager._l1_manager.get_memory_usage()
        if used < self._watermark * total:
            return
        (controller,) = self.manager._eviction_controllers
        evictable = self.manager._l1_manager.is_key_evictable
        for action in controller._eviction_policy.get_eviction_actions(self._ratio, key_eligible_filter=evictable):
            controller.execute_eviction_action(action)

    def close(self, requests: Sequence[str]) -> None:
        """Forget the engine, these requests that are left, and every object."""
        for r in requests:
            self.lookups.end_session(r)
        self.transfers.unregister_kv_cache(INSTANCE)
        self.manager.clear(force=True)
        _PARKED[self._named] = self.context, self.lookups, self.transfers
