"""The same on a GPU: what the paged execution says there is what the dense model says on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.engines.registry import parse
from harness.run.execute import drive
from reference_impl.toy_model.paged import Chunk, move, step
from suites.support.paged_by_hand import BLOCKS, Hand, far
from suites.support.random_checkpoint import random_checkpoint
from suites.support.toy_questions import asks, tokens
from suites.support.toy_runs import DENSE, measured_in, story

pytestmark = [
    pytest.mark.toy,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


def on_gpu(dtype: torch.dtype) -> Hand:
    hand = Hand(dtype, device="cuda")
    hand.gpu = {name: tensor.cuda() for name, tensor in hand.weights.items()}  # type: ignore[attr-defined]
    return hand


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-3)])
def test_chunks_over_pages_on_the_gpu_equal_the_dense_model_on_the_cpu(dtype: torch.dtype, bound: float) -> None:
    hand = on_gpu(dtype)
    texts, tables = [hand.tokens(50, i) for i in range(3)], [hand.deal(50) for _ in range(3)]
    cold = [hand.cold(text) for text in texts]
    for start, stop in ((0, 17), (17, 32), (32, 33), (33, 34), (34, 50)):
        chunks = [Chunk(text[start:stop], start, t, outputs=stop - start) for text, t in zip(texts, tables, strict=True)]
        logits = step(hand.pools, chunks, hand.gpu, pad_rows=4).cpu().unflatten(0, (3, -1))  # type: ignore[attr-defined]
        assert max(far(a, b[start:stop]) for a, b in zip(logits, cold, strict=True)) <= bound


def test_step_waits_for_the_device_nowhere() -> None:
    hand = on_gpu(torch.float32)
    text, tables = hand.tokens(50), hand.deal(50)
    step(hand.pools, [Chunk(text[:32], 0, tables)], hand.gpu)  # type: ignore[attr-defined]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(hand.pools, [Chunk(text[32:33], 32, tables)], hand.gpu)  # type: ignore[attr-defined]
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_pages_move_on_the_gpu() -> None:
    hand = on_gpu(torch.float64)
    text, tables, fresh = hand.tokens(40), hand.deal(40), hand.deal(40)
    step(hand.pools, [Chunk(text[:32], 0, tables)], hand.gpu)  # type: ignore[attr-defined]
    columns = [(g, column) for g, block in enumerate(BLOCKS) for column in range(32 // block)]
    move([(hand.pools, tables[g][column], hand.pools, fresh[g][column]) for g, column in columns])
    logits = step(hand.pools, [Chunk(text[32:], 32, fresh, outputs=8)], hand.gpu)  # type: ignore[attr-defined]
    assert far(logits.cpu(), hand.cold(text)[32:]) <= 1e-10


@pytest.mark.parametrize("precision", ["float64", "float32", "bf16-state"])
def test_engine_passes_on_the_gpu(precision: str) -> None:
    trace = story("full-swa-mamba", DENSE, "preempt-and-resume")
    result = drive(trace, parse(f"toy:device=cuda,dtype={precision}").open(trace.header))
    assert result.outcome == "pass", result.findings[:1]
    assert measured_in(result).restored_rows > 0


def test_answers_on_the_gpu_are_those_on_the_cpu(tmp_path: Path) -> None:
    from harness.engines.toy.service import ToyService

    folder = random_checkpoint(tmp_path)
    answers = [ToyService(folder, pages=600, dtype="float64", device=device).answer(asks()) for device in ("cpu", "cuda")]
    assert tokens(answers[0]) == tokens(answers[1])
