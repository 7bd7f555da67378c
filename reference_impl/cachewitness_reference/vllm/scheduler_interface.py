"""What the scheduler needs of others, and what it says: a sampler, a manager, a connector, and a
step.

Sources: vLLM, `v1/core/sched/output.py`, `distributed/kv_transfer/kv_connector/v1/base.py`
(0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cachewitness_reference.primitives import BlockId, Position
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_manager import KVCacheBlockCopy, KVCacheBlocks
from cachewitness_reference.vllm.request import Request


class RefusedRequest(ValueError):
    """A request that can never run; the message is one line that says why."""


class Sampler(Protocol):
    """Who says which tokens a request generates, and who guesses them."""

    def draft(self, request: Request, count: int) -> list[int]:
        """Guess at most `count` tokens that follow those known of a request."""

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        """Return the tokens that follow those known: the drafts that stand, in order, and one
        more.
        """


class CacheManager(Protocol):
    """What the scheduler needs of a manager, so that an observer can stand between the two."""

    @property
    def block_pool(self) -> BlockPool:
        """The pool."""

    def new_step_starts(self) -> None:
        """See `KVCacheManager`."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int, Position]:
        """See `KVCacheManager`."""

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """See `KVCacheManager`."""

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
        """See `KVCacheManager`."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """See `KVCacheManager`."""

    def free(self, request: Request) -> None:
        """See `KVCacheManager`."""

    def withdraw(self, request: Request) -> list[str]:
        """See `KVCacheManager`."""

    def reset_prefix_cache(self) -> bool:
        """See `KVCacheManager`."""

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[KVCacheBlock]]:
        """See `KVCacheManager`."""

    def take_new_block_ids(self) -> list[BlockId]:
        """See `KVCacheManager`."""


@dataclass(frozen=True)
class KVConnectorMetadata:
    """What a step does for a connector: pages to load before it runs, pages to store after it.

    A copy is a place of the connector's, numbered as a block, and a block of the device.
    """

    loads: Sequence[tuple[KVCacheBlock, KVCacheBlock]] = ()
    stores: Sequence[tuple[KVCacheBlock, KVCacheBlock]] = ()


class KVConnector(Protocol):
    """Another system's cache behind the scheduler. What it has beyond the device's hit is loaded
    before the step runs.

    It is told of a request in the order of these methods. Real connectors may load while other
    steps run; here a load is part of the step that admits the request.
    """

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Return how many tokens it can serve beyond the first `num_computed_tokens`, which the
        device has.
        """

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Take note of the tables of an admitted request, with blocks for what will be loaded."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return what to load before the step and what to store after it; the blocks to be
        stored are held.
        """

    def update_connector_output(self, scheduler_output: SchedulerOutput) -> None:
        """Take note that the step has run, its loads and stores included."""

    def request_finished(self, request: Request) -> None:
        """Take note that a request has ended, before its blocks are given back."""

    def reset_cache(self) -> bool:
        """Forget every key, and return whether it was done; nothing is in flight."""


@dataclass
class SchedulerOutput:
    """One step: tokens per request in order, who was preempted for it, and what the worker does
    before it runs.

    `scheduled_spec_decode_tokens` are the last of a request's tokens, guessed. `generating` are
    those who generate in the step, `num_preemptions` says of everybody how often it had been
    preempted. Copies come before the runs. `retained_blocks` are the ends of copies and the sources
    of stores, held until the step has run.
    """

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    num_preemptions: dict[str, int] = field(default_factory=dict)
    generating: set[str] = field(default_factory=set)
    preempted_req_ids: list[str] = field(default_factory=list)
    kv_cache_block_copies: list[KVCacheBlockCopy] = field(default_factory=list)
    retained_blocks: list[KVCacheBlock] = field(default_factory=list)
    new_block_ids_to_zero: list[BlockId] = field(default_factory=list)
    kv_connector_metadata: KVConnectorMetadata = field(default_factory=KVConnectorMetadata)

    def take_idle_copies(self) -> list[tuple[KVCacheBlock, KVCacheBlock]]:
        """Leave out copies into blocks that nobody holds, the copy itself apart, and that have
        no key; return their ends.
        """
        copies = self.kv_cache_block_copies
        ends = self.retained_blocks
        self.kv_cache_block_copies = []
        self.retained_blocks = []
        idle = []
        for copy, source, target in zip(copies, ends[::2], ends[1::2], strict=True):
            if target.ref_cnt > 1 or target.block_hash is not None:
                self.kv_cache_block_copies.append(copy)
                self.retained_blocks += [source, target]
            else:
                idle.append((source, target))
        return idle
