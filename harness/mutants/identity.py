"""Faults in what a prefix is."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.engines.manager_height import ManagerHeight
from harness.mutants import Mutant
from harness.mutants.tools import BOTH, REFERENCE, wrap
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
)
