"""What LMCache refuses at start-up, word for word, in the releases that say so."""

from __future__ import annotations

import pytest

from cachewitness_reference.lmcache.checks import (
    StartupError,
    validate_chunk_size,
    validate_group_spans,
    validate_kv_cache_groups,
    validate_mamba_step_alignment,
    validate_registration,
    validate_servers,
    validate_transfer,
)
from cachewitness_reference.lmcache.groups import LayerSpec
from cachewitness_reference.lmcache.spec import RELEASES

OLD = [name for name, release in RELEASES.items() if release.step_below_two_blocks]
NEW = [name for name in RELEASES if name not in OLD]


def refusal(call: object, *arguments: object, **named: object) -> str:
    """Return the text with which a call is refused."""
    assert callable(call)
    with pytest.raises(StartupError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def test_releases_with_either_rule() -> None:
    assert OLD == ["0.4.7", "0.5.0", "0.5.1", "0.5.2", "0.5.3"] and NEW == [
        "0.5.4",
        "0.5.5",
        "0.5.6",
    ]


@pytest.mark.parametrize("release", OLD)
@pytest.mark.parametrize("budget", [783, 1568, 2048])
def test_outside_n_to_2n_raises_at_startup(release: str, budget: int) -> None:
    """Document, step 2: up to 0.5.3."""
    assert (
        refusal(validate_mamba_step_alignment, budget, [784], release=release)
        == "Mamba-hybrid models with LMCache require block_size <= max_num_batched_tokens < 2 *"
        " block_size so every prefill step advances exactly one block and every block boundary"
        f" gets a state snapshot; got max_num_batched_tokens={budget}, block_size=784. Set"
        " --max-num-batched-tokens 784."
    )


@pytest.mark.parametrize("release", OLD)
@pytest.mark.parametrize("budget", [784, 1000, 1567])
def test_n_to_2n_is_accepted_by_every_release(release: str, budget: int) -> None:
    for accepting in (release, *NEW):
        validate_mamba_step_alignment(budget, [784], release=accepting)


@pytest.mark.parametrize("release", NEW)
def test_only_less_than_n_raises_since_0_5_4(release: str) -> None:
    """Different from the document: the upper bound is gone."""
    assert (
        refusal(validate_mamba_step_alignment, 783, [784, 784], release=release)
        == "Mamba-hybrid models with LMCache require max_num_batched_tokens >= block_size so every"
        " prefill step advances at least one full block; got max_num_batched_tokens=783,"
        " block_size=784. Set --max-num-batched-tokens to at least 784."
    )
    validate_mamba_step_alignment(100_000, [784], release=release)


def test_other_modes_and_models_without_states_have_no_bound() -> None:
    validate_mamba_step_alignment(1, [784], "all")
    validate_mamba_step_alignment(1, [])


def test_states_have_one_block_size() -> None:
    text = "All Mamba KV cache groups must use one physical block size; got [16, 32]."
    assert refusal(validate_mamba_step_alignment, 64, [32, 16]) == text


def test_align_is_mandatory_up_to_0_5_4() -> None:
    """Document, step 2: align is mandatory. 0.5.5 takes `all` as well, and both refuse `none`."""
    state = LayerSpec("mamba", 16, mamba_cache_mode="all")
    text = (
        "LMCache cannot serve this model's KV cache groups: group 1: MambaSpec with"
        " mamba_cache_mode='all' (only 'align' keeps reusable state snapshots). See"
        " lmcache/integration/vllm/kv_cache_group_edits.py."
    )
    groups = [[LayerSpec("full", 16)], [state]]
    assert refusal(validate_kv_cache_groups, groups, "0.5.4") == text
    validate_kv_cache_groups(groups, "0.5.5")


def test_every_unsupported_group_is_named_in_one_line() -> None:
    """States that are not kept, and the caches of an encoder."""
    groups = [
        [LayerSpec("mamba", 16, mamba_cache_mode="none")],
        [LayerSpec("full", 16)],
        [LayerSpec("cross", 16)],
    ]
    assert (
        refusal(validate_kv_cache_groups, groups)
        == "LMCache cannot serve this model's KV cache groups: group 0: MambaSpec with"
        " mamba_cache_mode='none' (only 'align' and 'all' keep reusable state snapshots); group"
        " 2: CrossAttentionSpec. See lmcache/integration/vllm/kv_cache_group_edits.py."
    )


def test_chunk_must_be_a_multiple_of_the_unified_block_size() -> None:
    """Document, step 2: or registration fails."""
    assert (
        refusal(validate_chunk_size, 256, [784, 784])
        == "LMCache chunk size 256 must be a multiple of 784 (the vLLM block size scaled by"
        " decode_context_parallel_size). Set --chunk-size to a multiple of 784."
    )
    for chunk in (784, 1568):
        validate_chunk_size(chunk, [784, 784])


def test_chunk_must_be_a_multiple_of_every_groups_block() -> None:
    """With unequal blocks, of their least common multiple; a group that is never cached does not
    count.
    """
    assert "must be a multiple of 48" in refusal(validate_chunk_size, 32, [16, 48, 0])
    assert (
        refusal(validate_group_spans, 32, [16, 0, 48])
        == "LMCache chunk size 32 must be a multiple of group 2 tokens_per_block 48"
    )
    text = "LMCache chunk size 32 must be a multiple of engine group 2 tokens_per_block 48"
    assert refusal(validate_registration, 32, [16, 0, 48]) == text
    validate_chunk_size(96, [16, 48, 0])


@pytest.mark.parametrize("spans", [[0, 0], [16, -1]])
def test_some_group_must_be_cacheable(spans: list[int]) -> None:
    text = f"group tokens_per_block {spans} must be non-negative with at least one cacheable group"
    assert refusal(validate_chunk_size, 16, spans) == text


def test_servers_share_one_chunk_size() -> None:
    assert (
        refusal(validate_servers, [16, 32])
        == "All LMCache servers must share the same chunk_size, got {16, 32}"
    )
    validate_servers([16, 16])


def test_groups_are_moved_by_lmcache_alone() -> None:
    """Document: the multiprocess connector serves every group; where the engine moves the pages,
    one group is the limit.
    """
    text = "engine-driven transfer does not support hybrid KV cache groups"
    assert refusal(validate_transfer, 2, engine_driven=True) == text
    validate_transfer(1, engine_driven=True)
    validate_transfer(3, engine_driven=False)
