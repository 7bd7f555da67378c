"""`plan llama-cpp`: by hand, and beside what the real server logs of its caches."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.systems.llama_cpp.kind import MODELS
from cachewitness.systems.llama_cpp.plan import Request, kept_of, plan
from cachewitness.systems.llama_cpp.sizes import Context, Kept

MIB = 1 << 20
GIB = 1 << 30
NEXT = "qwen3-next-80b-a3b"
NEXT_STATE = 36 * (3 * 8192 + 32 * 128 * 128) * 4
"""36 layers: three inputs of a convolution and a matrix for each head, in 32-bit numbers."""
ROOT = Path(__file__).parents[3]
DRAWS = int(os.environ.get("CACHEWITNESS_PLAN_DRAWS", "4"))
HEADER_BYTES = 24
"""Of each layer that is saved; a saved cell has half as many."""


def test_a_hybrid_has_cells_and_a_state_for_each_slot() -> None:
    answer = plan(Request(NEXT, ctx_size=131072, parallel=4, request_tokens=8192, memory=8 * GIB))
    assert answer.value("full_bytes") == 131072 * 12 * 2 * 2 * 256 * 2
    assert answer.value("state_bytes") == 4 * NEXT_STATE
    assert answer.value("checkpoint_bytes") == NEXT_STATE
    prompt = 8192 * 24576 + 3 * NEXT_STATE
    assert answer.value("prompts_cached") == 8192 * MIB // prompt == 19
    assert answer.value("ctx_most_tokens") == (8 * GIB - 4 * NEXT_STATE) // 24576 // 1024 * 1024
    assert answer.answer.startswith("8,192 tokens: 4 requests run at once, 19 finished ones")


@pytest.mark.parametrize(
    ("asked", "cells"),
    [
        ({}, 4 * 1024 + 512),
        ({"parallel": 4}, 1024 + 512),
        ({"parallel": 4, "swa_full": True}, 8192),
        ({"parallel": 1, "ubatch_size": 64}, 1280),
        ({"ctx_size": 1000}, 1024),
    ],
)
def test_windows_have_cells_of_their_own(asked: dict[str, Any], cells: int) -> None:
    """Gemma 3 27B: windows of 1,024 tokens in 52 of 62 layers; the cells are a multiple of 256."""
    answer = plan(Request("gemma-3-27b", **{"ctx_size": 32768, **asked}))
    assert answer.value("window_cells") == cells


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"layout": "llama-4-scout"}, "llama.cpp keeps the chunks of this model in a cache"),
        ({"layout": "glm-5.1"}, "how llama.cpp keeps indexers, compressed vectors and linear"),
        ({"flash_attn": "off", "cache_type_v": "q8_0"}, "does not start without flash attention"),
        ({"request_tokens": 300000}, "300000 tokens are more than the 262144 of a slot"),
        (
            {"layout": "{small heads}", "cache_type_k": "q8_0"},
            "of 32 do not divide heads of 8",
        ),
        ({"layout": "{no such}"}, "'zamba2': whether llama.cpp has this architecture"),
    ],
)
def test_what_llama_cpp_does_otherwise_is_refused(
    asked: dict[str, Any], says: str, tmp_path: Path
) -> None:
    small = {"model_type": "qwen3"} | BASE | {"head_dim": 8}
    table = {"{small heads}": small, "{no such}": ZAMBA}.get(asked.get("layout", ""))
    if table is not None:
        asked = asked | {"layout": _written(tmp_path, table)}
    with pytest.raises(UsageError, match=re.escape(says)):
        plan(Request(**{"layout": NEXT, **asked}))


def test_windows_are_those_that_llama_cpp_follows(tmp_path: Path) -> None:
    """A Mistral keeps every token whatever its file says; a Command R7B has the file's window, not
    vLLM's, which is one token longer.
    """
    windows = {"mistral": 0, "cohere2": 512, "gemma2": 512}
    for kind, window in windows.items():
        table = {"model_type": kind, "sliding_window": 512, "hidden_size": 64} | BASE
        request = Request(_written(tmp_path, table))
        assert _kept(request).window == window


BASE = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "max_position_embeddings": 16384,
}
ZAMBA = {"model_type": "zamba2", "layers_block_type": ["mamba", "hybrid"] * 2} | BASE
DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
MAMBA_2 = {
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3"},
    "qwen3-next": {"model_type": "qwen3_next"} | DELTA,
    "qwen35": {"model_type": "qwen3_5_text"} | DELTA,
    "granite-hybrid": {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention"] * 2,
    }
    | MAMBA_2,
    "falcon-h1": {"model_type": "falcon_h1", "mamba_d_ssm": 128} | MAMBA_2,
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"] * 2,
        "conv_L_cache": 3,
    },
    "jamba": {
        "model_type": "jamba",
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_expand": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
    },
    "nemotron-h": {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-*M-*",
        "num_hidden_layers": 6,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
    },
    "gemma3": {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 32},
    "gpt-oss": {"model_type": "gpt_oss", "sliding_window": 32},
    "deepseek2": {"model_type": "deepseek_v3", "kv_lora_rank": 32, "qk_rope_head_dim": 16},
}
"""What `config.json` would say of the models that `ci/llama_cpp_models.py` makes, and of the one
with latent vectors that is made below."""


@dataclass(frozen=True)
class Log:
    """What a server logged: tokens of a slot, sizes of its caches in MiB and their cells, those of
    a checkpoint and of a prompt that goes to the host.
    """

    slot: int
    caches: list[tuple[str, int]]
    states: str
    checkpoint: str
    prompt: str


@pytest.mark.skipif(
    find_spec("xllamacpp") is None or not os.environ.get(MODELS),
    reason=f"needs xllamacpp, and {MODELS} to name a folder; ci/stage_llama_cpp.sh has both",
)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_real_server_logs_the_same(name: str, tmp_path: Path) -> None:
    """Tokens and cells are the same, and bytes to the last digit of the log, in MiB."""
    chance = random.Random(name)
    for number in range(DRAWS):
        quantized = bool(number % 2) and name in ("qwen3", "gemma3", "falcon-h1")
        head = 64 if quantized else 16
        config = BASE | CONFIGS[name] | ({"head_dim": head} if quantized else {})
        drawn = _drawn(chance, quantized)
        if "kv_lora_rank" in config:
            drawn["cache_type_v"] = drawn["cache_type_k"]
        request = Request(_written(tmp_path, config), **drawn)
        logged = _started(_model(name, head, tmp_path), drawn)
        answer = plan(request)
        kept = _kept(request)
        context = _context(request)
        assert answer.value("slot_tokens") == logged.slot, drawn
        caches = [(f"{context.full_bytes(kept) / MIB:.2f}", context.slot_tokens)]
        if kept.windows:
            cells = context.window_cells(kept.window)
            caches.append((f"{context.window_bytes(kept) / MIB:.2f}", cells))
        assert logged.caches == caches, drawn
        states = f"{context.state_bytes(kept) / MIB:.2f}" if kept.state else ""
        assert logged.states == states, drawn
        tokens = TOKENS
        _is_saved(logged.checkpoint, context.checkpoint_bytes(kept, tokens), tokens)
        _is_saved(logged.prompt, context.prompt_bytes(kept, tokens), 2 * tokens)


def _is_saved(printed: str, planned: int, cells: int) -> None:
    """Assert that a size in the log is what is planned, and headers."""
    if not planned or not printed:
        assert not planned
        return
    logged = float(printed) * MIB
    half = MIB / 2000
    assert planned - half <= logged <= planned + cells * 12 + 16 * HEADER_BYTES + half


TOKENS = 200
SERVER = """
import json, os, sys, urllib.request
import xllamacpp

model, asked = sys.argv[1], json.loads(sys.argv[2])
parameters = xllamacpp.CommonParams()
parameters.model.path = model
for name, kind in (("cache_type_k", "GGML_TYPE_"), ("cache_type_v", "GGML_TYPE_")):
    asked[name] = getattr(xllamacpp.ggml_type, kind + asked[name].upper())
flash = "LLAMA_FLASH_ATTN_TYPE_" + asked.pop("flash")
asked["flash_attn_type"] = getattr(xllamacpp.llama_flash_attn_type, flash)
asked |= {"fit_params": False, "warmup": False, "verbosity": 4}
for name, value in asked.items():
    setattr(parameters, name, value)
for threads in (parameters.cpuparams, parameters.cpuparams_batch):
    threads.n_threads = 1
server = xllamacpp.Server(parameters)
for start in (3, 103):
    prompt = [(start + place) % 200 + 3 for place in range(TOKENS)]
    body = json.dumps({"prompt": prompt, "n_predict": 1, "id_slot": 0}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/completion", body, headers)
    urllib.request.urlopen(request).read()
os._exit(0)
"""


def _drawn(chance: random.Random, quantized: bool) -> dict[str, Any]:
    types = ["q8_0", "q4_0", "q5_1", "f16"] if quantized else ["f16", "f32", "bf16"]
    return {
        "ctx_size": chance.choice([700, 5000, 16384, 60000]),
        "parallel": chance.choice([None, 1, 2, 3, 4]),
        "kv_unified": chance.choice([None, True, False]),
        "cache_type_k": chance.choice(types),
        "cache_type_v": chance.choice(types),
        "flash_attn": "auto" if quantized else chance.choice(["auto", "off"]),
        "swa_full": chance.random() < 0.2,
        "batch_size": chance.choice([64, 2048]),
        "ubatch_size": chance.choice([64, 512, 1024]),
    }


def _started(model: Path, drawn: dict[str, Any]) -> Log:
    """Return what the real server logs, of two prompts in one slot."""
    unified = drawn["parallel"] is None if drawn["kv_unified"] is None else drawn["kv_unified"]
    asked = {
        "n_ctx": drawn["ctx_size"],
        "n_parallel": drawn["parallel"] or 4,
        "kv_unified": unified,
        "cache_type_k": drawn["cache_type_k"],
        "cache_type_v": drawn["cache_type_v"],
        "flash": "AUTO" if drawn["flash_attn"] == "auto" else "DISABLED",
        "swa_full": drawn["swa_full"],
        "n_batch": drawn["batch_size"],
        "n_ubatch": drawn["ubatch_size"],
    }
    program = SERVER.replace("TOKENS", str(TOKENS))
    ran = subprocess.run(
        [sys.executable, "-c", program, str(model), json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    text = ran.stderr + ran.stdout
    assert ran.returncode == 0, text[-2000:]
    caches = re.findall(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells", text)
    return Log(
        int(_first(r"n_ctx_slot = (\d+)", text)),
        [(size, int(cells)) for size, cells in caches],
        _first(r"llama_memory_recurrent: size = +([\d.]+) MiB", text),
        _last(r"created context checkpoint .* size = ([\d.]+) MiB", text),
        _first(r"total state size = ([\d.]+) MiB", text),
    )


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""


def _last(pattern: str, text: str) -> str:
    return (re.findall(pattern, text) or [""])[-1]


def _model(name: str, head: int, folder: Path) -> Path:
    """Return a model with heads of a size: the stage's own, or one that is made here."""
    own = Path(os.environ[MODELS]) / f"{name}.gguf"
    if head == 16 and own.is_file():
        return own
    made = folder / str(head)
    if not (made / f"{name}.gguf").is_file():
        writer = _writer()
        writer.HEAD = head
        writer.MODELS = {**writer.MODELS, "deepseek2": ("deepseek2", _latent(writer))}
        writer.main(made, [name])
    return made / f"{name}.gguf"


def _writer() -> Any:
    spec = importlib.util.spec_from_file_location("models", ROOT / "ci" / "llama_cpp_models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _latent(writer: Any) -> Any:
    """Return what writes a model whose attention keeps latent vectors of 32 numbers and 16."""

    def write(w: Any) -> None:
        embedding = writer.EMBEDDING
        words = writer.VOCABULARY + 16
        w.says(block_count=4, context_length=16384, embedding_length=embedding)
        w.says(feed_forward_length=96, attention__head_count=4, attention__head_count_kv=1)
        w.says(attention__layer_norm_rms_epsilon=1e-6, attention__key_length=48)
        w.says(attention__value_length=32, rope__dimension_count=16, rope__freq_base=10000.0)
        w.says(attention__key_length_mla=32, attention__value_length_mla=16)
        w.says(attention__kv_lora_rank=32, attention__q_lora_rank=24)
        w.says(leading_dense_block_count=4, expert_count=4, expert_used_count=2)
        w.says(expert_feed_forward_length=96, expert_shared_count=1, expert_gating_func=1)
        w.says(expert_weights_scale=1.0, vocab_size=words)
        w.matrix("token_embd.weight", embedding, words)
        w.norm("output_norm.weight", embedding)
        w.matrix("output.weight", embedding, words)
        for layer in writer.layers(4):
            writer.norms(w, layer, "attn_norm", "ffn_norm")
            w.norm(f"{layer}.attn_q_a_norm.weight", 24)
            w.norm(f"{layer}.attn_kv_a_norm.weight", 32)
            w.matrix(f"{layer}.attn_q_a.weight", embedding, 24)
            w.matrix(f"{layer}.attn_q_b.weight", 24, 4 * 32)
            w.matrix(f"{layer}.attn_kv_a_mqa.weight", embedding, 48)
            w.matrix(f"{layer}.attn_k_b.weight", 16, 32, 4)
            w.matrix(f"{layer}.attn_v_b.weight", 32, 16, 4)
            w.matrix(f"{layer}.attn_output.weight", 4 * 16, embedding)
            writer.forward(w, layer)

    return write


def _written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def _kept(request: Request) -> Kept:
    from cachewitness.plan import sources

    return kept_of(sources.model(request.layout), request)


def _context(request: Request) -> Context:
    from cachewitness.plan import sources

    return request.context(sources.model(request.layout))
