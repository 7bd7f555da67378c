"""Faults of a device that the documentation shows, and how what a hit gives back is damaged.

All others are in `cachewitness_faults.toy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cachewitness.core.events import Run
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant

fault = partial(mutant, anomaly="silent-divergence", checker="tensors", engines=("toy",))


@fault(name="conv-state-lost", mirrors="osaurus-ai/vmlx-swift#210", group="J")
def conv_state_lost(engine: Any) -> None:
    """A recurrent memory is restored without the convolution's state beside it."""

    def lost(held: Restored) -> None:
        if held.kind == "recurrent":
            held.view[0][:, held.pages] = 0.0

    at_first_steps(engine, lost)


@fault(name="memory-restored-without-a-head", mirrors="sgl-project/sglang#20655", group="K")
def memory_restored_without_a_head(engine: Any) -> None:
    """A recurrent memory is restored without its first head, in every layer."""

    def lost(held: Restored) -> None:
        if held.kind == "recurrent":
            held.view[1][:, held.pages, 0] = 0.0

    at_first_steps(engine, lost)


@dataclass(frozen=True)
class Restored:
    """What a request resumes from in one cache group: `view` has the group's tensors [layers,
    pages, ...].

    `pages` are the page of the state (`kind` is recurrent), or those of the whole blocks that its
    first token sees, the oldest first.
    """

    kind: str
    view: Sequence[Any]
    pages: list[int]


def at_first_steps(engine: Any, damage: Callable[[Restored], None]) -> None:
    """Damage what each request resumes from, in its first step; of a request that starts from
    nothing, nothing.
    """
    seen = set[str]()

    def chunk(original: Any, run: Run, tokens: Any) -> Any:
        if run.start and run.r not in seen:
            tables = engine.tensors.tables(run)
            pools = engine.tensors.pools
            for g in range(
                len(pools.groups)
            ):  # groups of a second tier come behind them, and nobody computes from those
                damage(_restored(pools, g, tables[g], run.start))
        seen.add(run.r)
        return original(run, tokens)

    wrap(engine.tensors, "_chunk", chunk)


def _restored(pools: Any, g: int, table: Sequence[int], start: int) -> Restored:
    size = pools.groups[g].block_size
    layer_type = pools.kinds[g]
    if layer_type == "sliding_attention":
        columns = range(max(0, start - pools.config.sliding_window + 1) // size, start // size)
        kind = "sliding"
    elif layer_type == "full_attention":
        columns = range(start // size)
        kind = "full"
    else:
        columns = range(-(-start // size) - 1, -(-start // size))
        kind = "recurrent"
    pages = [page for page in table[columns.start : columns.stop] if pools.writable(page)]
    return Restored(kind, pools.views[g], pages)


MUTANTS = declared(globals())
