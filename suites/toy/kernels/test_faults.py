"""Faults of kernels, on kernels in Triton: each moves the logits from the dense model's; without
them the run is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness.core.driving import drive
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.registry import parse
from cachewitness_faults.toy import kernels as catalogue
from cachewitness_reference.toy_model.kernels import FlatKernels, named
from suites.support.paged_by_hand import WITHOUT_MAMBA, Hand, far
from suites.support.sampled import chosen, sampled
from suites.support.toy_runs import DENSE, story

pytestmark = pytest.mark.toy
FELT = 1e-6
BLOCK = 4
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}


def largest(plant: Callable[[Any], None] = lambda engine: None) -> float:
    """Run two requests, prefill, unequal chunks and decode in turned order; return how far they
    are from the dense model.
    """
    kernels = named("triton")
    plant(SimpleNamespace(tensors=SimpleNamespace(kernels=kernels)))
    hand = Hand(layers=WITHOUT_MAMBA, kernels=kernels, sizes=GROUPED)
    texts = [hand.tokens(16, 1), hand.tokens(15, 2)]
    tables = [hand.deal(16), hand.deal(15)]
    cold = [hand.cold(text) for text in texts]
    worst = 0.0
    for spans in (((0, 0, 10), (1, 0, 13)), ((1, 13, 14), (0, 10, 13)), ((0, 13, 14), (1, 14, 15))):
        rows = hand.run(*[(texts[r], a, b, tables[r]) for r, a, b in spans])
        found = [far(logits, cold[r][a:b]) for (r, a, b), logits in zip(spans, rows, strict=True)]
        worst = max(worst, *(math.inf if math.isnan(one) else one for one in found))
    return worst


def test_without_a_fault_the_run_is_right() -> None:
    assert largest() <= 1e-10


CATALOGUED = {mutant.name: mutant for mutant in catalogue.MUTANTS}
OF_AN_ENGINE = {"state-restored-in-bf16", "rotary-positions-restart-at-a-hit"}
"""Faults that begin at a hit."""


@pytest.mark.parametrize("name", sampled(sorted(CATALOGUED.keys() - OF_AN_ENGINE), 2))
def test_catalogued_fault_is_felt(name: str) -> None:
    assert largest(CATALOGUED[name].plant) > FELT


def block_too_many(kernels: FlatKernels) -> None:
    def attend(
        original: Any,
        query: Any,
        projected: Any,
        kept: Any,
        layer: int,
        table: Any,
        first: Any,
        starts: Any,
        *rest: Any,
    ) -> Any:
        return original(query, projected, kept, layer, table, first, starts + BLOCK, *rest)

    wrap(kernels, "attend", attend)


def last_block_dropped(kernels: FlatKernels) -> None:
    def attend(
        original: Any,
        query: Any,
        projected: Any,
        kept: Any,
        layer: int,
        table: Any,
        first: Any,
        starts: Any,
        *rest: Any,
    ) -> Any:
        return original(
            query, projected, kept, layer, table, first, (starts - BLOCK).clamp(min=0), *rest
        )

    wrap(kernels, "attend", attend)


def wrong_head_group(kernels: FlatKernels) -> None:
    def attend(original: Any, query: Any, projected: Any, kept: Any, *rest: Any) -> Any:
        return original(query, projected, kept.roll(1, 4), *rest)

    wrap(kernels, "attend", attend)


def stale_table_row(kernels: FlatKernels) -> None:
    """Keep for a row of the batch the table of the request that had it in the step before."""
    before: dict[tuple[Any, ...], Any] = {}

    def attend(
        original: Any, query: Any, projected: Any, kept: Any, layer: int, table: Any, *rest: Any
    ) -> Any:
        key = kept.data_ptr(), table.shape
        stale = before.get(key, table)
        before[key] = table.clone()
        return original(query, projected, kept, layer, stale, *rest)

    wrap(kernels, "attend", attend)


def last_key_not_written(kernels: FlatKernels) -> None:
    def keep(original: Any, *args: Any) -> Any:
        places = args[7].clone()
        places[-1] = -1
        return original(*args[:7], places, *args[8:])

    wrap(kernels, "keep", keep)


def state_of_the_row_beside(kernels: FlatKernels) -> None:
    wrap(kernels, "gather", lambda original, pool, reads: original(pool, reads.roll(1)))


def inputs_one_token_late(kernels: FlatKernels) -> None:
    def keep_inputs(
        original: Any,
        x: Any,
        states: Any,
        kept: Any,
        layer: int,
        first: Any,
        owners: Any,
        stops: Any,
        saves: Any,
    ) -> None:
        original(x, states, kept, layer, first, owners, stops - 1, saves)

    wrap(kernels, "keep_inputs", keep_inputs)


PLANTED = (
    block_too_many,
    last_block_dropped,
    wrong_head_group,
    stale_table_row,
    last_key_not_written,
    state_of_the_row_beside,
    inputs_one_token_late,
)


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.__name__)
def test_planted_fault_is_felt(fault: Callable[[FlatKernels], None]) -> None:
    assert largest(lambda engine: fault(engine.tensors.kernels)) > FELT


@pytest.mark.parametrize("name", chosen(sorted(OF_AN_ENGINE), "rotary-positions-restart-at-a-hit"))
def test_fault_that_begins_at_a_hit_is_found_by_the_engines_comparison(name: str) -> None:
    trace = story("full-swa-mamba", DENSE, "siblings-in-one-step")
    result = drive(trace, parse(f"toy:kernels=triton,mutant={name}").open(trace.header))
    assert result.outcome == "fail" and result.findings[0].anomaly == "silent-divergence"
