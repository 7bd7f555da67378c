"""Checkpoints that others load: a folder in the form of Hugging Face's Qwen3.5 text models, or of
Laguna if it has windows.

Qwen3.5's parameters are ours, Laguna's are laid out otherwise (`laguna`); what is added is a
configuration that names the architecture, and a tokenizer that says which tokens end and pad. The
folder stays a checkpoint of ours: `checkpoint.load` reads it as well.

What a real engine makes of a model is decided by its shape. An engine that lays recurrent states
and attention blocks into pages of one size enlarges its blocks until a block's keys and values are
as large as a state; a small model with a large state then has blocks longer than its prompts, of
which none ever fills. `unified_block_size` tells beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachewitness_reference.toy_model import checkpoint, laguna
from cachewitness_reference.toy_model.config import ModelError, ToyConfig
from cachewitness_reference.toy_model.tokenizer import END, PAD

PUBLISHED = ("linear_attention", "full_attention")
PUBLISHED_CHUNK = 64
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
BF16_BYTES, F32_BYTES = 2, 4
SAME_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "rms_norm_eps",
)


def export(
    folder: Path,
    config: ToyConfig,
    weights: Mapping[str, Tensor],
    tokenizer: dict[str, Any],
    recipe: Any,
    *,
    dtype: torch.dtype = torch.float32,
    positions_max: int = 4096,
) -> None:
    """Write a checkpoint that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer` load, in
    float32 or bfloat16.

    `tokenizer` is the content of `tokenizer.json`, with the tokens END and PAD in its vocabulary.
    Raises ModelError if the configuration is none of the published architecture, or as
    `checkpoint.save` does.
    """
    checkpoint.check_shapes(weights, config, folder / checkpoint.WEIGHTS)
    vocabulary = tokenizer["model"]["vocab"]
    described = published_config(config) | {
        "dtype": DTYPES[dtype],
        "max_position_embeddings": positions_max,
        "eos_token_id": vocabulary[END],
        "pad_token_id": vocabulary[PAD],
    }
    marks = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions_max,
    }
    files = {
        checkpoint.CONFIG: described,
        checkpoint.TOKENIZER: tokenizer,
        "tokenizer_config.json": marks,
        checkpoint.RECIPE: recipe,
    }
    laid_out = laguna.theirs(weights, config) if config.attention_gate == "softplus" else weights
    checkpoint.write(folder, {name: tensor.to(dtype) for name, tensor in laid_out.items()}, files)


def published_config(config: ToyConfig) -> dict[str, Any]:
    """Return the configuration as a `Qwen3_5TextConfig` (transformers 5.23) is written, or a
    `LagunaConfig` if it has windows.

    Raises ModelError if a layer type is not published, or chunk size or gate are not the published
    ones.
    """
    if "sliding_attention" in config.layer_types:
        return laguna.published_config(config)
    if config.attention_gate != "sigmoid":
        raise ModelError(f"attention_gate: Qwen3.5's is sigmoid, not {config.attention_gate}")
    for layer_type in config.layer_types:
        if layer_type not in PUBLISHED:
            raise ModelError(
                f"layer_types: Qwen3.5 has no {layer_type}; only {' and '.join(PUBLISHED)} can be"
                " exported"
            )
    if config.chunk_size != PUBLISHED_CHUNK:
        raise ModelError(
            f"chunk_size: Qwen3.5 runs in chunks of {PUBLISHED_CHUNK} tokens, not"
            f" {config.chunk_size}"
        )
    return {name: getattr(config, name) for name in SAME_NAMES} | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": len(config.layer_types),
        "layer_types": list(config.layer_types),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.partial_rotary_factor,
        },
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
    }


def unified_block_size(config: ToyConfig, kernel_alignment: int = 128) -> int:
    """Return the block size [tokens] of an engine that pages attention and GatedDeltaNet states
    alike.

    The smallest multiple of `kernel_alignment` at which a block of bfloat16 keys and values takes
    at least the bytes of a state: the convolution's inputs in bfloat16, the memory in float32.
    Source: vLLM 0.33, platforms/interface.py, "Setting attention block size to ... tokens to ensure
    that attention page size is >= mamba page size".
    """
    c = config
    token_bytes = 2 * c.num_key_value_heads * c.head_dim * BF16_BYTES
    conv_bytes = (c.linear_conv_kernel_dim - 1) * c.linear_conv_dim * BF16_BYTES
    memory_bytes = (
        c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim * F32_BYTES
    )
    return -(-(conv_bytes + memory_bytes) // (token_bytes * kernel_alignment)) * kernel_alignment
