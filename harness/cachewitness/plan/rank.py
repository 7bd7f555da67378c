"""What one rank keeps of a model's layers, under the types that vLLM's flags and the checkpoint
choose: bytes of a token in a layer, bytes of a state.

Sources (vLLM 0.33.0): `v1/kv_cache_interface.py`, `AttentionSpec`; `customize_spec` of
`v1/attention/backends/triton_attn.py` and `flashinfer.py`;
`model_executor/layers/mamba/mamba_utils.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cachewitness._util.errors import UsageError
from cachewitness.workloads.model import DTYPE_BYTES, Full, Latent, Recurrent, Sliding
from cachewitness_reference.vllm.sizing import mamba_state_bytes

_T = TypeVar("_T")
AUTO = "auto"
SCALE_BYTES = 4
"""Of one scale, for keys or values of a token in a head."""


def _packed(head_dim: int) -> int:
    return head_dim // 2 + head_dim // 16


KV_DTYPES: dict[str, Callable[[int], int]] = {
    "float16": lambda size: 4 * size,
    "bfloat16": lambda size: 4 * size,
    "fp8": lambda size: 2 * size,
    "fp8_e4m3": lambda size: 2 * size,
    "fp8_e5m2": lambda size: 2 * size,
    "fp8_inc": lambda size: 2 * size,
    "fp8_per_token_head": lambda size: 2 * size + 2 * SCALE_BYTES,
    "int8_per_token_head": lambda size: 2 * size + 2 * SCALE_BYTES,
    "int4_per_token_head": lambda size: 2 * (size // 2) + 2 * SCALE_BYTES,
    "nvfp4": lambda size: 2 * _packed(size),
    "nvfp4_4over6": lambda size: 2 * _packed(size),
}
"""By vLLM's name, what a head of a size keeps of one token: keys and values together, in bytes."""
LATENT_DTYPES = {"float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""The same for one number of a latent vector."""
STATE_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Types:
    """The types of caches, by vLLM's names, and the tokens that a drafter proposes. `auto` leaves
    a type to the checkpoint, and from there to its weights.
    """

    kv: str = AUTO
    mamba: str = AUTO
    mamba_ssm: str = AUTO
    weights: str = AUTO
    drafts: int = 0


def token_bytes(cache: Full | Sliding, ranks: int, types: Types) -> int:
    """Return what one of so many ranks keeps of a token in one layer; a head that is on several is
    kept by each.

    Raises UsageError for heads that cannot be divided.
    """
    heads = rank_heads(cache.kv_heads, ranks)
    if types.kv == AUTO:
        width = DTYPE_BYTES[_of_weights(cache.dtype, types)]
        return 2 * heads * cache.head_dim * width
    return heads * _kv(types.kv, KV_DTYPES)(cache.head_dim)


def kept_dtype(cache: Full | Sliding, types: Types) -> str:
    """Return the type of keys and values: as asked for, else that of the weights."""
    return _of_weights(cache.dtype, types) if types.kv == AUTO else types.kv


def latent_bytes(cache: Latent, types: Types) -> int:
    """Return what every rank keeps of one latent vector in one layer. Raises UsageError for a type
    whose packing of such vectors is not worked out.
    """
    if cache.dtype == "uint8":
        return cache.entry_bytes
    if types.kv == AUTO:
        return cache.width * DTYPE_BYTES[_of_weights(cache.dtype, types)]
    return cache.width * _kv(types.kv, LATENT_DTYPES)


def _kv(name: str, known: dict[str, _T]) -> _T:
    if name not in known:
        raise UsageError(
            f"--kv-cache-dtype {name}: what it packs into a token is not worked out here; known:"
            f" {AUTO}, {', '.join(known)}"
        )
    return known[name]


def _of_weights(dtype: str, types: Types) -> str:
    """Return a type that is left to the weights, which `--dtype` may change."""
    return dtype if types.weights == AUTO or dtype not in STATE_DTYPES else types.weights


def rank_heads(heads: int, ranks: int) -> int:
    """Return how many of some KV heads one rank has. Raises UsageError if they do not divide."""
    if heads % ranks and ranks % heads:
        raise UsageError(f"--tensor-parallel-size: {heads} KV heads cannot be divided by {ranks}")
    return max(heads // ranks, 1)


def state_dtypes(state: Recurrent, types: Types) -> tuple[str, str]:
    """Return the types of a convolution's inputs and of the state, as vLLM resolves them."""
    conv = _of_weights(state.conv_dtype, types) if types.mamba == AUTO else types.mamba
    if types.mamba_ssm != AUTO:
        return conv, types.mamba_ssm
    fixed = state.state_dtype_fixed or state.state_dtype != state.conv_dtype
    return conv, state.state_dtype if fixed else conv


def state_bytes(state: Recurrent, ranks: int, types: Types) -> int:
    """Return the bytes of one layer's state on one of so many ranks: the last inputs of the
    convolution, one more for every draft, and the recurrent part.

    Raises UsageError for heads or channels that cannot be divided.
    """
    conv, kept = state_dtypes(state, types)
    if state.family == "linear":
        return (
            _divided(state.state_shape[0], ranks)
            * math.prod(state.state_shape[1:])
            * (DTYPE_BYTES[conv])
        )
    channels = _divided(_channels(state, ranks), ranks)
    drafts = types.drafts if state.family in ("gdn", "kda", "mamba2") else 0
    recurrent = 0
    if state.state_shape:
        heads = _divided(state.state_shape[0], ranks)
        recurrent = heads * math.prod(state.state_shape[1:]) * DTYPE_BYTES[kept]
    rows = state.conv_kernel + drafts
    return mamba_state_bytes(channels, rows, DTYPE_BYTES[conv], recurrent)


def _channels(state: Recurrent, ranks: int) -> int:
    """Return the channels of all ranks together. Mamba-2 repeats its groups until every rank's
    heads have theirs.
    """
    if state.family != "mamba2":
        return state.conv_channels
    heads, size, width = state.state_shape
    inner = heads * size
    groups = (state.conv_channels - inner) // (2 * width)
    repeated = groups if groups % ranks == 0 else ranks
    return inner + 2 * repeated * width


def _divided(whole: int, ranks: int) -> int:
    if whole % ranks:
        raise UsageError(
            f"--tensor-parallel-size: {whole} recurrent heads or channels cannot be divided by"
            f" {ranks}"
        )
    return whole // ranks
