"""A request: its tokens, its identity, and the digests of its prefixes.

The identity of a prefix is more than its tokens. The adapter enters every block, the salt the first
one (the chain carries it on), a multimodal item every block that it touches, by its content and its
place. What comes later never enters: two requests that differ in an image at token 100 share
whatever ends before it.

Sources (vLLM 0.33.0): `v1/request.py`; `v1/core/kv_cache_utils.py`, `get_request_block_hasher`,
`generate_block_hash_extra_keys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from cachewitness_reference.primitives import GENESIS, BlockHash, Position, chain

ExtraKeys = tuple[object, ...] | None


class RequestStatus(Enum):
    """Where a request is in its life."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()
    ABORTED = auto()

    @property
    def is_finished(self) -> bool:
        """Whether the request will not run again."""
        return self in (RequestStatus.FINISHED, RequestStatus.ABORTED)


@dataclass(frozen=True)
class MultiModalFeature:
    """Placeholder tokens [offset, offset + length) carry the content that `identifier` names."""

    offset: int
    length: int
    identifier: str


class Request:
    """One request. `num_computed_tokens` counts what its blocks hold; `num_tokens` what is known of
    it.

    Of what is computed, `num_in_flight_tokens` are in steps that have not run.
    `num_output_placeholders` tokens will be known when they have. `spec_token_ids` are guesses at
    what follows; `num_accepted_drafts` of the last ones stood, and their states are still where
    they were tried.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        hash_block_size: int,
        *,
        cache_salt: str = "",
        adapter: str = "",
        mm_features: Sequence[MultiModalFeature] = (),
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        if not prompt_token_ids:
            raise ValueError(
                f"request {request_id!r}: the prompt is empty; at least one token is needed"
            )
        self.request_id = request_id
        self.all_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.cache_salt = cache_salt
        self.adapter = adapter
        self.mm_features = sorted(mm_features, key=lambda feature: feature.offset)
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.spec_token_ids: list[int] = []
        self.num_accepted_drafts = 0
        self.num_in_flight_tokens = 0
        self.num_output_placeholders = 0
        self.shared_prefix_boundary = Position(0)
        self.hash_block_size = hash_block_size
        self.block_hashes: list[BlockHash] = []
        self._hash_new_blocks()

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens known so far."""
        return len(self.all_token_ids) - self.num_prompt_tokens

    def start_again(self) -> None:
        """Forget everything that was computed: the request has lost its blocks."""
        self.num_computed_tokens = self.num_in_flight_tokens = self.num_output_placeholders = 0
        self.num_accepted_drafts = 0
        self.spec_token_ids = []
        self.num_preemptions += 1

    def append_output_token_ids(self, token_ids: int | Sequence[int]) -> None:
        """Add generated tokens, and the digests of the blocks that they complete."""
        if isinstance(token_ids, int):
            self.all_token_ids.append(token_ids)
        else:
            self.all_token_ids.extend(token_ids)
        self._hash_new_blocks()

    def extra_keys(self, start: int, end: int) -> ExtraKeys:
        """Return what tells tokens [start, end) apart beside themselves, or None."""
        if not (self.adapter or self.cache_salt or self.mm_features):
            return None
        keys: list[object] = []
        if self.adapter:
            keys.append(("lora", self.adapter))
        keys.extend(
            ("mm", feature.identifier, feature.offset - start)
            for feature in self.mm_features
            if feature.offset < end and start < feature.offset + feature.length
        )
        if self.cache_salt and start == 0:
            keys.append(("cache_salt", self.cache_salt))
        return tuple(keys) or None

    def _hash_new_blocks(self) -> None:
        size = self.hash_block_size
        tokens = self.all_token_ids
        hashes = self.block_hashes
        start = len(hashes) * size
        while (end := start + size) <= len(tokens):
            parent = hashes[-1] if hashes else GENESIS
            hashes.append(chain(parent, tokens[start:end], self.extra_keys(start, end)))
            start = end
