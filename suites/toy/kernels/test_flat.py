"""A step over flat tokens with kernels in Triton says what the dense model says, and what the
step of plain kernels says.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from cachewitness_reference.toy_model.config import ModelError
from cachewitness_reference.toy_model.kernels import named
from cachewitness_reference.toy_model.paged import Chunk, move, step
from cachewitness_reference.toy_model.watch import Watch
from suites.support.paged_by_hand import (
    DELTA,
    FULL,
    LAYERS,
    MAMBA,
    WINDOW,
    WITHOUT_MAMBA,
    Hand,
    far,
)
from suites.support.sampled import sampled

pytestmark = pytest.mark.toy
EXACT = 1e-10


def in_triton(dtype: torch.dtype = torch.float64, **options: Any) -> Hand:
    return Hand(dtype, layers=WITHOUT_MAMBA, kernels=named("triton"), **options)


BOUNDS = [(torch.float64, EXACT), (torch.float32, 1e-4), (torch.bfloat16, 0.3)]


@pytest.mark.parametrize(("dtype", "bound"), sampled(BOUNDS, 2))
def test_unequal_chunks_over_scattered_tables_equal_the_dense_model(
    dtype: torch.dtype, bound: float
) -> None:
    hand = in_triton(dtype)
    numbers = random.Random(1)
    texts = [hand.tokens(length, seed) for seed, length in enumerate((21, 16, 11))]
    tables = [hand.deal(len(text)) for text in texts]
    done = [0] * len(texts)
    cold = [hand.cold(text) for text in texts]
    while any(at < len(text) for at, text in zip(done, texts, strict=True)):
        spans = [
            (r, at, min(len(texts[r]), at + numbers.choice((1, 5, 13))))
            for r, at in enumerate(done)
            if at < len(texts[r])
        ]
        rows = hand.run(*[(texts[r], a, b, tables[r]) for r, a, b in spans], pad_rows=2)
        for (r, a, b), logits in zip(spans, rows, strict=True):
            assert far(logits, cold[r][a:b]) <= bound
            done[r] = b


def test_pages_hold_afterwards_what_plain_kernels_leave_in_them() -> None:
    """Block for block and state for state, with drafts in scratch pages and states at every
    block boundary.
    """
    hands = in_triton(every_block=True), Hand(layers=WITHOUT_MAMBA, every_block=True)
    for hand in hands:
        text = hand.tokens(30)
        tables = hand.deal(30)
        scratch = [[], [], *(hand.deal(24)[g][:3] for g in (DELTA, MAMBA))]
        step(hand.pools, [Chunk(text[:19], 0, tables)], hand.weights, kernels=hand.kernels)
        chunk = Chunk(text[19:24], 19, tables, drafts=3, scratch=scratch, outputs=4)
        hand.logits["drafts"] = [step(hand.pools, [chunk], hand.weights, kernels=hand.kernels)]
        move([(hand.pools, scratch[g][1], hand.pools, tables[g][2]) for g in (DELTA, MAMBA)])
        (after,) = hand.run((text, 23, 30, tables))
        hand.logits["after"] = [after]
    ours, plain = hands
    assert ours.pools.owner == plain.pools.owner
    for mine, theirs in zip(ours.pools.views, plain.pools.views, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (
                torch.equal(a.isnan(), b.isnan()) and far(a.nan_to_num(), b.nan_to_num()) <= EXACT
            )
    assert all(
        far(ours.logits[name][0], plain.logits[name][0]) <= EXACT for name in ("drafts", "after")
    )


def test_page_that_another_group_takes_in_the_same_step_is_lost() -> None:
    rows = []
    for hand in (in_triton(), Hand(layers=WITHOUT_MAMBA)):
        text = hand.tokens(9)
        tables = hand.deal(9)
        tables[FULL][0] = tables[WINDOW][0]
        rows.append(hand.run((text, 0, 8, tables))[0])
    assert torch.equal(rows[0].isnan(), rows[1].isnan()) and rows[0].isnan().any()


def test_missing_state_and_foreign_page_are_poison() -> None:
    hand = in_triton()
    text = hand.tokens(20)
    tables = hand.deal(20)
    hand.run((text, 0, 16, tables))
    for group in range(4):
        worse = [list(row) for row in tables]
        worse[group][16 // (4, 4, 8, 8)[group] - 1] = 399
        (logits,) = hand.run((text, 16, 17, worse))
        assert logits.isnan().all(), group


def test_watch_sees_what_the_watch_of_plain_kernels_sees() -> None:
    watches = []
    for hand in (in_triton(), Hand(layers=WITHOUT_MAMBA)):
        watches.append(watch := Watch())
        texts = [hand.tokens(20, 1), hand.tokens(20, 2)]
        tables = [hand.deal(20), hand.deal(20)]
        hand.run(*[(text, 0, 12, t) for text, t in zip(texts, tables, strict=True)])
        chunks = [
            Chunk(text[12 : 15 + 3 * i], 12, t)
            for i, (text, t) in enumerate(zip(texts, tables, strict=True))
        ]
        step(hand.pools, chunks, hand.weights, kernels=hand.kernels, watch=watch)
    ours, plain = watches
    for layer in range(4):
        for chunk in (0, 1):
            assert far(ours.output(layer, chunk), plain.output(layer, chunk)) <= EXACT
            mine = ours.read(layer, chunk)
            theirs = plain.read(layer, chunk)
            assert mine.parts.keys() == theirs.parts.keys()
            assert all(far(part, theirs.parts[name]) <= EXACT for name, part in mine.parts.items())


def test_layers_without_kernels_are_refused() -> None:
    hand = Hand(layers=LAYERS, kernels=named("triton"))
    with pytest.raises(ModelError, match="mamba2 have no kernels in Triton"):
        hand.run((hand.tokens(4), 0, 4, hand.deal(4)))
