"""Metamorphic relations on tensors: splits of a prompt leave the same content; what is resumed
computes what cold runs do.
"""

from __future__ import annotations

import random

import pytest
import torch

from cachewitness.core.driving import drive
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Submit, Trace, TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.metamorphic import served_in_turn
from cachewitness.workloads.scenarios.shape import Shape
from suites.support.paged_by_hand import BLOCKS, DELTA, FULL, MAMBA, WINDOW, Hand
from suites.support.toy_runs import measured_in

pytestmark = pytest.mark.toy
TOKENS = 40
EXACT = 1e-10


def pages(hand: Hand, tables: list[list[int]]) -> list[torch.Tensor]:
    """Return the content that a request is left with: keys and values of all its tokens, and its
    last states.
    """
    last = {
        FULL: tables[FULL],
        WINDOW: tables[WINDOW],
        DELTA: tables[DELTA][-1:],
        MAMBA: tables[MAMBA][-1:],
    }
    return [view[:, pages] for g, pages in last.items() for view in hand.pools.views[g]]


def prefilled(stops: list[int], *, forget: int = -1) -> list[torch.Tensor]:
    """Compute a prompt in chunks that end at `stops`; the states after `forget` tokens are lost
    on the way.
    """
    hand = Hand()
    text = hand.tokens(TOKENS)
    tables = hand.deal(TOKENS)
    start = 0
    for stop in stops:
        if start == forget:
            hand.pools.zero([tables[g][-(-start // BLOCKS[g]) - 1] for g in (DELTA, MAMBA)])
        hand.run((text, start, stop, tables))
        start = stop
    return pages(hand, tables)


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=EXACT) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_splits_of_a_prompt_leave_the_same_keys_values_and_states(seed: int) -> None:
    """At boundaries of blocks, inside of them, and token by token."""
    numbers = random.Random(seed)
    stops = sorted(
        {*numbers.sample(range(1, TOKENS), numbers.choice((1, 3, 8, TOKENS - 1))), TOKENS}
    )
    assert same(prefilled([TOKENS]), prefilled(stops))


def test_a_state_that_is_lost_between_two_chunks_is_a_difference() -> None:
    assert same(prefilled([TOKENS]), prefilled([16, TOKENS]))
    assert not same(prefilled([TOKENS]), prefilled([16, TOKENS], forget=16))


def twice(policy: str, engine: str) -> Result:
    """Let a prompt be served, and again when it is cached, on the first configuration on which a
    policy's tensors compare.
    """
    configuration = policies.get(policy).cold_configurations()[0]
    shape: Shape = configuration.shape("scheduler")
    header = TraceHeader(
        "twice",
        configuration.layout,
        8 * shape.pages(8 * shape.unit),
        "scheduler",
        policy,
        dict(configuration.options),
    )
    prompt = f"A:{4 * shape.unit} B:3"
    asked = Trace(header, [Submit("r1", prompt), Submit("r2", prompt)])
    trace = served_in_turn(asked, header.pages, 5 * shape.unit)
    return drive(trace, parse(engine).open(trace.header))


@pytest.mark.parametrize("policy", policies.names())
def test_cached_computes_what_cold_does(policy: str) -> None:
    result = twice(policy, "toy")
    assert result.findings == [] and result.activity.hits > 0
    measured = measured_in(result)
    assert measured.restored_rows > 0 and measured.beyond == 0


def test_a_chunk_that_continues_from_nothing_is_a_difference() -> None:
    findings = twice("vllm", "toy:mutant=continuation-from-nothing").findings
    assert {finding.anomaly for finding in findings} == {"silent-divergence"}
