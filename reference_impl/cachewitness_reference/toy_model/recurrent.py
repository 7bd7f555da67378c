"""One way to call every recurrent layer type, so that an execution need not know them apart."""

from __future__ import annotations

from torch import Tensor

from cachewitness_reference.toy_model import linear_attention, mamba2_layer
from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.config import LayerType, ToyConfig
from cachewitness_reference.toy_model.kernels import PLAIN, Kernels
from cachewitness_reference.toy_model.recurrent_state import RecurrentState

__all__ = ["RecurrentState", "empty_state", "is_recurrent", "run"]


def is_recurrent(layer_type: LayerType) -> bool:
    """Return whether layers of this type carry a state instead of keys and values."""
    return layer_type in ("linear_attention", "mamba2")


def empty_state(
    layer_type: LayerType, batch: int, config: ToyConfig, like: Tensor
) -> RecurrentState:
    """Return a recurrent layer's state before the first token; `like` gives device and dtype
    (memory: float32 at least).
    """
    if layer_type == "mamba2":
        return mamba2_layer.empty_state(batch, config, like)
    return linear_attention.empty_state(batch, config, like)


def run(
    layer_type: LayerType,
    x: Tensor,
    state: RecurrentState,
    w: Weights,
    layer_name: str,
    config: ToyConfig,
    *,
    lengths: Tensor | None = None,
    kernels: Kernels = PLAIN,
) -> tuple[Tensor, RecurrentState]:
    """Run a recurrent layer over the normalised `x` [B, T, hidden]; return the outputs and the
    state after the last token.

    `layer_name` is the whole layer's, as "model.layers.3". Of row b only the first `lengths[b]`
    tokens count (0 ... T; all if not given): the state is the one after them and the outputs behind
    them mean nothing.
    """
    if layer_type == "mamba2":
        return mamba2_layer.mamba2_layer(
            x, state, w, f"{layer_name}.mamba", config, lengths, kernels
        )
    return linear_attention.linear_attention(
        x, state, w, f"{layer_name}.linear_attn", config, lengths, kernels
    )
