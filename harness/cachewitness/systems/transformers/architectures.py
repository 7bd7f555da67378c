"""The architectures that are run: their configurations, at a tiny size. Nothing is imported here,
and nothing is downloaded.

Each is made by transformers from its own configuration class, with weights from a fixed seed.
Layers of different kinds alternate, and one with a state is behind one of attention, so that what
is wrong in one is seen by the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

UNSPLIT = 1 << 16
"""Tokens of a step if a trace does not limit them."""
VOCABULARY = 128
WINDOW = 24
"""Tokens of a sliding window: less than the prompts of most requests."""
WIDTH = 0.1
"""The standard deviation of weights: wide enough that answers depend on what was read long ago, and
not so wide that rounding grows from layer to layer."""

Kind = Literal["attention", "window", "recurrent"]


@dataclass(frozen=True)
class Architecture:
    """A model: its `model_type`, what its configuration adds to `COMMON`, and what its cache holds.

    `weights` fills parameters by the end of their names after the model was made. `since` is the
    first release that has it; empty: all that the adapter was written for.
    """

    model_type: str
    holds: tuple[Kind, ...]
    options: Mapping[str, Any]
    width: float = WIDTH
    weights: Mapping[str, float] = field(default_factory=dict)
    since: str = ""


COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEAD = {"head_dim": 16}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_WINDOWED = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
    **_HEAD,
}
_CONVOLVED = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 32,
}
_NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "moe"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 1,
    "chunk_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    **_HEAD,
}
_ZAMBA2 = {
    "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
    "mamba_d_state": 16,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "mamba_headdim": 16,
    "chunk_size": 32,
    "num_mem_blocks": 1,
    "use_mem_rope": True,
}

_STEPS = {"dt_bias": 0.0}
_SMALL_STEPS = {"dt_bias": -7.0}
"""Time steps of a Mamba-2 layer: about 0.7, and about the least of 0.001 that `time_step_min`
allows."""
_INKLING2 = {
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "n_layers_per_attn_res_block": 1,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": WINDOW,
    "d_rel": 4,
    "rel_extent": 64,
    "unpadded_vocab_size": VOCABULARY,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    **_HEAD,
}
_STATES: tuple[Kind, ...] = ("recurrent", "attention")
_WINDOWS: tuple[Kind, ...] = ("window", "attention")
_ALL: tuple[Kind, ...] = ("recurrent", "window", "attention")

ARCHITECTURES: Mapping[str, Architecture] = {
    "qwen3_next": Architecture(
        "qwen3_next",
        _STATES,
        {
            **_DELTA,
            **_HEAD,
            **_EXPERTS,
            "partial_rotary_factor": 0.5,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [0, 1],
        },
    ),
    "qwen3_5": Architecture("qwen3_5_text", _STATES, {**_DELTA, **_HEAD}),
    "olmo_hybrid": Architecture("olmo_hybrid", _STATES, _DELTA),
    "lfm2": Architecture("lfm2", _STATES, {**_CONVOLVED, "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": Architecture(
        "lfm2_moe", _STATES, {**_CONVOLVED, **_EXPERTS, "num_dense_layers": 1}
    ),
    "lfm3": Architecture("lfm3", _STATES, {**_CONVOLVED, **_EXPERTS}),
    "lara_mini": Architecture(
        "lara_mini",
        _ALL,
        {
            **_DELTA,
            **_HEAD,
            **_EXPERTS,
            "num_hidden_layers": 4,
            "layer_types": [
                "linear_attention",
                "sliding_attention",
                "linear_attention",
                "full_attention",
            ],
            "sliding_window": WINDOW,
            "shared_expert_intermediate_size": 32,
        },
        since="5.24",
    ),
    "inkling2": Architecture("inkling2_text", _ALL, _INKLING2),
    "inkling2_loop": Architecture(
        "inkling2_loop_text",
        _ALL,
        {
            **_INKLING2,
            "loop_layer_index_start": 1,
            "loop_layer_index_end": 2,
            "loop_num_passes": 3,
            "loop_gate_rank": 8,
        },
        since="5.24",
    ),
    "mamba2": Architecture(
        "mamba2",
        ("recurrent",),
        {"state_size": 16, "n_groups": 1, "num_heads": 8, "chunk_size": 32, **_HEAD},
    ),
    "bamba": Architecture("bamba", _STATES, {**_MAMBA2, "attn_layer_indices": [1]}),
    "falcon_h1": Architecture("falcon_h1", _STATES, {**_MAMBA2, **_HEAD, "mamba_d_ssm": 128}),
    "granitemoehybrid": Architecture(
        "granitemoehybrid",
        _STATES,
        {
            **_MAMBA2,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
        },
    ),
    "nemotron_h": Architecture("nemotron_h", _STATES, _NEMOTRON_H, weights=_STEPS),
    "nemotron_h-small-steps": Architecture(
        "nemotron_h", _STATES, _NEMOTRON_H, width=0.2, weights=_SMALL_STEPS
    ),
    "zamba2": Architecture("zamba2", _STATES, _ZAMBA2, weights=_STEPS),
    "zamba2-small-steps": Architecture("zamba2", _STATES, _ZAMBA2, width=0.2, weights=_SMALL_STEPS),
    "gemma3": Architecture("gemma3_text", _WINDOWS, {**_WINDOWED, "query_pre_attn_scalar": 16}),
    "gpt_oss": Architecture(
        "gpt_oss", _WINDOWS, {**_WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "laguna": Architecture(
        "laguna", _WINDOWS, {**_WINDOWED, **_EXPERTS, "shared_expert_intermediate_size": 32}
    ),
    "dory": Architecture(
        "dory",
        _WINDOWS,
        {
            **_WINDOWED,
            "n_input_layers": 1,
            "n_recurrent_layers": 1,
            "n_output_layers": 1,
            "ngpt_alpha_init": 0.5,
        },
        weights={"logit_scale": 1.0},
        since="5.24",
    ),
    "mistral": Architecture("mistral", ("window",), {"sliding_window": WINDOW, **_HEAD}),
    "llama": Architecture("llama", ("attention",), _HEAD),
    "mamba": Architecture("mamba", ("recurrent",), {"state_size": 8}),
    "jamba": Architecture(
        "jamba",
        _STATES,
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
        },
    ),
    "recurrent_gemma": Architecture(
        "recurrent_gemma",
        ("recurrent", "window"),
        {
            "lru_width": 64,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "attention"],
            **_HEAD,
        },
    ),
}
"""By the name that the option `model` takes."""
CONTROL = "llama"
"""Attention alone."""
