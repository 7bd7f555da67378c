"""The sub-managers with tensors: one tensor per layer, by local index, and how rows of them move
and are restored.

Source: `kvCacheManager.cpp` and `mambaCacheManager.cpp` (0.7.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cachewitness_reference.tensorrt_edge.compaction import RowMove
from cachewitness_reference.tensorrt_edge.config import (
    DataType,
    KVConfig,
    MambaConfig,
    check,
    check_kv,
    check_mamba,
)

DTYPES: dict[DataType, torch.dtype] = {
    DataType.HALF: torch.float16,
    DataType.FLOAT: torch.float32,
    DataType.BF16: torch.bfloat16,
    DataType.FP8: torch.float8_e4m3fn,
}
BYTES = {DataType.FP8: torch.uint8}
"""How types are moved that tensors cannot index."""


class KVCacheManager:
    """The attention layers' tensors, by local index. They are not zeroed. Raises CacheError for
    sizes that do not fit.
    """

    def __init__(self, config: KVConfig, device: str = "cpu") -> None:
        check_kv(config)
        self.config = config
        rows = config.max_batch_size
        length = config.max_sequence_length
        dtype = DTYPES[config.kv_cache_type]
        shapes = [
            (rows, 2, layer.num_kv_heads, length, layer.head_dim) for layer in config.layer_configs
        ]
        self.layers = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]

    def get_combined_kv_cache(self, local_idx: int) -> Tensor:
        """Return a layer's cache [maxBatch, 2, heads, maxSeqLen, headDim]; the index is not
        checked.
        """
        return self.layers[local_idx]

    def get_separate_kv_cache(self, local_idx: int) -> tuple[Tensor, Tensor]:
        """Return a layer's K and V, views [maxBatch, heads, maxSeqLen, headDim] of the combined
        cache.
        """
        keys, values = self.layers[local_idx].unbind(1)
        return keys, values

    def move_rows(self, moves: Sequence[RowMove], lengths: Sequence[int]) -> None:
        """Move rows as one permutation, of each its first `lengths[src]` tokens."""
        for layer in self._plain():
            images = [
                (dst, lengths[src], layer[src, :, :, : lengths[src]].clone()) for src, dst in moves
            ]
            for dst, length, image in images:
                layer[dst, :, :, :length] = image

    def capture(self, batch_idx: int, sequence_length: int) -> tuple[Tensor, ...]:
        """Return copies [2, heads, n, headDim] of a slot's first n tokens, one per layer."""
        return tuple(layer[batch_idx, :, :, :sequence_length].clone() for layer in self.layers)

    def restore(self, saved: Iterable[Tensor], batch_idx: int, sequence_length: int) -> None:
        """Overwrite a slot's first n tokens. Raises CacheError, before anything changes, if a
        tensor has another shape.
        """
        saved = list(saved)
        targets = [layer[batch_idx, :, :, :sequence_length] for layer in self.layers]
        overwrite("restoreKVCache", saved, targets)

    def _plain(self) -> list[Tensor]:
        kind = BYTES.get(self.config.kv_cache_type)
        return [layer.view(kind) for layer in self.layers] if kind else self.layers


class MambaCacheManager:
    """The recurrent layers' states, by local index, zero at first. Raises CacheError for sizes
    that do not fit.
    """

    def __init__(self, config: MambaConfig, device: str = "cpu") -> None:
        check_mamba(config)
        rows = config.max_batch_size
        layers = range(config.num_recurrent_layers)
        heads = (
            config.recurrent_state_num_heads,
            config.recurrent_state_head_dim,
            config.recurrent_state_size,
        )
        conv = (config.conv_dim, config.conv_kernel)
        kind = DTYPES[config.recurrent_state_type]
        conv_kind = DTYPES[config.conv_state_type]
        self.recurrent = [torch.zeros((rows, *heads), dtype=kind, device=device) for _ in layers]
        self.conv = [torch.zeros((rows, *conv), dtype=conv_kind, device=device) for _ in layers]

    def get_recurrent_state(self, local_idx: int) -> Tensor:
        """Return a layer's recurrent state [maxBatch, heads, headDim, stateSize]; the index is
        not checked.
        """
        return self.recurrent[local_idx]

    def get_conv_state(self, local_idx: int) -> Tensor:
        """Return a layer's conv state [maxBatch, convDim, convKernel]; the index is not checked."""
        return self.conv[local_idx]

    def move_rows(self, moves: Sequence[RowMove]) -> None:
        """Move whole rows of both states, as one permutation."""
        if moves:
            for state in (*self.recurrent, *self.conv):
                move_rows_of(state, moves)

    def clear_states(self, slots: slice = slice(None)) -> None:
        """Zero both states, of all slots unless told otherwise."""
        for state in (*self.recurrent, *self.conv):
            state[slots] = 0


def move_rows_of(tensor: Tensor, moves: Sequence[RowMove]) -> None:
    """Move whole rows as one permutation: all are read before one is written."""
    if moves:
        sources, targets = zip(*moves, strict=True)
        tensor[list(targets)] = tensor[list(sources)]


def overwrite(name: str, saved: Iterable[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy captures over views of rows; shapes and types are compared before anything is copied."""
    pairs = list(zip(saved, targets, strict=True))
    for layer, (source, target) in enumerate(pairs):
        fits = source.shape == target.shape and source.dtype == target.dtype
        found = f"{[*source.shape]} {source.dtype}"
        wanted = f"{[*target.shape]} {target.dtype}"
        check(fits, f"{name}: saved layer {layer} is {found}; the cache needs {wanted}.")
    for source, target in pairs:
        target.copy_(source)
