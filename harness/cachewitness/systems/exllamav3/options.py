"""What a trace asks of exllamav3's generator, in exllamav3's words: pages, chunks, slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, TraceHeader

MODEL_LEN = 4096
PAGES_OF = {
    "max_chunk_size": 8,
    "max_rq_tokens": 8,
    "checkpoint_interval": 8,
    "checkpoint_interval_pp": 128,
}
"""Defaults in pages: those of exllamav3 with its pages of 256 tokens; for `max_rq_tokens`, which it
does not limit, as many as a chunk has."""
COUNTS = {"max_batch_size": 16, "prefill_cooldown": 4, "states": 8, "cpu_pages": 0}
"""Defaults: those of exllamav3, but for the states that are kept for prompts to come (its own: as
many as 4 GiB have room for). Without `cpu_pages` there is no CPU page cache."""


@dataclass(frozen=True)
class Asked:
    """What is built: `pages` with the one that nobody owns, and with `recurrent` slots for
    `max_batch_size` requests and room for `states` checkpoints; `cpu_pages` are those of the CPU
    page cache. The rest is in tokens.
    """

    page_size: int
    pages: int
    recurrent: bool
    max_model_len: int
    max_chunk_size: int
    max_rq_tokens: int
    checkpoint_interval: int
    checkpoint_interval_pp: int
    max_batch_size: int
    prefill_cooldown: int
    states: int
    cpu_pages: int

    @property
    def longest(self) -> int:
        """How many tokens a request may have: the cache holds one less than it has room for."""
        return min(self.max_model_len, (self.pages - 1) * self.page_size - 1)

    @property
    def places(self) -> int:
        """How many places there are for states, the one that nobody owns among them."""
        return 1 + self.max_batch_size + self.states if self.recurrent else 0


def read(header: TraceHeader) -> Asked:
    """Return what a trace asks for. Raises UsageError for what exllamav3's generator has not."""
    options = dict(header.options)
    attention, recurrent = _groups(header)
    page = attention.block_size
    tokens = {name: _number(options, name, pages * page) for name, pages in PAGES_OF.items()}
    counts = {name: _number(options, name, value) for name, value in COUNTS.items()}
    model_len = _number(options, "max_model_len", MODEL_LEN)
    options.pop("max_num_batched_tokens", None)
    if options:
        raise UsageError(f"trace {header.name!r}: exllamav3 has no option {min(options)!r}")
    if counts["cpu_pages"] == 1:
        raise UsageError("option 'cpu_pages' is 0, or at least 2, as exllamav3 asks; not 1")
    for name in ("checkpoint_interval", "checkpoint_interval_pp", "max_chunk_size"):
        if tokens[name] % page:
            raise UsageError(
                f"option {name!r} is a multiple of the page size {page}; not {tokens[name]}"
            )
    return Asked(
        page_size=page,
        pages=header.pages,
        recurrent=recurrent,
        max_model_len=model_len,
        **tokens,
        **counts,
    )


def _groups(header: TraceHeader) -> tuple[GroupSpec, bool]:
    """Return the group of attention, and whether there is a recurrent one beside it."""
    name = header.layout.name
    attention = [group for group in header.layout.groups if group.kind == "full"]
    others = [group for group in header.layout.groups if group not in attention]
    if len(attention) != 1 or any(group.kind != "recurrent" for group in others):
        raise UsageError(
            f"layout {name!r}: exllamav3 has one block table, of full attention, and beside it"
            " recurrent states"
        )
    if len(others) > 1:
        raise UsageError(
            f"layout {name!r}: exllamav3 keeps the states of all recurrent layers together; one"
            " group of them is enough"
        )
    return attention[0], bool(others)


def _number(options: dict[str, Any], name: str, default: int) -> int:
    value = options.pop(name, default)
    least = 0 if name in ("states", "prefill_cooldown", "cpu_pages") else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"option {name!r} is a whole number, at least {least}; not {value!r}")
    return value
