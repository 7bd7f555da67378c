"""What a trace asks of lmdeploy's scheduler, in lmdeploy's words: blocks, states, batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, TraceHeader

MODEL_LEN = 4096
DEFAULTS = {
    "max_batches": 16,
    "max_prefill_token_num": 8192,
    "prefill_interval": 16,
    "state_budget": 8,
    "decode_state_interval": 0,
}
"""lmdeploy's own, but for the states that are kept for prompts to come (its own: none) and the
batch (its own: 128)."""


@dataclass(frozen=True)
class Asked:
    """What is built: blocks and the window in tokens, `pages` with the one that nobody owns.

    `window` is 0 without one. With `recurrent`, `state_budget` states are kept beside those of
    `max_batches` requests, and one is kept of an answer every `decode_state_interval` tokens (0:
    none).
    """

    block_size: int
    pages: int
    window: int
    recurrent: bool
    max_model_len: int
    max_batches: int
    max_prefill_token_num: int
    prefill_interval: int
    state_budget: int
    decode_state_interval: int

    @property
    def states(self) -> int:
        """How many rows of states there are, the one that nobody owns and the spare one among
        them (`ExecutorBase`, `num_state_caches`).
        """
        return self.max_batches + 2 + self.state_budget if self.recurrent else 0

    @property
    def longest(self) -> int:
        """How long a session may get (`Engine._get_max_session_len`), with room for the tokens for
        which lmdeploy takes blocks ahead.
        """
        tokens = (self.pages - 1) * self.block_size
        return min(self.max_model_len, tokens - max(self.block_size, self.prefill_interval))


def read(header: TraceHeader) -> Asked:
    """Return what a trace asks for. Raises UsageError for what lmdeploy's scheduler has not."""
    options = dict(header.options)
    attention, recurrent = _groups(header)
    limits = {name: _number(options, name, value) for name, value in DEFAULTS.items()}
    model_len = _number(options, "max_model_len", MODEL_LEN)
    options.pop("max_num_batched_tokens", None)
    if options:
        raise UsageError(f"trace {header.name!r}: lmdeploy has no option {min(options)!r}")
    interval = limits["decode_state_interval"]
    if interval % attention.block_size:
        raise UsageError(
            f"option 'decode_state_interval' is a multiple of the block size"
            f" {attention.block_size}; not {interval}"
        )
    return Asked(
        block_size=attention.block_size,
        pages=header.pages,
        window=attention.window,
        recurrent=recurrent,
        max_model_len=model_len,
        **limits,
    )


def _groups(header: TraceHeader) -> tuple[GroupSpec, bool]:
    """Return the group of attention, and whether there is a recurrent one beside it."""
    name = header.layout.name
    attention = [group for group in header.layout.groups if group.kind in ("full", "sliding")]
    others = [group for group in header.layout.groups if group not in attention]
    if len(attention) != 1 or any(group.kind != "recurrent" for group in others):
        raise UsageError(
            f"layout {name!r}: lmdeploy has one block table, of full attention or of a window, and"
            " beside it recurrent states"
        )
    if len(others) > 1:
        raise UsageError(
            f"layout {name!r}: lmdeploy keeps all recurrent layers in one pool; one group of them"
            " is enough"
        )
    if others and attention[0].window:
        raise UsageError(
            f"layout {name!r}: beside a window lmdeploy caches no prefixes; the window is driven"
            " alone"
        )
    return attention[0], bool(others)


def _number(options: dict[str, Any], name: str, default: int) -> int:
    value = options.pop(name, default)
    least = 0 if name in ("state_budget", "decode_state_interval") else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"option {name!r} is a whole number, at least {least}; not {value!r}")
    return value
