"""Tolerances of tensors: measured without the code under test, bounded by arithmetic, and never
a pass above the bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cachewitness.core.driving import drive
from cachewitness.core.events import Group
from cachewitness.engines.registry import parse
from cachewitness.parity.tensors.arms import BY_NAME
from cachewitness.parity.tensors.judge import judged
from cachewitness.parity.tensors.stories import write
from cachewitness.systems.vllm.reference.policy import cold_configurations
from cachewitness.toy import noise
from cachewitness.toy.model import PRECISIONS, Model, made_for
from cachewitness.toy.noise import FLOAT64_TOLERANCE, Noise, ceiling, floors
from cachewitness_reference.toy_model import attention, gated_delta, mamba2
from suites.support.toy_runs import DENSE, measured_in, story

pytestmark = pytest.mark.toy
GROUPS = [Group(0, "full", 16), Group(1, "sliding", 16, window=32), Group(2, "recurrent", 16)]


def hybrid(precision: str, seed: int = 0) -> Model:
    return made_for(GROUPS, seed=seed, precision=precision, device="cpu")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(3))
def test_tolerances_lie_between_floor_and_ceiling(precision: str, seed: int) -> None:
    found = floors(hybrid(precision, seed))
    assert found.blind == ""
    for part in (found.logits, *(state for _, state in found.states())):
        assert 0 < part.floor < part.tolerance <= part.ceiling


def test_floors_do_not_move_with_the_kernels_under_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break everything that engines compute with: the measured noise stays as it was."""
    before = noise._measured(hybrid("float32"))

    def broken(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("the code under test was asked for its own tolerance")

    for module, names in (
        (gated_delta, ("chunked", "recurrent")),
        (mamba2, ("chunked", "recurrent")),
        (attention, ("attend", "project", "rotary")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, broken)
    assert noise._measured(hybrid("float32")) == before


def test_float64_rounds_as_float32_does_on_a_finer_grid() -> None:
    """What cannot be measured against anything wider is derived; what the engine's kernels show
    of it lies below.
    """
    exact = floors(hybrid("float64")).logits
    single = floors(hybrid("float32")).logits
    assert (
        exact.floor
        == single.floor * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    )
    assert exact.tolerance == exact.ceiling == FLOAT64_TOLERANCE > 1000 * exact.floor
    replayed = story("full-swa-mamba", DENSE, "exact-replay")
    run = drive(replayed, parse("toy").open(replayed.header))
    assert measured_in(run).largest < 10 * exact.floor


@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-3), ("bf16-state", 2.0)])
def test_ceiling_is_arithmetic(precision: str, most: float) -> None:
    """It grows with the values and the layers, and not with anything measured."""
    model = hybrid(precision)
    assert 0 < ceiling(model, 1.0) < most
    assert ceiling(model, 2.0) == 2 * ceiling(model, 1.0)
    assert ceiling(replace(model, precision="float64"), 1.0) < 1e-11


def test_model_whose_rounding_exceeds_the_ceiling_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = write(cold_configurations()[1].shape("scheduler"), BY_NAME["hit"], "replay", 0)
    spec = parse("toy:dtype=float32")
    engine = spec.open(trace.header)
    wide = replace(floors(engine.tensors.model), logits=Noise(1.0, 4.0, 1e-3))  # type: ignore[attr-defined]
    monkeypatch.setattr("cachewitness.parity.tensors.judge.floors", lambda model: wide)
    result = judged(trace, engine, spec, keep=False)
    assert result.outcome == "unknown"
    assert "exceed its ceiling 1.0e-03" in result.tallies[0].open


def test_weights_that_are_no_numbers_are_not_judged() -> None:
    model = hybrid("float32", seed=77)
    weights = {
        **model.weights,
        "model.norm.weight": model.weights["model.norm.weight"] * float("nan"),
    }
    assert floors(replace(model, weights=weights, seed=78)).blind
