"""The architectures that are run: mlx-lm's own configurations, at a tiny size. Nothing is
imported here or downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VOCABULARY = 128
WINDOW = 24
"""Tokens of a sliding window: less than the prompts of most requests."""
COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "qwen3_next": {
        "full_attention_interval": 2,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "partial_rotary_factor": 0.5,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 1, 2],
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "gemma3_text": {
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 10000.0,
    },
    "falcon_h1": {
        "mamba_d_ssm": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 32,
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    "nemotron_h": {
        "attention_bias": False,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-6,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
    },
    "mamba": {
        "intermediate_size": 128,
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "intermediate_size": 128,
        "state_size": 16,
        "layer_norm_epsilon": 1e-6,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": (0.0, float("inf")),
        "time_step_rank": 4,
    },
    "granitemoehybrid": {
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
        "shared_intermediate_size": 64,
    },
    "plamo2": {
        "hidden_size_per_head": 16,
        "attention_window_size": WINDOW,
        "mamba_d_state": 16,
        "mamba_num_heads": 4,
        "mamba_chunk_size": 32,
    },
    "olmo_hybrid": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
        "attention_bias": False,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "bailing_moe_linear": {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "layer_group_size": 3,
        "group_norm_size": 2,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": True,
    },
    "rwkv7": {
        "norm_eps": 1e-5,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "recurrent_gemma": {
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "recurrent", "attention"],
        "num_key_value_heads": 1,
    },
    "baichuan_m1": {"sliding_window": WINDOW, "sliding_window_layers": [1], "conv_window": 2},
    "lfm2": {
        "norm_eps": 1e-6,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "qwen3": {},
}
"""What each adds to `COMMON`, by the name of its module in mlx-lm: GatedDeltaNet, windows, Mamba-2
beside attention, Mamba-1, Mamba-2 alone and between attention, gated linear attention, RWKV-7,
RG-LRU, and short convolutions on keys and values or alone.
"""
PADDED = (
    *("jamba", "nemotron_h", "mamba", "olmo_hybrid", "bailing_moe_linear", "rwkv7"),
    *("recurrent_gemma", "baichuan_m1"),
)
"""Those whose answers depend on their company in a batch, cache or not
(docs/systems/mlx_lm-notes.md); one request at a time they can be judged.
"""
CONTROL = "qwen3"
"""Attention alone."""
