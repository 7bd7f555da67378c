"""Attention and the dense model: every token sees what it should, whatever the chunk size, and
nothing of the future.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cachewitness_reference.toy_model import attention, dense
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.weights import random_weights, shapes
from suites.support.toy_models import EVERY_TYPE, LAYER, far, model, noise, strong_weights, tokens

pytestmark = pytest.mark.toy
EXACT = 1e-10
VISIBLE = 1e-3


def naive_attention(x: Tensor, w: dict[str, Tensor], config: ToyConfig, window: int) -> np.ndarray:
    """One row, one query at a time, with positions as rotations of complex numbers."""
    heads = config.num_attention_heads
    groups = config.num_key_value_heads
    dim = config.head_dim
    turned = config.rotary_dim
    part = {
        name: w[f"{LAYER}.self_attn.{name}.weight"].numpy()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    }
    scale = {
        name: 1 + w[f"{LAYER}.self_attn.{name}.weight"].numpy() for name in ("q_norm", "k_norm")
    }
    speeds = 1 / np.float32(config.rope_theta) ** (
        np.arange(0, turned, 2, dtype=np.float32) / np.float32(turned)
    )

    def placed(vector: np.ndarray, position: int, by: np.ndarray) -> np.ndarray:
        vector = by * vector / np.sqrt(np.mean(vector**2) + config.rms_norm_eps)
        half = (vector[: turned // 2] + 1j * vector[turned // 2 : turned]) * np.exp(
            1j * position * speeds.astype(np.float64)
        )
        return np.concatenate([half.real, half.imag, vector[turned:]])

    inputs = x.numpy()
    keys = (inputs @ part["k_proj"].T).reshape(-1, groups, dim)
    values = (inputs @ part["v_proj"].T).reshape(-1, groups, dim)
    queries, gates = np.split((inputs @ part["q_proj"].T).reshape(-1, heads, 2 * dim), 2, axis=-1)
    out = []
    for p in range(len(inputs)):
        oldest = max(0, p - window + 1) if window else 0
        mixed = []
        for h in range(heads):
            group = h * groups // heads
            query = placed(queries[p, h], p, scale["q_norm"])
            seen = [
                placed(keys[s, group], s, scale["k_norm"]) @ query / np.sqrt(dim)
                for s in range(oldest, p + 1)
            ]
            shares = np.exp(seen) / np.exp(seen).sum()
            mixed.append(shares @ values[oldest : p + 1, group] / (1 + np.exp(-gates[p, h])))
        out.append(part["o_proj"] @ np.concatenate(mixed))
    return np.stack(out)


def attended(x: Tensor, w: dict[str, Tensor], config: ToyConfig, window: int) -> Tensor:
    positions = torch.arange(x.shape[1])
    query, key, value, gate = attention.project(x, positions, w, f"{LAYER}.self_attn", config)
    mixed = attention.attend(query, key, value, attention.sees(positions, positions, window)[None])
    return attention.output(mixed, gate, w, f"{LAYER}.self_attn", config)


@pytest.mark.parametrize("window", [0, 1, 7, 20])
def test_attention_follows_the_definition(window: int) -> None:
    config = model("sliding_attention")
    w = strong_weights(config)
    x = noise(2, 20, config.hidden_size)
    for row in range(2):
        assert (
            far(attended(x, w, config, window)[row], naive_attention(x[row], w, config, window))
            <= EXACT
        )


def test_a_window_longer_by_one_token_is_seen() -> None:
    config = model("sliding_attention")
    w = strong_weights(config)
    x = noise(1, 20, config.hidden_size)
    right = attended(x, w, config, 7)
    wrong = attended(x, w, config, 8)
    assert far(right[:, :7], wrong[:, :7]) <= EXACT and far(right[:, 7:], wrong[:, 7:]) > VISIBLE


@pytest.mark.parametrize("cut", [1, 7, 8, 29])
def test_model_that_goes_on_from_what_it_left_says_what_it_says_at_once(cut: int) -> None:
    config = model(*EVERY_TYPE)
    w = strong_weights(config)
    x = tokens(2, 30, config)
    _, left = dense.resume(x[:, :cut], w, config, 0, [None] * len(EVERY_TYPE))
    assert (
        far(dense.resume(x[:, cut:], w, config, cut, left)[0], dense.forward(x, w, config)[:, cut:])
        <= EXACT
    )


@pytest.mark.parametrize("lost", range(len(EVERY_TYPE)))
def test_what_any_layer_left_is_missed(lost: int) -> None:
    config = model(*EVERY_TYPE)
    w = strong_weights(config)
    x = tokens(2, 30, config)
    _, left = dense.resume(x[:, :20], w, config, 0, [None] * len(EVERY_TYPE))
    left[lost] = (torch.zeros_like(left[lost][0]), torch.zeros_like(left[lost][1]))
    assert (
        far(dense.resume(x[:, 20:], w, config, 20, left)[0], dense.forward(x, w, config)[:, 20:])
        > VISIBLE
    )


@pytest.mark.parametrize("length", [1, 7, 8, 9, 40])
def test_dense_model_is_the_same_at_every_chunk_size(length: int) -> None:
    x = tokens(2, length, model(*EVERY_TYPE))
    w = strong_weights(model(*EVERY_TYPE))
    one_by_one = dense.forward(x, w, model(*EVERY_TYPE, chunk_size=1))
    for chunk_size in (4, 8, 64):
        assert (
            far(dense.forward(x, w, model(*EVERY_TYPE, chunk_size=chunk_size)), one_by_one) <= EXACT
        )


@pytest.mark.parametrize("layer_type", EVERY_TYPE)
def test_no_token_sees_the_future_and_all_see_the_past(layer_type: str) -> None:
    config = model(layer_type)
    w = strong_weights(config)
    x = tokens(1, 30, config)
    changed = x.clone()
    changed[:, 20] = (x[:, 20] + 1) % config.vocab_size
    logits = dense.forward(x, w, config)
    other = dense.forward(changed, w, config)
    assert far(logits[:, :20], other[:, :20]) <= EXACT
    assert far(logits[:, 21:27], other[:, 21:27]) > VISIBLE


def test_every_parameter_reaches_the_logits() -> None:
    config = model(*EVERY_TYPE)
    w = strong_weights(config)
    x = tokens(1, 30, config)
    logits = dense.forward(x, w, config)
    for name, _ in shapes(config):
        assert (
            far(
                dense.forward(x, {**w, name: w[name] + 0.1 * noise(*w[name].shape)}, config), logits
            )
            > VISIBLE
        ), name


@pytest.mark.parametrize("layer_type", EVERY_TYPE)
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-6), (torch.bfloat16, 0.03)])
def test_narrow_formats_stay_near_float64(
    layer_type: str, dtype: torch.dtype, share: float
) -> None:
    config = model(layer_type)
    w = strong_weights(config, dtype=dtype)
    x = tokens(2, 40, config)
    exact = dense.forward(x, {name: tensor.double() for name, tensor in w.items()}, config)
    logits = dense.forward(x, w, config)
    assert logits.dtype == dtype
    assert 0 < float((logits.double() - exact).norm()) <= share * float(exact.norm())


def test_random_weights_depend_on_the_seed_alone() -> None:
    config = model(*EVERY_TYPE)
    first = random_weights(config, 1)
    again = random_weights(config, 1)
    other = random_weights(config, 2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert {name: tuple(tensor.shape) for name, tensor in first.items()} == dict(shapes(config))
    assert bool(dense.forward(tokens(1, 30, config), first, config).isfinite().all())
