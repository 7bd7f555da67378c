"""What the retention interval keeps, release by release.

The expected boundaries were seen on the real managers of the releases named; the masks are worked
out by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.checkers.finding import reused
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import parse
from cachewitness_reference.primitives import Position
from cachewitness_reference.vllm.retention import mamba_mask, replay_boundaries, sliding_window_mask
from suites.support.vllm_served import boundaries, scheduler, serve

FULL = {"kind": "full", "block_size": 16}
WINDOW = {"kind": "sliding", "block_size": 16, "window": 32}
MAMBA = {"kind": "recurrent", "block_size": 16}
PROMPT = list(range(1000, 1200))
EVERY = list(range(16, 241, 16))


@pytest.mark.parametrize(
    ("release", "interval", "kept"),
    [
        ("0.22", None, EVERY),
        ("0.24", None, EVERY),
        ("0.24", 0, [192]),
        ("0.24", 64, [64, 128, 192]),
        ("0.33", None, EVERY),
        ("0.33", 0, [192]),
        ("0.33", 64, [64, 128, 192]),
    ],
)
def test_mamba_keeps_one_state_per_interval_and_the_replay_boundary(
    release: str, interval: int | None, kept: list[int]
) -> None:
    engine = scheduler([FULL, MAMBA], release=release, retention_interval=interval)
    serve(engine, "cold", PROMPT, generate=41)
    assert boundaries(engine, 0) == EVERY, "full attention is never thinned out"
    assert boundaries(engine, 1) == kept
    assert serve(engine, "replay", PROMPT)[0] == 192


@pytest.mark.parametrize("release", ["0.23", "0.24", "0.33"])
@pytest.mark.parametrize(
    ("interval", "kept"), [(None, EVERY), (0, [176, 192]), (64, [48, 64, 112, 128, 176, 192, 240])]
)
def test_a_window_group_keeps_tails_of_two_blocks(
    release: str, interval: int | None, kept: list[int]
) -> None:
    engine = scheduler([FULL, WINDOW], release=release, retention_interval=interval)
    serve(engine, "cold", PROMPT, generate=41)
    assert boundaries(engine, 1) == kept
    assert serve(engine, "replay", PROMPT)[0] == 192


@pytest.mark.parametrize("groups", [[FULL, MAMBA], [FULL, WINDOW]])
@pytest.mark.parametrize(
    ("release", "interval", "first", "second"),
    [("0.25", 0, (0, 0), (0, 0)), ("0.26", 0, (0, 96), (96, 0)), ("0.33", 64, (64, 96), (96, 0))],
)
def test_from_0_26_the_first_sibling_pins_the_shared_prefix_boundary_for_the_second(
    groups: list[dict[str, Any]],
    release: str,
    interval: int,
    first: tuple[int, int],
    second: tuple[int, int],
) -> None:
    engine = scheduler(groups, release=release, retention_interval=interval)
    serve(engine, "cold", PROMPT)
    assert serve(engine, "first", PROMPT[:100] + [5] * 60) == first
    assert serve(engine, "second", PROMPT[:100] + [6] * 60) == second


@pytest.mark.parametrize("interval", [0, 64])
def test_in_0_23_states_are_kept_densely_beside_a_thinned_window(interval: int) -> None:
    engine = scheduler([FULL, WINDOW, MAMBA], release="0.23", retention_interval=interval)
    serve(engine, "cold", PROMPT)
    assert boundaries(engine, 2) == [b for b in EVERY if b <= 192]
    assert len(boundaries(engine, 1)) < len(boundaries(engine, 2))


def test_the_default_is_dense_before_0_29_and_sparse_from_then_on() -> None:
    kept = {}
    for release in ("0.24", "0.28", "0.29"):
        engine = scheduler([FULL, MAMBA], release=release)
        serve(engine, "cold", PROMPT)
        kept[release] = boundaries(engine, 1)
    dense = [b for b in EVERY if b <= 192]
    assert kept == {"0.24": dense, "0.28": dense, "0.29": [192]}


def test_in_0_29_a_hybrid_with_eagle_stays_dense_by_default() -> None:
    """The resend boundary of EAGLE is not kept yet, so the release makes an exception
    (engine/arg_utils.py, 0.29.0).
    """
    engine = scheduler([FULL, MAMBA], release="0.29", use_eagle=True)
    serve(engine, "cold", PROMPT)
    assert boundaries(engine, 1) == [b for b in EVERY if b <= 192]


@pytest.mark.parametrize(("prompt", "resend", "longer"), [(64, 48, 48), (65, 64, 64)])
def test_a_block_aligned_prompt_loses_a_block_under_interval_0(
    prompt: int, resend: int, longer: int
) -> None:
    """Only the boundary below n - 1 is kept, although a longer sibling could use the one at n."""
    engine = scheduler([FULL, MAMBA], retention_interval=0)
    serve(engine, "cold", PROMPT[:prompt])
    assert serve(engine, "resend", PROMPT[:prompt])[0] == resend
    assert serve(engine, "longer", PROMPT[:prompt] + [5] * 30)[0] == longer


@pytest.mark.parametrize("groups", [[FULL, MAMBA], [FULL, WINDOW]])
def test_eagle_gives_one_block_back_and_keeps_what_it_needs(groups: list[dict[str, Any]]) -> None:
    engine = scheduler(groups, retention_interval=0, use_eagle=True)
    serve(engine, "cold", PROMPT)
    expected = [176] if groups[1] is MAMBA else [160, 176, 192]
    assert boundaries(engine, 1) == expected
    assert serve(engine, "resend", PROMPT)[0] == 176


def test_without_boundaries_of_its_own_eagle_never_hits_a_sparse_state() -> None:
    """As in 0.29: the state is kept at 192, and attention, having given a block back, ends at
    176.
    """
    engine = scheduler([FULL, MAMBA], release="0.29", retention_interval=0, use_eagle=True)
    serve(engine, "cold", PROMPT)
    assert serve(engine, "resend", PROMPT)[0] < 176


def test_replay_boundaries() -> None:
    assert replay_boundaries(200, 16, use_eagle=False) == (199,)
    assert replay_boundaries(200, 16, use_eagle=True) == (176,)
    assert replay_boundaries(192, 16, use_eagle=True) == (160, 176)
    assert replay_boundaries(10, 16, use_eagle=True) == (0,)


def test_a_mamba_mask_does_not_depend_on_where_the_range_starts() -> None:
    whole = mamba_mask(
        range(12), block_size=16, alignment=16, interval=64, reachable=[Position(150)]
    )
    assert whole is not None
    assert [column for column, keep in enumerate(whole) if keep] == [3, 7, 8, 11]
    for start in range(12):
        for stop in range(start + 1, 13):
            part = mamba_mask(
                range(start, stop),
                block_size=16,
                alignment=16,
                interval=64,
                reachable=[Position(150)],
            )
            assert part == whole[start:stop]


def test_an_interval_of_one_block_is_dense() -> None:
    assert mamba_mask(range(4), block_size=16, alignment=16, interval=16, reachable=[]) is None


def test_a_window_as_long_as_the_interval_is_dense() -> None:
    def mask(contiguous: int) -> list[bool] | None:
        return sliding_window_mask(
            range(8),
            block_size=16,
            contiguous=contiguous,
            alignment=16,
            use_eagle=False,
            interval=64,
            reachable=[],
        )

    assert mask(4) is None
    assert mask(3) == [False, True, True, True] * 2


def test_unset_still_masks_window_blocks_that_no_aligned_hit_can_use() -> None:
    mask = sliding_window_mask(
        range(8),
        block_size=16,
        contiguous=1,
        alignment=64,
        use_eagle=False,
        interval=None,
        reachable=[],
    )
    assert mask == [False, False, False, True] * 2


def test_who_parts_inside_the_last_block_is_told_what_was_thinned_out() -> None:
    """With an interval of 0 a window is kept at the end of a prompt alone: nothing is hit by who
    parts in front of that, lawfully.
    """
    layout = Layout("unequal", [GroupSpec("full", 16), GroupSpec("sliding", 8, window=32)])
    header = TraceHeader("parts", layout, 64, "manager", "vllm", {"retention_interval": 0})
    first = [Submit("a", "A:70"), Step([("a", 70)]), Finish("a")]
    second = [Submit("b", "A:60 b:20"), Step([("b", 80)]), Finish("b")]
    result = drive(Trace(header, [*first, *second]), parse("reference").open(header))
    assert result.findings == []
    assert reused(result.tallies) == (
        "hits: 0 tokens got, 0 owed by what was kept; 48 had been computed before, of which 48 were"
        " thinned out"
    )
