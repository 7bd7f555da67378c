"""TensorRT-Edge-LLM's manager by its document: construction, routing, groups, lengths, the
active batch.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachewitness_reference.tensorrt_edge.config import (
    DataType,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.spec import DIFFERENCES
from suites.support.tensorrt_edge import LONGEST, ROWS, A, M, config, refused


def uniform() -> HybridCachePolicy:
    """Return a manager of attention layers alone."""
    return HybridCachePolicy(config((A, A)))


# --- construction ---------------------------------------------------------------------------------


def test_the_default_constructor_allocates_nothing() -> None:
    """No layers, nobody active, empty."""
    cache = HybridCachePolicy()
    assert cache.get_active_batch_size() == 0 and cache.get_kv_cache_all_empty()
    assert cache.get_kv_head_dim_groups() == [] and cache.get_kv_cache_lengths() == []


def test_a_new_manager_has_nobody_active_and_is_empty() -> None:
    """Lengths are zero-initialised, and the view of them is that of the active batch."""
    cache = HybridCachePolicy(config())
    assert (
        cache.get_active_batch_size(),
        cache.get_kv_cache_all_empty(),
        cache.get_kv_cache_lengths(),
    ) == (0, True, [])
    cache.set_active_batch_size(ROWS)
    assert cache.get_kv_cache_lengths() == [0] * ROWS


WRONG = {
    "HybridCacheManager: layerTypes must not be empty.": {"layer_types": ()},
    "HybridCacheManager: maxBatchSize must be positive.": {"max_batch_size": 0},
    "HybridCacheManager: number of kAttention layers in layerTypes (1) must equal kvConfig.numAttentionLayers (2).": {  # noqa: E501
        "layer_types": (A, M, M)
    },
    "HybridCacheManager: number of kMamba layers in layerTypes (1) must equal mambaConfig.numRecurrentLayers (2).": {  # noqa: E501
        "layer_types": (A, M, A)
    },
    "HybridCacheManager: kvConfig.maxBatchSize (4) must equal maxBatchSize (3).": {
        "max_batch_size": 3
    },
}
WRONG_KV = {
    "KVCacheManager: Unsupported KV cache dtype.": {"kv_cache_type": DataType.FLOAT},
    "KVCacheManager: maxBatchSize must be positive.": {"max_batch_size": 0},
    "KVCacheManager: maxSequenceLength must be positive.": {"max_sequence_length": 0},
    "KVCacheManager: layerConfigs size must equal numAttentionLayers.": {
        "layer_configs": (KVLayerConfig(1, 64),)
    },
    "KVCacheManager: numKVHeads must be positive for layer 1.": {
        "layer_configs": (KVLayerConfig(1, 64), KVLayerConfig(0, 64))
    },
    "KVCacheManager: headDim must be positive for layer 0.": {
        "layer_configs": (KVLayerConfig(1, 0), KVLayerConfig(1, 64))
    },
}
WRONG_MAMBA = {
    "MambaCacheManager: maxBatchSize must be positive.": {"max_batch_size": 0},
    "MambaCacheManager: recurrentStateNumHeads must be positive.": {"recurrent_state_num_heads": 0},
    "MambaCacheManager: recurrentStateHeadDim must be positive.": {"recurrent_state_head_dim": -1},
    "MambaCacheManager: recurrentStateSize must be positive.": {"recurrent_state_size": 0},
    "MambaCacheManager: convDim must be positive.": {"conv_dim": 0},
    "MambaCacheManager: convKernel must be positive.": {"conv_kernel": 0},
    "MambaCacheManager: Unsupported recurrentStateType kFP8.": {
        "recurrent_state_type": DataType.FP8
    },
    "HybridCacheManager: mambaConfig.maxBatchSize (3) must equal maxBatchSize (4).": {
        "max_batch_size": 3
    },
}


@pytest.mark.parametrize("text", WRONG)
def test_construction_refuses_a_configuration_that_contradicts_itself(text: str) -> None:
    assert refused(HybridCachePolicy, replace(config(), **WRONG[text])) == text


@pytest.mark.parametrize("text", WRONG_KV)
def test_construction_refuses_kv_sizes_that_cannot_be(text: str) -> None:
    right = config()
    assert (
        refused(
            HybridCachePolicy, replace(right, kv_config=replace(right.kv_config, **WRONG_KV[text]))
        )
        == text
    )


@pytest.mark.parametrize("text", WRONG_MAMBA)
def test_construction_refuses_state_sizes_that_cannot_be(text: str) -> None:
    right = config()
    assert (
        refused(
            HybridCachePolicy,
            replace(right, mamba_config=replace(right.mamba_config, **WRONG_MAMBA[text])),
        )
        == text
    )


def test_a_negative_number_of_layers_is_refused() -> None:
    """The layers of the routing table cannot be fewer than none, so the sub-manager says it
    first when built by itself.
    """
    from cachewitness_reference.tensorrt_edge.config import check_kv

    text = refused(check_kv, replace(config().kv_config, num_attention_layers=-1))
    assert text == "KVCacheManager: numAttentionLayers must be non-negative."


def test_a_pure_mamba_model_has_no_attention_layers() -> None:
    """And of a model without Mamba layers the state sizes are not looked at."""
    assert HybridCachePolicy(config((M, M), ())).get_kv_head_dim_groups() == []
    right = config((A, A))
    HybridCachePolicy(replace(right, mamba_config=MambaConfig()))


# --- routing --------------------------------------------------------------------------------------


def test_absolute_layers_lead_to_local_ones_in_order_of_appearance() -> None:
    """In A M M M A the attention layers are 0 and 4, the Mamba layers 1 to 3."""
    routing = HybridCachePolicy(config((A, M, M, M, A))).routing
    assert [routing.local("get", i, A) for i in (0, 4)] == [0, 1]
    assert [routing.local("get", i, M) for i in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "kind", "layer", "text"),
    [
        ("getCombinedKVCache", A, 4, "getCombinedKVCache: absLayerIdx 4 out of range."),
        ("getRecurrentState", M, -1, "getRecurrentState: absLayerIdx -1 out of range."),
        ("getSeparateKVCache", A, 1, "getSeparateKVCache: layer 1 is not an attention layer."),
        ("getConvState", M, 2, "getConvState: layer 2 is not a Mamba layer."),
    ],
)
def test_a_layer_of_the_wrong_kind_or_out_of_range_is_refused(
    name: str, kind: LayerType, layer: int, text: str
) -> None:
    assert refused(HybridCachePolicy(config()).routing.local, name, layer, kind) == text


def test_a_uniform_model_has_one_head_dim_group() -> None:
    (group,) = uniform().get_kv_head_dim_groups()
    assert (group.num_layers, group.head_dim, group.max_kv_heads) == (2, 64, 2)


def test_a_model_that_mixes_head_dims_has_a_group_for_each() -> None:
    """In order of first appearance, each with as many layer infos as layers and the largest
    number of heads among them.
    """
    groups = HybridCachePolicy(config((A, A, A, A), (256, 512, 256, 64))).get_kv_head_dim_groups()
    assert [(g.head_dim, g.num_layers, g.max_kv_heads, g.layers) for g in groups] == [
        (256, 2, 3, (0, 2)),
        (512, 1, 2, (1,)),
        (64, 1, 4, (3,)),
    ]
    assert [[info.num_kv_heads for info in g.layer_infos] for g in groups] == [[1, 3], [2], [4]]
    assert all(info.max_sequence_length == LONGEST for g in groups for info in g.layer_infos)


# --- lengths and the active batch -----------------------------------------------------------------


def test_reset_sets_the_batch_and_its_lengths() -> None:
    """The lengths are those given, for as many sequences as were given; without reuse the cache
    is empty.
    """
    cache = uniform()
    cache.reset_for_new_sequences([0, 0, 0])
    assert (
        cache.get_active_batch_size(),
        cache.get_kv_cache_lengths(),
        cache.get_kv_cache_all_empty(),
    ) == (3, [0, 0, 0], True)
    cache.commit_sequence_length([5, 6, 7])
    cache.reset_for_new_sequences([5, 0])
    assert (
        cache.get_active_batch_size(),
        cache.get_kv_cache_lengths(),
        cache.get_kv_cache_all_empty(),
    ) == (2, [5, 0], False)


def test_reset_refuses_more_sequences_than_rows() -> None:
    cache = uniform()
    text = refused(cache.reset_for_new_sequences, [0] * (ROWS + 1))
    assert text == "Batch size of request shall not exceed the max supported batch size."
    cache.reset_for_new_sequences([0] * ROWS)
    assert cache.get_active_batch_size() == ROWS


def test_an_empty_reset_leaves_nobody_active() -> None:
    cache = uniform()
    cache.reset_for_new_sequences([])
    assert cache.get_active_batch_size() == 0 and cache.get_kv_cache_all_empty()


@pytest.mark.parametrize("length", [-1, LONGEST + 1])
def test_reset_refuses_lengths_that_no_row_can_have(length: int) -> None:
    assert f"[0, {LONGEST}]" in refused(uniform().reset_for_new_sequences, [length])


def test_reset_refuses_to_reuse_what_a_row_does_not_hold() -> None:
    """Three tokens were computed; three, two and none of them can be reused, four cannot.
    Nothing changes on a refusal.
    """
    cache = uniform()
    cache.reset_for_new_sequences([0])
    cache.commit_sequence_length([3])
    assert refused(cache.reset_for_new_sequences, [4]).endswith(
        "slot 0 reuses 4 tokens; its KV cache holds 3."
    )
    assert cache.get_kv_cache_lengths() == [3]
    for reuse in (3, 2, 0):
        cache.reset_for_new_sequences([reuse])
        assert cache.get_kv_cache_lengths() == [reuse]


def test_commit_after_prefill_adds_element_by_element() -> None:
    cache = uniform()
    cache.reset_for_new_sequences([0, 0])
    cache.commit_sequence_length([7, 3])
    cache.commit_sequence_length([0, 2])
    assert cache.get_kv_cache_lengths() == [7, 5] and not cache.get_kv_cache_all_empty()


def test_commit_after_decode_adds_to_all_active_sequences() -> None:
    """And to no other: the third row stays as it was."""
    cache = uniform()
    cache.reset_for_new_sequences([0, 0, 0])
    cache.commit_sequence_length([7, 3, 1])
    cache.set_active_batch_size(2)
    cache.commit_sequence_length(1)
    cache.set_active_batch_size(3)
    assert cache.get_kv_cache_lengths() == [8, 4, 1]


def test_commit_refuses_another_batch_size_than_the_active_one() -> None:
    cache = uniform()
    cache.reset_for_new_sequences([0, 0])
    text = refused(cache.commit_sequence_length, [1, 1, 1])
    assert (
        text
        == "The newContextLengths tensor shall have the same batch size as the active batch size."
    )


@pytest.mark.parametrize(
    ("lengths", "says"), [([LONGEST + 1], "would have 33 tokens"), ([-1], "must not be negative")]
)
def test_commit_refuses_lengths_that_no_row_can_have(lengths: list[int], says: str) -> None:
    cache = uniform()
    cache.reset_for_new_sequences([0])
    assert says in refused(cache.commit_sequence_length, lengths)
    cache.commit_sequence_length([LONGEST])
    assert cache.get_kv_cache_lengths() == [LONGEST]
    assert "would have 33 tokens" in refused(cache.commit_sequence_length, 1)


def test_the_cache_is_empty_until_a_prefill_is_committed() -> None:
    """Reset decides by the reuse lengths, each time; a commit ends it; compaction and a smaller
    batch leave it as it is.
    """
    cache = uniform()
    cache.reset_for_new_sequences([0, 0])
    assert cache.get_kv_cache_all_empty()
    cache.compact_batch([0, -1], 2, 1)
    cache.set_active_batch_size(1)
    assert cache.get_kv_cache_all_empty()
    cache.commit_sequence_length([4])
    assert not cache.get_kv_cache_all_empty()
    cache.set_active_batch_size(0)
    assert not cache.get_kv_cache_all_empty()
    cache.reset_for_new_sequences([0])
    assert cache.get_kv_cache_all_empty()


def test_a_cache_that_holds_reused_tokens_is_not_empty() -> None:
    """Although no prefill has been committed: the document says both, and `DIFFERENCES` which of
    them holds here.
    """
    cache = uniform()
    cache.reset_for_new_sequences([0])
    assert cache.get_kv_cache_all_empty()
    cache.commit_sequence_length([4])
    cache.reset_for_new_sequences([4])
    assert not cache.get_kv_cache_all_empty()
    assert "not empty" in DIFFERENCES["all empty"]


@pytest.mark.parametrize("size", [-1, ROWS + 1])
def test_the_active_batch_size_stays_in_range(size: int) -> None:
    cache = uniform()
    assert (
        refused(cache.set_active_batch_size, size)
        == "Invalid active batch size: must be in range [0, maxBatchSize]"
    )
    for right in (0, ROWS):
        cache.set_active_batch_size(right)
        assert cache.get_active_batch_size() == right
