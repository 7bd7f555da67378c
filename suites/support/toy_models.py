"""Small models whose every parameter matters, and how far two tensors are apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.recurrent import RecurrentState
from cachewitness_reference.toy_model.weights import shapes

torch.set_num_threads(
    1
)  # matrices this small gain nothing from a second thread, which spins while it waits
LAYER = "model.layers.0"
RECURRENT = ("linear_attention", "mamba2")
EVERY_TYPE = ("linear_attention", "sliding_attention", "mamba2", "full_attention")
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 7,
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "mamba_state_dim": 8,
    "mamba_num_groups": 2,
    "chunk_size": 8,
}


def model(*layer_types: str, **sizes: Any) -> ToyConfig:
    return ToyConfig(**{**SIZES, **sizes, "layer_types": layer_types})


def strong_weights(
    config: ToyConfig, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return parameters of which none is 0 or 1 and so hides whether it is used; memories fade
    within a few tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes(config):
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        found[name] = noise * (0.4 if len(shape) == 1 else noise[0].numel() ** -0.5)
    for name in found:
        if name.endswith(("norm.weight", ".D")):
            found[name] += 0.7
        elif name.endswith("dt_bias"):
            found[name] -= 1.5
    return {name: tensor.to(dtype) for name, tensor in found.items()}


def noise(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def tokens(rows: int, length: int, config: ToyConfig, seed: int = 1) -> Tensor:
    return torch.randint(
        0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed)
    )


def far(a: Any, b: Any) -> float:
    """Return the largest absolute difference of two tensors, arrays or states; NaN counts as
    infinitely far.
    """
    if isinstance(a, RecurrentState):
        return max(far(x, y) for x, y in zip(a, b, strict=True))
    difference = (torch.as_tensor(a).double() - torch.as_tensor(b).double()).abs()
    return float(difference.nan_to_num(float("inf")).max()) if difference.numel() else 0.0
