"""What one rank keeps of a model with attention and recurrent layers: the two numbers that a
block size follows from.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachewitness._util.errors import UsageError
from cachewitness.workloads.model import DTYPE_BYTES, Full, Latent, Model, Recurrent, Sliding
from cachewitness_reference.vllm.sizing import mamba_state_bytes


@dataclass(frozen=True)
class Hybrid:
    """What a rank keeps: bytes of a token and of a state, each in one layer, and how many layers
    there are of either kind.
    """

    token_bytes: int
    state_bytes: int
    latent: bool
    attention_layers: int
    recurrent_layers: int


def is_hybrid(model: Model) -> bool:
    """Return whether a model has recurrent layers."""
    return any(isinstance(cache, Recurrent) for cache in model.caches)


def is_gated_delta(model: Model) -> bool:
    """Return whether its recurrent layers are gated DeltaNet, whose prefill kernel may coarsen
    blocks.
    """
    return any(isinstance(cache, Recurrent) and cache.family == "gdn" for cache in model.caches)


def rank_token_bytes(keys: Full | Sliding, ranks: int) -> int:
    """Return what one of so many ranks keeps of a token in one layer; a head that is on several is
    kept by each.

    Raises UsageError for heads that cannot be divided.
    """
    if keys.kv_heads % ranks and ranks % keys.kv_heads:
        raise UsageError(
            f"--tensor-parallel-size: {keys.kv_heads} KV heads cannot be divided by {ranks}"
        )
    return keys.token_bytes // keys.kv_heads * max(keys.kv_heads // ranks, 1)


def hybrid_of(model: Model, tensor_parallel_size: int, named: str) -> Hybrid:
    """Return what one of so many ranks keeps of a hybrid; `named` is the option that named it, for
    messages.

    Raises UsageError where vLLM's rule has no single answer.
    """
    attention = [cache for cache in model.caches if isinstance(cache, Full | Latent)]
    states = [cache for cache in model.caches if isinstance(cache, Recurrent)]
    if len(attention) != 1 or len(states) != 1 or len(model.caches) != 2:
        raise UsageError(
            f"{named}: model.caches: the block size follows from one attention and one recurrent"
            " kind"
        )
    keys = attention[0]
    state = states[0]
    ranks = tensor_parallel_size
    if ranks > 1 and state.family == "mamba2":
        raise UsageError(
            "--tensor-parallel-size: how the groups of a Mamba-2 layer are divided is not worked"
            " out here; use 1"
        )
    heads = state.state_shape[0] if state.state_shape else state.conv_channels
    if heads % ranks or state.conv_channels % ranks:
        raise UsageError(
            f"--tensor-parallel-size: {heads} recurrent heads cannot be divided by {ranks}"
        )
    token_bytes = keys.entry_bytes if isinstance(keys, Latent) else rank_token_bytes(keys, ranks)
    state_bytes = mamba_state_bytes(
        state.conv_channels // ranks,
        state.conv_kernel,
        DTYPE_BYTES[state.conv_dtype],
        state.state_bytes // ranks,
    )
    return Hybrid(token_bytes, state_bytes, isinstance(keys, Latent), keys.layers, state.layers)
