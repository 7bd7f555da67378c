"""An exported checkpoint is the same model to transformers; its shape tells how long a real
engine's blocks get.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LagunaForCausalLM, Qwen3_5ForCausalLM

from cachewitness_reference.toy_model import checkpoint, dense, laguna
from cachewitness_reference.toy_model.config import ModelError, ToyConfig
from cachewitness_reference.toy_model.export import export, published_config, unified_block_size
from cachewitness_reference.toy_model.tokenizer import (
    END,
    PAD,
    Tokenizer,
    as_hugging_face,
    vocabulary,
)
from cachewitness_reference.toy_model.weights import random_weights
from suites.support.toy_models import far, model, strong_weights, tokens

pytestmark = pytest.mark.toy
WORDS = ["Zoe", " has", " coins", "\n"]
TEXT = "Zoe has 12 coins.\nTom: déjà vu #### 7"


def published(**sizes: Any) -> ToyConfig:
    return model("linear_attention", "full_attention", chunk_size=64, **sizes)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_exported_model_answers_the_same_in_transformers(
    tmp_path: Path, dtype: torch.dtype, bound: float
) -> None:
    words = vocabulary(WORDS)
    config = published(vocab_size=len(words))
    export(
        tmp_path,
        config,
        random_weights(config, 1),
        as_hugging_face(words),
        {"seed": 1},
        dtype=dtype,
    )
    theirs, found = Qwen3_5ForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values()) and theirs.dtype == dtype
    assert (theirs.config.eos_token_id, theirs.config.pad_token_id) == (words[END], words[PAD])

    ours = checkpoint.load(tmp_path, dtype)
    assert published_config(ours.config) == published_config(config)
    x = tokens(2, 150, config)
    with torch.no_grad():
        logits = theirs(x).logits
    assert (
        far(dense.forward(x, ours.weights, ours.config), logits)
        <= bound
        < 0.1 * float(logits.abs().max())
    )


def test_exported_model_with_windows_answers_the_same_in_transformers(tmp_path: Path) -> None:
    words = vocabulary(WORDS)
    layers = ("sliding_attention", "full_attention")
    config = model(*layers, vocab_size=len(words), attention_gate="softplus", num_key_value_heads=2)
    weights = strong_weights(config, dtype=torch.float32)
    export(tmp_path, config, weights, as_hugging_face(words), {"seed": 1})
    theirs, found = LagunaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values())
    ours = checkpoint.load(tmp_path)
    assert laguna.published_config(ours.config) == laguna.published_config(config)
    assert max(far(ours.weights[name], weights[name]) for name in weights) <= 1e-6
    x = tokens(2, 60, config)
    with torch.no_grad():
        logits = theirs(x).logits
    assert (
        far(dense.forward(x, ours.weights, ours.config), logits)
        <= 1e-5
        < 0.1 * float(logits.abs().max())
    )


def test_exported_tokenizer_cuts_the_same_in_transformers(tmp_path: Path) -> None:
    words = vocabulary(WORDS)
    config = published(vocab_size=len(words))
    export(tmp_path, config, random_weights(config, 1), as_hugging_face(words), {})
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path / "tokenizer.json")
    ids = theirs(TEXT)["input_ids"]
    assert ids == ours.encode(TEXT) and theirs.decode(ids) == TEXT
    assert (theirs.eos_token, theirs.pad_token) == (END, PAD)


def test_transformers_generates_what_we_generate(tmp_path: Path) -> None:
    words = vocabulary(WORDS)
    config = published(vocab_size=len(words))
    export(tmp_path, config, random_weights(config, 1), as_hugging_face(words), {})
    ours = checkpoint.load(tmp_path, torch.float32)
    theirs = Qwen3_5ForCausalLM.from_pretrained(tmp_path)
    text = tokens(1, 70, config)
    generated = theirs.generate(
        text,
        attention_mask=torch.ones_like(text),
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
    )
    for _ in range(8):
        text = torch.cat(
            [text, dense.forward(text, ours.weights, config)[:, -1:].argmax(-1)], dim=1
        )
    assert torch.equal(generated, text)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (model("linear_attention", "mamba2", chunk_size=64), "Qwen3.5 has no mamba2"),
        (
            model("full_attention", chunk_size=64, attention_gate="softplus"),
            "Qwen3.5's is sigmoid, not softplus",
        ),
        (model("sliding_attention"), "Laguna's is softplus, not sigmoid"),
        (
            model("sliding_attention", "linear_attention", attention_gate="softplus"),
            "Laguna has no linear_attention",
        ),
        (model("linear_attention", chunk_size=32), "chunks of 64 tokens, not 32"),
    ],
)
def test_unpublished_configuration_is_not_exported(config: ToyConfig, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        published_config(config)


def with_state_of(heads: int, dim: int, key_value_heads: int, head_dim: int) -> ToyConfig:
    return published(
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=dim,
        linear_value_head_dim=dim,
        num_attention_heads=key_value_heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
    )


def test_block_size_is_the_one_that_vllm_was_seen_to_choose() -> None:
    # vLLM 0.32 on such a model: "Setting attention block size to 1152 tokens", "Padding mamba page
    # size by 8.68%".
    config = with_state_of(heads=2, dim=128, key_value_heads=1, head_dim=32)
    state_bytes = 2 * 128 * 128 * 4 + 3 * 768 * 2
    token_bytes = 2 * 32 * 2
    assert unified_block_size(config) == 1152
    assert round(1152 * token_bytes / state_bytes - 1, 4) == 0.0868


def test_block_size_grows_only_when_a_state_outgrows_the_block() -> None:
    exact = with_state_of(
        heads=1, dim=16, key_value_heads=1, head_dim=41 * 4
    )  # a state is 1312 bytes, a token 656
    assert [unified_block_size(exact, alignment) for alignment in (1, 2, 128)] == [2, 2, 128]
    larger = with_state_of(heads=1, dim=16, key_value_heads=1, head_dim=40 * 4)  # a token is 640
    assert [unified_block_size(larger, alignment) for alignment in (1, 2, 128)] == [3, 4, 128]
