"""Faults in what a prefix is."""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness.core.events import Version
from cachewitness.core.trace_format import UpdateWeights
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, adapter, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.primitives import GENESIS, chain


@mutant(
    name="hash-without-parent",
    mirrors="vllm-project/vllm#12621",
    anomaly="stale-hit",
    checker="safety-law",
    group="I",
    engines=REFERENCE,
)
def hash_without_parent(engine: Driver) -> None:
    """A block is keyed by its own tokens, not by its prefix.

    Hash each block by its own tokens alone.
    """

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)

        def hash_new_blocks() -> None:
            size = request.hash_block_size
            tokens = request.all_token_ids
            while (len(request.block_hashes) + 1) * size <= len(tokens):
                start = len(request.block_hashes) * size
                keys = request.extra_keys(start, start + size)
                request.block_hashes.append(chain(GENESIS, tokens[start : start + size], keys))

        request.block_hashes.clear()
        request._hash_new_blocks = hash_new_blocks
        hash_new_blocks()
        return request

    wrap(adapter(engine), "new_request", new_request)


@mutant(
    name="salt-left-out",
    mirrors="vllm-project/vllm#53495",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=BOTH,
)
def salt_left_out(engine: Driver) -> None:
    """The cache salt is not part of the key.

    Leave the salt out of the key.
    """
    wrap(
        adapter(engine),
        "new_request",
        lambda original, op, tokens: original(msgspec.structs.replace(op, salt=""), tokens),
    )


@mutant(
    name="keys-survive-new-weights",
    mirrors="InternLM/lmdeploy#4917",
    anomaly="cross-identity-hit",
    checker="identity",
    group="L",
    engines=BOTH,
)
def keys_survive_new_weights(engine: Driver) -> None:
    """New weights do not end the keys of the old ones."""
    manager = adapter(engine).manager

    def reset_prefix_cache(original: Any, reason: str = "reset") -> Any:
        return True if reason == "version" else original(reason)

    wrap(manager, "reset_prefix_cache", reset_prefix_cache)


@mutant(
    name="adapter-left-out",
    mirrors="vllm-project/vllm#3263, #30931",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=REFERENCE,
)
def adapter_left_out(engine: Driver) -> None:
    """The adapter is not part of the key.

    Leave the adapter out of the key.
    """
    wrap(
        adapter(engine),
        "new_request",
        lambda original, op, tokens: original(msgspec.structs.replace(op, adapter=""), tokens),
    )


@mutant(
    name="image-at-the-end-left-out",
    mirrors="vllm-project/vllm#36622",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=REFERENCE,
)
def image_at_the_end_left_out(engine: Driver) -> None:
    """An image is not part of the key of the block in which it ends."""

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)
        features = request.mm_features
        extra_keys = request.extra_keys

        def keys(start: int, end: int) -> Any:
            request.mm_features = [
                feature for feature in features if feature.offset + feature.length > end
            ]
            try:
                return extra_keys(start, end)
            finally:
                request.mm_features = features

        request.extra_keys = keys
        request.block_hashes.clear()
        request._hash_new_blocks()
        return request

    wrap(adapter(engine), "new_request", new_request)


@mutant(
    name="parts-of-identity-untagged",
    mirrors="vllm-project/vllm#44701",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=REFERENCE,
)
def parts_of_identity_untagged(engine: Driver) -> None:
    """A salt and an adapter of one name make one key.

    Put the parts of a key that are not tokens behind one another without saying which is which.
    """

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)
        extra_keys = request.extra_keys

        def keys(start: int, end: int) -> Any:
            return (
                tuple(part for _, *parts in extra_keys(start, end) or () for part in parts) or None
            )

        request.extra_keys = keys
        request.block_hashes.clear()
        request._hash_new_blocks()
        return request

    wrap(adapter(engine), "new_request", new_request)


@mutant(
    name="adapter-reloaded-in-place",
    mirrors="vllm-project/vllm#42125, #48352",
    anomaly="cross-identity-hit",
    checker="identity",
    group="L",
    engines=BOTH,
)
def adapter_reloaded_in_place(engine: Driver) -> None:
    """An adapter is loaded anew under its name, and the keys of the old one stay."""

    def update_weights(original: Any, op: UpdateWeights) -> None:
        if op.adapter:
            engine.events.append(
                Version(step=engine.diff.step, weights=op.version, adapter=op.adapter)
            )
        else:
            original(op)

    wrap(engine, "_update_weights", update_weights)


MUTANTS = declared(globals())
