"""The definition of the model: it agrees with what engines compute with, and shares nothing with
it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from cachewitness.parity.tensors.states import by_layer, states_of
from cachewitness_reference.toy_model import definition, dense
from cachewitness_reference.toy_model.definition import EXACT, Rounding, compute
from cachewitness_reference.toy_model.paged import Chunk, step
from cachewitness_reference.toy_model.watch import Watch
from suites.support.paged_by_hand import Hand
from suites.support.toy_models import (
    EVERY_TYPE,
    RECURRENT,
    far,
    model,
    noise,
    strong_weights,
    tokens,
)

pytestmark = pytest.mark.toy
WITHIN = 1e-12
VISIBLE = 1e-3


@pytest.mark.parametrize("turned", [0.5, 1.0])
@pytest.mark.parametrize(
    "layers", [*[(layer_type,) for layer_type in EVERY_TYPE], EVERY_TYPE], ids="-".join
)
def test_definition_and_kernels_say_the_same(layers: tuple[str, ...], turned: float) -> None:
    config = model(*layers, partial_rotary_factor=turned)
    w = strong_weights(config)
    x = tokens(2, 40, config)
    defined = compute(x.tolist(), w, config)
    assert (
        defined.logits.dtype == torch.float64
        and far(defined.logits, dense.forward(x, w, config)) <= WITHIN
    )


@pytest.mark.parametrize("gate", ["sigmoid", "softplus"])
def test_definition_and_kernels_open_gates_alike_and_each_gate_otherwise(gate: str) -> None:
    config = model("full_attention", attention_gate=gate)
    w = strong_weights(config)
    x = tokens(2, 20, config)
    other = model("full_attention", attention_gate="softplus" if gate == "sigmoid" else "sigmoid")
    assert far(compute(x.tolist(), w, config).logits, dense.forward(x, w, config)) <= WITHIN
    assert far(compute(x.tolist(), w, other).logits, dense.forward(x, w, config)) > VISIBLE


@pytest.mark.parametrize("length", [1, 8, 20])
def test_definition_and_pages_keep_the_same(length: int) -> None:
    """Keys, values and states of a paged run are those that the definition says are kept, in
    each type of layer.
    """
    hand = Hand()
    watch = Watch()
    text = hand.tokens(length)
    tables = hand.deal(length)
    step(hand.pools, [Chunk(text, 0, tables)], hand.weights, watch=watch)
    defined = compute([text], hand.weights, hand.config)
    states = by_layer(hand.pools, states_of(hand.pools, tables, length))
    assert {layer for layer, _ in states} == {0, 2}
    for (layer, part), ours in states.items():
        assert far(ours, defined.kept[layer][part][0]) <= WITHIN
    for layer in (1, 3):
        read = watch.read(layer, 0)
        for part, ours in read.parts.items():
            assert (
                read.positions is not None
                and far(ours, defined.kept[layer][part][0, read.positions]) <= WITHIN
            )
    for layer in range(4):
        assert far(watch.output(layer, 0), defined.outputs[layer][0]) <= WITHIN


def test_definition_imports_no_kernel() -> None:
    """It stands alone: of this package it knows the configuration, and torch's plain arithmetic."""
    tree = ast.parse(Path(definition.__file__).read_text())
    ours = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "toy_model" in (node.module or "")
    }
    assert ours == {"cachewitness_reference.toy_model.config"}
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {
        "conv1d",
        "scaled_dot_product_attention",
        "solve_triangular",
        "softmax",
        "rms_norm",
        "cumsum",
    }


@pytest.mark.parametrize("layer_type", RECURRENT)
def test_states_are_those_after_as_many_tokens_as_asked_for(layer_type: str) -> None:
    config = model(layer_type)
    w = strong_weights(config)
    (text,) = tokens(1, 20, config).tolist()
    ends = (0, 1, 2, 7, 20)
    side_by_side = compute([text] * len(ends), w, config, after=ends).kept[0]
    for row, end in enumerate(ends[1:], start=1):
        alone = compute([text[:end]], w, config).kept[0]
        for part in ("conv", "memory"):
            assert far(side_by_side[part][row], alone[part][0]) <= WITHIN
            assert far(side_by_side[part][row], side_by_side[part][row - 1]) > VISIBLE
    assert far(side_by_side["memory"][0], 0.0) == far(side_by_side["conv"][0], 0.0) == 0.0


def test_texts_of_unequal_length_do_not_touch_one_another() -> None:
    config = model(*EVERY_TYPE)
    w = strong_weights(config)
    texts = [tokens(1, length, config, seed=length)[0].tolist() for length in (3, 30, 17)]
    together = compute(texts, w, config)
    for row, text in enumerate(texts):
        alone = compute([text], w, config)
        assert far(together.logits[row, : len(text)], alone.logits[0]) <= WITHIN
        assert far(together.kept[0]["memory"][row], alone.kept[0]["memory"][0]) <= WITHIN


def test_every_parameter_reaches_the_logits() -> None:
    config = model(*EVERY_TYPE)
    w = strong_weights(config)
    x = tokens(1, 30, config).tolist()
    logits = compute(x, w, config).logits
    for name, tensor in w.items():
        changed = compute(x, {**w, name: tensor + 0.1 * noise(*tensor.shape)}, config).logits
        assert far(changed, logits) > VISIBLE, name


def test_rounding_is_that_of_the_format_and_of_what_is_stored() -> None:
    config = model("linear_attention", "full_attention")
    w = strong_weights(config)
    x = tokens(1, 60, config).tolist()
    exact = compute(x, w, config, rounding=EXACT).logits
    single = far(compute(x, w, config, rounding=Rounding(torch.float32)).logits, exact)
    stored = [
        far(
            compute(x, w, config, rounding=Rounding(torch.float32, torch.bfloat16, n)).logits, exact
        )
        for n in (1, 61)
    ]
    assert 1e-7 < single < 1e-4 < stored[0]
    assert stored[1] == single  # never stored within the text
