"""Every parameter of the checkpoints and of the models that are made for runs over tensors."""

from __future__ import annotations

import pytest

from cachewitness._util.data import fixtures
from cachewitness.core.events import Group
from cachewitness.toy.model import made_for
from suites.support.parameters import constant, weights_in

LAWFUL = {
    "norm.weight": "a gain of one, on what the layers in front of it made of the text",
    "A_log": "each head fades by its own `dt_bias`, which is drawn",
}
"""What a model that was never trained has constant, and why no layer vanishes behind it."""


@pytest.mark.parametrize("name", ["toy", "window", "qwen3_5"])
def test_no_parameter_of_a_checkpoint_is_constant(name: str) -> None:
    assert constant(weights_in(fixtures() / "checkpoints" / name / "model.safetensors")) == []


def test_what_is_constant_in_a_model_that_was_never_trained_has_a_reason() -> None:
    groups = [
        Group(id=0, kind="full", block_size=16, pool=0),
        Group(id=1, kind="recurrent", block_size=16, pool=0),
        Group(id=2, kind="sliding", block_size=16, pool=0, window=32),
    ]
    weights = made_for(groups, seed=0, precision="float64", device="cpu").weights
    found = constant((name, tensor.flatten().tolist()) for name, tensor in weights.items())
    assert all(name.endswith(tuple(LAWFUL)) for name in found)
    assert all(any(name.endswith(end) for name in found) for end in LAWFUL)
