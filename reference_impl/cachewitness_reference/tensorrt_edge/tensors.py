"""The manager with tensors, on a CPU or a GPU: the policy decides, and every row of every tensor
follows.

Each call asks the policy first, which refuses it or keeps books of it, and then does to the tensors
what the policy answered. Shapes are the document's: KV [maxBatch, 2, heads, maxSeqLen, headDim] per
attention layer, recurrent states [maxBatch, heads, headDim, stateSize] and conv states [maxBatch,
convDim, convKernel] per Mamba layer, lengths [maxBatch] int32. The caller's kernels write KV and
states through the getters; what they wrote counts from the commit on.

Streams are the caller's current ones. Getters return the tensor itself, never a copy. A manager is
not copied: two would own one memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge.capture import Captured, Kind
from cachewitness_reference.tensorrt_edge.config import CacheError, Config, LayerType, check
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.routing import KVHeadDimGroupView, head_dim_groups
from cachewitness_reference.tensorrt_edge.sub_managers import (
    KVCacheManager,
    MambaCacheManager,
    move_rows_of,
    overwrite,
)


class HybridCacheManager:
    """The cache of a model with attention and Mamba layers. Without a configuration nothing is
    allocated.

    `device` is torch's. `in_place` compacts as the releases do (`compaction.in_place`). Every
    method raises CacheError, having changed nothing, for what the policy refuses.
    """

    def __init__(
        self, config: Config | None = None, device: str = "cpu", *, in_place: bool = False
    ) -> None:
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

    # --- access -----------------------------------------------------------------------------------

    def get_combined_kv_cache(self, abs_layer_idx: int) -> Tensor:
        """Return an attention layer's cache [maxBatch, 2, heads, maxSeqLen, headDim]."""
        local = self.policy.routing.local("getCombinedKVCache", abs_layer_idx, LayerType.ATTENTION)
        return self.get_kv_cache_manager().get_combined_kv_cache(local)

    def get_separate_kv_cache(self, abs_layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return an attention layer's K and V, views [maxBatch, heads, maxSeqLen, headDim] that
        own nothing.
        """
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
        """Return the KV sub-manager, which knows layers by local index. Raises CacheError if
        nothing is allocated.
        """
        if self._kv is None:
            raise CacheError(
                "getKVCacheManager: the cache was built without a configuration; nothing is"
                " allocated."
            )
        return self._kv

    def get_mamba_cache_manager(self) -> MambaCacheManager:
        """Return the Mamba sub-manager, which knows layers by local index. Raises CacheError if
        nothing is allocated.
        """
        if self._mamba is None:
            raise CacheError(
                "getMambaCacheManager: the cache was built without a configuration; nothing is"
                " allocated."
            )
        return self._mamba

    def get_kv_head_dim_groups(self) -> list[KVHeadDimGroupView]:
        """Return one view per head dim; the layer infos point to the tensors' memory, and lie on
        the device beside them.
        """
        kv = self.policy.config.kv_config
        pointers = [layer.data_ptr() for layer in self._kv.layers] if self._kv else []
        views = head_dim_groups(kv.layer_configs, kv.max_sequence_length, pointers)
        return [replace(view, device_layer_infos=self._on_device(view)) for view in views]

    def _on_device(self, view: KVHeadDimGroupView) -> Tensor:
        """Return the layer infos of a group as a kernel reads them: int64 [layers, 3], pointer,
        KV heads, longest sequence.
        """
        rows = [
            (info.data, info.num_kv_heads, info.max_sequence_length) for info in view.layer_infos
        ]
        return torch.tensor(rows, dtype=torch.int64, device=self._lengths.device)

    def get_kv_cache_lengths(self) -> Tensor:
        """Return the shared lengths [active batch size], int32, a view on the device."""
        return self._lengths[: self.get_active_batch_size()]

    # --- the batch --------------------------------------------------------------------------------

    def reset_for_new_sequences(self, reuse_kv_cache_lengths: Tensor) -> None:
        """Declare the batch: `reuse_kv_cache_lengths` [batch size] int32 on the host, in tokens."""
        _check_vector("The reuseKVCacheLengths", reuse_kv_cache_lengths)
        on_host = reuse_kv_cache_lengths.device.type == "cpu"
        size = len(reuse_kv_cache_lengths)
        check(
            size <= len(self._lengths),
            "Batch size of request shall not exceed the max supported batch size.",
        )
        check(on_host, "The reuseKVCacheLengths tensor shall reside on CPU.")
        same = reuse_kv_cache_lengths.dtype == torch.int32
        text = "shall match the data type of the Device KVCache Lengths."
        check(same, f"The data type of the reuseKVCacheLengths tensor {text}")
        self.policy.reset_for_new_sequences(reuse_kv_cache_lengths.tolist())
        self._lengths[:size] = reuse_kv_cache_lengths.to(self._lengths.device)

    def commit_sequence_length(self, new_context_lengths: Tensor | int) -> None:
        """Add context lengths [active batch size], int32 on the device, after prefill; or one
        increment after decode.
        """
        if isinstance(new_context_lengths, int):
            self.policy.commit_sequence_length(new_context_lengths)
        else:
            _check_vector("The newContextLengths", new_context_lengths)
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
        """Return whether all sequences are empty: nothing was reused and no prefill has been
        committed yet.
        """
        return self.policy.get_kv_cache_all_empty()

    def compact_batch(self, batch_mapping: Tensor, old_batch: int, new_batch: int) -> None:
        """Move KV, lengths and states of the survivors: `batch_mapping` [old batch] int32 on the
        device.
        """
        _check_vector("compactBatch: batchMapping", batch_mapping)
        fits = (
            batch_mapping.dtype == torch.int32
            and batch_mapping.dim() == 1
            and batch_mapping.device == self._lengths.device
        )
        check(
            fits,
            "compactBatch: batchMapping shall be an INT32 tensor [oldBatch] on the device of the"
            " cache.",
        )
        before = self.policy.get_kv_cache_lengths()
        moves = self.policy.compact_batch(batch_mapping.tolist(), old_batch, new_batch)
        move_rows_of(self._lengths, moves.lengths)
        self._lengths[new_batch:old_batch] = 0
        self.get_kv_cache_manager().move_rows(moves.kv, before)
        self.get_mamba_cache_manager().move_rows(moves.states)

    # --- capture and restore ----------------------------------------------------------------------

    def capture_kv_cache(self, batch_idx: int, sequence_length: int) -> Captured[Tensor]:
        """Return copies [2, heads, n, headDim] of a slot's first n tokens, one per attention
        layer.
        """
        captured = self.policy.capture_kv_cache(batch_idx, sequence_length)
        return Captured(
            Kind.KV,
            captured.position,
            self.get_kv_cache_manager().capture(batch_idx, sequence_length),
        )

    def restore_kv_cache(self, saved: Sequence[Tensor], batch_idx: int) -> None:
        """Overwrite a slot's first tokens by a capture, or by plain tensors [2, heads, n, headDim],
        one per attention layer.

        What lies behind the tokens, and the lengths, stay.
        """
        capture = _known("restoreKVCache", Kind.KV, saved, _tokens_of(saved))
        self.policy.check_restore(capture, Kind.KV, batch_idx)
        self.get_kv_cache_manager().restore(capture, batch_idx, capture.position)
        self.policy.restore_kv_cache(capture, batch_idx)

    def capture_recurrent_states(self, batch_idx: int) -> Captured[Tensor]:
        """Return copies [1, heads, headDim, stateSize] of a slot's states, one per Mamba layer."""
        captured = self.policy.capture_recurrent_states(batch_idx)
        return Captured(
            captured.kind,
            captured.position,
            _rows(self.get_mamba_cache_manager().recurrent, batch_idx),
        )

    def capture_conv_states(self, batch_idx: int) -> Captured[Tensor]:
        """Return copies [1, convDim, convKernel] of a slot's states, one per Mamba layer."""
        captured = self.policy.capture_conv_states(batch_idx)
        return Captured(
            captured.kind, captured.position, _rows(self.get_mamba_cache_manager().conv, batch_idx)
        )

    def restore_recurrent_states(
        self, saved: Sequence[Tensor], batch_idx: int, position: int | None = None
    ) -> None:
        """Overwrite a slot's recurrent states by a capture, or by plain tensors that stand for
        `position` tokens.
        """
        capture = _known("restoreRecurrentStates", Kind.RECURRENT, saved, position)
        self.policy.check_restore(capture, Kind.RECURRENT, batch_idx)
        states = self.get_mamba_cache_manager().recurrent
        overwrite("restoreRecurrentStates", capture, [state[batch_idx, None] for state in states])
        self.policy.restore_recurrent_states(capture, batch_idx)

    def restore_conv_states(
        self, saved: Sequence[Tensor], batch_idx: int, position: int | None = None
    ) -> None:
        """Overwrite a slot's conv states by a capture, or by plain tensors that stand for
        `position` tokens.
        """
        capture = _known("restoreConvStates", Kind.CONV, saved, position)
        self.policy.check_restore(capture, Kind.CONV, batch_idx)
        states = self.get_mamba_cache_manager().conv
        overwrite("restoreConvStates", capture, [state[batch_idx, None] for state in states])
        self.policy.restore_conv_states(capture, batch_idx)

    def zero_recurrent_states(self, batch_idx: int) -> None:
        """Begin a slot anew: zero its recurrent and conv states."""
        self.policy.zero_recurrent_states(batch_idx)
        self.get_mamba_cache_manager().clear_states(slice(batch_idx, batch_idx + 1))

    def clear_states(self) -> None:
        """Begin every slot anew, as after warm-up."""
        self.policy.clear_states()
        self.get_mamba_cache_manager().clear_states()


def _check_vector(what: str, given: object) -> None:
    fits = isinstance(given, Tensor) and given.dim() == 1
    check(
        fits,
        (
            f"{what} tensor shall have one dimension."
            if isinstance(given, Tensor)
            else f"{what} shall be a tensor."
        ),
    )


def _known(
    name: str, kind: Kind, saved: Sequence[Tensor], position: int | None
) -> Captured[Tensor]:
    """Return a capture with its position: its own, or the one that is known of plain tensors.

    Raises CacheError, in the name of `name`, for plain tensors of which none is known, and for a
    position that contradicts the capture's.
    """
    if isinstance(saved, Captured):
        same = position is None or position == saved.position
        check(same, f"{name}: saved is of position {saved.position}, not {position}.")
        return saved
    check(
        all(isinstance(layer, Tensor) for layer in saved),
        f"{name}: saved is neither a capture nor a list of tensors.",
    )
    check(
        position is not None and position >= 0,
        f"{name}: saved is not a capture; pass the position that it belongs to.",
    )
    assert position is not None
    return Captured(kind, Position(position), tuple(saved))


def _tokens_of(saved: Sequence[Tensor]) -> int | None:
    """Return how many tokens plain KV tensors [2, heads, n, headDim] hold, None where they do
    not say.
    """
    if isinstance(saved, Captured):
        return None
    lengths = {
        layer.shape[2] if layer.dim() == 4 else None for layer in saved if isinstance(layer, Tensor)
    }
    return lengths.pop() if len(lengths) == 1 else None


def _rows(states: Sequence[Tensor], batch_idx: int) -> tuple[Tensor, ...]:
    return tuple(state[batch_idx, None].clone() for state in states)
