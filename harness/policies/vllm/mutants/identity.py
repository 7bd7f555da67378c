"""Faults in what a prefix is."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.engines.fault_tools import BOTH, REFERENCE, wrap
from harness.engines.manager_height import ManagerHeight
from harness.engines.mutant import Mutant
from harness.history.events import Version
from harness.trace.format import UpdateWeights
from reference_impl.primitives import GENESIS, chain


def hash_without_parent(engine: ManagerHeight) -> None:
    """Hash each block by its own tokens alone."""

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)

        def hash_new_blocks() -> None:
            size, tokens = request.hash_block_size, request.all_token_ids
            while (len(request.block_hashes) + 1) * size <= len(tokens):
                start = len(request.block_hashes) * size
                keys = request.extra_keys(start, start + size)
                request.block_hashes.append(chain(GENESIS, tokens[start : start + size], keys))

        request.block_hashes.clear()
        request._hash_new_blocks = hash_new_blocks
        hash_new_blocks()
        return request

    wrap(engine, "new_request", new_request)


def salt_left_out(engine: ManagerHeight) -> None:
    """Leave the salt out of the key."""
    wrap(engine, "new_request", lambda original, op, tokens: original(msgspec.structs.replace(op, salt=""), tokens))


def image_left_out(engine: ManagerHeight) -> None:
    """Leave multimodal content out of the key."""
    wrap(engine, "new_request", lambda original, op, tokens: original(msgspec.structs.replace(op, media=[]), tokens))


def keys_survive_new_weights(engine: ManagerHeight) -> None:
    """Load new weights and keep what the old ones computed."""
    manager = engine.manager

    def reset_prefix_cache(original: Any, reason: str = "reset") -> Any:
        return True if reason == "version" else original(reason)

    wrap(manager, "reset_prefix_cache", reset_prefix_cache)


def adapter_left_out(engine: ManagerHeight) -> None:
    """Leave the adapter out of the key."""
    wrap(engine, "new_request", lambda original, op, tokens: original(msgspec.structs.replace(op, adapter=""), tokens))


def image_at_the_end_left_out(engine: ManagerHeight) -> None:
    """Leave an image out of the key of the block in which it ends."""

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)
        features, extra_keys = request.mm_features, request.extra_keys

        def keys(start: int, end: int) -> Any:
            request.mm_features = [feature for feature in features if feature.offset + feature.length > end]
            try:
                return extra_keys(start, end)
            finally:
                request.mm_features = features

        request.extra_keys = keys
        request.block_hashes.clear()
        request._hash_new_blocks()
        return request

    wrap(engine, "new_request", new_request)


def parts_of_identity_untagged(engine: ManagerHeight) -> None:
    """Put the parts of a key that are not tokens behind one another without saying which is which."""

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)
        extra_keys = request.extra_keys

        def keys(start: int, end: int) -> Any:
            return tuple(part for _, *parts in extra_keys(start, end) or () for part in parts) or None

        request.extra_keys = keys
        request.block_hashes.clear()
        request._hash_new_blocks()
        return request

    wrap(engine, "new_request", new_request)


def adapter_reloaded_in_place(engine: ManagerHeight) -> None:
    """Load an adapter anew under its name, and keep what the old one computed."""

    def update_weights(original: Any, op: UpdateWeights) -> None:
        if op.adapter:
            engine.manager.events.append(Version(step=engine.manager.step, weights=op.version, adapter=op.adapter))
        else:
            original(op)

    wrap(engine, "_update_weights", update_weights)


MUTANTS = (
    Mutant(
        "hash-without-parent",
        "a block is keyed by its own tokens, not by its prefix",
        "vllm-project/vllm#12621",
        "stale-hit",
        "safety-law",
        hash_without_parent,
        REFERENCE,
        group="I",
    ),
    Mutant(
        "salt-left-out",
        "the cache salt is not part of the key",
        "vllm-project/vllm#53495",
        "cross-identity-hit",
        "identity",
        salt_left_out,
        BOTH,
        group="I",
    ),
    Mutant(
        "image-left-out",
        "multimodal content is not part of the key",
        "ROCm/ATOM#1358",
        "cross-identity-hit",
        "identity",
        image_left_out,
        REFERENCE,
        group="I",
    ),
    Mutant(
        "keys-survive-new-weights",
        "new weights do not end the keys of the old ones",
        "InternLM/lmdeploy#4917",
        "cross-identity-hit",
        "identity",
        keys_survive_new_weights,
        BOTH,
        group="L",
    ),
    Mutant(
        "adapter-left-out",
        "the adapter is not part of the key",
        "vllm-project/vllm#3263, #30931",
        "cross-identity-hit",
        "identity",
        adapter_left_out,
        REFERENCE,
        group="I",
    ),
    Mutant(
        "image-at-the-end-left-out",
        "an image is not part of the key of the block in which it ends",
        "vllm-project/vllm#36622",
        "cross-identity-hit",
        "identity",
        image_at_the_end_left_out,
        REFERENCE,
        group="I",
    ),
    Mutant(
        "parts-of-identity-untagged",
        "a salt and an adapter of one name make one key",
        "vllm-project/vllm#44701",
        "cross-identity-hit",
        "identity",
        parts_of_identity_untagged,
        REFERENCE,
        group="I",
    ),
    Mutant(
        "adapter-reloaded-in-place",
        "an adapter is loaded anew under its name, and the keys of the old one stay",
        "vllm-project/vllm#42125, #48352",
        "cross-identity-hit",
        "identity",
        adapter_reloaded_in_place,
        BOTH,
        group="L",
    ),
)
