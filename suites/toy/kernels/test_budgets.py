"""What a step asks of a device, counted on the meta device: few operations, the same for any
lengths, and no waiting.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cachewitness.toy.greedy import _choices
from cachewitness_reference.toy_model import flat_plan
from cachewitness_reference.toy_model.kernels import PLAIN, FlatKernels, Kernels, named
from cachewitness_reference.toy_model.paged import Chunk, PagedGroup, Pools, step
from suites.support.dispatched import Dispatched, HostReads, meta
from suites.support.paged_by_hand import LAYERS, WITHOUT_MAMBA, Hand
from suites.support.random_checkpoint import random_checkpoint
from suites.support.toy_questions import asks

pytestmark = pytest.mark.toy
OPERATIONS_MAX = 80
"""Of a decode step of any batch, for four layers."""


def counted(
    lengths: Sequence[int], starts: Sequence[int], kernels: Kernels | FlatKernels, **options: Any
) -> Dispatched:
    """Run a step on the meta device twice and return what the second one dispatched."""
    hand = Hand(torch.float32, layers=WITHOUT_MAMBA, device="meta")
    weights = meta(hand.weights)
    hand.pools.grow(40_000)
    hand.give(range(400, 40_400))
    chunks = [
        Chunk([1] * n, start, hand.deal(start + n))
        for n, start in zip(lengths, starts, strict=True)
    ]
    for _ in range(2):
        with Dispatched() as seen, HostReads() as reads:
            logits = step(hand.pools, chunks, weights, kernels=kernels, **options)
        assert logits.is_meta and logits.shape == (len(chunks), hand.config.vocab_size)
    assert isinstance(kernels, Kernels) or reads.names == []
    return seen


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_decode_step_of_any_batch_takes_few_operations(batch: int) -> None:
    seen = counted([1] * batch, range(20, 20 + batch), named("triton"))
    assert len(seen.calls) <= OPERATIONS_MAX
    assert {"paged_attention", "gated_delta", "causal_conv", "gather_states"} <= seen.names.keys()


def test_sixteen_lengths_take_no_more_operations_than_one() -> None:
    one = counted([16] * 16, [0] * 16, named("triton"))
    many = counted(range(5, 21), [0] * 16, named("triton"))
    assert len(many.calls) == len(one.calls) <= OPERATIONS_MAX


def test_budgets_can_be_exceeded() -> None:
    """The plain kernels do: they run requests of each length by themselves."""
    one = counted([16] * 4, [0] * 4, PLAIN)
    many = counted([5, 6, 7, 8], [0] * 4, PLAIN)
    assert len(one.calls) > OPERATIONS_MAX and len(many.calls) > 2 * len(one.calls)


def test_equal_padded_shapes_have_equal_traces() -> None:
    """As a captured graph needs it: names, shapes, dtypes and numbers of all operations, whatever
    the requests are.

    Only the last operation, behind what a graph captures, knows how many rows are padding: it drops
    their logits.
    """
    traces = [
        counted([1] * batch, range(first, first + batch), named("triton"), pad_rows=8).calls
        for batch, first in ((8, 9), (5, 14), (7, 3))
    ]
    assert traces[0][:-1] == traces[1][:-1] == traces[2][:-1]
    assert {trace[-1][0] for trace in traces} == {"slice"}
    longer = counted([1] * 8, [40] * 8, named("triton"), pad_rows=8).calls
    assert longer != traces[0] and [name for name, _ in longer] == [name for name, _ in traces[0]]


def test_step_runs_on_the_meta_device_with_every_layer() -> None:
    hand = Hand(torch.float32, layers=LAYERS, device="meta")
    logits = step(hand.pools, [Chunk([1] * 9, 0, hand.deal(9), outputs=3)], meta(hand.weights))
    assert logits.is_meta and logits.shape == (3, hand.config.vocab_size)


def test_tokens_and_margins_reach_the_host_in_one_read() -> None:
    logits = {
        "a": torch.tensor([[0.0, 2.0, 1.5]]),
        "b": torch.tensor([[3.0, 1.0, 0.0], [0.0, float("nan"), 1.0]]),
    }
    with HostReads() as reads:
        found = _choices(logits)
    assert reads.names == ["tolist"]
    assert found["a"] == [(1, 0.5)] and found["b"][0] == (0, 2.0) and found["b"][1].margin == 1e9


@pytest.mark.parametrize(
    ("options", "beside"), [({}, 0), ({"drafts": 2}, 0), ({"tier_pages": 600}, 1)]
)
def test_a_service_reads_once_a_step(
    options: dict[str, Any], beside: int, tmp_path: Path, monkeypatch: Any
) -> None:
    """On the meta device, where every token that is read is the first of the vocabulary. A
    second tier is read into besides.
    """
    from cachewitness.toy import service

    monkeypatch.setattr(service, "check", lambda dtype, device: None)
    monkeypatch.setattr(service, "check_kernels", lambda *_: None)
    folder = random_checkpoint(tmp_path, layers=WITHOUT_MAMBA)
    opened = service.ToyService(
        folder, pages=600, batch=3, device="meta", kernels="triton", **options
    )
    steps = list[int]()
    execute = opened.engine.tensors.execute

    def counted(begin: Any, *args: Any) -> Any:
        steps.append(len(begin.runs))
        return execute(begin, *args)

    monkeypatch.setattr(opened.engine.tensors, "execute", counted)
    with HostReads("meta") as reads:
        for _ in range(2):
            answers = opened.answer(asks(max_tokens=3))
    assert [len(answer.tokens) for answer in answers] == [3] * len(answers) and answers[0].restored[
        ""
    ] > 0
    assert steps.count(0) == 0 and max(steps) == 3
    assert reads.names.count("tolist") == len(steps)
    assert bool(len(reads.names) - len(steps)) == bool(beside)


def test_every_way_to_read_counts() -> None:
    one = torch.ones(1)
    with HostReads() as reads:
        one.to("cpu")
        one.to(device=torch.device("cpu"))
        one.to(torch.float64)
        one.to("meta")
        one.cpu()
        bool(one)
        one.item()
    assert reads.names == ["to", "to", "cpu", "__bool__", "item"]


def test_planning_calls_little_and_dispatches_nothing() -> None:
    """A clock would measure the machine; what planning costs is calls of functions, and these
    grow with the batch alone.
    """
    calls = []
    for batch, tokens in ((64, 200), (64, 900), (32, 900)):
        hand = Hand(torch.float32, layers=WITHOUT_MAMBA)
        pools = Pools(
            [PagedGroup((3,), 16), PagedGroup((1,), 16), PagedGroup((0, 2), 16)],
            8,
            hand.config,
            device="meta",
        )
        pools.grow(20_000)
        free = iter(range(8, 20_000))
        chunks = [
            Chunk(
                [1], tokens, [[next(free) for _ in range(tokens // 16 + 1)] for _ in pools.groups]
            )
            for _ in range(batch)
        ]
        with Dispatched() as seen:
            calls.append(_calls(lambda: flat_plan.plan(pools, chunks, 1, PLAIN.positions)))  # noqa: B023
        assert not seen.calls
    assert calls[0] == calls[1] and calls[1] <= 2 * calls[2] <= 2 * 32 * 45


def _calls(run: Any) -> int:
    """Return how many functions written in Python a call makes; what a collection of garbage
    would call is not among them.
    """
    found = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "call"

    gc.disable()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found
