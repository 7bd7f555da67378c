"""The manager over a second tier: coordinators that fetch what was hit there, and what a
scheduler asks beyond vLLM's calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.coordinator import KVCacheCoordinator, UnitaryKVCacheCoordinator
from cachewitness_reference.vllm.hybrid_coordinator import HybridKVCacheCoordinator
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.mamba import MambaManager
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.single_type_manager import SingleTypeKVCacheManager
from cachewitness_reference.vllm_extended.slow_tier import SlowTier, Transfer
from cachewitness_reference.vllm_extended.tier import TierBlock, TierCopy
from cachewitness_reference.vllm_extended.tiered_pool import TieredPool


class TieredCoordinator(KVCacheCoordinator):
    """A coordinator that replaces what was hit in the tier by blocks of the device."""

    # ALLOCATE

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int = 0,
    ) -> None:
        """Start the tables of a request with what it hit; blocks to fetch into are taken last,
        when the rest is held.
        """
        assert not num_external_computed_tokens, "a tier beside a connector is in no specification"
        super().allocate_new_computed_blocks(
            request_id, new_computed_blocks, num_local_computed_tokens
        )
        for manager in self.single_type_managers:
            self._fetch_from_tier(request_id, manager)

    def _fetch_from_tier(self, request_id: str, manager: SingleTypeKVCacheManager) -> None:
        """Fetch what one group has hit in the tier; a state that is fetched can be hit by others
        when it is there.
        """
        pool = self.block_pool
        table = manager.req_to_blocks[request_id]
        assert isinstance(pool, TieredPool)
        for column, block in enumerate(table):
            if isinstance(block, TierBlock):
                fetched = table[column] = pool.fetch_from_tier(request_id, block)
                if isinstance(manager, MambaManager) and fetched.block_hash is not None:
                    manager.cached_blocks_this_step.add(fetched.block_hash)


class TieredUnitaryCoordinator(TieredCoordinator, UnitaryKVCacheCoordinator):
    """One group over a tier."""


class TieredHybridCoordinator(TieredCoordinator, HybridKVCacheCoordinator):
    """Several groups over a tier."""


class TieredManager(KVCacheManager):
    """The cache of one engine, and its tier."""

    def __init__(self, kv_cache_config: KVCacheConfig, block_pool: TieredPool) -> None:
        one = len(kv_cache_config.kv_cache_groups) == 1
        coordinator = TieredUnitaryCoordinator if one else TieredHybridCoordinator
        super().__init__(kv_cache_config, coordinator(kv_cache_config, block_pool))
        self.tiered_pool = block_pool
        self.tier = block_pool.tier

    # ALLOCATE

    def take_tier_loads(self) -> list[TierCopy]:
        """Return the copies from the tier due before this step runs; release them once it has."""
        return self.tier.take_loads()

    def begin_loads(self, request: Request) -> list[Transfer]:
        """Begin to load what a request has hit in a slow tier; whatever becomes of the request,
        both ends are held.
        """
        assert isinstance(self.tier, SlowTier)
        transfers = self.tier.begin_loads(request)
        self.block_pool.touch(transfer.block for transfer in transfers)
        return transfers

    def _note_adoption(self, request_id: str, computed: Sequence[Sequence[KVCacheBlock]]) -> None:
        """Note whose blocks are hit before they are written; a place of the tier may have the
        number of such a block.
        """
        on_device = [
            [block for block in blocks if not isinstance(block, TierBlock)] for blocks in computed
        ]
        super()._note_adoption(request_id, on_device)

    # COMMIT

    def store_to_tier(self) -> list[TierCopy]:
        """Return the copies to the tier due after this step has run; free their sources then.
        Nobody is withdrawn any more.
        """
        return self.tiered_pool.store_to_tier()

    def begin_stores(self) -> list[Transfer]:
        """Begin to store what was keyed in a slow tier; both ends are held. Nobody is withdrawn
        any more.
        """
        assert isinstance(self.tier, SlowTier)
        return [
            self.tier.begin_store(place, block) for place, block in self.tiered_pool.store_to_tier()
        ]

    # RELEASE

    def release_loads(self, loads: Sequence[TierCopy]) -> None:
        """Say that copies from the tier have been made, or will not be."""
        self.tier.release(source for source, _ in loads)

    def end_transfer(self, transfer: Transfer) -> None:
        """Say that a transfer is over: what arrived is keyed, and neither end is held for it any
        more.
        """
        assert isinstance(self.tier, SlowTier)
        self.tiered_pool.end_transfer(transfer)
        self.tier.end(transfer)

    def reset_tier(self) -> None:
        """Forget every key of the tier."""
        self.tier.reset()
