"""What SGLang's cache declares of itself, from what its source says and from what a trace asks."""

from __future__ import annotations

from cachewitness.core.events import Eviction, Group, Header, Pool, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.sglang.observed import FULL, RECURRENT, SLIDING
from cachewitness.systems.sglang.options import PoolSizes

PROGRESS_STEPS = 4
AHEAD = 1e-6
"""Keys end ahead of need from any filling on: SGLang evicts whole nodes, and more than is needed
when it retracts."""
ASKS = {FULL: 2, SLIDING: 2, RECURRENT: 1}
"""Pages that are asked for beyond what is taken, for each request: a page more than its tokens
(`PrefillAdder`), which may begin inside one that it has; and the copy of a state."""
CAPABILITIES = ["abort", "adapter", "cancel", "preempt", "reset", "salt", "update_weights"]
NOT_APPLICABLE = {
    "withdraw": (
        "SGLang puts nothing into its tree before a step has run, and takes no request back out"
        " of one"
    )
}


def groups_of(asked: PoolSizes) -> dict[str, int]:
    """Return the groups by kind, numbered; each has a pool of its number."""
    kinds = [FULL, *([SLIDING] if asked.window else []), *([RECURRENT] if asked.states else [])]
    return {kind: number for number, kind in enumerate(kinds)}


def describe(
    trace: TraceHeader, asked: PoolSizes, groups: dict[str, int], version: str, *, caching: bool
) -> Header:
    """Return the header of a history: a pool for each kind of group, whose page or slot 0 nobody
    owns.
    """
    sizes = {FULL: asked.pages, SLIDING: asked.swa_pages, RECURRENT: asked.states}
    return Header(
        engine="sglang",
        level=trace.level,
        pools=[
            Pool(
                id=number,
                pages=sizes[kind] + 1,
                null=[0],
                eviction=Eviction("random", watermark=AHEAD, asks=ASKS[kind]),
            )
            for kind, number in groups.items()
        ],
        groups=[_group(kind, number, asked) for kind, number in groups.items()],
        rules=Rules(
            caching=caching,
            alignment=asked.page_size,
            progress_steps=PROGRESS_STEPS,
            idle_resets=True,
            reserved_pages=min(_reserved(asked.states), asked.pages, asked.states),
        ),
        capabilities=CAPABILITIES,
        not_applicable=NOT_APPLICABLE,
        engine_version=version,
        trace=trace.name,
    )


def _reserved(states: int) -> int:
    """Return how many states must be left so that no request is kept out for want of one.

    `Room` asks for two, and one for each request that forks a state. Each of those has a slot
    itself, so half is enough.
    """
    return (states + 3) // 2


def _group(kind: str, number: int, asked: PoolSizes) -> Group:
    if kind == RECURRENT:
        # The kernels of GatedDeltaNet read the slot's state also where a prompt begins.
        return Group(
            id=number,
            kind="recurrent",
            block_size=asked.max_model_len,
            pool=number,
            cleared=True,
        )
    if kind == SLIDING:
        return Group(
            id=number, kind="sliding", block_size=asked.page_size, pool=number, window=asked.window
        )
    return Group(id=number, kind="full", block_size=asked.page_size, pool=number)
