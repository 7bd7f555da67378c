"""The paged execution says what the dense model says, whatever the chunks, the tables and the
company.
"""

from __future__ import annotations

import math
import random

import pytest
import torch

from cachewitness_reference.toy_model.config import ModelError
from cachewitness_reference.toy_model.paged import Chunk, PagedGroup, Pools, Shelf, move, step
from suites.support.paged_by_hand import BLOCKS, DELTA, FULL, MAMBA, WINDOW, Hand, far

pytestmark = pytest.mark.toy
EXACT = 1e-10


@pytest.mark.parametrize("seed", range(6))
def test_batches_of_unequal_chunks_over_scattered_tables_equal_the_dense_model(seed: int) -> None:
    hand = Hand()
    numbers = random.Random(seed)
    texts = [hand.tokens(numbers.randrange(20, 60), 10 * seed + i) for i in range(4)]
    tables = [hand.deal(len(text)) for text in texts]
    cold = [hand.cold(text) for text in texts]
    at = [0] * len(texts)
    while live := [i for i, text in enumerate(texts) if at[i] < len(text)]:
        chosen = numbers.sample(live, numbers.randrange(1, len(live) + 1))
        stops = {
            i: min(at[i] + numbers.choice((1, 1, 3, 8, 16, 17)), len(texts[i])) for i in chosen
        }
        out = hand.run(
            *((texts[i], at[i], stops[i], tables[i]) for i in chosen),
            pad_rows=numbers.choice((1, 4)),
        )
        for i, logits in zip(chosen, out, strict=True):
            assert far(logits, cold[i][at[i] : stops[i]]) <= EXACT
            at[i] = stops[i]


def test_logits_are_those_of_the_positions_asked_for_in_the_order_of_the_chunks() -> None:
    hand = Hand()
    long = hand.tokens(20, 1)
    short = hand.tokens(3, 2)
    chunks = [Chunk(long, 0, hand.deal(20), outputs=2), Chunk(short, 0, hand.deal(3))]
    out = step(hand.pools, chunks, hand.weights)
    assert far(out, torch.cat([hand.cold(long)[-2:], hand.cold(short)[-1:]])) <= EXACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resumed_run_on_the_same_chunk_grid_is_bit_equal(dtype: torch.dtype) -> None:
    hand = Hand(dtype)
    text = hand.tokens(40)
    tables = hand.deal(40)
    first = [hand.run((text, a, a + 8, tables))[0] for a in range(0, 40, 8)]
    resumed = [
        row[: 24 // block] + new[24 // block :]
        for row, new, block in zip(tables, hand.deal(40), BLOCKS, strict=True)
    ]
    for a in (24, 32):
        (again,) = hand.run((text, a, a + 8, resumed))
        assert torch.equal(again, first[a // 8])


def test_diverging_siblings_share_a_prefix_and_copy_what_they_write() -> None:
    hand = Hand()
    shared = hand.tokens(22, 1)
    left = hand.tokens(10, 2)
    right = hand.tokens(10, 3)
    parent = hand.deal(32)
    hand.run((shared, 0, 22, parent))
    child = [
        row[: 22 // block] + new[22 // block :]
        for row, new, block in zip(parent, hand.deal(32), BLOCKS, strict=True)
    ]
    tails = [
        (hand.pools, parent[g][22 // BLOCKS[g]], hand.pools, child[g][22 // BLOCKS[g]])
        for g in range(4)
    ]
    move(tails)
    for text, tables in ((shared + left, parent), (shared + right, child)):
        (logits,) = hand.run((text, 22, 32, tables))
        assert far(logits, hand.cold(text)[22:]) <= EXACT


def test_preempted_request_computes_again_elsewhere_although_its_pages_are_gone() -> None:
    hand = Hand()
    text = hand.tokens(30)
    first = hand.deal(30)
    hand.run((text, 0, 20, first))
    hand.pools.poison([page for row in first for page in row])
    second = hand.deal(30)
    hand.run((text, 0, 20, second))
    (logits,) = hand.run((text, 20, 30, second))
    assert far(logits, hand.cold(text)[20:]) <= EXACT


def test_moving_pages_and_their_entries_in_the_tables_changes_nothing() -> None:
    hand = Hand()
    text = hand.tokens(30)
    tables = hand.deal(30)
    hand.run((text, 0, 20, tables))
    pages = [page for row in tables for page in row]
    goes = dict(zip(pages, pages[1:] + pages[:1], strict=True))
    move([(hand.pools, src, hand.pools, dst) for src, dst in goes.items()])
    (logits,) = hand.run((text, 20, 30, [[goes[page] for page in row] for row in tables]))
    assert far(logits, hand.cold(text)[20:]) <= EXACT


def test_pages_kept_in_another_tier_and_brought_back_are_the_same() -> None:
    hand = Hand(torch.float32)
    text = hand.tokens(30)
    tables = hand.deal(30)
    hand.run((text, 0, 24, tables))
    (before,) = hand.run((text, 24, 30, tables))
    tier = Shelf(60)
    pages = [page for row, block in zip(tables, BLOCKS, strict=True) for page in row[: 24 // block]]
    move([(hand.pools, page, tier, place) for place, page in enumerate(pages)])
    fresh = hand.deal(30)
    back = [page for row, block in zip(fresh, BLOCKS, strict=True) for page in row[: 24 // block]]
    move([(tier, place, hand.pools, page) for place, page in enumerate(back)])
    (after,) = hand.run((text, 24, 30, fresh))
    assert torch.equal(before, after)


def test_columns_left_of_the_window_may_be_null() -> None:
    hand = Hand()
    text = hand.tokens(40)
    tables = hand.deal(40)
    hand.run((text, 0, 30, tables))
    tables[WINDOW][: (30 - 8 + 1) // 4] = [0] * ((30 - 8 + 1) // 4)
    (logits,) = hand.run((text, 30, 40, tables))
    assert far(logits, hand.cold(text)[30:]) <= EXACT


@pytest.mark.parametrize("group", [FULL, WINDOW, DELTA, MAMBA])
@pytest.mark.parametrize("damage", ["null", "missing", "freed", "foreign"])
def test_reading_poison_shows(group: int, damage: str) -> None:
    hand = Hand()
    text = hand.tokens(30)
    tables = hand.deal(30)
    hand.run((text, 0, 24, tables))
    column = 24 // BLOCKS[group] - 1
    page = tables[group][column]
    if damage == "null":
        tables[group][column] = 0
    elif damage == "missing":
        del tables[group][column:]
    elif damage == "freed":
        hand.pools.poison([page])
    else:
        other = hand.deal(8)
        other[(group + 1) % 4][0] = page
        hand.run((text, 0, 4, other))
    (logits,) = hand.run((text, 24, 28, tables))
    assert math.isnan(float(logits[-1].sum()))


def test_poison_stays_with_the_request_that_reads_it() -> None:
    hand = Hand()
    texts = [hand.tokens(20, i) for i in range(2)]
    tables = [hand.deal(20) for _ in range(2)]
    hand.run(*((text, 0, 16, table) for text, table in zip(texts, tables, strict=True)))
    hand.pools.poison(tables[0][FULL])
    sick, well = hand.run(
        *((text, 16, 20, table) for text, table in zip(texts, tables, strict=True)), pad_rows=4
    )
    assert sick.isnan().all()
    assert far(well, hand.cold(texts[1])[16:]) <= EXACT


def test_zeroed_state_is_no_state_at_all() -> None:
    hand = Hand()
    text = hand.tokens(20)
    tables = hand.deal(20)
    hand.run((text, 0, 16, tables))
    hand.pools.zero([tables[DELTA][1]])
    (logits,) = hand.run((text, 16, 20, tables))
    assert far(logits, hand.cold(text)[16:]) > 1e-3


def test_attention_of_the_same_step_is_there_and_a_state_of_the_same_step_is_not() -> None:
    hand = Hand()
    text = hand.tokens(20)
    tables = hand.deal(20)
    later = [*tables[:2], *hand.deal(20)[2:]]
    hand.run((text, 0, 8, tables))
    for g in (DELTA, MAMBA):
        later[g][0] = tables[g][0]
    _, same_step = hand.run((text, 8, 16, tables), (text, 8, 16, later))
    assert far(same_step, hand.cold(text)[8:16]) <= EXACT
    unwritten = hand.deal(24)
    _, too_early = hand.run((text, 0, 8, unwritten), (text, 8, 16, unwritten))
    assert too_early.isnan().all()


def test_group_that_keeps_every_block_can_be_resumed_at_each_of_them() -> None:
    hand = Hand(every_block=True)
    text = hand.tokens(32)
    tables = hand.deal(32)
    hand.run((text, 0, 3, tables))
    hand.run((text, 3, 29, tables))
    for boundary in (8, 16, 24):
        (logits,) = hand.run(
            (text, boundary, boundary + 2, [*tables[:2], *_after(hand, tables, boundary)])
        )
        assert far(logits, hand.cold(text)[boundary : boundary + 2]) <= EXACT


@pytest.mark.parametrize("accepted", range(4))
def test_rejected_drafts_are_rolled_back_by_continuing_from_the_state_of_the_last_right_one(
    accepted: int,
) -> None:
    hand = Hand()
    text = hand.tokens(30)
    tables = hand.deal(30)
    hand.run((text, 0, 19, tables))
    scratch = [[], [], *([hand.deal(24)[g][i] for i in range(3)] for g in (DELTA, MAMBA))]
    guesses = text[21 : 21 + accepted] + [(token + 1) % 97 for token in text[21 + accepted : 24]]
    chunk = Chunk(text[19:21] + guesses, 19, tables, drafts=3, scratch=scratch, outputs=4)
    logits = step(hand.pools, [chunk], hand.weights)
    assert far(logits[: accepted + 1], hand.cold(text)[20 : 21 + accepted]) <= EXACT
    resume = 21 + accepted
    if accepted:
        kept = [
            (hand.pools, scratch[g][accepted - 1], hand.pools, tables[g][(resume - 1) // 8])
            for g in (DELTA, MAMBA)
        ]
        move(kept)
    (after,) = hand.run((text, resume, 30, tables))
    assert far(after, hand.cold(text)[resume:]) <= EXACT


def test_state_kept_in_bfloat16_is_close_and_not_equal() -> None:
    hand = Hand(torch.float32, state_dtype=torch.bfloat16)
    text = hand.tokens(40)
    tables = hand.deal(40)
    hand.run((text, 0, 24, tables))
    (logits,) = hand.run((text, 24, 40, tables))
    assert 1e-6 < far(logits, hand.cold(text)[24:]) < 1e-1


def test_groups_must_hold_each_layer_once_and_one_type_each() -> None:
    hand = Hand()
    with pytest.raises(ModelError, match="one type"):
        Pools([PagedGroup((0, 1), 4), PagedGroup((2, 3), 4)], 8, hand.config)
    with pytest.raises(ModelError, match="belongs to just one"):
        Pools([PagedGroup((0,), 4)], 8, hand.config)


def _after(hand: Hand, tables: list[list[int]], boundary: int) -> list[list[int]]:
    """Return recurrent tables that continue from a kept state into fresh pages."""
    fresh = hand.deal(32)
    return [tables[g][: boundary // 8] + fresh[g][boundary // 8 :] for g in (DELTA, MAMBA)]
