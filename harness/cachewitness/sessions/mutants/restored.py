"""Faults of a device in what a hit gives back: tables and keys are right, and content was lost or
changed on its way.

Each damages the pages that a request resumes from, once: in its first step, behind the step's
copies and before anything is computed. What the request computes itself is right.
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

    def lost(held: _Restored) -> None:
        if held.kind == "recurrent":
            held.view[0][:, held.pages] = 0.0

    _at_first_steps(engine, lost)


@fault(name="memory-restored-without-a-head", mirrors="sgl-project/sglang#20655", group="K")
def memory_restored_without_a_head(engine: Any) -> None:
    """A recurrent memory is restored without its first head, in every layer."""

    def lost(held: _Restored) -> None:
        if held.kind == "recurrent":
            held.view[1][:, held.pages, 0] = 0.0

    _at_first_steps(engine, lost)


@fault(name="oldest-block-of-window-lost", mirrors="huggingface/transformers#37574", group="G")
def oldest_block_of_window_lost(engine: Any) -> None:
    """A window is restored without the oldest block that the next token sees.

    Overwrite that block by zeros. Its page stays where it is in the block table.
    """

    def lost(held: _Restored) -> None:
        if held.kind == "sliding":
            held.view[0][:, held.pages[:1]] = 0.0

    _at_first_steps(engine, lost)


@fault(name="layers-exchanged-at-a-hit", mirrors="nntrainer/nntrainer#4233", group="K")
def layers_exchanged_at_a_hit(engine: Any) -> None:
    """What the first layer of a cache group left behind is given back to its last layer, and the
    other way round.

    Exchange the two before the step, and once more behind it, so that other requests find the pages
    as they were. A page that the step wrote is left alone. A group of one layer has nothing to
    exchange.
    """
    exchanged: dict[tuple[int, int], tuple[Any, int, Any]] = {}

    def exchange(held: _Restored) -> None:
        for tensor in held.view:
            for page in held.pages:
                if (id(tensor), page) not in exchanged:
                    tensor[[0, -1], page] = tensor[[-1, 0], page]
                    exchanged[id(tensor), page] = tensor, page, tensor[:, page].clone()

    def execute(original: Any, *args: Any) -> Any:
        logits = original(*args)
        for tensor, page, read in exchanged.values():
            if read.equal(tensor[:, page]):
                tensor[[0, -1], page] = tensor[[-1, 0], page]
        exchanged.clear()
        return logits

    _at_first_steps(engine, exchange)
    wrap(engine.tensors, "execute", execute)


@fault(name="attention-restored-in-fp8", mirrors="vllm-project/vllm#3880", group="J")
def attention_restored_in_fp8(engine: Any) -> None:
    """Keys and values that a hit gives back have been through float8 (e4m3), whatever they were
    computed in.

    Round the attention blocks that a request resumes from in its first step; what it computes
    itself keeps all of its bits.
    """
    import torch

    def rounded(held: _Restored) -> None:
        if held.kind != "recurrent":
            kept = held.view[0][:, held.pages]
            held.view[0][:, held.pages] = kept.to(torch.float8_e4m3fn).to(kept.dtype)

    _at_first_steps(engine, rounded)


@dataclass(frozen=True)
class _Restored:
    """What a request resumes from in one cache group: `view` has the group's tensors [layers,
    pages, ...].

    `pages` are the page of the state (`kind` is recurrent), or those of the whole blocks that its
    first token sees, the oldest first.
    """

    kind: str
    view: Sequence[Any]
    pages: list[int]


def _at_first_steps(engine: Any, damage: Callable[[_Restored], None]) -> None:
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


def _restored(pools: Any, g: int, table: Sequence[int], start: int) -> _Restored:
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
    return _Restored(kind, pools.views[g], pages)


MUTANTS = declared(globals())
