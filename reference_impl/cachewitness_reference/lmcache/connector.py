"""The connector: LMCache as the engine's scheduler sees it.

For a request that waits the scheduler asks what there is beyond its own hit, admits it with blocks
for that, and says so. With each step it asks what to load before and what to store after. The names
of the methods are vLLM's; the requests and tables in them are plain, so that nothing of the engine
is imported.

Source: `integration/vllm/lmcache_mp_connector.py` (0.5.6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cachewitness_reference.lmcache.checks import validate_chunk_size, validate_group_spans
from cachewitness_reference.lmcache.groups import expand_engine_block_ids
from cachewitness_reference.lmcache.keys import MediaItem, adjusted_ids, check_salt
from cachewitness_reference.lmcache.server import LMCacheServer, Transfer
from cachewitness_reference.lmcache.tracker import RequestState, RequestTracker
from cachewitness_reference.primitives import BlockId

Table = Sequence[Sequence[BlockId]]
"""Block ids of a request by engine group and column."""


@dataclass
class ConnectorMetadata:
    """What a step does for LMCache: loads before it runs, stores after it."""

    retrieves: list[Transfer] = field(default_factory=list)
    stores: list[Transfer] = field(default_factory=list)


class LMCacheMPConnector:
    """A connector of one engine to one server.

    `reserve_last_token` leaves the last token out of look-ups; `save_decode_cache` stores generated
    tokens as well.
    """

    def __init__(
        self, server: LMCacheServer, *, reserve_last_token: bool, save_decode_cache: bool = False
    ) -> None:
        self.server = server
        self.infos = server.groups.kernel_groups
        self.chunk_size = server.groups.chunk_size
        spans = [info.tokens_per_block for info in self.infos]
        validate_chunk_size(self.chunk_size, spans)
        validate_group_spans(self.chunk_size, spans)
        self.hit_alignment_tokens = math.lcm(*spans)
        self.reserve_last_token = reserve_last_token
        self.save_decode_cache = save_decode_cache
        self.trackers: dict[str, RequestTracker] = {}

    def on_new_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        salt: str = "",
        adapter: str = "",
        kernels: str = "",
        media: Sequence[MediaItem] = (),
    ) -> None:
        """Take note of a request. Raises KeyRefused for a salt, or a name of kernels, that a key
        cannot carry.
        """
        check_salt(salt)
        self.trackers[request_id] = RequestTracker(
            request_id, adjusted_ids(prompt, media), len(prompt)
        )
        self.server.start_session(request_id, salt, adapter, kernels)

    def on_new_tokens(self, request_id: str, tokens: Sequence[int]) -> None:
        """Take note of what a request generated."""
        self.trackers[request_id].token_ids.extend(tokens)

    def on_preempted(self, request_id: str) -> None:
        """Forget what was computed for a request that lost its blocks, and what was to be loaded
        for it; it will ask again.
        """
        # LOOKUP, ALLOCATE, COMMIT: nothing; it asks again, and what is stored of it stays stored.
        # RELEASE
        old = self.trackers[request_id]
        self.server.free_lookup_locks(request_id)
        self.trackers[request_id] = RequestTracker(request_id, old.token_ids, old.num_prompt_tokens)

    # LOOKUP

    def get_num_new_matched_tokens(self, request_id: str, num_computed_tokens: int) -> int:
        """Return how many tokens can be loaded beyond the first `num_computed_tokens`, which the
        engine has.

        With recurrent layers the look-up leaves the last token out, since a state cannot be resumed
        one token earlier. Without, a prompt may be here as a whole, and then its last token is
        computed again.
        """
        tracker = self.trackers[request_id]
        # RELEASE
        self.server.free_lookup_locks(request_id)
        # LOOKUP
        num_tokens = max(len(tracker.token_ids) - int(self.reserve_last_token), 0)
        hit = self.server.lookup(request_id, tracker.token_ids, num_tokens) * self.chunk_size
        tracker.num_vllm_hit_tokens = (
            num_computed_tokens // self.hit_alignment_tokens * self.hit_alignment_tokens
        )
        tracker.num_lmcache_hit_tokens = tracker.num_stored_tokens = hit
        need_to_load = max(0, hit - num_computed_tokens)
        if hit == len(tracker.token_ids):
            need_to_load = max(0, need_to_load - 1)
        # ALLOCATE: nothing; the engine takes blocks of its own, and says so in
        # `update_state_after_alloc`.
        # COMMIT: nothing; what is loaded is the engine's to key.
        return need_to_load

    # ALLOCATE

    def update_state_after_alloc(self, request_id: str, num_external_tokens: int) -> None:
        """Take note that a request was admitted, with blocks for so many tokens to load, and let
        go of what is not loaded.
        """
        tracker = self.trackers[request_id]
        loads = num_external_tokens > 0 and tracker.needs_retrieve()
        tracker.state = RequestState.WAITING_FOR_LOAD if loads else RequestState.READY
        self.server.free_lookup_locks(request_id, tracker.num_vllm_hit_tokens if loads else None)

    def build_connector_meta(
        self, num_scheduled_tokens: Mapping[str, int], tables: Mapping[str, Table]
    ) -> ConnectorMetadata:
        """Return what to load and to store around a step that computes so many tokens of each
        request over these tables.
        """
        metadata = ConnectorMetadata()
        # LOOKUP: nothing; what is loaded has been locked since its look-up.
        # ALLOCATE
        for request_id, count in num_scheduled_tokens.items():
            tracker = self.trackers[request_id]
            tracker.block_ids = expand_engine_block_ids(self.infos, tables[request_id])
            if tracker.state is RequestState.WAITING_FOR_LOAD:
                metadata.retrieves.append(self._retrieve(tracker))
            tracker.num_scheduled_tokens += count
            store = self._store(tracker)
            if store is not None:
                metadata.stores.append(store)
        # COMMIT, RELEASE: nothing; both wait until the copies have been made.
        return metadata

    def _retrieve(self, tracker: RequestTracker) -> Transfer:
        chunks, skipped = tracker.retrievable_chunks(self.chunk_size)
        blocks = tracker.blocks_from(chunks, self.chunk_size, self.infos)
        transfer = self.server.retrieve(tracker.request_id, chunks, blocks, skipped)
        assert transfer.ok, f"what a look-up locked is there: {transfer.log}"
        tracker.state = RequestState.READY
        return transfer

    def _store(self, tracker: RequestTracker) -> Transfer | None:
        chunks = tracker.storable_chunks(
            self.chunk_size, self.infos, save_decode_cache=self.save_decode_cache
        )
        if not chunks:
            return None
        blocks = tracker.blocks_from(chunks, self.chunk_size, self.infos)
        return self.server.store(tracker.request_id, tracker.token_ids, chunks, blocks)

    # COMMIT

    def update_connector_output(self, metadata: ConnectorMetadata) -> None:
        """Take note that a step has run, what it loaded and stored included; then let the
        eviction thread look once.
        """
        # LOOKUP, ALLOCATE: nothing; the next step does.
        # RELEASE
        for transfer in metadata.retrieves:
            self.server.finish_retrieve(transfer)
        # COMMIT
        for transfer in metadata.stores:
            self.server.finish_store(transfer)
        # RELEASE
        self.server.tick()

    # RELEASE

    def request_finished(self, request_id: str) -> None:
        """Forget a request that has ended."""
        # LOOKUP, ALLOCATE, COMMIT: nothing; what is stored of a request stays stored.
        # RELEASE
        del self.trackers[request_id]
        self.server.end_session(request_id)

    def reset_cache(self) -> bool:
        """Forget every object; look-ups of requests that wait are let go of first. Return
        whether all are gone.
        """
        # LOOKUP, ALLOCATE, COMMIT: nothing; every key ends.
        # RELEASE
        for request_id in self.trackers:
            self.server.free_lookup_locks(request_id)
        return self.server.clear()
