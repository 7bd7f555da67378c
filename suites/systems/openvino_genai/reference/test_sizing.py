"""How many blocks each pool gets. Expected values were measured on 2026.4.1.0, or are worked out in
the test.

Two small models were measured, in float32 with KV blocks of 32 tokens:

* `small`: two attention layers of one head of 64 (2 x 2 x 32 x 64 x 4 = 32 768 bytes a block), two
  DeltaNet layers of two heads of 64 x 64 with a convolution of 256 channels x 4 (2 x (2 x 64 x 64 +
  256 x 4) x 4 = 73 728 bytes a state);
* `large`: one attention layer of one head of 32 (8 192), three DeltaNet layers of four heads of 128
  x 128 with a convolution of 1 024 x 4 (3 x (4 x 128 x 128 + 1 024 x 4) x 4 = 835 584): a state of
  102 KV blocks.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.openvino_genai.config import ConfigError, SchedulerConfig
from cachewitness_reference.openvino_genai.sizing import (
    LayoutBytes,
    adaptive_multiplier,
    derive,
    growth_blocks,
    initial_tokens,
    multiplier_for,
    split_budget,
    target_blocks,
)
from cachewitness_reference.openvino_genai.spec import KV_BLOCK_SIZES

UNLIMITED = 18446744073709551615
GIB = 1073741824
SMALL = LayoutBytes(kv_block_bytes=32768, la_block_bytes=73728)
LARGE = LayoutBytes(kv_block_bytes=8192, la_block_bytes=835584)


def blocks(
    layout: LayoutBytes = SMALL, version: str = "2026.4", **settings: Any
) -> tuple[int, int]:
    capacity = derive(SchedulerConfig(**settings), layout, version)
    return capacity.kv_blocks, capacity.la_blocks


def prefix(**settings: Any) -> dict[str, Any]:
    return {"enable_prefix_caching": True, **settings}


def test_kv_block_tokens_are_determined_by_the_device() -> None:
    assert KV_BLOCK_SIZES == {"CPU": 32, "GPU": 16, "GPU+XATTENTION": 256}


@pytest.mark.parametrize("kv", [1, 64, 1024])
def test_more_kv_blocks_hold_more_tokens(kv: int) -> None:
    """KV capacity is what was asked for, block by block, with prefix caching or without."""
    assert blocks(num_kv_blocks=kv)[0] == blocks(**prefix(num_kv_blocks=kv))[0] == kv


def test_explicit_kv_without_prefix_caching_unlimited_starts_with_one_state() -> None:
    assert blocks(num_kv_blocks=64, max_num_seqs=5, max_num_batched_tokens=UNLIMITED) == (64, 1)


@pytest.mark.parametrize("sequences", [256, 5])
def test_explicit_kv_without_prefix_caching_bounded_derives_states_from_max_num_seqs(
    sequences: int,
) -> None:
    assert blocks(num_kv_blocks=64, max_num_seqs=sequences) == (64, sequences)


def test_almost_unlimited_is_bounded() -> None:
    """Only the largest size_t means unlimited."""
    assert blocks(num_kv_blocks=64, max_num_seqs=5, max_num_batched_tokens=UNLIMITED - 1) == (64, 5)


@pytest.mark.parametrize(
    ("multiplier", "states"), [(1, 64), (3, 22), (7, 10), (8, 8), (64, 1), (100, 1)]
)
def test_explicit_kv_with_prefix_caching_derives_ceil_of_kv_over_multiplier(
    multiplier: int, states: int
) -> None:
    """Measured for 64 KV blocks and each of these multipliers."""
    assert blocks(**prefix(num_kv_blocks=64, cache_interval_multiplier=multiplier)) == (64, states)


@pytest.mark.parametrize("batch", [256, UNLIMITED])
def test_with_prefix_caching_the_batch_limit_sizes_nothing(batch: int) -> None:
    assert blocks(
        **prefix(num_kv_blocks=64, cache_interval_multiplier=8, max_num_batched_tokens=batch)
    ) == (64, 8)


@pytest.mark.parametrize("multiplier", [1, 8, 102])
def test_interval_is_kv_block_size_times_multiplier(multiplier: int) -> None:
    for size in KV_BLOCK_SIZES.values():
        layout = LayoutBytes(32768, 73728, size)
        config = SchedulerConfig(
            num_kv_blocks=64, enable_prefix_caching=True, cache_interval_multiplier=multiplier
        )
        assert derive(config, layout).interval == size * multiplier


@pytest.mark.parametrize("layout", [SMALL, LARGE])
def test_unset_multiplier_is_8_in_2026_2(layout: LayoutBytes) -> None:
    """The document's rule, whatever the model."""
    assert multiplier_for(SchedulerConfig(enable_prefix_caching=True), layout, "2026.2") == 8


@pytest.mark.parametrize("version", ["2026.3", "2026.4"])
def test_unset_multiplier_is_adaptive_since_2026_3(version: str) -> None:
    """Measured: 102 for a state of 835 584 bytes beside KV blocks of 8 192."""
    config = SchedulerConfig(enable_prefix_caching=True)
    assert multiplier_for(config, LARGE, version) == 102
    assert multiplier_for(config, SMALL, version) == 8


@pytest.mark.parametrize(
    ("state", "kv", "multiplier"),
    [
        (1, 1, 8),
        (64, 8, 8),
        (65, 8, 9),
        (2047, 8, 256),
        (2048, 8, 256),
        (2049, 8, 256),
        (10**12, 1, 256),
    ],
)
def test_adaptive_multiplier_is_within_8_and_256(state: int, kv: int, multiplier: int) -> None:
    """min(max(8, ceil(a / b)), 256), at its edges."""
    assert adaptive_multiplier(state, kv) == multiplier


@pytest.mark.parametrize(("kv", "states"), [(102, 1), (103, 2), (204, 2), (205, 3), (1024, 11)])
def test_measured_states_of_the_large_model(kv: int, states: int) -> None:
    """Measured with the adaptive multiplier of 102."""
    assert blocks(LARGE, **prefix(num_kv_blocks=kv)) == (kv, states)


def test_a_set_multiplier_is_honoured_in_every_release() -> None:
    for version in ("2026.2", "2026.3", "2026.4"):
        assert blocks(LARGE, version, **prefix(num_kv_blocks=64, cache_interval_multiplier=3)) == (
            64,
            22,
        )


@pytest.mark.parametrize("budget", [{"num_kv_blocks": 1024}, {"cache_size": 1}])
def test_smaller_multipliers_make_more_checkpoints_and_take_more_memory(
    budget: dict[str, int],
) -> None:
    """Larger ones the other way round: states fall strictly with the multiplier, and so do their
    bytes.
    """
    found = [
        derive(SchedulerConfig(**prefix(cache_interval_multiplier=m, **budget)), SMALL)
        for m in (1, 2, 4, 8, 64)
    ]
    states = [capacity.la_blocks for capacity in found]
    assert states == sorted(set(states), reverse=True)
    assert [capacity.la_bytes for capacity in found] == [73728 * count for count in states]


def test_explicit_capacity_is_deterministic() -> None:
    """Explicit KV blocks give the same counts whatever the bytes of the model, and a budget
    beside them; a budget does not.
    """
    explicit = prefix(num_kv_blocks=100, cache_interval_multiplier=8)
    assert blocks(SMALL, **explicit) == blocks(LARGE, **explicit) == (100, 13)
    many = prefix(num_kv_blocks=100_000, cache_interval_multiplier=8)
    assert blocks(SMALL, **many, cache_size=1) == blocks(SMALL, **many) == (100_000, 12_500)
    shared = prefix(cache_size=1, cache_interval_multiplier=8)
    assert blocks(SMALL, **shared) != blocks(LARGE, **shared)


def test_shared_budget_without_prefix_caching_takes_the_states_off_first() -> None:
    """Measured: floor((2^30 - states x 73 728) / 32 768) KV blocks for 5 sequences, and for one
    client.
    """
    assert blocks(cache_size=1, max_num_seqs=5) == ((GIB - 5 * 73728) // 32768, 5) == (32756, 5)
    assert blocks(cache_size=1, max_num_seqs=5, max_num_batched_tokens=UNLIMITED) == (
        (GIB - 73728) // 32768,
        1,
    )


def test_shared_budget_with_prefix_caching_measured() -> None:
    """Measured with a multiplier of 8: 3 197 states.

    3 196 whole intervals of 8 x 32 768 + 73 728 bytes fit 2^30; what is left, 294 912 bytes, holds
    a state and six KV blocks.
    """
    whole, rest = divmod(GIB, 8 * 32768 + 73728)
    assert (whole, rest) == (3196, 294912)
    assert blocks(**prefix(cache_size=1, cache_interval_multiplier=8)) == (
        3196 * 8 + (rest - 73728) // 32768,
        3197,
    )


@pytest.mark.parametrize("multiplier", [1, 2, 8, 100])
@pytest.mark.parametrize("budget", [32768, 106496, 10**6, GIB])
def test_the_split_holds_as_many_tokens_as_any_split_could(budget: int, multiplier: int) -> None:
    """One KV block more would not fit with the states that its tokens need; nor do the pools
    exceed the budget.
    """

    def cost(kv: int) -> int:
        return kv * 32768 + -(-kv // multiplier) * 73728

    kv, states = split_budget(budget, SMALL, 32 * multiplier)
    assert states == -(-kv // multiplier)
    assert (cost(kv) <= budget or kv == 0) and cost(kv + 1) > budget


def test_shared_budget_covers_all_registered_caches() -> None:
    """A model without linear attention gives the whole budget to KV, with prefix caching or
    without.
    """
    plain = LayoutBytes(32768)
    assert blocks(plain, cache_size=1) == blocks(plain, **prefix(cache_size=1)) == (32768, 0)


def test_num_kv_blocks_wins_over_cache_size() -> None:
    """Measured: with both set the budget is not looked at."""
    assert blocks(**prefix(cache_size=1, num_kv_blocks=64, cache_interval_multiplier=8)) == (64, 8)


def test_manual_states_override_the_derived_number() -> None:
    """With explicit KV blocks, and under a budget without prefix caching."""
    assert blocks(num_kv_blocks=64, num_linear_attention_blocks=20) == (64, 20)
    assert blocks(**prefix(num_kv_blocks=64, num_linear_attention_blocks=20)) == (64, 20)
    assert blocks(cache_size=1, num_linear_attention_blocks=20) == ((GIB - 20 * 73728) // 32768, 20)


def test_manual_states_are_discarded_by_a_shared_budget_with_prefix_caching() -> None:
    """The document says that they override; measured is the derived 3 197."""
    assert (
        blocks(**prefix(cache_size=1, cache_interval_multiplier=8, num_linear_attention_blocks=20))[
            1
        ]
        == 3197
    )


def test_without_sizes_nothing_is_derived_and_the_cache_is_dynamic() -> None:
    for settings in ({}, {"max_num_seqs": 5}, {"max_num_batched_tokens": UNLIMITED}, prefix()):
        capacity = derive(SchedulerConfig(**settings), SMALL)
        assert (capacity.kv_blocks, capacity.la_blocks, capacity.dynamic) == (0, 0, True)


def test_any_empty_pool_makes_the_cache_dynamic() -> None:
    """Measured: explicit KV blocks with max_num_seqs = 0 leave no state, and the cache grows."""
    assert derive(SchedulerConfig(num_kv_blocks=16, max_num_seqs=0), SMALL).dynamic
    assert not derive(SchedulerConfig(num_kv_blocks=16, max_num_seqs=1), SMALL).dynamic


def test_explicit_states_alone_leave_the_cache_dynamic() -> None:
    capacity = derive(SchedulerConfig(num_linear_attention_blocks=20), SMALL)
    assert (capacity.kv_blocks, capacity.la_blocks, capacity.dynamic) == (0, 20, True)


@pytest.mark.parametrize(
    ("prompt", "generated", "kv", "states"), [(40, 2, 2, 1), (40, 300, 3, 1), (1000, 2, 32, 4)]
)
def test_measured_first_sizes_of_a_dynamic_cache(
    prompt: int, generated: int, kv: int, states: int
) -> None:
    """Twice the prompt, or all that may come if that is less, rounded up to blocks of 32 and
    intervals of 256.
    """
    target = [(initial_tokens(prompt, generated), 1)]
    assert (target_blocks(target, 32), target_blocks(target, 256)) == (kv, states)


def test_targets_are_rounded_up_for_every_sequence() -> None:
    """Two sequences of 33 tokens take two blocks each."""
    assert target_blocks([(33, 2), (32, 1)], 32) == 5


def test_a_dynamic_cache_grows_by_256_tokens() -> None:
    """Measured: 8 more KV blocks of 32 tokens, one more state of 256."""
    assert (growth_blocks(32), growth_blocks(256), growth_blocks(3264)) == (8, 1, 1)


def test_an_unknown_release_is_named() -> None:
    with pytest.raises(ConfigError, match=r"version: '2025\.1' is unknown"):
        multiplier_for(SchedulerConfig(), SMALL, "2025.1")
