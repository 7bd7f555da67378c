"""From a configuration to a manager and a scheduler: vLLM's own unless the options ask for more."""

from __future__ import annotations

from dataclasses import dataclass

from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.hybrid_coordinator import get_kv_cache_coordinator
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.scheduler import Scheduler
from cachewitness_reference.vllm.scheduler_interface import Sampler
from cachewitness_reference.vllm_extended.config import options_of
from cachewitness_reference.vllm_extended.free_list import OrderedPool
from cachewitness_reference.vllm_extended.loading_scheduler import LoadingScheduler
from cachewitness_reference.vllm_extended.slow_tier import SlowTier
from cachewitness_reference.vllm_extended.snapshots import SnapshotPool
from cachewitness_reference.vllm_extended.tier import PlainTier
from cachewitness_reference.vllm_extended.tiered_manager import TieredManager
from cachewitness_reference.vllm_extended.tiered_pool import TieredPool
from cachewitness_reference.vllm_extended.tiered_scheduler import (
    TieredCacheManager,
    TieredScheduler,
)


@dataclass(frozen=True)
class PoolKinds:
    """The classes that pools are made of; whoever watches a pool brings subclasses."""

    plain: type[BlockPool] = BlockPool
    ordered: type[OrderedPool] = OrderedPool
    snapshots: type[SnapshotPool] = SnapshotPool
    tiered: type[TieredPool] = TieredPool


def get_block_pool(config: KVCacheConfig, kinds: PoolKinds) -> BlockPool:
    """Return the pool of a configuration."""
    options = options_of(config)
    size = (config.num_blocks, config.hash_block_size, options.enable_kv_cache_events)
    if options.tier_pages:
        tier = (
            SlowTier(options.tier_pages, options.tier_delay)
            if options.tier_delay
            else PlainTier(options.tier_pages)
        )
        return kinds.tiered(*size, options.free_list, tier)
    if options.pages_per_snapshot > 1:
        return kinds.snapshots(*size, options.free_list)
    return (
        kinds.plain(*size)
        if options.free_list == "lru"
        else kinds.ordered(*size, options.free_list)
    )


def get_kv_cache_manager(config: KVCacheConfig, kinds: PoolKinds | None = None) -> KVCacheManager:
    """Return the manager of a configuration."""
    pool = get_block_pool(config, kinds or PoolKinds())
    if isinstance(pool, TieredPool):
        return TieredManager(config, pool)
    return KVCacheManager(config, get_kv_cache_coordinator(config, pool))


def get_scheduler(
    config: KVCacheConfig, kv_cache_manager: TieredCacheManager, sampler: Sampler
) -> Scheduler:
    """Return the scheduler of a configuration over its manager."""
    options = options_of(config)
    if options.tier_delay:
        return LoadingScheduler(config, kv_cache_manager, sampler)
    return (TieredScheduler if options.tier_pages else Scheduler)(config, kv_cache_manager, sampler)
