"""What a trace asks of SGLang's cache, in SGLang's words: pages, pools, states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, TraceHeader

MODEL_LEN = 4096
STATES_PER_PAGE = 4
"""Unless a trace says how many states there are: one for so many pages of attention, and
`STATES_LEAST` at least."""
STATES_LEAST = 12


@dataclass(frozen=True)
class PoolSizes:
    """What is built: sizes of pages and spans in tokens, pools in pages without the null page.

    `window` is 0 without a sliding group, `states` without a recurrent one. `max_states_per_path`
    is −1 without a limit.
    """

    page_size: int
    pages: int
    window: int
    swa_pages: int
    states: int
    max_states_per_path: int
    max_model_len: int


def read(header: TraceHeader) -> PoolSizes:
    """Return what a trace asks for. Raises UsageError for what SGLang's cache has not."""
    options = dict(header.options)
    groups = {kind: _one(header, kind) for kind in ("full", "sliding", "recurrent")}
    full = groups["full"]
    sliding = groups["sliding"]
    recurrent = groups["recurrent"]
    if full is None or any(group.kind not in groups for group in header.layout.groups):
        raise UsageError(
            f"layout {header.layout.name!r}: SGLang's unified cache has one group of full"
            " attention, and beside it sliding and recurrent ones"
        )
    if sliding is not None and sliding.block_size != full.block_size:
        raise UsageError(
            f"layout {header.layout.name!r}: SGLang has one page size for all attention; make the"
            " blocks equal"
        )
    pages = header.pages - 1
    asked = PoolSizes(
        page_size=full.block_size,
        pages=pages,
        window=sliding.window if sliding else 0,
        swa_pages=_number(options, "swa_pages", pages) if sliding else 0,
        states=(
            _number(options, "states", max(pages // STATES_PER_PAGE, STATES_LEAST))
            if recurrent
            else 0
        ),
        max_states_per_path=_number(options, "max_states_per_path", -1),
        max_model_len=_number(options, "max_model_len", MODEL_LEN),
    )
    options.pop("max_num_batched_tokens", None)
    if options:
        raise UsageError(f"trace {header.name!r}: SGLang has no option {min(options)!r}")
    if recurrent and asked.page_size > 1:
        raise UsageError(
            f"layout {header.layout.name!r}: SGLang's strategy `no_buffer`, which keeps the state"
            " at a request's end, takes pages of one token; `extra_buffer` is not driven"
        )
    return asked


def _one(header: TraceHeader, kind: str) -> GroupSpec | None:
    found = [group for group in header.layout.groups if group.kind == kind]
    if len(found) > 1:
        raise UsageError(
            f"layout {header.layout.name!r}: SGLang keeps all {kind} layers in one pool; one group"
            " of them is enough"
        )
    return found[0] if found else None


def _number(options: dict[str, Any], name: str, default: int) -> int:
    if name not in options:
        return default
    value = options.pop(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"option {name!r} is a whole number, at least 1; not {value!r}")
    return value
