"""The installed LMCache: the modules that its server consists of, started and kept in this process.

The thread that evicts once a second is not started; it looks when it is told to.

Sources: LMCache 0.5.6, `v1/multiprocess/engine_context.py`, `modules/lookup.py`, `modules/lmcache_driven_transfer.py`,
`v1/distributed/storage_controllers/eviction_controller.py`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple

from harness._util.errors import EngineMissing

PAGE_BYTES = 4096
"""What LMCache rounds an object up to, in bytes. A block is as large here, so an object of n blocks takes n pages."""
DEADLINE = 30.0
"""Seconds that LMCache's threads have for what they were asked for."""
QUIET = {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}
INSTALL = "ci/stage_lmcache.sh"


class InPlace(NamedTuple):
    """A tensor of this process where LMCache expects one of another's, to be mapped."""

    tensor: Any

    def to_tensor(self) -> Any:
        """Return it."""
        return self.tensor


class Modules(NamedTuple):
    """LMCache's context, its look-ups and its transfers."""

    context: Any
    lookups: Any
    transfers: Any


class Sizes(NamedTuple):
    """How a server is set up: tokens of a chunk, pages of its first level, object groups apart or together, its eviction."""

    chunk: int
    pages: int
    separate: bool
    watermark: float = 0.8
    ratio: float = 0.2
    threads: bool = True
    """Whether a thread of LMCache's says that copies are over."""


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


_PARKED: dict[Sizes, Modules] = {}
"""Modules that nobody uses, empty, by how they were configured; one at most, because all modules of a process share a queue.

They are kept because LMCache's threads take a second to end.
"""


def start(sizes: Sizes) -> Modules:
    """Return LMCache's modules, empty: those that are parked if they fit, else new ones in their place."""
    if sizes in _PARKED:
        return _PARKED.pop(sizes)
    for old in _PARKED.values():
        old.transfers.close()
        old.context.close()
    _PARKED.clear()
    config = "v1.distributed.config"
    memory = part(config, "L1MemoryManagerConfig")(sizes.pages * PAGE_BYTES, False, shm_name="")
    eviction = part(config, "EvictionConfig")("LRU", trigger_watermark=sizes.watermark, eviction_ratio=sizes.ratio)
    whole = part(config, "StorageManagerConfig")(part(config, "L1ManagerConfig")(memory), eviction)
    controller = part("v1.distributed.storage_controllers.eviction_controller", "L1EvictionController")
    controller.start = controller.stop = lambda self: None
    make = part("v1.multiprocess.engine_context", "MPCacheServerContext")
    context = make(whole, chunk_size=sizes.chunk, separate_object_groups=sizes.separate)
    transfers = part("v1.multiprocess.modules.lmcache_driven_transfer", "LMCacheDrivenTransferModule")(context)
    if not sizes.threads:
        transfers._device_host_func_dispatcher.stop()
    return Modules(context, part("v1.multiprocess.modules.lookup", "LookupModule")(context), transfers)


def park(sizes: Sizes, modules: Modules) -> None:
    """Have modules forget every object, and keep them."""
    modules.context.storage_manager.clear(force=True)
    _PARKED[sizes] = modules


def evict(modules: Modules, sizes: Sizes) -> None:
    """Let the eviction thread look once, as it does each second (`L1EvictionController.eviction_loop`)."""
    manager = modules.context.storage_manager
    used, total = manager._l1_manager.get_memory_usage()
    if used < sizes.watermark * total:
        return
    (controller,) = manager._eviction_controllers
    evictable = manager._l1_manager.is_key_evictable
    for action in controller._eviction_policy.get_eviction_actions(sizes.ratio, key_eligible_filter=evictable):
        controller.execute_eviction_action(action)
