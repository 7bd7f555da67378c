#!/usr/bin/env bash
# hf-mem counts keys and values of recurrent layers and of MLA's heads, and reads neither the size of a GGUF's heads nor its context's length.
#
# Package     hf-mem 0.5.6 (its functions, on fields of published configs and on the headers of GGUFs; it asks the Hub for nothing here)
# Surprise    `--experimental` estimates the KV cache "for the context length". Layers that are no attention (linear attention, Mamba, short
#             convolutions) are taken for sliding windows, and those, beside a layer with full attention, for full attention; a source comment
#             calls that an upper bound for windows. A config that names its recurrent layers otherwise than by `layer_types` is full attention
#             throughout. For MLA the heads of attention are counted, of which none is cached, not the latent that is. For a GGUF the size of
#             a head is `embedding_length // head_count`, whatever `attention.key_length` says, so the same Qwen3 has half the cache as a GGUF;
#             and the context's length is the last field whose name ends so, which is `rope.scaling.original_context_length` where there is one.
# Who         Whoever sizes a fleet, or a cache in host memory, by it: 4 and 8 times too much for hybrids, 25 times for DeepSeek; half for a
#             GGUF of Qwen3, a 32nd for one of Phi-3 128k. `cachewitness plan` counts what the engine allocates.
# Documented  The estimate is said to be experimental, for `...ForCausalLM` and `...ForConditionalGeneration`; which architectures are not, no.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check hf-mem==0.5.6
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import struct
from importlib.metadata import version

from hf_mem.gguf.metadata import parse_gguf_metadata
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

TOKENS, BYTES, UINT32 = 32768, 2, 4  # bfloat16 and float16; the number of a GGUF's type


def keys_and_values(layers, heads, size, tokens=TOKENS):
    """Return the bytes that layers with attention keep of so many tokens, all heads."""
    return 2 * layers * heads * size * tokens * BYTES


def config_size(config):
    return compute_safetensors_kv_cache_size(config, "BF16", TOKENS)


def gguf_size(architecture, **fields):
    """Return what is estimated from the header of a GGUF with these fields (a dot is written as two underscores) and no tensors."""
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    for name, value in fields.items():
        name = f"{architecture}.{name.replace('__', '.')}".encode()
        header += struct.pack("<Q", len(name)) + name + struct.pack("<II", UINT32, value)
    return parse_gguf_metadata(header, experimental=True).kv_cache.cache_size


QWEN3 = {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
NEXT = {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256}
JAMBA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4}
DEEPSEEK = {"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12
QWEN3_GGUF = {"block_count": 28, "context_length": TOKENS, "embedding_length": 1024, "attention__head_count": 16, "attention__head_count_kv": 8}
SIZES = {"attention__key_length": 128, "attention__value_length": 128}
PHI3_GGUF = {"context_length": 131072, "embedding_length": 3072, "block_count": 32, "attention__head_count": 32, "attention__head_count_kv": 32}
ORIGINAL = {"rope__scaling__original_context_length": 4096}

cases = {
    "Qwen3-0.6B, 28 layers of attention": (config_size(QWEN3), keys_and_values(28, 8, 128)),
    "the same as a GGUF": (gguf_size("qwen3", **QWEN3_GGUF, **SIZES), keys_and_values(28, 8, 128)),
    "Phi-3 128k as a GGUF, without its scaling": (gguf_size("phi3", **PHI3_GGUF), keys_and_values(32, 32, 96, 131072)),
    "Phi-3 128k as a GGUF": (gguf_size("phi3", **PHI3_GGUF, **ORIGINAL), keys_and_values(32, 32, 96, 131072)),
    "Qwen3-Next, 12 of 48, by layer_types": (config_size(NEXT | {"layer_types": types}), keys_and_values(12, 2, 256)),
    "Qwen3-Next, 12 of 48, by full_attention_interval": (config_size(NEXT | {"full_attention_interval": 4}), keys_and_values(12, 2, 256)),
    "Jamba, 4 of 32, by attn_layer_period": (config_size(JAMBA), keys_and_values(4, 8, 128)),
    "DeepSeek-V3, 61 layers of MLA": (config_size(DEEPSEEK), 61 * (512 + 64) * TOKENS * BYTES),
}
print("hf-mem", version("hf-mem"))
print(f"expected: what the layers with attention keep of {TOKENS} tokens, of Phi-3 of its 131072, in two bytes each number\n")
print(f"{'model, layers with attention':50}{'estimated, GiB':16}{'kept, GiB':11}ratio")
seen = {}
for name, (estimated, kept) in cases.items():
    seen[name] = round(estimated / kept, 2)
    print(f"{name:50}{estimated / 2**30:<16.2f}{kept / 2**30:<11.2f}{seen[name]}")
if list(seen.values()) != [1.0, 0.5, 1.0, 0.03, 4.0, 4.0, 8.0, 24.89]:
    raise SystemExit(f"changed: {seen}")
print("\nseen: a layer counts as attention whatever it is; of a GGUF the size of a head is not read, and another length is taken for the context's")
PYTHON
