"""The manager without tensors: what every call of the document decides.

`HybridCachePolicy` has the manager's methods under their names. It answers with what is to be done
(which rows move, at which position a capture is) and keeps the books by which the next call is
judged; `tensors.HybridCacheManager` asks it first and then does the same to real tensors. A call
that is refused has changed nothing.

Source: the document, class `HybridCacheManager`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge import compaction
from cachewitness_reference.tensorrt_edge.capture import Captured, Kind, check_captured
from cachewitness_reference.tensorrt_edge.compaction import Moves
from cachewitness_reference.tensorrt_edge.config import Config, DataType, check, checked
from cachewitness_reference.tensorrt_edge.routing import (
    KVHeadDimGroupView,
    Routing,
    head_dim_groups,
)
from cachewitness_reference.tensorrt_edge.rows import START, Rows

RESTORES = {
    Kind.KV: "restoreKVCache",
    Kind.RECURRENT: "restoreRecurrentStates",
    Kind.CONV: "restoreConvStates",
}
"""The call that each kind of capture is restored by."""


class HybridCachePolicy:
    """The books and rules of a cache. Without a configuration it is empty, as after the default
    constructor.

    With `in_place`, compaction moves what the releases' loops move (`compaction.in_place`); the
    books believe, as a caller does, that it did what the mapping says.
    """

    def __init__(self, config: Config | None = None, *, in_place: bool = False) -> None:
        """Build the books of an empty cache. Raises CacheError for a configuration that does not
        fit.
        """
        self.config = checked(config) if config is not None else Config()
        self.routing = Routing(self.config.layer_types)
        self.rows = Rows(self.config)
        self._in_place = in_place

    # --- groups and lengths -----------------------------------------------------------------------

    def get_kv_head_dim_groups(self) -> list[KVHeadDimGroupView]:
        """Return one view per head dim of the KV layers."""
        kv = self.config.kv_config
        return head_dim_groups(kv.layer_configs, kv.max_sequence_length)

    def get_kv_cache_lengths(self) -> list[Position]:
        """Return the lengths [active batch size], in tokens."""
        return self.rows.lengths

    def get_active_batch_size(self) -> int:
        """Return the number of active sequences."""
        return self.rows.active

    def set_active_batch_size(self, new_active_batch_size: int) -> None:
        """Set the active batch size, as after batch eviction. Raises CacheError if out of range
        [0, max_batch_size].
        """
        self.rows.set_active(new_active_batch_size)

    def get_kv_cache_all_empty(self) -> bool:
        """Return whether all sequences are empty: nothing was reused and no prefill has been
        committed yet.

        The document says both; for a reset with reuse see `spec.DIFFERENCES`, `all empty`.
        """
        return self.rows.all_empty

    def reset_for_new_sequences(self, reuse_kv_cache_lengths: Sequence[int]) -> None:
        """Declare the active batch and how many tokens of each slot are valid. Raises CacheError
        (`rows`).
        """
        self.rows.reset(reuse_kv_cache_lengths)

    def commit_sequence_length(self, new_context_lengths: Sequence[int] | int) -> None:
        """Add context lengths [active batch size] after prefill, or one increment for all after
        decode.

        Raises CacheError if they are not as many as there are active sequences, and as `rows` says.
        """
        active = self.rows.active
        if isinstance(new_context_lengths, int):
            new_context_lengths = [new_context_lengths] * active
        same = len(new_context_lengths) == active
        check(
            same,
            "The newContextLengths tensor shall have the same batch size as the active batch size.",
        )
        self.rows.commit(new_context_lengths)

    def compact_batch(self, batch_mapping: Sequence[int], old_batch: int, new_batch: int) -> Moves:
        """Return the moves of every kind of memory, and move the books; the active batch size is
        the caller's to set.

        Raises CacheError for a mapping that the contract does not allow (`compaction`).
        """
        moves = compaction.plan(batch_mapping, old_batch, new_batch, self.rows.active)
        before = self.rows.lengths
        self.rows.move(moves.lengths, new_batch)
        if self._in_place:
            return compaction.in_place(batch_mapping, before, new_batch, self.config.max_batch_size)
        return moves

    # --- capture and restore ----------------------------------------------------------------------

    def capture_kv_cache(self, batch_idx: int, sequence_length: int) -> Captured[None]:
        """Capture the first `sequence_length` tokens of a slot. Raises CacheError if it does not
        hold so many.
        """
        self._check_half("captureKVCache")
        held = self.rows.row("captureKVCache", batch_idx).kv or START
        inside = 0 <= sequence_length <= held
        check(
            inside,
            f"captureKVCache: sequenceLength {sequence_length} is not in range [0, {held}], what"
            f" slot {batch_idx} holds.",
        )
        return Captured(
            Kind.KV, Position(sequence_length), (None,) * self.config.kv_config.num_attention_layers
        )

    def restore_kv_cache(self, saved: Captured[object], batch_idx: int) -> None:
        """Make a slot hold what was captured. Raises CacheError for a capture that does not fit;
        lengths stay as they are.
        """
        self.check_restore(saved, Kind.KV, batch_idx)
        self.rows.rows[batch_idx].kv = saved.position

    def capture_recurrent_states(self, batch_idx: int) -> Captured[None]:
        """Capture a slot's recurrent states. Raises CacheError if they are of nobody."""
        return self._capture("captureRecurrentStates", Kind.RECURRENT, batch_idx)

    def capture_conv_states(self, batch_idx: int) -> Captured[None]:
        """Capture a slot's conv states. Raises CacheError if they are of nobody."""
        return self._capture("captureConvStates", Kind.CONV, batch_idx)

    def restore_recurrent_states(self, saved: Captured[object], batch_idx: int) -> None:
        """Make a slot's recurrent states those captured. Raises CacheError for a capture that
        does not fit.
        """
        self.check_restore(saved, Kind.RECURRENT, batch_idx)
        self.rows.rows[batch_idx].recurrent = saved.position

    def restore_conv_states(self, saved: Captured[object], batch_idx: int) -> None:
        """Make a slot's conv states those captured. Raises CacheError for a capture that does
        not fit.
        """
        self.check_restore(saved, Kind.CONV, batch_idx)
        self.rows.rows[batch_idx].conv = saved.position

    def check_restore(self, saved: Captured[object], kind: Kind, batch_idx: int) -> None:
        """Raise CacheError unless a capture of that kind can be restored into a slot."""
        name = RESTORES[kind]
        kv = self.config.kv_config
        layers = self.config.mamba_config.num_recurrent_layers
        if kind is Kind.KV:
            self._check_half(name)
            layers = kv.num_attention_layers
        check_captured(name, saved, kind, layers)
        room = kv.max_sequence_length
        check(
            saved.position <= room,
            f"{name}: saved is of {saved.position} tokens; maxSequenceLength is {room}.",
        )
        self.rows.row(name, batch_idx)

    def zero_recurrent_states(self, batch_idx: int) -> None:
        """Begin a slot anew: both of its states are those before the first token."""
        row = self.rows.row("zeroRecurrentStates", batch_idx)
        row.recurrent = row.conv = START

    def clear_states(self) -> None:
        """Begin every slot anew, as after warm-up."""
        for slot in range(len(self.rows.rows)):
            self.zero_recurrent_states(slot)

    def _capture(self, name: str, kind: Kind, batch_idx: int) -> Captured[None]:
        row = self.rows.row(name, batch_idx)
        position = row.recurrent if kind is Kind.RECURRENT else row.conv
        check(position is not None, f"{name}: slot {batch_idx} holds {kind.value} of nobody.")
        assert position is not None
        return Captured(kind, position, (None,) * self.config.mamba_config.num_recurrent_layers)

    def _check_half(self, name: str) -> None:
        half = self.config.kv_config.kv_cache_type is DataType.HALF
        text = "currently only supports kHALF KV cache; FP8 system-prompt cache is not implemented."
        check(half, f"HybridCacheManager::{name} {text}")
