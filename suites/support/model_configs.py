"""Configurations by hand: the fields of published ones that say what is cached, and small ones that
transformers can build.

Where the published values were read: the layouts of the same models name it
(`fixtures/layouts/*.toml`). The others: Jamba 1.5 Mini in onnx-diagnostic's copy of its
config.json; Nemotron-H-8B-Base-8K in a public trimmed quotation of it (52 letters, heads and
sizes); Nemotron 3 Nano 4B in a public test of its metadata (`attention_head_dim`);
Granite-4.0-H-Small in a public document that quotes it (36 Mamba-2 layers and 4 of attention; heads
and groups are the defaults of the class); LFM2-8B-A1B in a public test of its fields (24 layers, 6
of attention, kernel 3, 2 048 channels). Mistral 0.1, Mixtral, Qwen2.5-7B, Qwen3-30B-A3B and
DeepSeek-V2-Lite and -V3 were not read in a file of their own: their sizes are what is commonly
quoted of them, and nothing here depends on them being right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GRANITE_ATTENTION = (5, 15, 25, 35)
LFM2_MOE_ATTENTION = (2, 6, 10, 14, 18, 21)

PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3-next-80b-a3b": {
        "_name_or_path": "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "model_type": "qwen3_next",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 48,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
    },
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "num_hidden_layers": 24,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
        },
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1024,
        },
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
    },
    "falcon-h1-0.5b": {
        "model_type": "falcon_h1",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 36,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "max_position_embeddings": 16384,
    },
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "model_max_length": 1048576,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "jamba-1.5-mini": {
        "model_type": "jamba",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "sliding_window": None,
        "max_position_embeddings": 262144,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 52,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "max_position_embeddings": 8192,
    },
    "nemotron-3-nano-4b": {
        "model_type": "nemotron_h",
        "num_hidden_layers": 42,
        "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
        "hidden_size": 3136,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "attention_head_dim": 128,
        "mamba_num_heads": 96,
        "mamba_head_dim": 80,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "max_position_embeddings": 262144,
    },
    "granite-4.0-h-small": {
        "model_type": "granitemoehybrid",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 40,
        "layer_types": [
            "attention" if layer in GRANITE_ATTENTION else "mamba" for layer in range(40)
        ],
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "time_step_limit": [0.0, float("inf")],
        "max_position_embeddings": 131072,
    },
    "lfm2-8b-a1b": {
        "model_type": "lfm2_moe",
        "dtype": "bfloat16",
        "num_hidden_layers": 24,
        "layer_types": [
            "full_attention" if layer in LFM2_MOE_ATTENTION else "conv" for layer in range(24)
        ],
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "conv_dim": 2048,
        "conv_L_cache": 3,
        "max_position_embeddings": 128000,
    },
    "llama-3.1-8b": {
        "_name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "mistral-7b-v0.2": {
        "model_type": "mistral",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "max_position_embeddings": 32768,
    },
    "mistral-7b-v0.1": {
        "model_type": "mistral",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
    },
    "mixtral-8x7b-v0.1": {
        "model_type": "mixtral",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "max_position_embeddings": 32768,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 28,
        "max_position_embeddings": 32768,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_position_embeddings": 40960,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "use_sliding_window": False,
        "max_position_embeddings": 40960,
    },
    "gemma-2-9b": {
        "model_type": "gemma2",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 42,
        "hidden_size": 3584,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 163840,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 163840,
    },
}


def written(folder: Path, config: Any) -> Path:
    """Write a configuration as the file that lies beside weights, and return it."""
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path
