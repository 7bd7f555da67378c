"""Writes a checkpoint of Qwen3.5's form as others read one: as a GGUF file in float32 for
llama.cpp, and as a folder for mlx-lm.

    python ci/checkpoint_forms.py FOLDER OUT    # writes OUT.gguf and OUT

mlx-lm knows the form by the name of the one with pictures, and for that transformers takes Qwen's
own way of cutting a text, whatever `tokenizer.json` says; so both get the vocabulary as GPT-2
spells it. The tokenizer must have a token for each byte and no merges, as the recipe `bytes` has.
It needs `torch`, `safetensors` and `gguf`. Source: `convert_hf_to_gguf.py` of llama.cpp, Qwen3.5.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from safetensors.torch import load_file

LAYER = "blk."
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.": LAYER,
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "_proj.": ".",
    "mlp.": "ffn_",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.": "ssm_",
}
"""What parts of names become, in this order."""
PLAIN = "linear_attn.norm.weight"
"""The norm that multiplies by its weights; others multiply by one more."""
UNMERGED = "xx xx"
"""llama.cpp wants merges; these pieces are no tokens."""


def main(folder: str, out: str) -> None:
    """Write the file and the folder."""
    source = Path(folder)
    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    names = _names(tokenizer["model"]["vocab"], config)
    write_gguf(source, config, names, f"{out}.gguf")
    tokenizer["model"]["vocab"] = {name: number for number, name in enumerate(names)}
    shutil.copytree(source, out)
    Path(out, "tokenizer.json").write_text(json.dumps(tokenizer))
    Path(out, "config.json").write_text(json.dumps({**config, "model_type": "qwen3_5"}))


def write_gguf(source: Path, config: Mapping[str, Any], names: Sequence[str], file: str) -> None:
    """Write the file, with these names of its tokens."""
    out = gguf.GGUFWriter(file, "qwen35")
    _sizes(out, config)
    _tokenizer(out, names, config)
    for name, values in load_file(source / "model.safetensors").items():
        out.add_tensor(_named(name), _changed(name, values.float()).numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _sizes(out: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    rotary = config["rope_parameters"]
    turned = int(config["head_dim"] * rotary["partial_rotary_factor"])
    third = turned // 6
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(rotary["rope_theta"])
    out.add_rope_dimension_count(turned)
    out.add_rope_dimension_sections([turned // 2 - 2 * third, third, third, 0])
    out.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    out.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    out.add_ssm_state_size(config["linear_key_head_dim"])
    out.add_ssm_time_step_rank(config["linear_num_value_heads"])
    out.add_ssm_group_count(config["linear_num_key_heads"])
    out.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)


def _names(vocabulary: Mapping[str, int], config: Mapping[str, Any]) -> list[str]:
    """Return tokens as GPT-2 spells them, which has a character for each byte; a byte that has
    another token already keeps its own name.
    """
    spelled = _spelling()
    words = {number: piece for piece, number in vocabulary.items()}
    marks = {config["eos_token_id"], config["pad_token_id"]}
    return [
        words[number] if number in marks else _as_gpt2(words[number], vocabulary, spelled)
        for number in range(len(words))
    ]


def _tokenizer(out: gguf.GGUFWriter, names: Sequence[str], config: Mapping[str, Any]) -> None:
    marks = {config["eos_token_id"], config["pad_token_id"]}
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(names)
    kinds = gguf.TokenType
    out.add_token_types(
        [kinds.CONTROL if number in marks else kinds.NORMAL for number in range(len(names))]
    )
    out.add_token_merges([UNMERGED])
    out.add_eos_token_id(config["eos_token_id"])
    out.add_pad_token_id(config["pad_token_id"])
    out.add_add_bos_token(False)


def _as_gpt2(piece: str, vocabulary: Mapping[str, int], spelled: Mapping[int, str]) -> str:
    if not piece.startswith("<0x"):
        return "".join(spelled[byte] for byte in piece.encode())
    byte = int(piece[3:5], 16)
    return piece if chr(byte) in vocabulary else spelled[byte]


def _spelling() -> dict[int, str]:
    """Return the character of each byte: its own if it is printed, else one from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {
        byte: chr(256 + place) for place, byte in enumerate(others)
    }


def _named(name: str) -> str:
    for part, becomes in NAMES.items():
        name = name.replace(part, becomes)
    return name


def _changed(name: str, values: Any) -> Any:
    if name.endswith("A_log"):
        return -values.exp()
    if name.endswith("norm.weight") and not name.endswith(PLAIN):
        return values + 1
    return values.squeeze(1) if name.endswith("conv1d.weight") else values


if __name__ == "__main__":
    main(*sys.argv[1:])
