"""Our layers against their published implementations in transformers, on the same parameters.

transformers casts to float32 inside its recurrences, its norms, its rotary angles and its softmax.
So two comparisons are made. As published: bit-equal, or equal to float32's rounding. And with those
casts taken out (`widened`), which leaves every operation of theirs but in float64: then equal to
1e-10, which no error in a formula survives.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    Gemma3TextConfig,
    Mamba2Config,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_next import modeling_qwen3_next

from cachewitness_reference.toy_model import attention, dense, gated_delta, mamba2, recurrent
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.export import published_config
from suites.support.toy_models import LAYER, far, model, noise, strong_weights, tokens

pytestmark = pytest.mark.toy
EXACT = 1e-10
ROUNDING = 1e-6
ROUNDING_OF_A_MODEL = 1e-4
VISIBLE = 1e-3
DELTA_RULES = pytest.mark.parametrize(
    "published", [modeling_qwen3_next, modeling_qwen3_5], ids=["qwen3_next", "qwen3_5"]
)
LENGTHS = pytest.mark.parametrize("length", [1, 15, 16, 17, 50])


class _Wide(ModuleType):
    """torch, in which float32 is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def widened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the casts to float32 out of transformers."""
    for module in (modeling_gemma3, modeling_mamba2, modeling_qwen3_5, modeling_qwen3_next):
        monkeypatch.setattr(module, "torch", _Wide("torch"))
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    yield


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _restore(frequencies: Tensor, theta: float = 10_000.0) -> None:
    """Give back to rotary frequencies the values computed in float32, which `widened` would
    compute in float64.
    """
    share = torch.arange(len(frequencies), dtype=torch.float32) / len(frequencies)
    frequencies.copy_(1.0 / theta**share)


# --- the gated delta rule -------------------------------------------------------------------------


def delta_inputs(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    q = noise(2, length, 2, 8, seed=2)
    k = noise(2, length, 2, 8, seed=3)
    v = noise(2, length, 4, 12, seed=4)
    g = -noise(2, length, 4, seed=5).abs()
    beta = noise(2, length, 4, seed=6).sigmoid()
    return [y.to(dtype) for y in (q, k, v, g, beta)], noise(2, 4, 8, 12, seed=7).to(dtype)


def published_delta(
    published: ModuleType, inputs: list[Tensor], state: Tensor, chunk_size: int | None
) -> tuple[Tensor, Tensor]:
    more: dict[str, Any] = {
        "initial_state": state,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
    if chunk_size is None:
        out, after = published.torch_recurrent_gated_delta_rule(*inputs, **more)
    else:
        out, after = published.torch_chunk_gated_delta_rule(*inputs, chunk_size=chunk_size, **more)
    return out, after


@DELTA_RULES
@LENGTHS
def test_chunked_delta_rule_is_bit_equal_at_the_same_chunk_size(
    published: ModuleType, length: int
) -> None:
    inputs, state = delta_inputs(length, torch.float32)
    for chunk_size in (16, 64):
        out, after = gated_delta.chunked(*inputs, state, chunk_size)
        theirs, there = published_delta(published, inputs, state, chunk_size)
        assert torch.equal(out, theirs) and torch.equal(after, there)


@DELTA_RULES
@LENGTHS
def test_recurrent_delta_rule_is_equal_to_rounding(published: ModuleType, length: int) -> None:
    inputs, state = delta_inputs(length, torch.float32)
    out, after = gated_delta.recurrent(*inputs, state)
    theirs, there = published_delta(published, inputs, state, None)
    assert far(out, theirs) <= ROUNDING and far(after, there) <= ROUNDING


@DELTA_RULES
@LENGTHS
@pytest.mark.usefixtures("widened")
def test_delta_rule_is_equal_in_float64_without_their_casts(
    published: ModuleType, length: int
) -> None:
    inputs, state = delta_inputs(length, torch.float64)
    for form in (None, 16, 64):
        theirs, there = published_delta(published, inputs, state, form)
        for out, after in (
            gated_delta.chunked(*inputs, state, 16),
            gated_delta.recurrent(*inputs, state),
        ):
            assert far(out, theirs) <= EXACT and far(after, there) <= EXACT


# --- Mamba2 ---------------------------------------------------------------------------------------


def published_mamba(
    config: ToyConfig, w: dict[str, Tensor], dtype: torch.dtype
) -> modeling_mamba2.Mamba2Mixer:
    described = Mamba2Config(
        hidden_size=config.hidden_size,
        num_heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        state_size=config.mamba_state_dim,
        n_groups=config.mamba_num_groups,
        expand=config.mamba_inner_dim // config.hidden_size,
        conv_kernel=config.mamba_conv_kernel_dim,
        chunk_size=config.chunk_size,
        layer_norm_epsilon=config.rms_norm_eps,
        num_hidden_layers=1,
    )
    mixer = modeling_mamba2.Mamba2Mixer(described, 0).to(dtype).eval()
    mixer.load_state_dict(
        {name.split(".mamba.")[1]: tensor for name, tensor in w.items() if ".mamba." in name}
    )
    return mixer


def ours(
    layer_type: str, x: Tensor, w: dict[str, Tensor], config: ToyConfig
) -> tuple[Tensor, recurrent.RecurrentState]:
    return recurrent.run(
        layer_type, x, recurrent.empty_state(layer_type, x.shape[0], config, x), w, LAYER, config
    )


def mamba_difference(length: int, dtype: torch.dtype, **sizes: Any) -> float:
    config = model("mamba2", chunk_size=16, **sizes)
    w = strong_weights(config, dtype=dtype)
    x = noise(2, length, config.hidden_size, dtype=dtype)
    return far(ours("mamba2", x, w, config)[0], published_mamba(config, w, dtype)(x))


@pytest.mark.parametrize("groups", [1, 2])
@LENGTHS
def test_mamba2_layer_is_equal_to_rounding(length: int, groups: int) -> None:
    assert mamba_difference(length, torch.float32, mamba_num_groups=groups) <= ROUNDING


@pytest.mark.parametrize("groups", [1, 2])
@LENGTHS
@pytest.mark.usefixtures("widened")
def test_mamba2_layer_is_equal_in_float64_without_their_casts(length: int, groups: int) -> None:
    assert mamba_difference(length, torch.float64, mamba_num_groups=groups) <= EXACT


@pytest.mark.usefixtures("widened")
def test_mamba2_layer_continues_as_theirs_does_from_its_cache() -> None:
    config = model("mamba2", chunk_size=16)
    w = strong_weights(config)
    x = noise(2, 24, config.hidden_size)
    mixer = published_mamba(config, w, torch.float64)
    cache = DynamicCache(
        config=Mamba2Config(num_hidden_layers=1, conv_kernel=config.mamba_conv_kernel_dim)
    )
    out, state = ours("mamba2", x[:, :20], w, config)
    assert far(out, mixer(x[:, :20], cache_params=cache)) <= EXACT
    for t in range(20, 24):
        out, state = recurrent.run("mamba2", x[:, t : t + 1], state, w, LAYER, config)
        assert far(out, mixer(x[:, t : t + 1], cache_params=cache)) <= EXACT
    assert far(state.memory, cache.get_recurrent_state(0, state_idx=0)) <= EXACT


@pytest.mark.usefixtures("widened")
def test_mamba2_chunk_scan_equals_both_of_our_forms() -> None:
    x = noise(2, 37, 4, 6, seed=2)
    dt = noise(2, 37, 4, seed=3).abs()
    rate = -noise(4, seed=4).abs()
    b = noise(2, 37, 2, 8, seed=5)
    c = noise(2, 37, 2, 8, seed=6)
    state = noise(2, 4, 6, 8, seed=7)
    theirs, there = modeling_mamba2.mamba2_chunk_scan(
        x, dt, rate, b, c, 8, initial_states=state, return_final_states=True
    )
    for out, after in (
        mamba2.chunked(x, dt, dt * rate, b, c, state, 8),
        mamba2.recurrent(x, dt, dt * rate, b, c, state),
    ):
        assert far(out, theirs) <= EXACT and far(after, there) <= EXACT


# --- sliding-window attention: Gemma 3 ------------------------------------------------------------


def gemma_difference(window: int, dtype: torch.dtype, length: int = 50) -> float:
    """Gemma's layer has no gate: with gate weights 0 ours passes one half, which doubled output
    weights undo exactly.
    """
    config = model("sliding_attention", partial_rotary_factor=1.0, sliding_window=12)
    described = Gemma3TextConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=1,
        layer_types=["sliding_attention"],
        sliding_window=window,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        query_pre_attn_scalar=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        attn_implementation="eager",
    )
    w = strong_weights(config, dtype=dtype)
    x = noise(2, length, config.hidden_size, dtype=dtype)
    own = {
        name.split(".self_attn.")[1]: tensor for name, tensor in w.items() if ".self_attn." in name
    }
    queries = own["q_proj.weight"].unflatten(0, (config.num_attention_heads, 2, config.head_dim))
    layer = modeling_gemma3.Gemma3Attention(described, 0).to(dtype).eval()
    layer.load_state_dict({**own, "q_proj.weight": queries[:, 0].flatten(0, 1)})
    positions = torch.arange(length)
    mask = create_sliding_window_causal_mask(described, x, None, None, positions[None])
    rotary = modeling_gemma3.Gemma3RotaryEmbedding(described)
    _restore(rotary.sliding_attention_inv_freq)
    theirs, _ = layer(x, rotary(x, positions[None], "sliding_attention"), mask)

    gateless = torch.stack([queries[:, 0], torch.zeros_like(queries[:, 1])], dim=1).flatten(0, 2)
    w |= {
        f"{LAYER}.self_attn.q_proj.weight": gateless,
        f"{LAYER}.self_attn.o_proj.weight": 2 * own["o_proj.weight"],
    }
    query, key, value, gate = attention.project(x, positions, w, f"{LAYER}.self_attn", config)
    visible = attention.sees(positions, positions, config.sliding_window)[None]
    return far(
        attention.output(
            attention.attend(query, key, value, visible), gate, w, f"{LAYER}.self_attn", config
        ),
        theirs,
    )


def test_sliding_window_layer_is_equal_to_rounding() -> None:
    assert gemma_difference(12, torch.float32) <= ROUNDING


@pytest.mark.usefixtures("widened")
def test_sliding_window_layer_is_equal_in_float64_without_their_casts() -> None:
    assert gemma_difference(12, torch.float64) <= EXACT


@pytest.mark.parametrize("window", [11, 13])
@pytest.mark.usefixtures("widened")
def test_a_window_that_counts_the_query_otherwise_is_seen(window: int) -> None:
    assert gemma_difference(window, torch.float64) > VISIBLE


# --- the whole model: Qwen3.5 text ----------------------------------------------------------------


def qwen(
    dtype: torch.dtype, **sizes: Any
) -> tuple[ToyConfig, dict[str, Tensor], Qwen3_5ForCausalLM]:
    config = model(
        "linear_attention",
        "full_attention",
        "linear_attention",
        "full_attention",
        chunk_size=64,
        **sizes,
    )
    w = strong_weights(config, dtype=dtype)
    described = Qwen3_5TextConfig(**published_config(config), attn_implementation="eager")
    theirs = Qwen3_5ForCausalLM(described).to(dtype).eval()
    missing, unexpected = theirs.load_state_dict(w, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    theirs.tie_weights()
    _restore(theirs.model.rotary_emb.inv_freq)
    return config, w, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_qwen_model_is_equal_to_rounding(dtype: torch.dtype) -> None:
    config, w, theirs = qwen(dtype)
    x = tokens(2, 150, config)
    assert (
        far(dense.forward(x, w, config), theirs(x, use_cache=False).logits) <= ROUNDING_OF_A_MODEL
    )


@pytest.mark.usefixtures("widened")
def test_qwen_model_is_equal_in_float64_without_their_casts() -> None:
    config, w, theirs = qwen(torch.float64)
    x = tokens(2, 150, config)
    assert far(dense.forward(x, w, config), theirs(x, use_cache=False).logits) <= EXACT


@pytest.mark.usefixtures("widened")
def test_qwen_model_from_its_cache_says_what_the_dense_model_says_unless_one_state_is_a_token_late() -> (  # noqa: E501
    None
):
    config, w, theirs = qwen(torch.float64)
    x = tokens(1, 60, config)
    positions = torch.arange(60)[None]
    cold = dense.forward(x, w, config)
    right = DynamicCache(config=theirs.config)
    late = DynamicCache(config=theirs.config)
    theirs(x[:, :40], past_key_values=right, position_ids=positions[:, :40])
    theirs(x[:, :41], past_key_values=late, position_ids=positions[:, :41])
    wrong = deepcopy(right)
    wrong.layers[0].recurrent_states[0].copy_(late.layers[0].recurrent_states[0])
    resumed, skewed = (
        theirs(x[:, 40:], past_key_values=c, position_ids=positions[:, 40:]).logits
        for c in (right, wrong)
    )
    assert far(resumed, cold[:, 40:]) <= EXACT
    assert far(skewed, cold[:, 40:]) > VISIBLE


def test_qwen_model_in_bfloat16_stays_near() -> None:
    config, w, theirs = qwen(torch.bfloat16)
    x = tokens(2, 150, config)
    out = dense.forward(x, w, config).double()
    logits = theirs(x, use_cache=False).logits.double()
    assert float((out - logits).norm()) <= 0.1 * float(logits.norm())


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_rotary_angles_are_bit_equal_at_every_position(share: float) -> None:
    config = model("full_attention", head_dim=32, partial_rotary_factor=share, chunk_size=64)
    theirs = modeling_qwen3_5.Qwen3_5TextRotaryEmbedding(
        Qwen3_5TextConfig(**published_config(config))
    )
    positions = torch.tensor([[0, 1, 31, 4095, 32767, 131_071, 1_000_003]])
    for dtype in (torch.float32, torch.bfloat16):
        cos, sin = theirs(torch.zeros(1, dtype=dtype), positions[None].expand(3, 1, -1))
        mine = attention.rotary(positions, config, dtype)
        assert torch.equal(mine[0], cos) and torch.equal(mine[1], sin)
