"""The installed LMCache: the modules that its server consists of, started in this process.

The thread that evicts once a second and the one that asks every 5 ms which copies are over do not
run; both look when they are told to.

Sources: LMCache 0.5.6, `v1/multiprocess/engine_context.py`, `modules/lookup.py`,
`modules/lmcache_driven_transfer.py`, `v1/distributed/storage_controllers/eviction_controller.py`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple

from cachewitness._util.errors import EngineMissing
from cachewitness.engines.source_patch import Patches

PAGE_BYTES = 4096
"""What LMCache rounds an object up to, in bytes. A block is as large here, so an object of n blocks
takes n pages."""
DEADLINE = 30.0
"""Seconds that LMCache's threads have for what they were asked for."""
QUIET = {
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_LOG_LEVEL": "ERROR",
}
INSTALL = "ci/stage_lmcache.sh"
PATCHES = Patches("lmcache")
"""What is planted into the LMCache of the engine that is open."""


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
    """How a server is set up: tokens of a chunk, pages of its first level, object groups apart
    or together, its eviction.
    """

    chunk: int
    pages: int
    separate: bool
    watermark: float = 0.8
    ratio: float = 0.2


def part(module: str, name: str) -> Any:
    """Return something of the installed LMCache. Raises EngineMissing, saying what to install."""
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        return getattr(importlib.import_module(f"lmcache.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise EngineMissing(
            f"lmcache cannot be imported: {error}; {INSTALL} installs 0.5.6, which is known to"
            " work",
            INSTALL,
        ) from None


def start(sizes: Sizes) -> Modules:
    """Return new modules of LMCache's. Those before them must be closed: all modules of a
    process share a queue.
    """
    config = "v1.distributed.config"
    memory = part(config, "L1MemoryManagerConfig")(sizes.pages * PAGE_BYTES, False, shm_name="")
    eviction = part(config, "EvictionConfig")(
        "LRU", trigger_watermark=sizes.watermark, eviction_ratio=sizes.ratio
    )
    whole = part(config, "StorageManagerConfig")(part(config, "L1ManagerConfig")(memory), eviction)
    for level in (
        "L1",
        "L2",
    ):  # the first is asked to look when the harness says so; a second level there is none
        controller = part(
            "v1.distributed.storage_controllers.eviction_controller", f"{level}EvictionController"
        )
        controller.start = controller.stop = lambda self: None
    make = part("v1.multiprocess.engine_context", "MPCacheServerContext")
    context = make(whole, chunk_size=sizes.chunk, separate_object_groups=sizes.separate)
    transfers = part(
        "v1.multiprocess.modules.lmcache_driven_transfer", "LMCacheDrivenTransferModule"
    )(context)
    transfers._device_host_func_dispatcher.stop()
    return Modules(
        context, part("v1.multiprocess.modules.lookup", "LookupModule")(context), transfers
    )


def close(modules: Modules) -> None:
    """Forget every object, and end the modules' threads."""
    modules.context.storage_manager.clear(force=True)
    modules.transfers.close()
    modules.context.close()


def evict(modules: Modules, sizes: Sizes) -> None:
    """Let the eviction thread look once, as it does each second
    (`L1EvictionController.eviction_loop`).
    """
    manager = modules.context.storage_manager
    used, total = manager._l1_manager.get_memory_usage()
    if used < sizes.watermark * total:
        return
    (controller,) = manager._eviction_controllers
    evictable = manager._l1_manager.is_key_evictable
    for action in controller._eviction_policy.get_eviction_actions(
        sizes.ratio, key_eligible_filter=evictable
    ):
        controller.execute_eviction_action(action)
