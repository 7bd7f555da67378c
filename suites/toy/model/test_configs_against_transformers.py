"""`plan --config` against transformers: what the reader says of a configuration, and what a model
built from it keeps.

transformers writes the configuration of a small model of each family, builds the model, runs it and
fills its own cache. The reader sees the file alone. Types are not compared: transformers keeps
states in the type of its weights.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, PretrainedConfig

from cachewitness._util.errors import UsageError
from cachewitness.plan.config import read
from cachewitness.plan.config.families import FAMILIES, PLAIN
from cachewitness.systems.transformers.architectures import ARCHITECTURES, COMMON
from cachewitness.workloads.model import Full, Latent, Recurrent, Sliding
from suites.support.model_families import BY_FIELDS

pytestmark = [pytest.mark.toy, pytest.mark.filterwarnings("ignore")]
TOKENS = 40
_DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 3}
_GROUPS = {"mamba_n_groups": 2, "mamba_d_conv": 3}
ODD: dict[str, dict[str, Any]] = {
    "qwen3_next": _DELTA,
    "qwen3_5": _DELTA,
    "falcon_h1": _GROUPS,
    "granitemoehybrid": _GROUPS,
    "nemotron_h": {"n_groups": 2, "conv_kernel": 3, "ssm_state_size": 24},
    "jamba": {
        "mamba_d_conv": 3,
        "num_hidden_layers": 5,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
    },
    "lfm2": {"conv_L_cache": 5},
}
"""Sizes that differ where those of the architecture are alike, so that no field passes for another.
"""
_MOE = ARCHITECTURES["qwen3_next"].options | ARCHITECTURES["qwen3_5"].options
_KIMI = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_head_dim": 8,
    "linear_num_heads": 3,
    "linear_conv_kernel_dim": 3,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": None,
}
_EXPERTS = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
_DENSE: dict[str, dict[str, Any]] = {
    "deepseek_v2": _MLA | _EXPERTS,
    "deepseek_v3": _MLA | _EXPERTS,
    "gemma2": {"head_dim": 24, "sliding_window": 16, "num_hidden_layers": 3},
    "mixtral": {"num_local_experts": 4},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "qwen3_moe": {
        "head_dim": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
BUILT: dict[str, dict[str, Any]] = {
    architecture.model_type: {**COMMON, **architecture.options, **ODD.get(name, {})}
    for name, architecture in ARCHITECTURES.items()
    if architecture.model_type in FAMILIES and "small-steps" not in name
} | {"qwen3_5_moe_text": {**COMMON, **_MOE, **_DELTA}, "kimi_linear": {**COMMON, **_KIMI}}
BUILT |= {name: {**COMMON, **options} for name, options in _DENSE.items()}


LAYERS = {
    "granitemoehybrid": "layer_types",
    "kimi_linear": "layer_types",
    "lfm2": "layer_types",
    "nemotron_h": "layers_block_type",
    "zamba2": "layers_block_type",
}
"""Where a list of layers has to stand in the file, because no published model is like the class's
own."""


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def shapes_read(path: Path) -> Counter[tuple[Any, ...]]:
    """Return what the reader says that the layers keep, as the shapes of transformers' cache,
    and how many layers do.
    """
    found: Counter[tuple[Any, ...]] = Counter()
    for cache in read.model(path).caches:
        if isinstance(cache, Recurrent):
            found["conv", cache.conv_channels, cache.conv_kernel] += cache.layers
            if cache.state_shape:
                found["state", cache.state_shape[0], tuple(sorted(cache.state_shape[1:]))] += (
                    cache.layers
                )
        elif isinstance(cache, Latent):
            found["attention",] += cache.layers
        else:
            assert isinstance(cache, Full | Sliding)
            window = cache.window if isinstance(cache, Sliding) else None
            found["keys", cache.kv_heads, cache.head_dim, window] += cache.layers
            found["values", cache.kv_heads, cache.head_dim, window] += cache.layers
    return found


def kept(config: PretrainedConfig, latent: bool) -> Counter[tuple[Any, ...]]:
    """Return what a model keeps after a pass over some tokens, layer by layer, as `shapes_read`."""
    model = AutoModel.from_config(config).eval()
    output = model(torch.arange(TOKENS)[None] % COMMON["vocab_size"], use_cache=True)
    # Models without attention have another name for it.
    cache = output.cache_params if hasattr(output, "cache_params") else output.past_key_values
    found: Counter[tuple[Any, ...]] = Counter()
    for layer in cache.layers:
        for _, channels, kernel in _tensors(layer, "conv_states"):
            found["conv", channels, kernel] += 1
        for _, heads, *sizes in _tensors(layer, "recurrent_states"):
            found["state", heads, tuple(sorted(sizes))] += 1
        if latent:
            found["attention",] += len(_tensors(layer, "keys"))
            continue
        for name in ("keys", "values"):
            for _, heads, tokens, size in _tensors(layer, name):
                window = layer.sliding_window if layer.is_sliding else None
                assert tokens == (TOKENS if window is None else min(TOKENS, window - 1))
                found[name, heads, size, window] += 1
    return found


def _tensors(layer: Any, name: str) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that a layer of the cache has under a name."""
    value = getattr(layer, name, None)
    values = value.values() if isinstance(value, dict) else [value]
    return [tuple(each.shape) for each in values if isinstance(each, torch.Tensor) and each.numel()]


@pytest.mark.parametrize("model_type", BUILT)
def test_a_model_keeps_what_the_reader_says_of_its_configuration(
    model_type: str, tmp_path: Path
) -> None:
    config = AutoConfig.for_model(model_type, **BUILT[model_type])
    config.save_pretrained(tmp_path)
    family = FAMILIES[model_type]
    assert shapes_read(tmp_path / "config.json") == kept(config, family.latent)


def test_every_family_is_built() -> None:
    """Wrappers of a text model are its `text_config` and more; what `suites/plan/test_families.py`
    works out by hand need not be built.
    """
    by_hand = {case.table["model_type"] for case in BY_FIELDS.values()}
    wrappers = {"gemma3", "gemma4", "llama4", "qwen3_5", "qwen3_5_moe"}
    alike = {"deepseek_v32", "falcon_mamba", "hunyuan_v1_moe", *PLAIN}
    assert {*BUILT} | wrappers | by_hand | alike == set(FAMILIES)


@pytest.mark.parametrize(
    "model_type", [name for name, family in FAMILIES.items() if family.latent and name in BUILT]
)
def test_the_width_of_a_latent_vector_is_that_of_the_projections(model_type: str) -> None:
    """The library keeps the expanded heads; what vLLM keeps is the input of the projection that
    expands them.
    """
    config = AutoConfig.for_model(model_type, **BUILT[model_type])
    named = AutoModel.from_config(config).named_parameters()
    compressed = {weight.shape[0] for name, weight in named if "kv_a_proj_with_mqa.weight" in name}
    assert compressed == {24 + 8}


@pytest.mark.parametrize(
    "model_type",
    sorted(
        {name for name, family in FAMILIES.items() if family.defaults}
        - {"gemma3", "qwen3_5", "qwen3_5_moe", "granitemoehybrid", "lfm2_moe"}
        - {"gemma4", "llama4"}
    ),
)
def test_what_a_file_leaves_out_is_what_the_class_supplies(model_type: str, tmp_path: Path) -> None:
    """A file of little more than a type, beside the file with every field written out: the same
    model.
    """
    full = json.loads(AutoConfig.for_model(model_type).to_json_string(use_diff=False))
    bare = {"model_type": model_type} | {
        name: full[name] for name in [LAYERS.get(model_type, "model_type")]
    }
    models = []
    for name, raw in (("full", full), ("bare", bare)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(raw))
        models.append(read.model(path))
    assert models[0].caches == models[1].caches and models[0].max_length == models[1].max_length
    assert len(models[1].unverified) > len(models[0].unverified)


@pytest.mark.parametrize(
    "model_type", sorted(name for name, family in FAMILIES.items() if not family.defaults)
)
def test_a_family_without_defaults_takes_none(model_type: str, tmp_path: Path) -> None:
    """Whatever its file leaves out is refused, by name."""
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UsageError, match="missing"):
        read.model(path)
