"""What a user may set, what the constructors set for him, and what is refused, in whose words."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from cachewitness_reference.openvino_genai.config import ConfigError, SchedulerConfig, config_for
from cachewitness_reference.openvino_genai.scheduler import RefusedRequest, Scheduler
from cachewitness_reference.openvino_genai.sequence import SequenceGroup
from cachewitness_reference.openvino_genai.sizing import LayoutBytes, derive

UNLIMITED = 18446744073709551615
GIB = 1073741824
HYBRID = LayoutBytes(kv_block_bytes=8192, la_block_bytes=73728)
PLAIN = LayoutBytes(kv_block_bytes=8192)
MEMORY = 24 * GIB


def refusal(layout: LayoutBytes = HYBRID, memory: int | None = MEMORY, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        derive(SchedulerConfig(**settings), layout, total_memory_bytes=memory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_header() -> None:
    """Every field that the document names has OpenVINO's default."""
    expected = {
        "max_num_batched_tokens": 256,
        "num_kv_blocks": 0,
        "cache_size": 0,
        "num_linear_attention_blocks": 0,
        "cache_interval_multiplier": None,
        "dynamic_split_fuse": True,
        "use_cache_eviction": False,
        "max_num_seqs": 256,
        "enable_prefix_caching": False,
        "use_sparse_attention": False,
    }
    assert {
        field.name: getattr(SchedulerConfig(), field.name) for field in fields(SchedulerConfig)
    } == expected


@pytest.mark.parametrize("constructor", ["LLMPipeline", "VLMPipeline"])
def test_latency_profile_changes_two_fields(constructor: Any) -> None:
    """Without a scheduler config these constructors lift the batch limit and cache prefixes;
    nothing else differs.
    """
    profile = config_for(constructor)
    assert profile == replace(
        SchedulerConfig(), max_num_batched_tokens=UNLIMITED, enable_prefix_caching=True
    )


@pytest.mark.parametrize(
    "constructor", ["LLMPipeline", "VLMPipeline", "ContinuousBatchingPipeline"]
)
def test_a_given_config_is_taken_as_it_is(constructor: Any) -> None:
    """Who passes a scheduler config gets that one, from every constructor."""
    given = SchedulerConfig(num_kv_blocks=7)
    assert config_for(constructor, given) is given


def test_continuous_batching_pipeline_has_no_profile() -> None:
    """ContinuousBatchingPipeline uses the object that the caller provides."""
    with pytest.raises(ConfigError, match="scheduler_config"):
        config_for("ContinuousBatchingPipeline")


def test_same_model_is_sized_by_the_constructor_path() -> None:
    """With the same KV blocks the constructors' defaults give different numbers of states: 8
    against 256.
    """
    client = replace(config_for("LLMPipeline"), num_kv_blocks=64, cache_interval_multiplier=8)
    server = config_for("ContinuousBatchingPipeline", SchedulerConfig(num_kv_blocks=64))
    assert (derive(client, HYBRID).la_blocks, derive(server, HYBRID).la_blocks) == (8, 256)


def test_multiplier_zero_needs_prefix_caching_off() -> None:
    """0 is refused with prefix caching, on plain models too, and means nothing without."""
    text = (
        "SchedulerConfig cache_interval_multiplier must be greater than 0 when prefix caching is"
        " enabled"
    )
    for layout in (HYBRID, PLAIN):
        assert refusal(layout, enable_prefix_caching=True, cache_interval_multiplier=0) == text
    assert (
        derive(SchedulerConfig(num_kv_blocks=4, cache_interval_multiplier=0), HYBRID).multiplier
        is None
    )


def test_states_must_not_be_set_without_linear_attention() -> None:
    """num_linear_attention_blocks is refused on a model that has none; a multiplier is ignored
    there.
    """
    assert (
        refusal(PLAIN, num_kv_blocks=64, num_linear_attention_blocks=1)
        == "SchedulerConfig num_linear_attention_blocks can be set only for models with linear"
        " attention cache inputs"
    )
    ignored = SchedulerConfig(
        num_kv_blocks=64, enable_prefix_caching=True, cache_interval_multiplier=3
    )
    assert derive(ignored, PLAIN).multiplier is None


def test_budget_beyond_memory() -> None:
    assert (
        refusal(cache_size=1000)
        == "Requested cache size is larger than available memory size on the system."
    )


@pytest.mark.parametrize("blocks", [4_000_000, 2**31])
def test_blocks_beyond_memory(blocks: int) -> None:
    """4 000 000 blocks of 8 KiB are more than 24 GiB; 2^31 is the most that 32-bit indices name,
    and more than memory too.
    """
    assert (
        refusal(num_kv_blocks=blocks)
        == "Requested cache blocks require more memory than available on the system."
    )


def test_memory_is_counted_with_both_pools() -> None:
    """What KV alone fits, KV and states may not: 1 MiB holds 128 KV blocks, but no state beside
    them.
    """
    fits = derive(SchedulerConfig(num_kv_blocks=128), PLAIN, total_memory_bytes=2**20)
    assert fits.total_bytes == 2**20
    refusal(HYBRID, 2**20, num_kv_blocks=128, max_num_seqs=1)


def test_states_beyond_the_budget() -> None:
    assert (
        refusal(cache_size=1, max_num_seqs=20000)
        == "Requested linear attention cache allocation exceeds the configured cache size."
    )


def test_interval_beyond_64_bits() -> None:
    """32 x 2^60 wraps a size_t: OpenVINO's own refusal."""
    assert (
        refusal(num_kv_blocks=64, enable_prefix_caching=True, cache_interval_multiplier=2**60)
        == "SchedulerConfig cache_interval_multiplier is too large for KV cache block size. "
        f"cache_interval_multiplier: {2**60}, KV cache block size: 32"
    )


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("num_kv_blocks", {"num_kv_blocks": 2**49}),
        ("num_linear_attention_blocks", {"num_kv_blocks": 4, "num_linear_attention_blocks": 2**49}),
        ("max_num_seqs", {"num_kv_blocks": 4, "max_num_seqs": 2**49}),
        ("cache_size", {"cache_size": 2**34}),
        ("cache_size", {"cache_size": 2**30}),
        (
            "cache_interval_multiplier",
            {"enable_prefix_caching": True, "cache_interval_multiplier": 2**58},
        ),
        (
            "cache_interval_multiplier",
            {"enable_prefix_caching": True, "cache_interval_multiplier": 2**26},
        ),
    ],
)
def test_numbers_that_wrap_in_openvino_are_refused_by_field(
    field: str, settings: dict[str, Any]
) -> None:
    """Where the release wraps around, cuts to 32 bits or dies in its first step, one line names
    the field.
    """
    assert refusal(memory=None, **settings).startswith(f"{field}: ")


@pytest.mark.parametrize("multiplier", [2**26 - 1, 1])
def test_the_largest_interval_is_taken(multiplier: int) -> None:
    """(2^26 - 1) x 32 tokens fit 32 bits."""
    config = SchedulerConfig(
        num_kv_blocks=4, enable_prefix_caching=True, cache_interval_multiplier=multiplier
    )
    assert derive(config, HYBRID).interval == 32 * multiplier


@pytest.mark.parametrize(
    "field", [f.name for f in fields(SchedulerConfig) if isinstance(f.default, int)]
)
@pytest.mark.parametrize("value", [-1, 1.5, "many", 2**64])
def test_a_field_holds_whole_numbers_of_64_bits_or_a_flag(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        SchedulerConfig(**{field: value})


@pytest.mark.parametrize("field", ["use_cache_eviction", "use_sparse_attention"])
def test_rules_left_out_are_refused_not_ignored(field: str) -> None:
    assert refusal(**{field: True}).startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["kv_block_bytes", "la_block_bytes", "kv_block_size"])
def test_layout_bytes_are_whole_numbers(field: str) -> None:
    sizes: dict[str, Any] = {
        "kv_block_bytes": 1,
        "la_block_bytes": 1,
        "kv_block_size": 1,
        field: -1,
    }
    with pytest.raises(ConfigError, match=f"^{field}: "):
        LayoutBytes(**sizes)


def test_vllm_mode_needs_a_batch_as_large_as_its_sequences() -> None:
    config = SchedulerConfig(num_kv_blocks=64, dynamic_split_fuse=False, max_num_batched_tokens=100)
    with pytest.raises(ConfigError) as caught:
        Scheduler(config, derive(config, HYBRID), 32, hybrid=True)
    assert (
        str(caught.value)
        == "Max num batched tokens (100) must be greater or equal to max num sequences (256)"
    )


def test_vllm_mode_refuses_a_prompt_longer_than_a_batch() -> None:
    config = SchedulerConfig(
        num_kv_blocks=64, dynamic_split_fuse=False, max_num_batched_tokens=100, max_num_seqs=4
    )
    scheduler = Scheduler(config, derive(config, HYBRID), 32, hybrid=True)
    with pytest.raises(RefusedRequest) as caught:
        scheduler.add_request(SequenceGroup("r", range(300), 32))
    assert (
        str(caught.value)
        == "Sequence length (300) is longer than max number of tokens in batch (100)"
    )


def test_an_empty_prompt_is_refused() -> None:
    config = SchedulerConfig(num_kv_blocks=64)
    scheduler = Scheduler(config, derive(config, HYBRID), 32, hybrid=True)
    with pytest.raises(RefusedRequest, match=r"^Prompt length cannot be 0$"):
        scheduler.add_request(SequenceGroup("r", [], 32))
