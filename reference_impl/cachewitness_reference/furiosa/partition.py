"""How the KV memory is split between the two pools.

A sequence of L tokens needs q_g = ceil(L / B) blocks of the global pool. Of the sliding pool it
needs those that the window touches: W - 1 tokens before the next one, which may begin in the middle
of a block, so ceil((W - 1) / B) + 1 at most, and never more than q_g. The memory is split in the
ratio of what these blocks weigh; then at length L both pools run out at the same number of
sequences.

The lengths that matter: up to the window both kinds need a block for a block, and the share is that
of a token (`per_token`); beyond it the global share grows with L. All arithmetic is in integers:
N_g is rounded down, N_s takes what is left, so the two together never exceed the memory, and less
than one sliding block is wasted.

Source of the rule: spec rules `attention-aware`, `default-ratio`, `expected-length`; the formula is
our choice, checked against SGLang's ratio of sliding to full slots, min(L, W) / L, with which it
agrees up to the blocks' rounding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cachewitness_reference.furiosa.spec import CHOICES, INTEGER_MAX, VARIABLE

LONGEST_SHOWN = 40
"""So many characters of a text that does not fit are repeated in a message."""


class ConfigError(ValueError):
    """A value does not fit; the message is one line that names the field."""


@dataclass(frozen=True)
class Partition:
    """The split: blocks of either pool and their sizes in bytes, for sequences of `seq_length`
    tokens.

    `global_blocks_per_seq` and `sliding_blocks_per_seq` are what one such sequence needs of them.
    """

    seq_length: int
    global_blocks: int
    sliding_blocks: int
    global_block_bytes: int
    sliding_block_bytes: int
    global_blocks_per_seq: int
    sliding_blocks_per_seq: int

    @property
    def used_bytes(self) -> int:
        """The bytes of all blocks of both pools."""
        return (
            self.global_blocks * self.global_block_bytes
            + self.sliding_blocks * self.sliding_block_bytes
        )

    @property
    def sequences(self) -> int:
        """How many sequences of `seq_length` tokens fit at once."""
        return self.sequences_of(self.global_blocks_per_seq, self.sliding_blocks_per_seq)

    def sequences_of(self, global_blocks: int, sliding_blocks: int) -> int:
        """Return how many sequences that need so many blocks of either pool fit at once."""
        return min(self.global_blocks // global_blocks, self.sliding_blocks // sliding_blocks)


def split(
    kv_bytes: int,
    *,
    block_size: int,
    global_layers: int,
    sliding_layers: int,
    global_bytes_per_token: int,
    sliding_bytes_per_token: int,
    window: int,
    max_model_len: int,
    expected_average_seq_length: int | None = None,
    default_ratio: str = "max_model_len",
) -> Partition:
    """Split `kv_bytes` of memory between the pools.

    `block_size`, `window` (the query counted), `max_model_len` and `expected_average_seq_length`
    are in tokens, the bytes per token those of one layer (keys and values). Raises ConfigError,
    naming the field, for a number that is not positive or out of range, and for memory that does
    not hold one sequence of the length that it is split for.
    """
    sizes = {
        "kv_bytes": kv_bytes,
        "block_size": block_size,
        "global_layers": global_layers,
        "sliding_layers": sliding_layers,
        "global_bytes_per_token": global_bytes_per_token,
        "sliding_bytes_per_token": sliding_bytes_per_token,
        "window": window,
        "max_model_len": max_model_len,
    }
    for name, value in sizes.items():
        _check_size(name, value)
    length = seq_length(window, max_model_len, expected_average_seq_length, default_ratio)
    per_seq_global, per_seq_sliding = blocks_per_seq(length, block_size, window)
    global_block = block_size * global_layers * global_bytes_per_token
    sliding_block = block_size * sliding_layers * sliding_bytes_per_token
    seq_bytes = per_seq_global * global_block + per_seq_sliding * sliding_block
    global_blocks = kv_bytes * per_seq_global // seq_bytes
    sliding_blocks = (kv_bytes - global_blocks * global_block) // sliding_block
    if kv_bytes < seq_bytes:
        raise ConfigError(
            f"kv_bytes ({kv_bytes}) holds not even one sequence of {length} tokens, for which it is"
            f" split: that takes {seq_bytes} bytes; give more memory, or set {VARIABLE} to the"
            " length that is expected"
        )
    return Partition(
        seq_length=length,
        global_blocks=global_blocks,
        sliding_blocks=sliding_blocks,
        global_block_bytes=global_block,
        sliding_block_bytes=sliding_block,
        global_blocks_per_seq=per_seq_global,
        sliding_blocks_per_seq=per_seq_sliding,
    )


def seq_length(window: int, max_model_len: int, expected: int | None, default_ratio: str) -> int:
    """Return the length, in tokens, for which memory is split: the expected one, at most
    `max_model_len`, or the default's.

    Raises ConfigError for an expected length that is not a positive integer, and for an unknown
    default.
    """
    if default_ratio not in CHOICES["default_ratio"].values:
        raise ConfigError(
            f"default_ratio {default_ratio!r} is unknown; known are max_model_len, per_token"
        )
    if expected is not None:
        if isinstance(expected, bool) or not isinstance(expected, int) or expected <= 0:
            raise ConfigError(f"{VARIABLE} must be a positive integer, not {expected!r}")
        return min(expected, max_model_len)
    return max_model_len if default_ratio == "max_model_len" else min(window, max_model_len)


def blocks_per_seq(length: int, block_size: int, window: int) -> tuple[int, int]:
    """Return how many global and sliding blocks a sequence of `length` tokens needs."""
    global_blocks = -(-length // block_size)
    return global_blocks, min(global_blocks, -(-(window - 1) // block_size) + 1)


def expected_length_from(environment: Mapping[str, str]) -> int | None:
    """Return what the environment variable says, None if it is unset.

    Raises ConfigError if it is anything but a positive decimal integer within 63 bits.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) <= INTEGER_MAX:
        shown = repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")
        raise ConfigError(f"{VARIABLE} must be a positive integer, not {shown}")
    return int(text)


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if value <= 0:
        raise ConfigError(f"{name} ({value}) must be positive")
    if value > INTEGER_MAX:
        raise ConfigError(f"{name} ({value}) is larger than 2^63 - 1")
