"""What one rank keeps of a model with attention and recurrent layers: the two numbers that a
block size follows from.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachewitness._util.errors import UsageError
from cachewitness.plan.rank import AUTO, Types, latent_bytes, state_bytes, token_bytes
from cachewitness.workloads.model import Full, Latent, Model, Recurrent, Sliding
from cachewitness_reference.vllm.sizing import checked


@dataclass(frozen=True)
class Hybrid:
    """What a rank keeps: bytes of a token and of a state, each in one layer. `latent`: attention
    keeps latent vectors.
    """

    token_bytes: int
    state_bytes: int
    latent: bool


def is_hybrid(model: Model) -> bool:
    """Return whether a model has recurrent layers beside attention."""
    recurrent = [isinstance(cache, Recurrent) for cache in model.caches]
    return any(recurrent) and not all(recurrent)


def is_gated_delta(model: Model) -> bool:
    """Return whether its recurrent layers are gated DeltaNet, whose prefill kernel may coarsen
    blocks.
    """
    return any(isinstance(cache, Recurrent) and cache.family == "gdn" for cache in model.caches)


def types_of(model: Model, types: Types | None = None) -> Types:
    """Return types of which that of keys and values is no longer left to the checkpoint."""
    given = Types() if types is None else types
    if given.kv != AUTO or not model.kv_cache_dtype:
        return given
    return Types(model.kv_cache_dtype, given.mamba, given.mamba_ssm, given.weights, given.drafts)


def hybrid_of(
    model: Model, tensor_parallel_size: int, named: str, types: Types | None = None
) -> Hybrid:
    """Return what one of so many ranks keeps of a hybrid; `named` is the option that named it, for
    messages.

    Raises UsageError where vLLM's rule has no single answer.
    """
    chosen = types_of(model, types)
    ranks = tensor_parallel_size
    attention = [cache for cache in model.caches if isinstance(cache, Full | Latent | Sliding)]
    states = [cache for cache in model.caches if isinstance(cache, Recurrent)]
    if len(attention) + len(states) != len(model.caches):
        raise UsageError(
            f"{named}: model.caches: the block size follows from attention and recurrent layers"
            " alone"
        )
    tokens = {
        latent_bytes(cache, chosen)
        if isinstance(cache, Latent)
        else token_bytes(cache, ranks, chosen)
        for cache in attention
    }
    if len(tokens) != 1:
        raise UsageError(
            f"{named}: model.caches: the block size follows from attention layers whose tokens"
            " weigh the same"
        )
    largest = max(state_bytes(state, ranks, chosen) for state in states)
    return Hybrid(
        tokens.pop(),
        checked("state", largest),
        any(isinstance(cache, Latent) for cache in attention),
    )
