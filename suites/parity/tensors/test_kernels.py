"""Faults of kernels: found in the arm without a cache too, and not excused by what they do to a
cold run in other chunks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import parse
from cachewitness.parity.tensors.arms import BY_NAME
from cachewitness.parity.tensors.judge import judged
from cachewitness.parity.tensors.stories import write
from cachewitness.report.compared import Compared
from cachewitness.systems.vllm.reference.policy import cold_configurations
from cachewitness.toy.noise import floors
from cachewitness_reference.toy_model.paged import Chunk, step

SIZES = (192, 64, 50, 37, 16, 7, 1)


def trace_of(arm: str, where: str) -> Trace:
    return write(cold_configurations()[1].shape("scheduler"), BY_NAME[arm], where, 0)


def compared(trace: Trace, engine: str) -> Compared:
    spec = parse(engine)
    return judged(trace, spec.open(trace.header), spec, keep=False)


def own_noise(engine: Any) -> float:
    """Return how far an engine's cold runs in chunks of several sizes lie apart: a tolerance
    that its faults would widen.
    """
    model = engine.tensors.model
    kernels = engine.tensors.kernels
    text = torch.randint(
        model.config.vocab_size, (192,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    rows = []
    for size in SIZES:
        pools, (tables,) = model.fresh(len(text))
        pieces = [(text[start : start + size], start) for start in range(0, len(text), size)]
        chunks = [Chunk(part, start, tables, outputs=len(part)) for part, start in pieces]
        rows.append(
            torch.cat([step(pools, [chunk], model.weights, kernels=kernels) for chunk in chunks])
        )
    return max(float((other - rows[0]).abs().max()) for other in rows)


@pytest.mark.parametrize(
    "mutant", ["tail-gate-read-past-the-end", "convolution-begins-anew-in-every-chunk"]
)
def test_fault_that_grows_with_the_cuts_does_not_widen_its_own_tolerance(mutant: str) -> None:
    trace = trace_of("off", "prefix-end")
    clean = parse("toy").open(trace.header)
    faulty = parse(f"toy:mutant={mutant}").open(trace.header)
    assert own_noise(clean) < 1e-12 < 1e-3 < own_noise(faulty)
    assert floors(faulty.tensors.model) == floors(clean.tensors.model)  # type: ignore[attr-defined]
    result = compared(trace, f"toy:mutant={mutant}")
    assert result.row.verdict == "FAIL" and result.row.restored_rows == 0
    assert result.row.largest < own_noise(faulty) * 4, (
        "within a tolerance measured with the engine's own kernels"
    )
    assert result.outcome == "fail"


@pytest.mark.parametrize("arm", ["off", "hit"])
def test_kernel_that_is_wrong_in_every_run_fails_cold_and_cached_alike(arm: str) -> None:
    result = compared(trace_of(arm, "replay"), "toy:mutant=value-sum-not-reset")
    assert result.row.verdict == "FAIL" and result.row.beyond > 0
    assert {finding.anomaly for finding in result.findings} == {"cached-divergence"}
    assert result.row.bits_held == result.row.bits, "the same wrong bits, cold and cached"
    assert "the output of layer 0 (linear_attention" not in result.findings[0].sentence
    assert "(full_attention, group 0) at position" in result.findings[0].sentence


def test_rows_that_hold_no_number_are_called_so() -> None:
    result = compared(trace_of("hit", "together"), "toy:mutant=unwritten-values-times-zero")
    assert result.row.no_number > 0 and result.row.verdict == "FAIL"
    sentence = result.findings[0].sentence
    assert "hold NaN" in sentence and "no token can be chosen there" in sentence
    assert "difference 0.0" not in sentence and "layer 1 (full_attention, group 0)" in sentence


def test_place_where_a_restored_state_was_rounded_is_named() -> None:
    result = compared(trace_of("hit", "prefix-end"), "toy:mutant=state-restored-in-bf16")
    finding = next(finding for finding in result.findings if finding.anomaly == "cached-divergence")
    assert (
        "which resumed at" in finding.sentence
        and "layer 0 (linear_attention, group 1)" in finding.sentence
    )
