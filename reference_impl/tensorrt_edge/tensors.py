"""The manager with tensors, on a CPU or a GPU: the policy decides, and every row of every tensor follows.

Each call asks the policy first, which refuses it or keeps books of it, and then does to the tensors what the policy answered.
Shapes are the document's: KV [maxBatch, 2, heads, maxSeqLen, headDim] per attention layer, recurrent states [maxBatch,
heads, headDim, stateSize] and conv states [maxBatch, convDim, convKernel] per Mamba layer, lengths [maxBatch] int32. The
caller's kernels write KV and states through the getters; what they wrote counts from the commit on.

Streams are the caller's current ones. Getters return the tensor itself, never a copy. A manager is not copied: two would
own one memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from reference_impl.tensorrt_edge.capture import Captured, Kind
from reference_impl.tensorrt_edge.compaction import RowMove
from reference_impl.tensorrt_edge.config import Config, DataType, KVConfig, LayerType, MambaConfig, check, check_kv, check_mamba
from reference_impl.tensorrt_edge.policy import HybridCachePolicy
from reference_impl.tensorrt_edge.routing import KVHeadDimGroupView, head_dim_groups

DTYPES: dict[DataType, torch.dtype] = {
    DataType.HALF: torch.float16,
    DataType.FLOAT: torch.float32,
    DataType.BF16: torch.bfloat16,
    DataType.FP8: torch.float8_e4m3fn,
}
BYTES = {DataType.FP8: torch.uint8}
"""How types are moved that tensors cannot index."""


class KVCacheManager:
    """The attention layers' tensors, by local index. They are not zeroed. Raises CacheError for sizes that do not fit."""

    def __init__(self, config: KVConfig, device: str = "cpu") -> None:
        check_kv(config)
        self.config = config
        rows, length, dtype = config.max_batch_size, config.max_sequence_length, DTYPES[config.kv_cache_type]
        shapes = [(rows, 2, layer.num_kv_heads, length, layer.head_dim) for layer in config.layer_configs]
        self.layers = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]

    def get_combined_kv_cache(self, local_idx: int) -> Tensor:
        """Return a layer's cache [maxBatch, 2, heads, maxSeqLen, headDim]; the index is not checked."""
        return self.layers[local_idx]

    def get_separate_kv_cache(self, local_idx: int) -> tuple[Tensor, Tensor]:
        """Return a layer's K and V, views [maxBatch, heads, maxSeqLen, headDim] of the combined cache."""
        keys, values = self.layers[local_idx].unbind(1)
        return keys, values

    def move_rows(self, moves: Sequence[RowMove], lengths: Sequence[int]) -> None:
        """Move rows as one permutation, of each its first `lengths[src]` tokens."""
        for layer in self._plain():
            images = [(dst, lengths[src], layer[src, :, :, : lengths[src]].clone()) for src, dst in moves]
            for dst, length, image in images:
                layer[dst, :, :, :length] = image

    def capture(self, batch_idx: int, sequence_length: int) -> tuple[Tensor, ...]:
        """Return copies [2, heads, n, headDim] of a slot's first n tokens, one per layer."""
        return tuple(layer[batch_idx, :, :, :sequence_length].clone() for layer in self.layers)

    def restore(self, saved: Iterable[Tensor], batch_idx: int, sequence_length: int) -> None:
        """Overwrite a slot's first n tokens. Raises CacheError, before anything changes, if a tensor has another shape."""
        saved = list(saved)
        targets = [layer[batch_idx, :, :, :sequence_length] for layer in self.layers]
        _overwrite("restoreKVCache", saved, targets)

    def _plain(self) -> list[Tensor]:
        kind = BYTES.get(self.config.kv_cache_type)
        return [layer.view(kind) for layer in self.layers] if kind else self.layers


class MambaCacheManager:
    """The recurrent layers' states, by local index, zero at first. Raises CacheError for sizes that do not fit."""

    def __init__(self, config: MambaConfig, device: str = "cpu") -> None:
        check_mamba(config)
        rows, layers = config.max_batch_size, range(config.num_recurrent_layers)
        heads = (config.recurrent_state_num_heads, config.recurrent_state_head_dim, config.recurrent_state_size)
        conv = (config.conv_dim, config.conv_kernel)
        kind, conv_kind = DTYPES[config.recurrent_state_type], DTYPES[config.conv_state_type]
        self.recurrent = [torch.zeros((rows, *heads), dtype=kind, device=device) for _ in layers]
        self.conv = [torch.zeros((rows, *conv), dtype=conv_kind, device=device) for _ in layers]

    def get_recurrent_state(self, local_idx: int) -> Tensor:
        """Return a layer's recurrent state [maxBatch, heads, headDim, stateSize]; the index is not checked."""
        return self.recurrent[local_idx]

    def get_conv_state(self, local_idx: int) -> Tensor:
        """Return a layer's conv state [maxBatch, convDim, convKernel]; the index is not checked."""
        return self.conv[local_idx]

    def move_rows(self, moves: Sequence[RowMove]) -> None:
        """Move whole rows of both states, as one permutation."""
        if moves:
            for state in (*self.recurrent, *self.conv):
                _move_rows(state, moves)

    def clear_states(self, slots: slice = slice(None)) -> None:
        """Zero both states, of all slots unless told otherwise."""
        for state in (*self.recurrent, *self.conv):
            state[slots] = 0


class HybridCacheManager:
    """The cache of a model with attention and Mamba layers. Without a configuration nothing is allocated.

    `device` is torch's. `in_place` compacts as the releases do (`compaction.in_place`). Every method raises CacheError,
    having changed nothing, for what the policy refuses.
    """

    def __init__(self, config: Config | None = None, device: str = "cpu", *, in_place: bool = False) -> None:
        self.policy = HybridCachePolicy(config, in_place=in_place)
        config = self.policy.config
        self._kv: KVCacheManager | None = None
        self._mamba: MambaCacheManager | None = None
        if config.layer_types:
            self._kv = KVCacheManager(config.kv_config, device)
            self._mamba = MambaCacheManager(config.mamba_config, device)
        self._lengths = torch.zeros(config.max_batch_size, dtype=torch.int32, device=device)

    def __copy__(self) -> NoReturn:
        raise TypeError("HybridCacheManager cannot be copied: it owns its tensors")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    # --- access --------------------------------------------------------------------------------------------------------

    def get_combined_kv_cache(self, abs_layer_idx: int) -> Tensor:
        """Return an attention layer's cache [maxBatch, 2, heads, maxSeqLen, headDim]."""
        local = self.policy.routing.local("getCombinedKVCache", abs_layer_idx, LayerType.ATTENTION)
        return self.get_kv_cache_manager().get_combined_kv_cache(local)

    def get_separate_kv_cache(self, abs_layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return an attention layer's K and V, views [maxBatch, heads, maxSeqLen, headDim] that own nothing."""
        local = self.policy.routing.local("getSeparateKVCache", abs_layer_idx, LayerType.ATTENTION)
        return self.get_kv_cache_manager().get_separate_kv_cache(local)

    def get_recurrent_state(self, abs_layer_idx: int) -> Tensor:
        """Return a Mamba layer's recurrent state [maxBatch, heads, headDim, stateSize]."""
        local = self.policy.routing.local("getRecurrentState", abs_layer_idx, LayerType.MAMBA)
        return self.get_mamba_cache_manager().get_recurrent_state(local)

    def get_conv_state(self, abs_layer_idx: int) -> Tensor:
        """Return a Mamba layer's conv state [maxBatch, convDim, convKernel]."""
        local = self.policy.routing.local("getConvState", abs_layer_idx, LayerType.MAMBA)
        return self.get_mamba_cache_manager().get_conv_state(local)

    def get_kv_cache_manager(self) -> KVCacheManager:
        """Return the KV sub-manager, which knows layers by local index."""
        assert self._kv is not None, "nothing is allocated"
        return self._kv

    def get_mamba_cache_manager(self) -> MambaCacheManager:
        """Return the Mamba sub-manager, which knows layers by local index."""
        assert self._mamba is not None, "nothing is allocated"
        return self._mamba

    def get_kv_head_dim_groups(self) -> list[KVHeadDimGroupView]:
        """Return one view per head dim; the layer infos point to the tensors' memory."""
        kv = self.policy.config.kv_config
        pointers = [layer.data_ptr() for layer in self._kv.layers] if self._kv else []
        return head_dim_groups(kv.layer_configs, kv.max_sequence_length, pointers)

    def get_kv_cache_lengths(self) -> Tensor:
        """Return the shared lengths [active batch size], int32, a view on the device."""
        return self._lengths[: self.get_active_batch_size()]

    # --- the batch -----------------------------------------------------------------------------------------------------

    def reset_for_new_sequences(self, reuse_kv_cache_lengths: Tensor) -> None:
        """Declare the batch: `reuse_kv_cache_lengths` [batch size] int32 on the host, in tokens."""
        on_host = reuse_kv_cache_lengths.device.type == "cpu"
        size = len(reuse_kv_cache_lengths)
        check(size <= len(self._lengths), "Batch size of request shall not exceed the max supported batch size.")
        check(on_host, "The reuseKVCacheLengths tensor shall reside on CPU.")
        same = reuse_kv_cache_lengths.dtype == torch.int32
        text = "shall match the data type of the Device KVCache Lengths."
        check(same, f"The data type of the reuseKVCacheLengths tensor {text}")
        self.policy.reset_for_new_sequences(reuse_kv_cache_lengths.tolist())
        self._lengths[:size] = reuse_kv_cache_lengths.to(self._lengths.device)

    def commit_sequence_length(self, new_context_lengths: Tensor | int) -> None:
        """Add context lengths [active batch size], int32 on the device, after prefill; or one increment after decode."""
        if isinstance(new_context_lengths, int):
            self.policy.commit_sequence_length(new_context_lengths)
        else:
            what = "The newContextLengths tensor shall"
            check(new_context_lengths.dtype == torch.int32, f"{what} have data type of int32_t.")
            check(new_context_lengths.device == self._lengths.device, f"{what} reside on GPU.")
            self.policy.commit_sequence_length(new_context_lengths.tolist())
        self.get_kv_cache_lengths().add_(new_context_lengths)

    def get_active_batch_size(self) -> int:
        """Return the number of active sequences."""
        return self.policy.get_active_batch_size()

    def set_active_batch_size(self, new_active_batch_size: int) -> None:
        """Set the active batch size; the lengths' view follows."""
        self.policy.set_active_batch_size(new_active_batch_size)

    def get_kv_cache_all_empty(self) -> bool:
        """Return whether nothing was reused and no prefill has been committed yet."""
        return self.policy.get_kv_cache_all_empty()

    def compact_batch(self, batch_mapping: Tensor, old_batch: int, new_batch: int) -> None:
        """Move KV, lengths and states of the survivors: `batch_mapping` [old batch] int32 on the device."""
        fits = batch_mapping.dtype == torch.int32 and batch_mapping.dim() == 1 and batch_mapping.device == self._lengths.device
        check(fits, "compactBatch: batchMapping shall be an INT32 tensor [oldBatch] on the device of the cache.")
        before = self.policy.get_kv_cache_lengths()
        moves = self.policy.compact_batch(batch_mapping.tolist(), old_batch, new_batch)
        _move_rows(self._lengths, moves.lengths)
        self._lengths[new_batch:old_batch] = 0
        self.get_kv_cache_manager().move_rows(moves.kv, before)
        self.get_mamba_cache_manager().move_rows(moves.states)

    # --- capture and restore -------------------------------------------------------------------------------------------

    def capture_kv_cache(self, batch_idx: int, sequence_length: int) -> Captured[Tensor]:
        """Return copies [2, heads, n, headDim] of a slot's first n tokens, one per attention layer."""
        captured = self.policy.capture_kv_cache(batch_idx, sequence_length)
        return Captured(Kind.KV, captured.position, self.get_kv_cache_manager().capture(batch_idx, sequence_length))

    def restore_kv_cache(self, saved: Captured[Tensor], batch_idx: int) -> None:
        """Overwrite a slot's first tokens by a capture; what lies behind them, and the lengths, stay."""
        self.policy.check_restore(saved, Kind.KV, batch_idx)
        self.get_kv_cache_manager().restore(saved, batch_idx, saved.position)
        self.policy.restore_kv_cache(saved, batch_idx)

    def capture_recurrent_states(self, batch_idx: int) -> Captured[Tensor]:
        """Return copies [1, heads, headDim, stateSize] of a slot's states, one per Mamba layer."""
        captured = self.policy.capture_recurrent_states(batch_idx)
        return Captured(captured.kind, captured.position, _rows(self.get_mamba_cache_manager().recurrent, batch_idx))

    def capture_conv_states(self, batch_idx: int) -> Captured[Tensor]:
        """Return copies [1, convDim, convKernel] of a slot's states, one per Mamba layer."""
        captured = self.policy.capture_conv_states(batch_idx)
        return Captured(captured.kind, captured.position, _rows(self.get_mamba_cache_manager().conv, batch_idx))

    def restore_recurrent_states(self, saved: Captured[Tensor], batch_idx: int) -> None:
        """Overwrite a slot's recurrent states by a capture."""
        self.policy.check_restore(saved, Kind.RECURRENT, batch_idx)
        _overwrite("restoreRecurrentStates", saved, [s[batch_idx, None] for s in self.get_mamba_cache_manager().recurrent])
        self.policy.restore_recurrent_states(saved, batch_idx)

    def restore_conv_states(self, saved: Captured[Tensor], batch_idx: int) -> None:
        """Overwrite a slot's conv states by a capture."""
        self.policy.check_restore(saved, Kind.CONV, batch_idx)
        _overwrite("restoreConvStates", saved, [s[batch_idx, None] for s in self.get_mamba_cache_manager().conv])
        self.policy.restore_conv_states(saved, batch_idx)

    def zero_recurrent_states(self, batch_idx: int) -> None:
        """Begin a slot anew: zero its recurrent and conv states."""
        self.policy.zero_recurrent_states(batch_idx)
        self.get_mamba_cache_manager().clear_states(slice(batch_idx, batch_idx + 1))

    def clear_states(self) -> None:
        """Begin every slot anew, as after warm-up."""
        self.policy.clear_states()
        self.get_mamba_cache_manager().clear_states()


def _rows(states: Sequence[Tensor], batch_idx: int) -> tuple[Tensor, ...]:
    return tuple(state[batch_idx, None].clone() for state in states)


def _move_rows(tensor: Tensor, moves: Sequence[RowMove]) -> None:
    """Move whole rows as one permutation: all are read before one is written."""
    if moves:
        sources, targets = zip(*moves, strict=True)
        tensor[list(targets)] = tensor[list(sources)]


def _overwrite(name: str, saved: Iterable[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy captures over views of rows; shapes and types are compared before anything is copied."""
    pairs = list(zip(saved, targets, strict=True))
    for layer, (source, target) in enumerate(pairs):
        fits = source.shape == target.shape and source.dtype == target.dtype
        found, wanted = f"{[*source.shape]} {source.dtype}", f"{[*target.shape]} {target.dtype}"
        check(fits, f"{name}: saved layer {layer} is {found}; the cache needs {wanted}.")
    for source, target in pairs:
        target.copy_(source)
