"""The same on a GPU: what the paged execution says there is what the dense model says on the
CPU.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from cachewitness.core.driving import drive
from cachewitness.engines.registry import parse
from cachewitness_reference.toy_model import dense
from cachewitness_reference.toy_model.kernels import named
from cachewitness_reference.toy_model.paged import Chunk, move, step
from suites.support.flat_requests import firsts, numbers, paged_keys
from suites.support.paged_by_hand import BLOCKS, WITHOUT_MAMBA, Hand, far
from suites.support.random_checkpoint import random_checkpoint
from suites.support.toy_models import noise
from suites.support.toy_questions import asks, tokens
from suites.support.toy_runs import DENSE, measured_in, story

pytestmark = [
    pytest.mark.toy,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


IN_TRITON = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
    reason=(
        "needs the extra `triton`, and kernels that are compiled: run suites/toy/engine by itself,"
        " without TRITON_INTERPRET"
    ),
)


def on_gpu(dtype: torch.dtype, **options: Any) -> Hand:
    hand = Hand(dtype, device="cuda", **options)
    hand.gpu = {name: tensor.cuda() for name, tensor in hand.weights.items()}  # type: ignore[attr-defined]
    return hand


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-3)])
def test_chunks_over_pages_on_the_gpu_equal_the_dense_model_on_the_cpu(
    dtype: torch.dtype, bound: float
) -> None:
    hand = on_gpu(dtype)
    texts = [hand.tokens(50, i) for i in range(3)]
    tables = [hand.deal(50) for _ in range(3)]
    cold = [hand.cold(text) for text in texts]
    for start, stop in ((0, 17), (17, 32), (32, 33), (33, 34), (34, 50)):
        chunks = [
            Chunk(text[start:stop], start, t, outputs=stop - start)
            for text, t in zip(texts, tables, strict=True)
        ]
        logits = step(hand.pools, chunks, hand.gpu, pad_rows=4).cpu().unflatten(0, (3, -1))  # type: ignore[attr-defined]
        assert max(far(a, b[start:stop]) for a, b in zip(logits, cold, strict=True)) <= bound


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_step_waits_for_the_device_nowhere() -> None:
    hand = on_gpu(torch.float32)
    text = hand.tokens(50)
    tables = hand.deal(50)
    step(hand.pools, [Chunk(text[:32], 0, tables)], hand.gpu)  # type: ignore[attr-defined]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(hand.pools, [Chunk(text[32:33], 32, tables)], hand.gpu)  # type: ignore[attr-defined]
    finally:
        torch.cuda.set_sync_debug_mode("default")


@IN_TRITON
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-3), (torch.bfloat16, 0.2)]
)
def test_kernels_in_triton_equal_the_dense_model_on_the_cpu(
    dtype: torch.dtype, bound: float
) -> None:
    hand = on_gpu(dtype, layers=WITHOUT_MAMBA, kernels=named("triton"))
    exact = {name: tensor.double() for name, tensor in hand.weights.items()}
    texts = [hand.tokens(50, i) for i in range(3)]
    tables = [hand.deal(50) for _ in range(3)]
    hand.weights = hand.gpu  # type: ignore[attr-defined]
    for starts, stops in (
        ((0, 0, 0), (17, 5, 33)),
        ((17, 5, 33), (18, 6, 34)),
        ((18, 6, 34), (50, 7, 40)),
    ):
        spans = list(zip(texts, starts, stops, tables, strict=True))
        for (text, start, stop, _), logits in zip(spans, hand.run(*spans, pad_rows=4), strict=True):
            cold = dense.forward(torch.tensor([text]), exact, hand.config)[0]
            assert far(logits.cpu().double(), cold[start:stop]) <= bound


@IN_TRITON
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_keys_split_between_programs_equal_torchs_own_attention(
    dtype: torch.dtype, bound: float
) -> None:
    from cachewitness_reference.toy_model.triton_kernels.attention import paged_attention

    starts = (5, 2999, 4000)
    heads = 16
    kv = 2
    dim = 128
    keys = paged_keys(starts, (1, 1, 1), kv=kv, dim=dim, dtype=dtype, columns=512)
    query = noise(3, heads, dim, dtype=dtype)
    projected = noise(3, heads * 2 * dim, seed=2, dtype=dtype)
    there = (
        query,
        projected,
        keys.kept,
        1,
        keys.table.flatten(),
        firsts((1, 1, 1)),
        numbers(*starts),
    )
    ours = (
        paged_attention(
            *(part.cuda() if isinstance(part, torch.Tensor) else part for part in there), 1, 0
        )
        .cpu()
        .double()
    )
    gate = projected.double().unflatten(-1, (heads, 2 * dim))[..., dim:].flatten(1).sigmoid()
    for row in range(3):
        key, value = (part.double().transpose(1, 2) for part in keys.own[row])
        theirs = scaled_dot_product_attention(
            query[None, row, :, None].double(), key, value, enable_gqa=True
        )
        assert far(ours[row], theirs.flatten() * gate[row]) <= bound


@IN_TRITON
def test_steps_that_a_graph_replays_equal_steps_without_one() -> None:
    """Bit for bit, with a change of requests between them: other texts, pages and states in a
    graph of the same shape.
    """
    captured, eager = (
        on_gpu(torch.float32, layers=WITHOUT_MAMBA, kernels=named("triton")) for _ in range(2)
    )
    conv = eager.kernels.conv
    eager.kernels.conv = lambda *given: conv(*given)  # a function of Python, which no graph replays
    for first in (0, 3):
        logits = []
        for hand in (captured, eager):
            texts = [hand.tokens(48, first + i) for i in range(3)]
            tables = [hand.deal(48) for _ in range(3)]
            spans = list(zip(texts, range(20, 23), tables, strict=True))
            steps = [[Chunk(text[:stop], 0, t) for text, stop, t in spans]]
            steps += [
                [Chunk([text[stop + n]], stop + n, t) for text, stop, t in spans] for n in range(25)
            ]
            kernels = hand.kernels
            logits.append(
                torch.cat(
                    [step(hand.pools, s, hand.gpu, pad_rows=4, kernels=kernels) for s in steps]
                )
            )  # type: ignore[attr-defined]
        assert torch.equal(*logits) and not logits[0].isnan().any()
    graphs = captured.kernels.graphs
    assert graphs is not None and graphs.replayed > 25 and eager.kernels.graphs is None


@IN_TRITON
def test_delta_rule_equals_that_of_flash_linear_attention() -> None:
    theirs = pytest.importorskip("fla.ops.gated_delta_rule", reason="needs flash-linear-attention")
    from cachewitness_reference.toy_model.triton_kernels.gated_delta import gated_delta

    lengths = (70, 5, 40)
    heads = 4
    size = 32
    first = torch.tensor([0, 70, 75, 115], device="cuda")
    q, k, v = (noise(115, heads, size, seed=seed, dtype=torch.float32).cuda() for seed in (1, 2, 3))
    g = -noise(115, heads, seed=4, dtype=torch.float32).abs().cuda()
    beta = noise(115, heads, seed=5, dtype=torch.float32).sigmoid().cuda()
    states = noise(1, 3, heads, size, size, seed=6, dtype=torch.float32).cuda()
    pages = torch.zeros(1, 4, heads, size, size, device="cuda")
    mixed = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], dim=1)
    spans = [
        torch.tensor(x, dtype=torch.int32, device="cuda")
        for x in ([0, 1, 2, 3], [70, 75, 115], [1, 2, 3])
    ]
    ours = gated_delta(mixed, g, beta, states, pages, 0, first.int(), *spans, max(lengths))
    options = {
        "initial_state": states[0],
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "cu_seqlens": first,
    }
    out, after = theirs.chunk_gated_delta_rule(
        q[None], k[None], v[None], g[None], beta[None], **options
    )
    assert far(ours, out[0]) <= 1e-2 and far(pages[0, 1:], after) <= 1e-2


def test_pages_move_on_the_gpu() -> None:
    hand = on_gpu(torch.float64)
    text = hand.tokens(40)
    tables = hand.deal(40)
    fresh = hand.deal(40)
    step(hand.pools, [Chunk(text[:32], 0, tables)], hand.gpu)  # type: ignore[attr-defined]
    columns = [(g, column) for g, block in enumerate(BLOCKS) for column in range(32 // block)]
    move([(hand.pools, tables[g][column], hand.pools, fresh[g][column]) for g, column in columns])
    logits = step(hand.pools, [Chunk(text[32:], 32, fresh, outputs=8)], hand.gpu)  # type: ignore[attr-defined]
    assert far(logits.cpu(), hand.cold(text)[32:]) <= 1e-10


@pytest.mark.parametrize("precision", ["float64", "float32", "bf16-state"])
@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=IN_TRITON)])
def test_engine_passes_on_the_gpu(precision: str, kernels: str) -> None:
    trace = story("full-swa-mamba", DENSE, "preempt-and-resume")
    result = drive(
        trace, parse(f"toy:device=cuda,dtype={precision},kernels={kernels}").open(trace.header)
    )
    assert result.outcome == "pass", result.findings[:1]
    assert measured_in(result).restored_rows > 0


@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=IN_TRITON)])
def test_answers_on_the_gpu_are_those_on_the_cpu(kernels: str, tmp_path: Path) -> None:
    from cachewitness.toy.service import ToyService

    folder = random_checkpoint(tmp_path, layers=WITHOUT_MAMBA)
    services = [
        ToyService(folder, pages=600, dtype="float64", device=d, kernels=k)
        for d, k in (("cpu", "torch"), ("cuda", kernels))
    ]
    answers = [
        [tokens(service.answer(asks(max_tokens=40))) for _ in range(2)] for service in services
    ]
    assert answers[0] == answers[1]
    if kernels == "triton":
        assert services[1].engine.tensors.kernels.graphs.replayed > 0  # type: ignore[union-attr]
