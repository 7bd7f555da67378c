"""The scheduler over a tier whose copies are part of a step: loads before the runs, stores after
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Scheduler
from cachewitness_reference.vllm.scheduler_interface import (
    CacheManager,
    KVConnectorMetadata,
    Sampler,
    SchedulerOutput,
)
from cachewitness_reference.vllm_extended.slow_tier import Transfer
from cachewitness_reference.vllm_extended.tier import TierCopy


class TieredCacheManager(CacheManager, Protocol):
    """What these schedulers need of a manager beyond what vLLM's needs; see `TieredManager`."""

    def take_tier_loads(self) -> list[TierCopy]:
        """See `TieredManager`."""

    def store_to_tier(self) -> list[TierCopy]:
        """See `TieredManager`."""

    def release_loads(self, loads: Sequence[TierCopy]) -> None:
        """See `TieredManager`."""

    def begin_loads(self, request: Request) -> list[Transfer]:
        """See `TieredManager`."""

    def begin_stores(self) -> list[Transfer]:
        """See `TieredManager`."""

    def end_transfer(self, transfer: Transfer) -> None:
        """See `TieredManager`."""

    def reset_tier(self) -> None:
        """See `TieredManager`."""


@dataclass(frozen=True)
class TierMetadata(KVConnectorMetadata):
    """What a step does for the tier; the places of its loads are held until it has run."""

    loads: Sequence[TierCopy] = ()
    stores: Sequence[TierCopy] = ()


class TieredScheduler(Scheduler):
    """A scheduler that has the tier's copies made with the step that asks for them."""

    def __init__(
        self, config: KVCacheConfig, kv_cache_manager: TieredCacheManager, sampler: Sampler
    ) -> None:
        super().__init__(config, kv_cache_manager, sampler)
        self.tiered_manager = kv_cache_manager

    def build_connector_meta(self, output: SchedulerOutput) -> None:
        """Say what the step loads and stores, when nobody is withdrawn any more.

        Loads into blocks that nobody holds and that have no key are those of requests that were
        withdrawn: they are left out.
        """
        # ALLOCATE
        loads = self.tiered_manager.take_tier_loads()
        idle = [load for load in loads if load[1].ref_cnt == 0 and load[1].block_hash is None]
        self.tiered_manager.release_loads(idle)
        # COMMIT
        stores = self.tiered_manager.store_to_tier()
        output.kv_connector_metadata = TierMetadata(
            [load for load in loads if load not in idle], stores
        )
        output.retained_blocks += [block for _, block in stores]

    def update_from_output(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """End a step that ran, its copies included."""
        # RELEASE
        if isinstance(output.kv_connector_metadata, TierMetadata):
            self.tiered_manager.release_loads(output.kv_connector_metadata.loads)
        return super().update_from_output(output)

    def reset_connector_cache(self) -> None:
        """Forget every prefix that the tier has."""
        self.tiered_manager.reset_tier()
