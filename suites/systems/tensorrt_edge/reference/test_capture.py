"""Capture and restore: copies of one slot that know their position, and are never paired with
another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cachewitness_reference.tensorrt_edge.capture import Captured
from cachewitness_reference.tensorrt_edge.config import DataType
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from suites.support.tensorrt_edge import LONGEST, A, M, config, refused


def computed(*lengths: int) -> HybridCachePolicy:
    """Return a hybrid manager with so many tokens computed in its rows."""
    cache = HybridCachePolicy(config((A, M, A, M)))
    cache.reset_for_new_sequences([0] * len(lengths))
    cache.commit_sequence_length(list(lengths))
    return cache


def restore(
    cache: HybridCachePolicy, slot: int, kv: Any = None, recurrent: Any = None, conv: Any = None
) -> None:
    """Restore what is given."""
    for how, saved in (
        (cache.restore_kv_cache, kv),
        (cache.restore_recurrent_states, recurrent),
        (cache.restore_conv_states, conv),
    ):
        if saved is not None:
            how(saved, slot)


def snapshot(cache: HybridCachePolicy, slot: int, tokens: int) -> dict[str, Captured[None]]:
    """Capture everything of a slot."""
    return {
        "kv": cache.capture_kv_cache(slot, tokens),
        "recurrent": cache.capture_recurrent_states(slot),
        "conv": cache.capture_conv_states(slot),
    }


def test_there_is_one_capture_per_layer_of_its_kind() -> None:
    """Two attention and two Mamba layers; of a model without Mamba layers the vectors are empty."""
    assert [len(saved) for saved in snapshot(computed(9), 0, 9).values()] == [2, 2, 2]
    plain = HybridCachePolicy(config((A, A)))
    plain.reset_for_new_sequences([0])
    assert [*plain.capture_recurrent_states(0)] == [*plain.capture_conv_states(0)] == []


def test_a_capture_knows_the_position_that_it_belongs_to() -> None:
    """KV that of the tokens asked for, states that of all tokens computed."""
    positions = {kind: saved.position for kind, saved in snapshot(computed(9, 12), 1, 4).items()}
    assert positions == {"kv": 4, "recurrent": 12, "conv": 12}


def test_restored_at_its_own_length_it_goes_on_from_there() -> None:
    """Restore, reset with exactly that length, and compute on."""
    cache = computed(9)
    saved = snapshot(cache, 0, 9)
    restore(cache, 2, **saved)
    for slot in (0, 1):
        cache.zero_recurrent_states(slot)
    cache.reset_for_new_sequences([0, 0, 9])
    cache.commit_sequence_length([5, 5, 1])
    assert cache.get_kv_cache_lengths() == [5, 5, 10]


@pytest.mark.parametrize("length", [0, 8])
def test_restored_beside_another_kv_length_it_is_refused(length: int) -> None:
    """One token less is the releases' own bug: recurrent layers would apply the last token
    twice.
    """
    cache = computed(9)
    restore(cache, 0, **snapshot(cache, 0, 9))
    text = refused(cache.reset_for_new_sequences, [length])
    assert text.endswith(f"slot 0 has KV length {length}; its recurrent states are of position 9.")
    assert cache.get_kv_cache_lengths() == [9]


def test_kv_and_states_restored_from_two_captures_are_refused() -> None:
    """Conv states of another position than recurrent ones as well."""
    cache = computed(9, 12)
    restore(cache, 0, recurrent=cache.capture_recurrent_states(1))
    assert "recurrent states are of position 12" in refused(cache.reset_for_new_sequences, [9])
    restore(cache, 0, recurrent=cache.capture_recurrent_states(0))
    cache = computed(9, 12)
    restore(cache, 0, conv=cache.capture_conv_states(1))
    assert "conv states are of position 12" in refused(cache.reset_for_new_sequences, [9])


def test_a_running_row_that_is_restored_without_a_reset_is_refused_at_its_next_commit() -> None:
    cache = computed(9, 12)
    restore(cache, 0, recurrent=cache.capture_recurrent_states(1))
    assert "slot 0 has KV length 9; its recurrent states are of position 12" in refused(
        cache.commit_sequence_length, 1
    )
    cache = computed(9, 12)
    restore(cache, 0, kv=cache.capture_kv_cache(1, 12))
    assert "slot 0 has length 9; its KV cache is of position 12" in refused(
        cache.commit_sequence_length, 1
    )


def test_states_that_were_not_zeroed_cannot_begin_a_sequence() -> None:
    """The releases leave that to their runtime; forgotten, a request would go on from its
    predecessor's state.
    """
    cache = computed(9)
    assert "its recurrent states are of position 9" in refused(cache.reset_for_new_sequences, [0])
    cache.zero_recurrent_states(0)
    cache.reset_for_new_sequences([0])
    cache.commit_sequence_length([3])
    cache.clear_states()
    cache.reset_for_new_sequences([0, 0])


def test_reset_leaves_what_is_reused_in_place() -> None:
    """A row that goes on where it stopped needs no restore."""
    cache = computed(9)
    cache.reset_for_new_sequences([9])
    cache.commit_sequence_length([4])
    assert cache.capture_recurrent_states(0).position == 13


def test_of_attention_alone_any_prefix_may_be_reused() -> None:
    """KV of n tokens serves any shorter length; only states belong to one."""
    cache = HybridCachePolicy(config((A, A)))
    cache.reset_for_new_sequences([0])
    cache.commit_sequence_length([9])
    saved = cache.capture_kv_cache(0, 7)
    cache.restore_kv_cache(saved, 1)
    cache.reset_for_new_sequences([5, 4])
    assert cache.get_kv_cache_lengths() == [5, 4]
    cache.restore_kv_cache(saved, 1)
    assert "slot 1 reuses 8 tokens; its KV cache holds 7" in refused(
        cache.reset_for_new_sequences, [5, 8]
    )


def test_capture_does_not_reach_beyond_what_was_computed() -> None:
    cache = computed(9)
    assert refused(cache.capture_kv_cache, 0, 10).endswith(
        "is not in range [0, 9], what slot 0 holds."
    )
    assert "-1 is not in range" in refused(cache.capture_kv_cache, 0, -1)
    assert cache.capture_kv_cache(0, 0).position == 0


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_out_of_range_is_refused_by_every_capture_and_restore(slot: int) -> None:
    cache = computed(9)
    saved = snapshot(cache, 0, 9)
    for name, call, arguments in (
        ("captureKVCache", cache.capture_kv_cache, (slot, 1)),
        ("captureRecurrentStates", cache.capture_recurrent_states, (slot,)),
        ("captureConvStates", cache.capture_conv_states, (slot,)),
        ("restoreKVCache", cache.restore_kv_cache, (saved["kv"], slot)),
        ("restoreRecurrentStates", cache.restore_recurrent_states, (saved["recurrent"], slot)),
        ("restoreConvStates", cache.restore_conv_states, (saved["conv"], slot)),
        ("zeroRecurrentStates", cache.zero_recurrent_states, (slot,)),
    ):
        assert refused(call, *arguments) == f"{name}: batchIdx {slot} out of range [0, 4)."


def test_a_capture_of_another_kind_or_another_model_is_refused() -> None:
    cache = computed(9)
    saved = snapshot(cache, 0, 9)
    assert (
        refused(cache.restore_kv_cache, saved["conv"], 0)
        == "restoreKVCache: saved holds conv states, not KV cache."
    )
    other = HybridCachePolicy(config((A, M, M), (64,)))
    assert (
        refused(other.restore_kv_cache, saved["kv"], 0)
        == "restoreKVCache: saved has 2 layers; the cache has 1."
    )
    bare: Any = [None, None]
    assert "its position is unknown" in refused(cache.restore_recurrent_states, bare, 0)
    right = config((A, M, A, M))
    short = HybridCachePolicy(
        replace(right, kv_config=replace(right.kv_config, max_sequence_length=8))
    )
    for how, kind in (
        (short.restore_kv_cache, "kv"),
        (short.restore_recurrent_states, "recurrent"),
    ):
        assert refused(how, saved[kind], 0).endswith(
            "saved is of 9 tokens; maxSequenceLength is 8."
        )


def test_fp8_kv_is_neither_captured_nor_restored() -> None:
    """Its states are."""
    right = config((A, M, A, M))
    cache = HybridCachePolicy(
        replace(right, kv_config=replace(right.kv_config, kv_cache_type=DataType.FP8))
    )
    text = "currently only supports kHALF KV cache; FP8 system-prompt cache is not implemented."
    assert refused(cache.capture_kv_cache, 0, 0) == f"HybridCacheManager::captureKVCache {text}"
    saved = computed(9).capture_kv_cache(0, 9)
    assert refused(cache.restore_kv_cache, saved, 0) == f"HybridCacheManager::restoreKVCache {text}"
    cache.restore_recurrent_states(cache.capture_recurrent_states(0), 1)


def test_a_capture_as_long_as_a_row_can_be_restored() -> None:
    cache = computed(LONGEST)
    restore(cache, 1, **snapshot(cache, 0, LONGEST))
    cache.reset_for_new_sequences([LONGEST, LONGEST])
    assert cache.get_kv_cache_lengths() == [LONGEST, LONGEST]


def test_restoring_leaves_the_lengths_as_they_are() -> None:
    """They are declared by the reset that follows."""
    cache = computed(9, 4)
    restore(cache, 1, **snapshot(cache, 0, 9))
    assert cache.get_kv_cache_lengths() == [9, 4]
