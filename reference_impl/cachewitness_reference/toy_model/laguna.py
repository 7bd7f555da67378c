"""Models of attention alone, full and sliding, as Hugging Face's Laguna writes them, its experts
left out.

Theirs differ from ours in how parameters are laid out: the gate has a projection of its own instead
of every second part of the query's, and norms are stored as they multiply, not as what is added to
1.

Source: `modeling_laguna.py` (transformers 5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cachewitness_reference.toy_model.config import LAGUNA_GATING, ModelError, ToyConfig

ARCHITECTURE = "LagunaForCausalLM"
LAYERS = ("sliding_attention", "full_attention")
SAME_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "rms_norm_eps",
)


def published_config(config: ToyConfig) -> dict[str, Any]:
    """Return the configuration as a `LagunaConfig` is written.

    Raises ModelError if it has other layers or another gate than Laguna.
    """
    for layer_type in config.layer_types:
        if layer_type not in LAYERS:
            raise ModelError(
                f"layer_types: Laguna has no {layer_type}; only {' and '.join(LAYERS)} can be"
                " exported"
            )
    if config.attention_gate != "softplus":
        raise ModelError(f"attention_gate: Laguna's is softplus, not {config.attention_gate}")
    rotary = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
    }
    return {name: getattr(config, name) for name in SAME_NAMES} | {
        "architectures": [ARCHITECTURE],
        "model_type": "laguna",
        "num_hidden_layers": len(config.layer_types),
        "layer_types": list(config.layer_types),
        "mlp_layer_types": ["dense"] * len(config.layer_types),
        "rope_parameters": dict.fromkeys(LAYERS, rotary),
        "gating": LAGUNA_GATING,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
    }


def theirs(weights: Mapping[str, Tensor], config: ToyConfig) -> dict[str, Tensor]:
    """Return our parameters as Laguna's."""
    found = {}
    for name, tensor in weights.items():
        if name.endswith("norm.weight"):
            found[name] = 1.0 + tensor
        elif name.endswith("q_proj.weight"):
            query, gate = tensor.unflatten(0, (-1, 2, config.head_dim)).unbind(1)
            found[name] = query.flatten(0, 1)
            found[name.replace("q_proj", "g_proj")] = gate.flatten(0, 1)
        else:
            found[name] = tensor
    return found


def is_theirs(weights: Mapping[str, Tensor]) -> bool:
    """Return whether parameters are laid out as Laguna's are."""
    return any(name.endswith("g_proj.weight") for name in weights)


def ours(weights: Mapping[str, Tensor], config: ToyConfig) -> dict[str, Tensor]:
    """Return Laguna's parameters as ours."""
    found = {}
    for name, tensor in weights.items():
        if name.endswith("norm.weight"):
            found[name] = tensor - 1.0
        elif name.endswith("q_proj.weight"):
            gate = weights[name.replace("q_proj", "g_proj")]
            both = (part.unflatten(0, (-1, config.head_dim)) for part in (tensor, gate))
            found[name] = torch.stack([*both], dim=1).flatten(0, 2)
        elif not name.endswith("g_proj.weight"):
            found[name] = tensor
    return found
