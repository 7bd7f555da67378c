"""Faults that begin with a size: in long prompts and answers, behind many requests, in pages that
were reused often, among many images.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import msgspec

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, adapter, core, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_faults.vllm.reference.mutants.near_miss import rehashed, with_extra_keys
from cachewitness_reference.primitives import GENESIS, BlockHash, chain
from cachewitness_reference.vllm.request import Request

fault = partial(mutant, group="I", engines=REFERENCE)
tokens_confused = partial(fault, anomaly="stale-hit", checker="safety-law")
identity_confused = partial(fault, anomaly="cross-identity-hit", checker="identity")

DIGESTED = 256
"""Tokens of a prompt that make its name."""
ANSWERED = 100
MANY = 200
"""So many requests, or reuses of pages, are right."""
GENERATIONS = 64
BITS = 16


@tokens_confused(
    name="tokens-beyond-256-unhashed",
    mirrors="prefix keys of the first 256 characters in routers (llm-d, production-stack)",
)
def tokens_beyond_256_unhashed(engine: Driver) -> None:
    """A prefix is named by its length and its first 256 tokens."""

    def link(request: Request, parent: BlockHash, start: int, stop: int) -> BlockHash:
        tokens = request.all_token_ids[start : max(start, min(stop, DIGESTED))]
        return chain(parent, tokens, request.extra_keys(start, stop))

    rehashed(engine, link)


@identity_confused(
    name="images-beyond-256-tokens-left-out", mirrors="vllm-project/vllm#36622 (images left out)"
)
def images_beyond_256_tokens_left_out(engine: Driver) -> None:
    """An image that lies behind the first 256 tokens is not part of the key."""
    with_extra_keys(
        engine,
        lambda request, start, stop: request.extra_keys(start, stop) if start < DIGESTED else None,
    )


@identity_confused(
    name="identity-lost-after-200-requests",
    mirrors="vllm-project/vllm#53495 (salt), in a table of names that is full",
    engines=BOTH,
)
def identity_lost_after_200_requests(engine: Driver) -> None:
    """Names of tenants and adapters are kept in a table that has room for 200 requests; all later
    ones have none.
    """
    asked = 0

    def new_request(original: Any, op: Any, tokens: Any) -> Any:
        nonlocal asked
        asked += 1
        return original(
            msgspec.structs.replace(op, salt="", adapter="") if asked > MANY else op, tokens
        )

    wrap(adapter(engine), "new_request", new_request)


@tokens_confused(
    name="keys-outlive-the-200th-eviction",
    mirrors="vllm-project/vllm#31583 (keys of blocks that are others' by now), in a long run",
    group="L",
    engines=BOTH,
)
def keys_outlive_the_200th_eviction(engine: Driver) -> None:
    """After 200 evictions a block that is handed out again can still be hit as what it was."""
    evicted = 0

    def still_keyed(_: Any) -> bool:
        nonlocal evicted
        evicted += 1
        return evicted > MANY

    _keys_outlive(engine, still_keyed)


@tokens_confused(
    name="generation-of-a-block-wraps",
    mirrors="counters of few bits that tell the tenants of a slot apart",
    group="L",
    engines=BOTH,
)
def generation_of_a_block_wraps(engine: Driver) -> None:
    """A key knows its block by a generation of 6 bits: with the 64th tenant the first one's key is
    valid again.
    """
    tenants = Counter[int]()

    def still_keyed(block: Any) -> bool:
        tenants[block.block_id] += 1
        return tenants[block.block_id] % GENERATIONS == 0

    _keys_outlive(engine, still_keyed)


def _keys_outlive(engine: Driver, still_keyed: Any) -> None:
    """Let blocks be evicted and their keys stay in the index, where the block says so."""
    pool = core(engine).block_pool
    index = pool.cached_block_hash_to_block

    def _maybe_evict_cached_block(original: Any, block: Any) -> Any:
        key = block.block_hash
        evicted = original(block)
        if key is not None and still_keyed(block):
            index.insert(key, block)
        return evicted

    wrap(pool, "_maybe_evict_cached_block", _maybe_evict_cached_block)


@tokens_confused(
    name="answers-beyond-100-tokens-unhashed",
    mirrors="sgl-project/sglang#34870 (tokens of an answer that are in no key)",
    level="scheduler",
)
def answers_beyond_100_tokens_unhashed(engine: Driver) -> None:
    """Behind the 100th token of an answer a block is named by its place alone."""

    def link(request: Request, parent: BlockHash, start: int, stop: int) -> BlockHash:
        if start >= request.num_prompt_tokens + ANSWERED:
            return chain(GENESIS, (start,), None)
        return chain(parent, request.all_token_ids[start:stop], request.extra_keys(start, stop))

    rehashed(engine, link)


@identity_confused(name="image-ids-of-16-bits", mirrors="LMCache/LMCache#4086")
def image_ids_of_16_bits(engine: Driver) -> None:
    """An image is known by 16 bits of its digest."""

    def cut(part: object) -> object:
        if not (isinstance(part, tuple) and part[0] == "mm"):
            return part
        _, name, offset = part
        return "mm", chain(GENESIS, [*name.encode()], None)[: BITS // 8], offset

    def keys(request: Request, start: int, stop: int) -> tuple[object, ...] | None:
        extra = request.extra_keys(start, stop)
        return extra and tuple(map(cut, extra))

    with_extra_keys(engine, keys)


MUTANTS = declared(globals())
