"""A recurrent layer says the same token by token, chunk by chunk, from any state it left behind,
and in any company.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from cachewitness_reference.toy_model import gated_delta, mamba2, recurrent
from cachewitness_reference.toy_model.causal_conv import causal_conv, conv_state_after
from cachewitness_reference.toy_model.recurrent import RecurrentState
from suites.support.toy_models import LAYER, RECURRENT, far, model, noise, strong_weights

pytestmark = pytest.mark.toy
EXACT = 1e-10
VISIBLE = 1e-3
CHUNKS = (1, 4, 8, 13)
Array = NDArray[np.float64]
every_type = pytest.mark.parametrize("layer_type", RECURRENT)


class Layer:
    """One recurrent layer with its weights."""

    def __init__(self, layer_type: str, dtype: torch.dtype = torch.float64, **sizes: int) -> None:
        self.type = layer_type
        self.config = model(layer_type, **sizes)
        self.weights = strong_weights(self.config, dtype=dtype)

    def __call__(
        self, x: Tensor, state: RecurrentState | None = None, **more: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        state = self.empty(x) if state is None else state
        return recurrent.run(self.type, x, state, self.weights, LAYER, self.config, **more)

    def empty(self, x: Tensor) -> RecurrentState:
        return recurrent.empty_state(self.type, x.shape[0], self.config, x)

    def in_pieces(self, x: Tensor, *cuts: int) -> tuple[Tensor, RecurrentState]:
        state = self.empty(x)
        outputs = []
        for start, stop in zip((0, *cuts), (*cuts, x.shape[1]), strict=True):
            out, state = self(x[:, start:stop], state)
            outputs.append(out)
        return torch.cat(outputs, dim=1), state


def sequence(length: int, rows: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return noise(rows, length, 32, seed=length, dtype=dtype)


# --- against definitions written token by token ---------------------------------------------------


def naive_gated_delta(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """One head: the rule as a product of the transition (I - beta k k^T) e^g and a write."""
    out = np.zeros_like(v)
    for t in range(len(v)):
        key = k[t] / np.sqrt(k[t] @ k[t] + 1e-6)
        query = q[t] / np.sqrt(q[t] @ q[t] + 1e-6) / np.sqrt(len(q[t]))
        transition = np.eye(len(key)) - beta[t] * np.outer(key, key)
        state = transition @ (np.exp(g[t]) * state) + beta[t] * np.outer(key, v[t])
        out[t] = query @ state
    return out, state


def naive_mamba2(
    x: Array, dt: Array, g: Array, b: Array, c: Array, state: Array
) -> tuple[Array, Array]:
    """One head: the outputs by the sum over all earlier writes, each faded by every decay since."""
    out = np.zeros_like(x)
    for t in range(len(x)):
        now = np.exp(g[: t + 1].sum()) * state
        for s in range(t + 1):
            now = now + np.exp(g[s + 1 : t + 1].sum()) * dt[s] * np.outer(x[s], b[s])
        out[t] = now @ c[t]
    return out, now


def gated_delta_inputs(length: int, heads: int = 2, values: int = 4) -> list[Tensor]:
    q = noise(2, length, heads, 8, seed=2)
    k = noise(2, length, heads, 8, seed=3)
    v = noise(2, length, values, 12, seed=4)
    state = noise(2, values, 8, 12, seed=5)
    return [
        q,
        k,
        v,
        -noise(2, length, values, seed=6).abs(),
        noise(2, length, values, seed=7).sigmoid(),
        state,
    ]


def mamba2_inputs(length: int, heads: int = 4, groups: int = 2) -> list[Tensor]:
    x = noise(2, length, heads, 6, seed=2)
    dt = noise(2, length, heads, seed=3).abs()
    b = noise(2, length, groups, 8, seed=4)
    c = noise(2, length, groups, 8, seed=5)
    return [x, dt, -0.7 * dt, b, c, noise(2, heads, 6, 8, seed=6)]


def by_heads(naive, inputs: list[Tensor], heads: int):  # type: ignore[no-untyped-def]
    """Run a definition for one head over rows and heads, heads sharing what comes in fewer
    groups.
    """
    out = []
    states = []
    for row in range(inputs[0].shape[0]):
        for head in range(heads):
            per_head = [y[row, :, head * y.shape[2] // heads].numpy() for y in inputs[:-1]]
            o, s = naive(*per_head, inputs[-1][row, head].numpy())
            out.append(o)
            states.append(s)
    return np.stack(out), np.stack(states)


RULES = {
    "linear_attention": (gated_delta, naive_gated_delta, gated_delta_inputs),
    "mamba2": (mamba2, naive_mamba2, mamba2_inputs),
}


@every_type
@pytest.mark.parametrize("length", [1, 7, 8, 9, 25])
def test_both_forms_follow_the_definition(layer_type: str, length: int) -> None:
    rule, naive, make = RULES[layer_type]
    inputs = make(length)
    out, state = by_heads(naive, inputs, 4)
    for got, after in (
        rule.recurrent(*inputs),
        *(rule.chunked(*inputs, chunk) for chunk in CHUNKS),
    ):
        assert far(got.transpose(1, 2).flatten(0, 1), out) <= EXACT
        assert far(after.flatten(0, 1), state) <= EXACT


@every_type
def test_the_definition_is_not_followed_from_another_state(layer_type: str) -> None:
    rule, naive, make = RULES[layer_type]
    inputs = make(9)
    out, _ = by_heads(naive, inputs, 4)
    got, _ = rule.chunked(*inputs[:-1], inputs[-1] * 0, 8)
    assert far(got.transpose(1, 2).flatten(0, 1), out) > VISIBLE


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
def test_convolution_sees_the_last_inputs_and_no_more(length: int) -> None:
    x = noise(2, length, 5)
    state = noise(2, 3, 5, seed=2)
    weight = noise(5, 1, 4, seed=3)
    bias = noise(5, seed=4)
    history = torch.cat([state, x], dim=1).numpy()
    got = causal_conv(x, weight, state, bias)
    for t in range(length):
        summed = sum(weight[:, 0, j].numpy() * history[:, t + j] for j in range(4)) + bias.numpy()
        assert far(got[:, t], summed / (1 + np.exp(-summed))) <= EXACT
    assert torch.equal(conv_state_after(x, state), torch.cat([state, x], dim=1)[:, -3:])


# --- the forms of a layer against one another -----------------------------------------------------


@every_type
@pytest.mark.parametrize("chunk_size", [4, 8, 64])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_chunked_layer_equals_token_by_token(layer_type: str, chunk_size: int, beyond: int) -> None:
    layer = Layer(layer_type, chunk_size=chunk_size)
    x = sequence(2 * chunk_size + beyond)
    out, state = layer(x)
    one_by_one, after = layer.in_pieces(x, *range(1, x.shape[1]))
    assert far(out, one_by_one) <= EXACT and far(state, after) <= EXACT


@every_type
@settings(max_examples=12, deadline=None)
@given(length=st.integers(2, 40), cut=st.integers(1, 39), chunk_size=st.sampled_from(CHUNKS))
def test_layer_continues_from_the_state_at_any_cut(
    layer_type: str, length: int, cut: int, chunk_size: int
) -> None:
    layer = Layer(layer_type, chunk_size=chunk_size)
    x = sequence(length)
    out, state = layer(x)
    resumed, after = layer.in_pieces(x, min(cut, length - 1))
    assert far(out, resumed) <= EXACT and far(state, after) <= EXACT


@every_type
def test_state_of_another_token_is_seen(layer_type: str) -> None:
    layer = Layer(layer_type)
    x = sequence(30)
    out, _ = layer(x)
    (_, right) = layer(x[:, :16])
    (_, late) = layer(x[:, :17])
    for wrong in (
        late,
        RecurrentState(late.conv, right.memory),
        RecurrentState(right.conv, late.memory),
        layer.empty(x),
    ):
        assert far(layer(x[:, 16:], wrong)[0], out[:, 16:]) > VISIBLE


# --- bit equality ---------------------------------------------------------------------------------


@every_type
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rule_continued_on_the_chunk_grid_is_bit_equal_to_one_shot(
    layer_type: str, dtype: torch.dtype
) -> None:
    rule, _, make = RULES[layer_type]
    inputs = [y.to(dtype) for y in make(45)]
    out, state = rule.chunked(*inputs, 8)
    for cut in (8, 16, 40):
        _, there = rule.chunked(*(y[:, :cut] for y in inputs[:-1]), inputs[-1], 8)
        rest, after = rule.chunked(*(y[:, cut:] for y in inputs[:-1]), there, 8)
        assert torch.equal(rest, out[:, cut:]) and torch.equal(after, state)


@every_type
def test_rule_continued_off_the_chunk_grid_differs_by_rounding(layer_type: str) -> None:
    rule, _, make = RULES[layer_type]
    inputs = [y.float() for y in make(45)]
    out, _ = rule.chunked(*inputs, 8)
    differences = []
    for cut in (3, 13, 21):
        _, there = rule.chunked(*(y[:, :cut] for y in inputs[:-1]), inputs[-1], 8)
        differences.append(
            far(rule.chunked(*(y[:, cut:] for y in inputs[:-1]), there, 8)[0], out[:, cut:])
        )
    assert 0 < max(differences) <= 1e-5


# --- unequal rows ---------------------------------------------------------------------------------


@every_type
@pytest.mark.parametrize("longest", [1, 8, 21])
def test_padded_rows_are_as_if_alone(layer_type: str, longest: int) -> None:
    layer = Layer(layer_type)
    lengths = [longest, longest // 2, 1, 0, longest - 1]
    x = sequence(longest, rows=5)
    before = layer(sequence(9, rows=5))[1]
    for row, length in enumerate(lengths):
        x[row, length:] = float("nan")
    out, state = layer(x, before, lengths=torch.tensor(lengths))
    for row, length in enumerate(lengths):
        own = RecurrentState(before.conv[row : row + 1], before.memory[row : row + 1])
        alone, after = (
            layer(x[row : row + 1, :length], own) if length else (out[row : row + 1, :0], own)
        )
        assert far(out[row : row + 1, :length], alone) <= 1e-12
        assert (
            far(RecurrentState(state.conv[row : row + 1], state.memory[row : row + 1]), after)
            <= 1e-12
        )


@every_type
def test_counting_padding_as_tokens_is_seen(layer_type: str) -> None:
    layer = Layer(layer_type)
    x = sequence(20, rows=1)
    _, right = layer(x, lengths=torch.tensor([13]))
    _, wrong = layer(x)
    assert far(right.conv, wrong.conv) > VISIBLE and far(right.memory, wrong.memory) > VISIBLE


@every_type
def test_bfloat16_runs_and_keeps_the_memory_wide(layer_type: str) -> None:
    layer = Layer(layer_type, torch.bfloat16)
    x = sequence(20, dtype=torch.bfloat16)
    out, state = layer(x)
    exact, _ = Layer(layer_type)(x.double())
    assert (out.dtype, state.conv.dtype, state.memory.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    )
    assert far(out, exact) <= 0.05 * float(exact.abs().max())


def test_configuration_of_shared_heads_is_exercised() -> None:
    config = model(*RECURRENT)
    assert config.mamba_num_heads > config.mamba_num_groups > 1
    assert config.linear_num_value_heads > config.linear_num_key_heads > 1
