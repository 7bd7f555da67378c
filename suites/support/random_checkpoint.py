"""A checkpoint with random weights, whose answers mean nothing and are nevertheless to be the
same cold and cached.
"""

from __future__ import annotations

from pathlib import Path

from cachewitness_reference.toy_model import checkpoint
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.tokenizer import as_hugging_face, vocabulary
from cachewitness_reference.toy_model.weights import random_weights

LAYERS = ("linear_attention", "sliding_attention", "mamba2", "full_attention")


def random_checkpoint(folder: Path, seed: int = 3, layers: tuple[str, ...] = LAYERS) -> Path:
    """Write one and return its folder."""
    words = vocabulary(["the", " cat", " dog", " sat", " ran", " on", " mat"])
    config = ToyConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=32,
        layer_types=layers,  # type: ignore[arg-type]
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=24,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        mamba_num_heads=2,
        mamba_head_dim=8,
        mamba_state_dim=4,
        chunk_size=16,
    )
    checkpoint.save(folder, config, random_weights(config, seed), as_hugging_face(words), {})
    return folder
