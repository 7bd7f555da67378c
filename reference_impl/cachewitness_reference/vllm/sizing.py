"""How big blocks are and how many a sequence keeps: vLLM's arithmetic on plain numbers.

All groups of a hybrid model live in one pool of equal pages, and a state does not shrink with the
block size as keys and values do. So the block is raised, in steps that the kernels can read, until
a layer's attention page holds a layer's state, and the state is padded to the page. That number is
a model's unified block size: hits end on its multiples, and everything that is built on the pool
(LMCache's chunks, the budget of a step) follows from it.

A snapshot of a state is then one page.

Which snapshots are written and which are kept is not decided here a second time: `kept_states` asks
`align_split` where chunks end and `retention` what stays.

Sources (vLLM 0.33.0): `platforms/interface.py`, `_align_hybrid_block_size`;
`model_executor/layers/mamba/mamba_utils.py`; `v1/core/kv_cache_planning.py`,
`_get_kv_cache_groups_uniform_page_size`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cachewitness_reference.primitives import Position
from cachewitness_reference.vllm.align_split import mamba_block_aligned_split
from cachewitness_reference.vllm.options import ConfigError
from cachewitness_reference.vllm.retention import mamba_mask, replay_boundaries, sliding_window_mask

MLA_ALIGNMENT = 128
"""The step, in tokens, in which the block of a hybrid with latent attention is raised, whatever its
kernel's own block."""
SIZE_MAX = 2**63 - 1
BLOCKS_MAX = 2**20
"""No plan walks over more blocks of one sequence than these."""


def mamba_state_bytes(
    conv_channels: int, conv_kernel: int, conv_dtype_bytes: int, state_bytes: int
) -> int:
    """Return the bytes of one layer's state: the last `conv_kernel` - 1 inputs of the
    convolution and the recurrent part.
    """
    return checked("state", (conv_kernel - 1) * conv_channels * conv_dtype_bytes + state_bytes)


def block_alignment(
    kernel_block: int, *, latent: bool = False, checkpoint_alignment: int = 1
) -> int:
    """Return the step, in tokens, in which the block size is raised.

    `kernel_block` is the smallest block that the attention kernel reads, or the block size asked
    for if that is larger; `checkpoint_alignment` is the multiple at which the recurrent kernel
    exports states (1: anywhere).
    """
    return math.lcm(max(kernel_block, MLA_ALIGNMENT if latent else 1), checkpoint_alignment)


def unified_block_size(attention_token_bytes: int, state_bytes: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment`, in tokens, whose attention page holds one
    layer's state.

    `attention_token_bytes` are what one attention layer keeps for one token. Raises ConfigError for
    a number below 1.
    """
    for name, value in (
        ("attention_token_bytes", attention_token_bytes),
        ("state_bytes", state_bytes),
        ("alignment", alignment),
    ):
        checked(name, value)
    return alignment * math.ceil(Fraction(state_bytes, alignment * attention_token_bytes))


def group_size(counts: Sequence[int]) -> int:
    """Return how many layers a group has, given how many layers there are of each kind: as many as
    the rarest kind has, or the most numerous if that is less than half as much again.
    """
    rarest = min(counts)
    commonest = max(counts)
    return commonest if commonest < 1.5 * rarest else rarest


@dataclass(frozen=True)
class SequenceLengths:
    """One sequence: its prompt, what is generated after it, and the most tokens of the prompt
    that a step computes.
    """

    prompt_tokens: int
    output_tokens: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        """Refuse a length that no sequence has. Raises ConfigError naming the field."""
        for name, least in (("prompt_tokens", 1), ("output_tokens", 0), ("chunk_tokens", 1)):
            checked(name, getattr(self, name), least)

    @property
    def computed_tokens(self) -> int:
        """The tokens that are computed: of the output all but the last."""
        return self.prompt_tokens + max(self.output_tokens - 1, 0)

    def full_blocks(self, block_size: int) -> int:
        """Return how many blocks the computed tokens fill. Raises ConfigError if they are too
        many to walk over.
        """
        blocks = self.computed_tokens // block_size
        if blocks > BLOCKS_MAX:
            raise ConfigError(
                f"prompt_tokens and output_tokens ({self.computed_tokens}) are {blocks} blocks of"
                f" {block_size}; at most {BLOCKS_MAX} blocks are planned"
            )
        return blocks


def snapshot_columns(lengths: SequenceLengths, block_size: int) -> list[int]:
    """Return the columns of a recurrent group in which a state is written: chunk ends on a
    boundary, then every boundary.
    """
    columns = []
    start = 0
    blocks = lengths.full_blocks(block_size)
    while start < lengths.prompt_tokens:
        taken = mamba_block_aligned_split(
            start,
            min(lengths.chunk_tokens, lengths.prompt_tokens - start),
            num_prompt_tokens=lengths.prompt_tokens,
            num_tokens=lengths.prompt_tokens,
            block_size=block_size,
            hash_block_size=block_size,
            partial_hits=False,
            use_eagle=False,
            shared_prefix_boundary=0,
            max_prefill_tokens=lengths.chunk_tokens,
        )
        if not taken:
            raise ConfigError(
                f"chunk_tokens ({lengths.chunk_tokens}) never reaches a block of {block_size}"
                " tokens"
            )
        start += taken
        if start % block_size == 0:
            columns.append(start // block_size - 1)
    columns.extend(range(lengths.prompt_tokens // block_size, blocks))
    return columns


def kept_states(
    lengths: SequenceLengths, block_size: int, alignment: int, interval: int | None
) -> tuple[list[int], list[int]]:
    """Return the columns of one sequence in which a recurrent group writes a state, and those of
    them that stay cached.

    `alignment` is the multiple, in tokens, on which hits end; `interval` is None for dense
    retention. Raises ConfigError for an interval that is negative or no multiple of the alignment.
    """
    _check_interval(interval, alignment)
    written = snapshot_columns(lengths, block_size)
    reachable = replay_boundaries(lengths.prompt_tokens, alignment, use_eagle=False)
    columns = range(lengths.full_blocks(block_size))
    mask = mamba_mask(
        columns, block_size=block_size, alignment=alignment, interval=interval, reachable=reachable
    )
    return written, written if mask is None else [column for column in written if mask[column]]


def kept_snapshots(
    lengths: SequenceLengths, block_size: int, alignment: int, interval: int | None
) -> tuple[int, int]:
    """Return how many states of one sequence a recurrent group writes, and how many stay cached;
    as `kept_states`.
    """
    written, kept = kept_states(lengths, block_size, alignment, interval)
    return len(written), len(kept)


def kept_window(
    lengths: SequenceLengths, block_size: int, window: int, alignment: int, interval: int | None
) -> list[bool]:
    """Return which blocks of one sequence stay cached in a sliding-window group; arguments as
    for `kept_states`.
    """
    _check_interval(interval, alignment)
    reachable: tuple[Position, ...] = replay_boundaries(
        lengths.prompt_tokens, alignment, use_eagle=False
    )
    columns = range(lengths.full_blocks(block_size))
    mask = sliding_window_mask(
        columns,
        block_size=block_size,
        contiguous=_blocks_of_a_hit(window, block_size),
        alignment=alignment,
        use_eagle=False,
        interval=interval,
        reachable=reachable,
    )
    return [True] * len(columns) if mask is None else mask


def kept_window_blocks(
    lengths: SequenceLengths, block_size: int, window: int, alignment: int, interval: int | None
) -> int:
    """Return how many blocks of one sequence stay cached in a sliding-window group; arguments as
    for `kept_states`.
    """
    return sum(kept_window(lengths, block_size, window, alignment, interval))


def window_hits(kept: Sequence[bool], block_size: int, window: int, alignment: int) -> list[int]:
    """Return the positions, in tokens, at which a hit of a window group can end, given the blocks
    that are kept.

    A hit needs the last window before it, or all blocks if it is shorter.
    """
    needed = _blocks_of_a_hit(window, block_size)
    hits = []
    run = 0
    for column, is_kept in enumerate(kept):
        run = run + 1 if is_kept else 0
        end = (column + 1) * block_size
        if end % alignment == 0 and run >= min(needed, column + 1):
            hits.append(end)
    return hits


def _blocks_of_a_hit(window: int, block_size: int) -> int:
    return math.ceil((window - 1) / block_size)


def _check_interval(interval: int | None, alignment: int) -> None:
    if interval is None:
        return
    checked("retention_interval", interval, 0)
    if interval % alignment:
        raise ConfigError(
            f"retention_interval ({interval}) must be a multiple of {alignment}, the block size on"
            " which hits end"
        )


def checked(name: str, value: int, least: int = 1) -> int:
    """Return a number. Raises ConfigError if it is less than it must be, or more than any size
    is.
    """
    if not least <= value <= SIZE_MAX:
        raise ConfigError(f"{name} ({value}) must be from {least} to 2^63 - 1")
    return value
