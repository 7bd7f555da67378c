"""The manager: what a scheduler asks of the cache.

A new request asks what is cached (`get_computed_blocks`, which touches nothing), and gets slots for
its first chunk together with the blocks that it hit (`allocate_slots`); every later step asks for
more slots, and the end gives all back (`free`). Keys appear when slots are handed out, that is
before the step has run. vLLM relies on every scheduled step running. Here a step may also be taken
back: `withdraw` ends the keys of this step and, since attention blocks may be shared within a step,
takes whoever adopted them along.

Source: vLLM, `v1/core/kv_cache_manager.py` (0.33.0); `withdraw` is this specification's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachewitness_reference.primitives import BlockId, Position
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.coordinator import KVCacheCoordinator
from cachewitness_reference.vllm.events import KVCacheEvent
from cachewitness_reference.vllm.hybrid_coordinator import get_kv_cache_coordinator
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class KVCacheBlocks:
    """Columns per group."""

    blocks: tuple[Sequence[KVCacheBlock], ...]

    def get_block_ids(self) -> tuple[list[BlockId], ...]:
        """Return the block ids by group and column."""
        return tuple([block.block_id for block in group] for group in self.blocks)


class KVCacheBlockCopy(NamedTuple):
    """A page to copy before the step runs."""

    src_block_id: BlockId
    dst_block_id: BlockId


class KVCacheManager:
    """The cache of one engine, over a coordinator made for its configuration unless one is
    given.
    """

    def __init__(
        self, kv_cache_config: KVCacheConfig, coordinator: KVCacheCoordinator | None = None
    ) -> None:
        self.kv_cache_config = kv_cache_config
        self.max_model_len = kv_cache_config.options.max_model_len
        self.enable_caching = kv_cache_config.options.enable_caching
        self.watermark_blocks = int(kv_cache_config.options.watermark * kv_cache_config.num_blocks)
        self.coordinator = coordinator or get_kv_cache_coordinator(kv_cache_config)
        self.block_pool = self.coordinator.block_pool
        self.num_kv_cache_groups = len(kv_cache_config.kv_cache_groups)
        self.empty_kv_cache_blocks = KVCacheBlocks(((),) * self.num_kv_cache_groups)
        self._adopted_from: dict[str, set[str]] = {}

    def new_step_starts(self) -> None:
        """Say that the step before has run: its keys are committed, its states can be hit."""
        self._adopted_from.clear()
        self.coordinator.new_step_starts()

    # LOOKUP

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int, Position]:
        """Return the columns that are cached, how many tokens they hold, and the shared-prefix
        boundary (0: none).

        The last token is never hit, since its logits are wanted. `num_tokens` counts what was
        generated before a preemption.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0, Position(0)
        blocks, hit_length, num_uncached = self.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        shared_prefix_boundary = (
            hit_length + num_uncached
            if num_uncached and self.kv_cache_config.pin_shared_prefix_boundary
            else 0
        )
        return self._blocks(blocks), hit_length, Position(shared_prefix_boundary)

    # ALLOCATE

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        has_scheduled_reqs: bool = True,
        delay_cache_blocks: bool = False,
    ) -> KVCacheBlocks | None:
        """Give a request slots for `num_new_tokens` more tokens; return the new blocks, or None if
        they do not fit.

        A first call brings along what `get_computed_blocks` returned, and how many tokens beyond it
        a connector loads before the step runs. `num_lookahead_tokens` get attention slots as well,
        for drafts; they are never keyed. `full_sequence_must_fit` admits a request only if all of
        its tokens would fit; the watermark applies to requests that wait while others are
        scheduled. With `delay_cache_blocks` nothing is keyed: the request waits for what it hit.
        """
        if num_new_tokens == 0 and num_new_computed_tokens == 0:
            raise ValueError(f"request {request.request_id!r}: no tokens to allocate slots for")
        computed = (new_computed_blocks or self.empty_kv_cache_blocks).blocks
        rid = request.request_id
        pool = self.block_pool
        coordinator = self.coordinator
        num_local = request.num_computed_tokens + num_new_computed_tokens
        num_computed = num_local + num_external_computed_tokens
        num_total = min(num_computed, self.max_model_len)
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        watermark_blocks = self.watermark_blocks if has_scheduled_reqs and waiting else 0

        # LOOKUP: nothing; the caller brings what `get_computed_blocks` found.
        # ALLOCATE
        if full_sequence_must_fit:
            full = min(request.num_tokens, self.max_model_len)
            needed = coordinator.get_num_blocks_to_allocate(
                rid, full, computed, num_total, num_local, apply_admission_cap=True
            )
            if needed + watermark_blocks > pool.get_num_free_blocks():
                return None

        # COMMIT
        if request.num_accepted_drafts:
            # What drafts have filled is keyed, and their states brought home, before any of it is
            # given back.
            self.cache_blocks(request, num_total)
            coordinator.commit_drafts(rid, num_total, request.num_accepted_drafts)
            request.num_accepted_drafts = 0

        # RELEASE

        # Whatever the next query no longer reads goes first, even if the request then does
        # not fit; a step in flight reads too.
        coordinator.remove_skipped_blocks(rid, num_total - request.num_in_flight_tokens)

        # ALLOCATE
        num_known = min(num_total + num_new_tokens, self.max_model_len)
        num_tokens = min(num_known + num_lookahead_tokens, self.max_model_len)
        needed = coordinator.get_num_blocks_to_allocate(
            rid, num_tokens, computed, num_computed, num_local, num_known_tokens=num_known
        )
        if needed + watermark_blocks > pool.get_num_free_blocks():
            return None
        if any(computed) or num_external_computed_tokens:
            self._note_adoption(rid, computed)
            coordinator.allocate_new_computed_blocks(
                rid, computed, num_local, num_external_computed_tokens
            )
        new_blocks = coordinator.allocate_new_blocks(rid, num_tokens, num_known)
        # COMMIT
        if not delay_cache_blocks:
            self.cache_blocks(request, min(num_total + num_new_tokens, request.num_tokens))
        return self._blocks(new_blocks)

    # COMMIT

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Key what the first `num_computed_tokens` tokens fill."""
        if self.enable_caching:
            self.coordinator.cache_blocks(request, num_computed_tokens)

    # RELEASE

    def free(self, request: Request) -> None:
        """Give back everything that a request holds; its keys stay."""
        self.coordinator.free(request.request_id)

    def withdraw(self, request: Request) -> list[str]:
        """Take a request back that was given slots in this step, which is not going to run.

        Its keys of this step vanish and it holds nothing any more; so does everybody who, in this
        step, was given one of those blocks, or one of theirs. Return the ids of all of them, this
        request first: they start again.
        """
        withdrawn = [request.request_id]
        for request_id in withdrawn:
            withdrawn.extend(sorted(self._adopted_from.pop(request_id, set()) - set(withdrawn)))
            self.block_pool.withdraw_keys(request_id)
            for manager in self.coordinator.single_type_managers:
                manager.drop_pending_cow_copies(request_id)
            self.coordinator.free(request_id)
        return withdrawn

    def reset_prefix_cache(self) -> bool:
        """Forget every key; return False and change nothing while somebody holds a block."""
        return self.block_pool.reset_prefix_cache()

    # WHAT THE WORKER NEEDS

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """Return the tables of a request."""
        return self._blocks(self.coordinator.get_blocks(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[BlockId], ...]:
        """Return the tables of a request as block ids."""
        return self.get_blocks(request_id).get_block_ids()

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[KVCacheBlock]]:
        """Return the copies due before this step runs, and their ends: free those once the step
        has run.
        """
        pending = [
            copy
            for manager in self.coordinator.single_type_managers
            for copy in manager.take_pending_cow_copies()
        ]
        copies = [
            KVCacheBlockCopy(source.block_id, target.block_id) for _, source, target in pending
        ]
        return copies, [block for _, source, target in pending for block in (source, target)]

    def take_new_block_ids(self) -> list[BlockId]:
        """Return the attention blocks to zero before this step runs."""
        return [
            block_id
            for manager in self.coordinator.single_type_managers
            for block_id in manager.take_new_block_ids()
        ]

    def take_events(self) -> list[KVCacheEvent]:
        """Return the cache events since the last call."""
        return self.block_pool.take_events()

    def _blocks(self, blocks: tuple[Sequence[KVCacheBlock], ...]) -> KVCacheBlocks:
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    def _note_adoption(self, request_id: str, computed: Sequence[Sequence[KVCacheBlock]]) -> None:
        writers = self.block_pool.pending_writer
        if not writers:
            return
        for blocks in computed:
            for block in blocks:
                writer = writers.get(block.block_id)
                if writer is not None and writer != request_id:
                    self._adopted_from.setdefault(writer, set()).add(request_id)
