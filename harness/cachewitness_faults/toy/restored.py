"""Faults of a device in what a hit gives back: tables and keys are right, and content was lost or
changed on its way.

Each damages the pages that a request resumes from, once: in its first step, behind the step's
copies and before anything is computed. What the request computes itself is right.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness.toy.faults import Restored, at_first_steps

fault = partial(mutant, anomaly="silent-divergence", checker="tensors", engines=("toy",))


@fault(name="oldest-block-of-window-lost", mirrors="huggingface/transformers#37574", group="G")
def oldest_block_of_window_lost(engine: Any) -> None:
    """A window is restored without the oldest block that the next token sees.

    Overwrite that block by zeros. Its page stays where it is in the block table.
    """

    def lost(held: Restored) -> None:
        if held.kind == "sliding":
            held.view[0][:, held.pages[:1]] = 0.0

    at_first_steps(engine, lost)


@fault(name="layers-exchanged-at-a-hit", mirrors="nntrainer/nntrainer#4233", group="K")
def layers_exchanged_at_a_hit(engine: Any) -> None:
    """What the first layer of a cache group left behind is given back to its last layer, and the
    other way round.

    Exchange the two before the step, and once more behind it, so that other requests find the pages
    as they were. A page that the step wrote is left alone. A group of one layer has nothing to
    exchange.
    """
    exchanged: dict[tuple[int, int], tuple[Any, int, Any]] = {}

    def exchange(held: Restored) -> None:
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

    at_first_steps(engine, exchange)
    wrap(engine.tensors, "execute", execute)


@fault(name="attention-restored-in-fp8", mirrors="vllm-project/vllm#3880", group="J")
def attention_restored_in_fp8(engine: Any) -> None:
    """Keys and values that a hit gives back have been through float8 (e4m3), whatever they were
    computed in.

    Round the attention blocks that a request resumes from in its first step; what it computes
    itself keeps all of its bits.
    """
    import torch

    def rounded(held: Restored) -> None:
        if held.kind != "recurrent":
            kept = held.view[0][:, held.pages]
            held.view[0][:, held.pages] = kept.to(torch.float8_e4m3fn).to(kept.dtype)

    at_first_steps(engine, rounded)


MUTANTS = declared(globals())
