"""llama.cpp's arithmetic on plain numbers: the cells of a context, the bytes of its buffers and of
what a slot's checkpoint holds.

A layer of full attention has a row of keys and one of values for every cell; layers with windows
have a cache of their own, with fewer cells; a recurrent layer has one state for every slot, in
32-bit numbers. Slots share the cells (`--kv-unified`) or have as many each.

Sources (llama.cpp, October 2026): `src/llama-context.cpp`; `src/llama-kv-cache.cpp`;
`src/llama-kv-cache-iswa.cpp`; `src/llama-memory-recurrent.cpp`; `src/llama-hparams.cpp`, `n_embd_r`
and `n_embd_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PADDING = 256
"""Cells of which every cache has a multiple."""
STATE_BYTES = 4
"""Of one number of a state: its types are no option."""
TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "iq4_nl": (32, 18),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
}
"""By llama.cpp's name of a type: numbers in one of its blocks, and the block's bytes."""


@dataclass(frozen=True)
class Rows:
    """What so many layers keep of a token: numbers of keys and of values."""

    layers: int
    keys: int
    values: int


@dataclass(frozen=True)
class Kept:
    """What a model keeps. `window` is that of the layers in `windows`, 0 without any; `state` are
    the numbers of one slot's states, in all recurrent layers.
    """

    full: tuple[Rows, ...]
    windows: tuple[Rows, ...] = ()
    window: int = 0
    state: int = 0


@dataclass(frozen=True)
class Context:
    """How a server is started. `ctx` are the tokens asked for, `window_cells` whether windows have
    as many cells as full attention (`--swa-full`).
    """

    ctx: int
    slots: int
    unified: bool
    keys: str = "f16"
    values: str = "f16"
    batch: int = 2048
    ubatch: int = 512
    swa_full: bool = False

    @property
    def slot_tokens(self) -> int:
        """The tokens that one slot can have, which are the cells of a stream."""
        whole = padded(self.ctx)
        return whole if self.unified else padded(whole // self.slots)

    @property
    def streams(self) -> int:
        """How many caches there are side by side: one that slots share, or one for each."""
        return 1 if self.unified else self.slots

    @property
    def tokens(self) -> int:
        """The tokens of all slots together, `n_ctx` in the log."""
        return self.slot_tokens * self.streams

    @property
    def step(self) -> int:
        """The tokens that are computed at once."""
        return min(self.ubatch, self.batch, self.ctx)

    def window_cells(self, window: int) -> int:
        """Return the cells that layers with windows have in a stream."""
        if self.swa_full:
            return self.slot_tokens
        reach = window * (self.slots if self.unified else 1) + self.step
        return padded(min(self.slot_tokens, reach))

    def full_bytes(self, kept: Kept) -> int:
        """Return the bytes of all cells of full attention."""
        return self.slot_tokens * self.streams * self.token_bytes(kept.full)

    def window_bytes(self, kept: Kept) -> int:
        """Return the bytes of all cells of the layers with windows."""
        if not kept.windows:
            return 0
        return self.window_cells(kept.window) * self.streams * self.token_bytes(kept.windows)

    def state_bytes(self, kept: Kept) -> int:
        """Return the bytes of the states of all slots."""
        return self.slots * kept.state * STATE_BYTES

    def total_bytes(self, kept: Kept) -> int:
        """Return the bytes of all that is kept on the device."""
        return self.full_bytes(kept) + self.window_bytes(kept) + self.state_bytes(kept)

    def token_bytes(self, rows: Sequence[Rows]) -> int:
        """Return the bytes of a token in some layers together."""
        return sum(
            each.layers * (row_bytes(self.keys, each.keys) + row_bytes(self.values, each.values))
            for each in rows
        )

    def checkpoint_bytes(self, kept: Kept, tokens: int) -> int:
        """Return what a checkpoint of a slot with so many tokens holds: its states, and the cells
        that the window still reaches. 0 where a server makes none.
        """
        reach = min(tokens, 0 if self.swa_full else kept.window)
        return kept.state * STATE_BYTES + reach * self.token_bytes(kept.windows)

    def prompt_bytes(self, kept: Kept, tokens: int) -> int:
        """Return what a prompt of so many tokens takes on the host, without its checkpoints: of
        windows what they still reach, whatever cells there are.
        """
        reach = min(tokens, kept.window)
        cells = tokens * self.token_bytes(kept.full) + reach * self.token_bytes(kept.windows)
        return cells + kept.state * STATE_BYTES

    def most(self, kept: Kept, memory: int, longest: int) -> int:
        """Return the largest context, in tokens for all slots together, that a memory holds; at
        most what gives every slot `longest`, and 0 if not even the smallest fits.
        """
        low = 0
        high = padded(longest) // PADDING
        while low < high:
            middle = (low + high + 1) // 2
            if self._with(middle).total_bytes(kept) <= memory:
                low = middle
            else:
                high = middle - 1
        return self._with(low).tokens if low else 0

    def _with(self, steps: int) -> Context:
        return replace(self, ctx=steps * PADDING * self.streams)


def padded(tokens: int) -> int:
    """Return a number of tokens, up to a whole number of cells."""
    return max(-(-tokens // PADDING), 1) * PADDING


def row_bytes(name: str, numbers: int) -> int:
    """Return the bytes of a row; its numbers are whole blocks of the type."""
    block, size = TYPES[name]
    return numbers // block * size
