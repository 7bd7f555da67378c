"""Makes the models that the engine `llama-cpp` runs: four or six layers of an architecture with
random weights, as GGUF.

    python ci/llama_cpp_models.py FOLDER [MODEL …]

It needs `gguf` and numpy alone: the tensors are those that llama.cpp's loader asks for, so nothing
is converted, and nothing is downloaded. The weights come from a generator with a fixed seed, wide
enough that an answer depends on what was read long ago.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

VOCABULARY = 256
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
EMBEDDING, FORWARD, LAYERS, CONTEXT = 64, 96, 4, 16384
HEADS, KV_HEADS, HEAD = 4, 2, 16
STATE, GROUPS, KERNEL = 16, 1, 4
INNER = 2 * EMBEDDING
SSM_HEADS = 4
KEY_HEADS = 2
EXPERTS, EXPERTS_USED = 4, 2
WINDOW = 32
GAIN = 1.4
"""Weights are drawn with so many times the deviation that keeps a signal as large as it was."""


class Weights:
    """Writes one model: its metadata under the prefix of its architecture, and its tensors."""

    def __init__(self, path: Path, architecture: str) -> None:
        self.out = gguf.GGUFWriter(str(path), architecture)
        self._prefix = architecture
        self._random = np.random.default_rng(0)

    def says(self, **values: Any) -> None:
        """Write metadata; `__` stands for a dot."""
        for key, value in values.items():
            name = f"{self._prefix}.{key.replace('__', '.')}"
            add = {
                bool: self.out.add_bool,
                int: self.out.add_uint32,
                float: self.out.add_float32,
                list: self.out.add_array,
            }
            add[type(value)](name, value)

    def matrix(self, name: str, *shape: int) -> None:
        """Draw a tensor of a shape that is given as llama.cpp gives it, the dimension that is
        summed over first.
        """
        self._put(name, self._random.normal(0, GAIN / np.sqrt(shape[0]), shape[::-1]))

    def norm(self, name: str, *shape: int) -> None:
        """Draw the weights of a norm, around 1."""
        self._put(name, self._random.uniform(0.8, 1.2, shape[::-1]))

    def spread(self, name: str, low: float, high: float, *shape: int) -> None:
        """Draw a tensor between two numbers."""
        self._put(name, self._random.uniform(low, high, shape[::-1]))

    def _put(self, name: str, values: Any) -> None:
        self.out.add_tensor(name, values.astype(np.float32))

    def close(self) -> None:
        """Write the file."""
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def tokenizer(weights: Weights) -> None:
    """Write a vocabulary of made-up words: prompts are ids, and each answer is whole characters."""
    words = [f"w{number:03d}" for number in range(VOCABULARY - 3)] + ["a", "b", "ab", *SPECIAL]
    words += [f"unused{number}" for number in range(VOCABULARY + 16 - len(words))]
    out = weights.out
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list(words)
    out.add_token_types([3 if word in SPECIAL else 1 for word in words])
    out.add_token_merges(["a b"])
    pad, bos, eos, _ = (VOCABULARY + place for place in range(4))
    out.add_pad_token_id(pad)
    out.add_bos_token_id(bos)
    out.add_eos_token_id(eos)
    out.add_add_bos_token(False)


Sizes = int | list[int]


def common(
    w: Weights,
    layers: int = LAYERS,
    kv_heads: Sizes = KV_HEADS,
    forward: Sizes = FORWARD,
    last_norm: str = "output_norm",
) -> None:
    """Write what every architecture says, and its embeddings."""
    w.says(
        block_count=layers,
        context_length=CONTEXT,
        embedding_length=EMBEDDING,
        feed_forward_length=forward,
    )
    w.says(
        attention__head_count=HEADS,
        attention__head_count_kv=kv_heads,
        attention__layer_norm_rms_epsilon=1e-6,
    )
    w.says(
        attention__key_length=HEAD,
        attention__value_length=HEAD,
        rope__dimension_count=HEAD,
        rope__freq_base=10000.0,
    )
    w.matrix("token_embd.weight", EMBEDDING, VOCABULARY + 16)
    w.norm(f"{last_norm}.weight", EMBEDDING)
    w.matrix("output.weight", EMBEDDING, VOCABULARY + 16)


def attention(
    w: Weights, layer: str, *, norms: bool = False, gated: bool = False, biased: bool = False
) -> None:
    """Write grouped-query attention; `gated`: the query's projection has a gate beside it, as in
    Qwen3-Next.
    """
    q = HEADS * HEAD
    kv = KV_HEADS * HEAD
    shapes = {
        "attn_q": (EMBEDDING, 2 * q if gated else q),
        "attn_k": (EMBEDDING, kv),
        "attn_v": (EMBEDDING, kv),
    }
    for name, shape in {**shapes, "attn_output": (q, EMBEDDING)}.items():
        w.matrix(f"{layer}.{name}.weight", *shape)
        if biased:
            w.spread(f"{layer}.{name}.bias", -0.1, 0.1, shape[1])
    if norms:
        w.norm(f"{layer}.attn_q_norm.weight", HEAD)
        w.norm(f"{layer}.attn_k_norm.weight", HEAD)


def forward(w: Weights, layer: str, *, gate: bool = True) -> None:
    """Write a dense feed-forward layer."""
    for name in ("ffn_gate", "ffn_up") if gate else ("ffn_up",):
        w.matrix(f"{layer}.{name}.weight", EMBEDDING, FORWARD)
    w.matrix(f"{layer}.ffn_down.weight", FORWARD, EMBEDDING)


def experts(w: Weights, layer: str, *, biased: bool = False) -> None:
    """Write a mixture of experts."""
    w.matrix(f"{layer}.ffn_gate_inp.weight", EMBEDDING, EXPERTS)
    shapes = {
        "ffn_gate_exps": (EMBEDDING, FORWARD),
        "ffn_up_exps": (EMBEDDING, FORWARD),
        "ffn_down_exps": (FORWARD, EMBEDDING),
    }
    for name, shape in shapes.items():
        w.matrix(f"{layer}.{name}.weight", *shape, EXPERTS)
        if biased:
            w.spread(f"{layer}.{name}.bias", -0.1, 0.1, shape[1], EXPERTS)
    if biased:
        w.spread(f"{layer}.ffn_gate_inp.bias", -0.1, 0.1, EXPERTS)


def says_states(w: Weights, inner: int = INNER, groups: int = GROUPS) -> None:
    """Write the sizes of recurrent states."""
    sizes = {
        "conv_kernel": KERNEL,
        "inner_size": inner,
        "state_size": STATE,
        "time_step_rank": SSM_HEADS,
        "group_count": groups,
    }
    w.says(**{f"ssm__{name}": size for name, size in sizes.items()})


def mamba_2(w: Weights, layer: str) -> None:
    """Write a Mamba-2 mixer, which forgets over tens of tokens."""
    convolved = INNER + 2 * GROUPS * STATE
    w.matrix(f"{layer}.ssm_in.weight", EMBEDDING, INNER + convolved + SSM_HEADS)
    w.matrix(f"{layer}.ssm_conv1d.weight", KERNEL, convolved)
    w.spread(f"{layer}.ssm_conv1d.bias", -0.1, 0.1, convolved)
    w.spread(f"{layer}.ssm_dt.bias", -5.0, -2.0, SSM_HEADS)
    w.spread(f"{layer}.ssm_a", -1.0, -0.2, 1, SSM_HEADS)
    w.spread(f"{layer}.ssm_d", 0.5, 1.5, 1, SSM_HEADS)
    w.norm(f"{layer}.ssm_norm.weight", INNER // GROUPS, GROUPS)
    w.matrix(f"{layer}.ssm_out.weight", INNER, EMBEDDING)


def mamba_1(w: Weights, layer: str, rank: int) -> None:
    """Write a Mamba mixer with the norms that Jamba has."""
    w.matrix(f"{layer}.ssm_in.weight", EMBEDDING, 2 * INNER)
    w.matrix(f"{layer}.ssm_conv1d.weight", KERNEL, INNER)
    w.spread(f"{layer}.ssm_conv1d.bias", -0.1, 0.1, INNER)
    w.matrix(f"{layer}.ssm_x.weight", INNER, rank + 2 * STATE)
    for name, size in (("dt", rank), ("b", STATE), ("c", STATE)):
        w.norm(f"{layer}.ssm_{name}_norm.weight", size)
    w.matrix(f"{layer}.ssm_dt.weight", rank, INNER)
    w.spread(f"{layer}.ssm_dt.bias", -5.0, -2.0, INNER)
    w.spread(f"{layer}.ssm_a", -1.0, -0.2, STATE, INNER)
    w.spread(f"{layer}.ssm_d", 0.5, 1.5, INNER)
    w.matrix(f"{layer}.ssm_out.weight", INNER, EMBEDDING)


def delta_net(w: Weights, layer: str, *, joined: bool) -> None:
    """Write a gated delta net; `joined`: the projections of its two gates are one tensor."""
    keys = STATE * KEY_HEADS
    values = STATE * SSM_HEADS
    heads = SSM_HEADS
    w.matrix(f"{layer}.attn_qkv.weight", EMBEDDING, 2 * keys + values)
    w.matrix(f"{layer}.attn_gate.weight", EMBEDDING, values)
    w.matrix(f"{layer}.ssm_conv1d.weight", KERNEL, 2 * keys + values)
    w.spread(f"{layer}.ssm_dt.bias", -5.0, -2.0, heads)
    w.spread(f"{layer}.ssm_a", -1.0, -0.2, heads)
    for name in ("ssm_ba",) if joined else ("ssm_beta", "ssm_alpha"):
        w.matrix(f"{layer}.{name}.weight", EMBEDDING, heads * 2 if joined else heads)
    w.norm(f"{layer}.ssm_norm.weight", STATE)
    w.matrix(f"{layer}.ssm_out.weight", values, EMBEDDING)


# --- architectures --------------------------------------------------------------------------------


def norms(w: Weights, layer: str, *names: str) -> None:
    """Write norms over the embedding."""
    for name in names:
        w.norm(f"{layer}.{name}.weight", EMBEDDING)


def qwen3(w: Weights) -> None:
    """Attention alone: the control."""
    common(w)
    for layer in layers(LAYERS):
        norms(w, layer, "attn_norm", "ffn_norm")
        attention(w, layer, norms=True)
        forward(w, layer)


def qwen3_next(w: Weights) -> None:
    """Gated delta nets and gated attention in turn, experts."""
    common(w)
    says_states(w, STATE * SSM_HEADS, KEY_HEADS)
    w.says(full_attention_interval=2, expert_count=EXPERTS, expert_used_count=EXPERTS_USED)
    w.says(expert_feed_forward_length=FORWARD, expert_shared_feed_forward_length=FORWARD)
    for number, layer in enumerate(layers(LAYERS)):
        norms(w, layer, "attn_norm", "post_attention_norm")
        (
            attention(w, layer, norms=True, gated=True)
            if number % 2
            else delta_net(w, layer, joined=True)
        )
        experts(w, layer)
        w.matrix(f"{layer}.ffn_gate_inp_shexp.weight", EMBEDDING)
        for name, shape in (
            ("gate", (EMBEDDING, FORWARD)),
            ("up", (EMBEDDING, FORWARD)),
            ("down", (FORWARD, EMBEDDING)),
        ):
            w.matrix(f"{layer}.ffn_{name}_shexp.weight", *shape)


def qwen35(w: Weights) -> None:
    """Gated delta nets and gated attention in turn, dense."""
    common(w)
    says_states(w, STATE * SSM_HEADS, KEY_HEADS)
    w.says(full_attention_interval=2, rope__dimension_sections=[2, 3, 3, 0])
    for number, layer in enumerate(layers(LAYERS)):
        norms(w, layer, "attn_norm", "post_attention_norm")
        (
            attention(w, layer, norms=True, gated=True)
            if number % 2
            else delta_net(w, layer, joined=False)
        )
        forward(w, layer)


def granite_hybrid(w: Weights) -> None:
    """Mamba-2 and attention in turn."""
    common(w, kv_heads=[0, KV_HEADS] * 2)
    says_states(w)
    w.says(
        rope__scaling__finetuned=False,
        logit_scale=1.0,
        residual_scale=1.0,
        embedding_scale=1.0,
        attention__scale=0.25,
    )
    for number, layer in enumerate(layers(LAYERS)):
        norms(w, layer, "attn_norm", "ffn_norm")
        attention(w, layer) if number % 2 else mamba_2(w, layer)
        forward(w, layer)


def falcon_h1(w: Weights) -> None:
    """Mamba-2 and attention side by side in every layer."""
    common(w)
    says_states(w)
    for layer in layers(LAYERS):
        norms(w, layer, "attn_norm")
        w.norm(f"{layer}.ffn_norm", EMBEDDING)
        attention(w, layer)
        mamba_2(w, layer)
        forward(w, layer)


def lfm2(w: Weights) -> None:
    """Short convolutions and attention in turn."""
    common(w, kv_heads=[0, KV_HEADS] * 2, last_norm="token_embd_norm")
    w.says(shortconv__l_cache=3, vocab_size=VOCABULARY + 16)
    for number, layer in enumerate(layers(LAYERS)):
        norms(w, layer, "attn_norm", "ffn_norm")
        if number % 2:
            attention(w, layer, norms=True)
        else:
            w.matrix(f"{layer}.shortconv.conv.weight", 3, EMBEDDING)
            w.matrix(f"{layer}.shortconv.in_proj.weight", EMBEDDING, 3 * EMBEDDING)
            w.matrix(f"{layer}.shortconv.out_proj.weight", EMBEDDING, EMBEDDING)
        forward(w, layer)


def jamba(w: Weights) -> None:
    """Mamba and attention in turn, experts in every other layer."""
    common(w, kv_heads=[0, KV_HEADS] * 2)
    says_states(w)
    w.says(expert_count=EXPERTS, expert_used_count=EXPERTS_USED)
    for number, layer in enumerate(layers(LAYERS)):
        norms(w, layer, "attn_norm", "ffn_norm")
        attention(w, layer) if number % 2 else mamba_1(w, layer, SSM_HEADS)
        experts(w, layer) if number % 2 else forward(w, layer)


def nemotron_h(w: Weights) -> None:
    """Mamba-2, feed-forward and attention, each a layer of its own."""
    common(w, layers=6, kv_heads=[0, 0, KV_HEADS] * 2, forward=[0, FORWARD, 0] * 2)
    says_states(w)
    w.says(attention__layer_norm_epsilon=1e-6)
    for number, layer in enumerate(layers(6)):
        norms(w, layer, "attn_norm")
        kinds: tuple[Callable[[Weights, str], None], ...] = (
            mamba_2,
            lambda w, layer: forward(w, layer, gate=False),
            attention,
        )
        kinds[number % 3](w, layer)


def gemma3(w: Weights) -> None:
    """Sliding windows of 32 tokens, one layer in six without.

    The feed-forward layers add little, since llama.cpp looks their activation (GELU) up in a table
    of 16-bit numbers, which makes 1e-4 of a rounding error.
    """
    common(w, layers=6)
    w.says(attention__sliding_window=WINDOW)
    for layer in layers(6):
        norms(w, layer, "attn_norm", "post_attention_norm", "ffn_norm")
        w.spread(f"{layer}.post_ffw_norm.weight", 0.01, 0.04, EMBEDDING)
        attention(w, layer, norms=True)
        forward(w, layer)


def gpt_oss(w: Weights) -> None:
    """Sliding windows of 32 tokens and full attention in turn, with sinks and experts."""
    common(w)
    w.says(
        attention__sliding_window=32,
        expert_count=EXPERTS,
        expert_used_count=EXPERTS_USED,
        expert_feed_forward_length=FORWARD,
    )
    for layer in layers(LAYERS):
        norms(w, layer, "attn_norm", "post_attention_norm")
        attention(w, layer, biased=True)
        w.spread(f"{layer}.attn_sinks.weight", -1.0, 1.0, HEADS)
        experts(w, layer, biased=True)


def layers(count: int) -> Sequence[str]:
    """Return how the tensors of each layer begin."""
    return [f"blk.{number}" for number in range(count)]


MODELS: Mapping[str, tuple[str, Callable[[Weights], None]]] = {
    "qwen3": ("qwen3", qwen3),
    "qwen3-next": ("qwen3next", qwen3_next),
    "qwen35": ("qwen35", qwen35),
    "granite-hybrid": ("granitehybrid", granite_hybrid),
    "falcon-h1": ("falcon-h1", falcon_h1),
    "lfm2": ("lfm2", lfm2),
    "jamba": ("jamba", jamba),
    "nemotron-h": ("nemotron_h", nemotron_h),
    "gemma3": ("gemma3", gemma3),
    "gpt-oss": ("gpt-oss", gpt_oss),
}
"""By name: what llama.cpp calls the architecture, and what writes it."""


def main(folder: Path, names: Sequence[str]) -> None:
    """Write models into a folder, all of them if none is named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        architecture, write = MODELS[name]
        unfinished = folder / f"{name}.part"
        weights = Weights(unfinished, architecture)
        tokenizer(weights)
        write(weights)
        weights.close()
        unfinished.rename(folder / f"{name}.gguf")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
