"""Makes the models that the engine `openvino-genai` runs: a few layers with random weights,
exported by optimum.

    python ci/openvino_models.py MODEL FOLDER

It is a script that imports nothing of this package, since it needs another environment than the
engine: torch, optimum-intel, and a release of transformers that knows the architecture
(`RELEASES`). ci/stage_openvino.sh makes it, and all models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

RELEASES = {
    "qwen3-next": "4.57.6",
    "llama": "4.57.6",
    "lfm2": "5.2.0",
    "qwen3-next-wide": "4.57.6",
    "llama-narrow": "4.57.6",
}
"""The release of transformers that makes each model.

The last two are asked for nothing but their capacity: their blocks weigh what the published
vectors of `sizing` say.
"""
BYTES = 256
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
COMMON: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "pad_token_id": BYTES,
    "bos_token_id": BYTES + 1,
    "eos_token_id": BYTES + 2,
    "use_cache": True,
    "initializer_range": 0.15,
}
"""Weights are drawn wider than usual, so that the model's answers depend on what it read long ago.
"""
SPREAD = 0.1
"""The deviation of what is added to a parameter that a constructor leaves constant: behind zeros a
layer may vanish, and with it what its cache does wrong."""


def model_of(name: str) -> Any:
    """Return a model of an architecture with random weights, always the same."""
    import torch

    torch.manual_seed(0)
    makers = {"qwen3-next": _qwen3_next, "lfm2": _lfm2, "llama": _llama}
    makers |= {"qwen3-next-wide": _qwen3_next_wide, "llama-narrow": _llama_narrow}
    model = makers[name]().eval().float()
    with torch.no_grad():
        for values in model.state_dict().values():
            if values.numel() > 1 and bool((values == values.flatten()[0]).all()):
                values += SPREAD * torch.randn_like(values)
    return model


def _qwen3_next() -> Any:
    linear = {
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
    }
    return _qwen3_next_of(["linear_attention", "full_attention"] * 2, {**linear, "head_dim": 64})


def _qwen3_next_wide() -> Any:
    """Three layers of states to one of attention: a state weighs 102 KV blocks."""
    linear = {
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    return _qwen3_next_of(["linear_attention"] * 3 + ["full_attention"], {**linear, "head_dim": 32})


def _qwen3_next_of(layers: list[str], heads: dict[str, Any]) -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    heads = {**heads, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.5}
    dense = {"mlp_only_layers": list(range(4)), "num_experts": 4, "num_experts_per_tok": 2}
    experts = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    config = Qwen3NextConfig(
        num_hidden_layers=4, layer_types=layers, **heads, **dense, **experts, **COMMON
    )
    return Qwen3NextForCausalLM(config)


def _lfm2() -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    layers = {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4}
    return Lfm2ForCausalLM(
        Lfm2Config(conv_L_cache=3, block_auto_adjust_ff_dim=False, **layers, **COMMON)
    )


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, head_dim=64, **COMMON))


def _llama_narrow() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, head_dim=32, **COMMON))


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes, which the export asks for; the engine is given ids and
    never uses it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL]
    bytewise = Tokenizer(
        models.BPE(
            vocab={letter: id_ for id_, letter in enumerate(letters)},
            merges=[],
            unk_token=SPECIAL[3],
        )
    )
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(list(SPECIAL))
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=bytewise, **names).save_pretrained(folder)


def main(name: str, folder: Path) -> None:
    """Make a model and export it into a folder of its own."""
    import transformers
    from optimum.exporters.openvino import main_export

    if transformers.__version__ != RELEASES[name]:
        sys.exit(
            f"{name} is made with transformers {RELEASES[name]}, and this is"
            f" {transformers.__version__}"
        )
    weights = folder / f"{name}.weights"
    model_of(name).save_pretrained(weights)
    save_tokenizer(weights)
    options = {
        "task": "text-generation-with-past",
        "library_name": "transformers",
        "convert_tokenizer": True,
        "stateful": True,
    }
    main_export(str(weights), str(folder / name), device="cpu", **options)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
