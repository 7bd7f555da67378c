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
    "qwen3": {},
}
"""What each adds to `COMMON`, by the name of its module in mlx-lm: a recurrent state, a window,
both in every layer, Mamba."""
CONTROL = "qwen3"
"""Attention alone."""
