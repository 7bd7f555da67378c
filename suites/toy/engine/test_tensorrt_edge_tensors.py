"""TensorRT-Edge-LLM's manager over real tensors: shapes, compaction, capture and restore, on a CPU
and on a GPU.

Rows are filled with random values, so whatever is read can be told apart; expected tensors are
built row by row from copies taken before.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from cachewitness_reference.tensorrt_edge.capture import Captured
from cachewitness_reference.tensorrt_edge.config import (
    CacheError,
    Config,
    DataType,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from cachewitness_reference.tensorrt_edge.tensors import HybridCacheManager

A = LayerType.ATTENTION
M = LayerType.MAMBA
ROWS, LONGEST, KERNEL = 4, 6, 3
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    ],
)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])
HEAD_DIMS = (64, 128, 256, 512)

pytestmark = pytest.mark.toy


def config(
    types: tuple[LayerType, ...] = (A, M, A, M),
    dims: tuple[int, ...] = (64, 128),
    state: DataType = DataType.HALF,
    kv: DataType = DataType.HALF,
) -> Config:
    """Return a model whose attention layer i has i + 1 heads of dims[i]."""
    layers = tuple(KVLayerConfig(heads, dim) for heads, dim in enumerate(dims, start=1))
    mamba = MambaConfig(types.count(M), ROWS, 2, 4, 5, 7, KERNEL, state, state)
    return Config(types, KVConfig(len(dims), ROWS, LONGEST, layers, kv), mamba, ROWS)


def lengths(cache: HybridCacheManager) -> list[int]:
    return [int(length) for length in cache.get_kv_cache_lengths().tolist()]


def host(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tensors(cache: HybridCacheManager) -> dict[str, Tensor]:
    """Return every tensor of a cache by name."""
    kv = cache.get_kv_cache_manager()
    mamba = cache.get_mamba_cache_manager()
    named = [("kv", kv.layers), ("recurrent", mamba.recurrent), ("conv", mamba.conv)]
    return {
        f"{name}{index}": tensor for name, layers in named for index, tensor in enumerate(layers)
    }


def fill(cache: HybridCacheManager) -> None:
    """Fill every tensor with random numbers."""
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors(cache).values():
        tensor.copy_(torch.rand(tensor.shape, generator=generator).to(tensor.dtype))


def begun(
    device: str, sizes: list[int], of: Config | None = None, **options: Any
) -> HybridCacheManager:
    """Return a cache with so many tokens computed in its rows, every tensor filled."""
    cache = HybridCacheManager(of or config(), device, **options)
    cache.reset_for_new_sequences(host([0] * len(sizes)))
    fill(cache)
    cache.commit_sequence_length(host(sizes).to(device))
    return cache


def raw(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, on the host."""
    return tensor.contiguous().cpu().view(torch.uint8)


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(raw(one), raw(other)))


# --- what is allocated ----------------------------------------------------------------------------


@DEVICES
def test_shapes_and_dtypes_are_those_of_the_document(device: str) -> None:
    cache = HybridCacheManager(config(state=DataType.FLOAT), device)
    assert cache.get_combined_kv_cache(0).shape == (ROWS, 2, 1, LONGEST, 64)
    assert cache.get_combined_kv_cache(2).shape == (ROWS, 2, 2, LONGEST, 128)
    assert cache.get_recurrent_state(1).shape == (ROWS, 2, 4, 5) and cache.get_conv_state(
        3
    ).shape == (ROWS, 7, KERNEL)
    assert cache.get_combined_kv_cache(0).dtype == torch.float16
    assert cache.get_recurrent_state(1).dtype == cache.get_conv_state(1).dtype == torch.float32
    assert cache.get_kv_cache_lengths().dtype == torch.int32
    assert all(
        tensor.device.type == device
        for tensor in (*tensors(cache).values(), cache.get_kv_cache_lengths())
    )


@DEVICES
def test_states_are_zero_when_they_are_allocated(device: str) -> None:
    named = tensors(HybridCacheManager(config(), device))
    assert not any(
        bool(tensor.any()) for name, tensor in named.items() if not name.startswith("kv")
    )


def test_getters_return_the_tensor_itself() -> None:
    """By absolute index from the manager, by local index from the sub-managers."""
    cache = HybridCacheManager(config())
    assert cache.get_combined_kv_cache(2) is cache.get_kv_cache_manager().get_combined_kv_cache(1)
    assert cache.get_recurrent_state(3) is cache.get_mamba_cache_manager().get_recurrent_state(1)
    assert cache.get_conv_state(3) is cache.get_mamba_cache_manager().get_conv_state(1)


def test_separate_k_and_v_are_views_of_the_combined_cache() -> None:
    """They own nothing: what is written through one is read through the other, for every row."""
    cache = begun("cpu", [1])
    combined = cache.get_combined_kv_cache(2)
    (keys, values) = cache.get_separate_kv_cache(2)
    assert keys.shape == values.shape == (ROWS, 2, LONGEST, 128)
    assert torch.equal(keys, combined[:, 0]) and torch.equal(values, combined[:, 1])
    values[3, 1, 2] = 7
    assert bool((combined[3, 1, 1, 2] == 7).all())


def test_getters_refuse_the_wrong_kind_of_layer() -> None:
    cache = HybridCacheManager(config())
    for call, layer, text in (
        (cache.get_combined_kv_cache, 1, "getCombinedKVCache: layer 1 is not an attention layer."),
        (cache.get_separate_kv_cache, 3, "getSeparateKVCache: layer 3 is not an attention layer."),
        (cache.get_recurrent_state, 0, "getRecurrentState: layer 0 is not a Mamba layer."),
        (cache.get_conv_state, 4, "getConvState: absLayerIdx 4 out of range."),
    ):
        with pytest.raises(CacheError) as caught:
            call(layer)
        assert str(caught.value) == text


@DEVICES
def test_head_dim_groups_point_to_the_tensors(device: str) -> None:
    """In Python, and on the device of the cache, where a kernel reads pointer, KV heads and
    longest sequence.
    """
    groups = HybridCacheManager(config((A, A, A), (64, 128, 64)), device)
    views = groups.get_kv_head_dim_groups()
    assert [(view.head_dim, view.num_layers, view.max_kv_heads) for view in views] == [
        (64, 2, 3),
        (128, 1, 2),
    ]
    pointers = [info.data for view in views for info in view.layer_infos]
    assert pointers == [groups.get_combined_kv_cache(layer).data_ptr() for layer in (0, 2, 1)]
    assert all(
        view.device_layer_infos.device == groups.get_combined_kv_cache(0).device for view in views
    )
    assert torch.cat([view.device_layer_infos for view in views]).tolist() == [
        [info.data, info.num_kv_heads, info.max_sequence_length]
        for view in views
        for info in view.layer_infos
    ]


@DEVICES
def test_lengths_are_zero_when_they_are_allocated(device: str) -> None:
    """Seen where the batch is made active without a reset."""
    cache = HybridCacheManager(config(), device)
    cache.set_active_batch_size(ROWS)
    assert lengths(cache) == cache.policy.get_kv_cache_lengths() == [0] * ROWS


@DEVICES
def test_layer_infos_stay_valid_whatever_the_manager_does(device: str) -> None:
    """A kernel that was handed them once finds every layer's tensor there: no call allocates a
    layer anew.
    """
    cache = HybridCacheManager(config(), device)
    infos = [info for view in cache.get_kv_head_dim_groups() for info in view.layer_infos]
    cache.reset_for_new_sequences(host([0, 0, 0]))
    cache.commit_sequence_length(host([2, 3, 4]).to(device))
    saved = cache.capture_kv_cache(1, 3)
    cache.compact_batch(host([1, -1, 0]).to(device), 3, 2)
    cache.set_active_batch_size(2)
    cache.restore_kv_cache(saved, 2)
    cache.clear_states()
    assert [info.data for info in infos] == [
        cache.get_combined_kv_cache(layer).data_ptr() for layer in (0, 2)
    ]


def test_the_default_constructor_allocates_nothing() -> None:
    cache = HybridCacheManager()
    assert cache.get_active_batch_size() == 0 and cache.get_kv_cache_all_empty()
    assert cache.get_kv_head_dim_groups() == [] and cache.get_kv_cache_lengths().shape == (0,)


def test_a_manager_is_not_copied() -> None:
    cache = HybridCacheManager(config())
    for way in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            way(cache)


# --- lengths --------------------------------------------------------------------------------------


@DEVICES
def test_lengths_follow_reset_and_both_forms_of_commit(device: str) -> None:
    """On the device, in a view as long as the active batch."""
    cache = HybridCacheManager(config(), device)
    assert cache.get_kv_cache_lengths().shape == (0,) and cache.get_kv_cache_all_empty()
    cache.reset_for_new_sequences(host([0, 0, 0]))
    assert lengths(cache) == [0, 0, 0] and cache.get_kv_cache_all_empty()
    cache.commit_sequence_length(host([3, 1, 2]).to(device))
    cache.commit_sequence_length(1)
    assert lengths(cache) == [4, 2, 3] and not cache.get_kv_cache_all_empty()
    cache.set_active_batch_size(2)
    cache.commit_sequence_length(1)
    cache.set_active_batch_size(3)
    assert lengths(cache) == [5, 3, 3]
    attention = begun(device, [4, 6], config((A, A)))
    attention.reset_for_new_sequences(host([3, 5, 0]))
    assert lengths(attention) == [3, 5, 0]
    attention.commit_sequence_length(host([2, 0, 1]).to(device))
    assert lengths(attention) == [5, 5, 1]


def test_reset_wants_a_tensor_of_the_right_type() -> None:
    cache = HybridCacheManager(config())
    for wrong, text in (
        (
            torch.zeros(2, dtype=torch.int64),
            (
                "The data type of the reuseKVCacheLengths tensor shall match the data type of the"
                " Device KVCache Lengths."
            ),
        ),
        (
            torch.zeros(2, dtype=torch.int32, device="meta"),
            "The reuseKVCacheLengths tensor shall reside on CPU.",
        ),
        (host([0] * 5), "Batch size of request shall not exceed the max supported batch size."),
    ):
        with pytest.raises(CacheError) as caught:
            cache.reset_for_new_sequences(wrong)
        assert str(caught.value) == text and cache.get_active_batch_size() == 0


def test_commit_wants_a_tensor_of_the_right_type() -> None:
    cache = HybridCacheManager(config())
    cache.reset_for_new_sequences(host([0, 0]))
    for wrong, text in (
        (torch.ones(2), "The newContextLengths tensor shall have data type of int32_t."),
        (
            torch.ones(2, dtype=torch.int32, device="meta"),
            "The newContextLengths tensor shall reside on GPU.",
        ),
        (
            host([1]),
            "The newContextLengths tensor shall have the same batch size as the active batch size.",
        ),
    ):
        with pytest.raises(CacheError) as caught:
            cache.commit_sequence_length(wrong)
        assert str(caught.value) == text and lengths(cache) == [0, 0]


@DEVICES
def test_reset_touches_neither_kv_nor_states(device: str) -> None:
    cache = begun(device, [4, 2])
    before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
    cache.reset_for_new_sequences(host([4, 2]))
    assert all(same(tensor, before[name]) for name, tensor in tensors(cache).items())


# --- compaction -----------------------------------------------------------------------------------


def mappings(old: int) -> list[list[int]]:
    """Return every mapping of `old` slots that takes survivors one to one onto the first rows."""
    every = (list(mapping) for mapping in product(range(-1, old), repeat=old))
    return [
        m
        for m in every
        if sorted(row for row in m if row >= 0) == list(range(sum(row >= 0 for row in m)))
    ]


def expected(before: dict[str, Tensor], mapping: list[int], sizes: list[int]) -> dict[str, Tensor]:
    """Return every tensor after a compaction, row by row from copies: KV as far as a row is
    filled, states whole.
    """
    after = {name: tensor.clone() for name, tensor in before.items()}
    for slot, row in enumerate(mapping):
        for name, tensor in after.items():
            if row >= 0 and name.startswith("kv"):
                tensor[row, :, :, : sizes[slot]] = before[name][slot, :, :, : sizes[slot]]
            elif row >= 0:
                tensor[row] = before[name][slot]
    return after


@DEVICES
@pytest.mark.parametrize("old", range(ROWS + 1))
def test_compaction_is_right_for_every_mapping(device: str, old: int) -> None:
    """KV, lengths, recurrent and conv rows of every allowed mapping, against rows taken from
    copies.
    """
    sizes = [3, 5, 1, 6][:old]
    assert len(mappings(old)) == (1, 2, 5, 16, 65)[old]
    for mapping in mappings(old):
        cache = begun(device, sizes)
        before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
        new = sum(row >= 0 for row in mapping)
        cache.compact_batch(host(mapping).to(device), old, new)
        cache.set_active_batch_size(new)
        assert lengths(cache) == [sizes[mapping.index(row)] for row in range(new)]
        after = expected(before, mapping, sizes)
        assert all(same(tensor, after[name]) for name, tensor in tensors(cache).items()), mapping


@DEVICES
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_compaction_at_every_head_dim(device: str, dim: int) -> None:
    """A rotation of three rows, on a uniform model and beside another head dim."""
    for of in (config((A,), (dim,)), config((A, A, M), (dim, 64))):
        cache = begun(device, [3, 5, 1], of)
        before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
        cache.compact_batch(host([1, 2, 0]).to(device), 3, 3)
        after = expected(before, [1, 2, 0], [3, 5, 1])
        assert lengths(cache) == [1, 3, 5] and all(
            same(tensor, after[name]) for name, tensor in tensors(cache).items()
        )


@DEVICES
@pytest.mark.parametrize("state", [DataType.BF16, DataType.FLOAT, DataType.HALF])
def test_compaction_moves_states_of_every_type(device: str, state: DataType) -> None:
    """bfloat16 too, which the releases refuse; and FP8 KV, as bytes."""
    cache = begun(device, [3, 5, 1], config(state=state, kv=DataType.FP8))
    before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
    plain = {n: t.view(torch.uint8) if n.startswith("kv") else t for n, t in before.items()}
    cache.compact_batch(host([-1, 1, 0]).to(device), 3, 2)
    after = expected(plain, [-1, 1, 0], [3, 5, 1])
    assert all(same(tensor, after[name]) for name, tensor in tensors(cache).items())


@DEVICES
def test_compaction_copies_only_the_filled_part_of_a_row(device: str) -> None:
    """What lies behind the tokens that moved in is still what was there before."""
    cache = begun(device, [6, 2])
    behind = cache.get_combined_kv_cache(0)[0, :, :, 2:].clone()
    cache.compact_batch(host([-1, 0]).to(device), 2, 1)
    assert same(cache.get_combined_kv_cache(0)[0, :, :, 2:], behind)


def test_a_refused_compaction_moves_nothing() -> None:
    """Also a mapping that is no int32 tensor of one dimension."""
    cache = begun("cpu", [3, 5, 1])
    before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
    for wrong in (host([0, 0, -1]), host([0, 1]), host([0, -1, 1]).long(), host([0, -1, 1])[None]):
        with pytest.raises(CacheError, match=r"^compactBatch: "):
            cache.compact_batch(wrong, 3, 2)
    assert lengths(cache) == [3, 5, 1] and all(
        same(tensor, before[name]) for name, tensor in tensors(cache).items()
    )


def test_compaction_as_the_releases_do_it_tears_a_swap() -> None:
    """KV stays where it is, and both rows get the states and the length of row 0."""
    cache = begun("cpu", [3, 5], in_place=True)
    before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
    cache.compact_batch(host([1, 0]), 2, 2)
    named = tensors(cache)
    assert same(named["kv0"], before["kv0"]) and lengths(cache) == [3, 3]
    assert all(same(named["recurrent0"][row], before["recurrent0"][0]) for row in (0, 1))


# --- capture and restore --------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_captured_kv_is_a_copy_and_comes_back(device: str, dim: int) -> None:
    """[2, heads, n, headDim] per layer; what lies behind n tokens of the target stays."""
    cache = begun(device, [4, 6], config((A, A), (dim, 64)))
    saved = cache.capture_kv_cache(1, 5)
    assert [tensor.shape for tensor in saved] == [
        (2, 1, 5, dim),
        (2, 2, 5, 64),
    ] and saved.position == 5
    right = [cache.get_combined_kv_cache(layer)[1, :, :, :5].clone() for layer in (0, 1)]
    behind = cache.get_combined_kv_cache(0)[3, :, :, 5:].clone()
    cache.get_combined_kv_cache(0)[1] = 0
    cache.restore_kv_cache(saved, 3)
    assert all(
        same(cache.get_combined_kv_cache(layer)[3, :, :, :5], right[layer]) for layer in (0, 1)
    )
    assert same(cache.get_combined_kv_cache(0)[3, :, :, 5:], behind)
    assert lengths(cache) == [4, 6]


@DEVICES
@pytest.mark.parametrize("state", [DataType.BF16, DataType.FLOAT, DataType.HALF])
def test_captured_states_are_copies_and_come_back(device: str, state: DataType) -> None:
    """[1, ...] per Mamba layer, bit by bit."""
    cache = begun(device, [4, 6], config(state=state))
    recurrent = cache.capture_recurrent_states(1)
    conv = cache.capture_conv_states(1)
    assert [tensor.shape for tensor in recurrent] == [(1, 2, 4, 5)] * 2 and [
        tensor.shape for tensor in conv
    ] == [(1, 7, KERNEL)] * 2
    right = [cache.get_recurrent_state(3)[1].clone(), cache.get_conv_state(3)[1].clone()]
    cache.zero_recurrent_states(1)
    assert not bool(cache.get_recurrent_state(3)[1].any()) and bool(
        cache.get_recurrent_state(3)[0].any()
    )
    cache.restore_recurrent_states(recurrent, 0)
    cache.restore_conv_states(conv, 0)
    assert same(cache.get_recurrent_state(3)[0], right[0]) and same(
        cache.get_conv_state(3)[0], right[1]
    )


def test_clearing_zeroes_the_states_of_all_rows() -> None:
    cache = begun("cpu", [4, 6])
    cache.clear_states()
    assert not any(
        bool(tensor.any()) for name, tensor in tensors(cache).items() if not name.startswith("kv")
    )
    cache.reset_for_new_sequences(host([0, 0]))


def test_a_capture_of_another_shape_or_type_is_refused_and_writes_nothing() -> None:
    cache = begun("cpu", [4, 6])
    saved = cache.capture_kv_cache(1, 5)
    wide = Captured(saved.kind, saved.position, (saved[0], saved[1][:, :1]))
    double = Captured(saved.kind, saved.position, (saved[0].float(), saved[1].float()))
    before = tensors(cache)["kv0"].clone()
    for wrong in (wide, double):
        with pytest.raises(CacheError, match="saved layer"):
            cache.restore_kv_cache(wrong, 0)
    assert same(tensors(cache)["kv0"], before)


@DEVICES
def test_plain_tensors_are_restored_where_their_position_is_known(device: str) -> None:
    """The document's signature has a list of tensors: KV says its own length, states are told
    theirs.
    """
    cache = begun(device, [4, 6])
    kv = cache.capture_kv_cache(1, 5)
    recurrent = cache.capture_recurrent_states(1)
    conv = cache.capture_conv_states(1)
    right = [
        cache.get_combined_kv_cache(0)[1, :, :, :5].clone(),
        cache.get_recurrent_state(1)[1].clone(),
    ]
    cache.restore_kv_cache(list(kv), 0)
    assert same(cache.get_combined_kv_cache(0)[0, :, :, :5], right[0])
    cache.restore_recurrent_states(list(recurrent), 0, position=6)
    cache.restore_conv_states(list(conv), 0, position=6)
    assert same(cache.get_recurrent_state(1)[0], right[1])
    with pytest.raises(
        CacheError, match="slot 0 has KV length 5; its recurrent states are of position 6"
    ):
        cache.reset_for_new_sequences(host([5]))


def test_every_refusal_is_a_cache_error() -> None:
    """Never an assertion or an error of torch's, and nothing has changed."""
    cache = begun("cpu", [4, 6])
    empty = HybridCacheManager()
    states = cache.capture_recurrent_states(1)
    before = {name: tensor.clone() for name, tensor in tensors(cache).items()}
    for call, says in (
        (
            empty.get_kv_cache_manager,
            "getKVCacheManager: the cache was built without a configuration",
        ),
        (
            empty.get_mamba_cache_manager,
            "getMambaCacheManager: the cache was built without a configuration",
        ),
        (lambda: empty.restore_kv_cache([], 0), "restoreKVCache"),
        (
            lambda: cache.restore_recurrent_states(list(states), 0),
            "pass the position that it belongs to",
        ),
        (
            lambda: cache.restore_recurrent_states(states, 0, position=5),
            "saved is of position 6, not 5",
        ),
        (
            lambda: cache.restore_recurrent_states([1, 2], 0, position=5),
            "neither a capture nor a list of tensors",
        ),
        (
            lambda: cache.restore_kv_cache(
                [tensor[0] for tensor in cache.capture_kv_cache(1, 5)], 0
            ),
            "pass the position",
        ),
        (lambda: cache.reset_for_new_sequences([0, 0]), "reuseKVCacheLengths shall be a tensor"),
        (
            lambda: cache.reset_for_new_sequences(torch.tensor(3, dtype=torch.int32)),
            "shall have one dimension",
        ),
        (lambda: cache.commit_sequence_length([1, 1]), "newContextLengths shall be a tensor"),
        (lambda: cache.compact_batch([0, -1], 2, 1), "batchMapping shall be a tensor"),
    ):
        with pytest.raises(CacheError, match=says):
            call()
    assert all(same(tensor, before[name]) for name, tensor in tensors(cache).items()) and lengths(
        cache
    ) == [4, 6]


class Model:
    """A model small enough to be seen through: KV of a token is its value, a state is a weighted
    sum of all before it.

    Its convolution keeps the last KERNEL values. Applying a token twice changes the sum, and
    nothing else.
    """

    def __init__(self, cache: HybridCacheManager) -> None:
        self.cache = cache

    def run(self, work: dict[int, list[float]], starts: list[int]) -> None:
        """Compute tokens of some rows, each from its start on, and commit them."""
        for row, tokens in work.items():
            for at, token in enumerate(tokens, start=starts[row]):
                for layer in (0, 2):
                    self.cache.get_combined_kv_cache(layer)[row, :, :, at] = token
                for layer in (1, 3):
                    state = self.cache.get_recurrent_state(layer)[row]
                    conv = self.cache.get_conv_state(layer)[row]
                    state.copy_(state * 0.5 + token + conv.sum())
                    conv.copy_(torch.cat([conv[:, 1:], torch.full_like(conv[:, :1], token)], dim=1))
        grown = [len(work.get(row, [])) for row in range(self.cache.get_active_batch_size())]
        self.cache.commit_sequence_length(host(grown).to(self.cache.get_kv_cache_lengths().device))

    def shows(self, row: int, tokens: int) -> list[Tensor]:
        """Return all that a row holds of so many tokens."""
        kv = [self.cache.get_combined_kv_cache(layer)[row, :, :, :tokens] for layer in (0, 2)]
        states = [
            get(layer)[row]
            for get in (self.cache.get_recurrent_state, self.cache.get_conv_state)
            for layer in (1, 3)
        ]
        return [tensor.clone() for tensor in (*kv, *states)]


@DEVICES
@pytest.mark.parametrize("state", [DataType.FLOAT, DataType.BF16])
def test_a_restored_prefix_goes_on_as_if_it_had_been_computed(device: str, state: DataType) -> None:
    """Captured at 3 of 5 tokens, restored beside exactly 3, moved by a compaction, computed on:
    bit by bit a cold run.
    """
    prefix = [1.0, 3.0, 2.0]
    rest = [5.0, 4.0]
    cold = Model(HybridCacheManager(config(state=state), device))
    cold.cache.reset_for_new_sequences(host([0]))
    cold.run({0: prefix + rest}, [0])
    warm = Model(HybridCacheManager(config(state=state), device))
    warm.cache.reset_for_new_sequences(host([0, 0]))
    warm.run({0: prefix, 1: [9.0]}, [0, 0])
    saved = (
        warm.cache.capture_kv_cache(0, 3),
        warm.cache.capture_recurrent_states(0),
        warm.cache.capture_conv_states(0),
    )
    warm.run({0: [7.0, 7.0, 7.0], 1: [9.0]}, [3, 1])
    warm.cache.restore_kv_cache(saved[0], 2)
    warm.cache.restore_recurrent_states(saved[1], 2)
    warm.cache.restore_conv_states(saved[2], 2)
    warm.cache.reset_for_new_sequences(host([6, 2, 3]))
    warm.cache.compact_batch(host([-1, 1, 0]).to(device), 3, 2)
    warm.cache.set_active_batch_size(2)
    warm.run({0: rest}, [3, 2])
    assert lengths(warm.cache) == [5, 2]
    assert all(
        same(one, other) for one, other in zip(warm.shows(0, 5), cold.shows(0, 5), strict=True)
    )


def test_the_releases_pairing_applies_a_token_twice() -> None:
    """The state of 3 tokens beside 2 tokens of KV is refused; without the refusal it would not
    be the cold run's state.
    """
    model = Model(HybridCacheManager(config(state=DataType.FLOAT)))
    cache = model.cache
    tokens = [1.0, 3.0, 2.0]
    cache.reset_for_new_sequences(host([0]))
    model.run({0: tokens}, [0])
    right = model.shows(0, 3)
    with pytest.raises(
        CacheError, match="slot 0 has KV length 2; its recurrent states are of position 3"
    ):
        cache.reset_for_new_sequences(host([2]))
    saved = cache.capture_recurrent_states(0)
    cache.restore_recurrent_states(replace(saved, position=2), 0)  # type: ignore[arg-type]
    cache.restore_conv_states(replace(cache.capture_conv_states(0), position=2), 0)  # type: ignore[arg-type]
    cache.reset_for_new_sequences(host([2]))
    model.run({0: tokens[2:]}, [2])
    assert all(
        same(one, other) for one, other in zip(model.shows(0, 3)[:2], right[:2], strict=True)
    )
    assert not same(model.shows(0, 3)[2], right[2])
