"""How far two right computations are apart: the noise floor of a model, in logits and in recurrent states.

The floor of logits is the engine's own (`harness.engines.toy.oracle`); that of states is measured in the same way, on a text
computed cold in chunks of several sizes and put beside the dense model's states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.engines.toy.model import Model
from harness.engines.toy.oracle import CHUNKINGS, Noise, measured, once, tolerated
from reference_impl.toy_model import dense, recurrent
from reference_impl.toy_model.paged import Chunk, Pools, step

State = list[list[Tensor]]
"""By recurrent group its conv and memory [layers, ...] in one page."""

_ENDS = (16, 48, 64, 100, 111, 192)


class Floors(NamedTuple):
    """The noise of a model's logits and of its recurrent states."""

    logits: Noise
    states: Noise


@once
def floors(model: Model) -> Floors:
    """Return the floors of a model."""
    return Floors(measured(model), tolerated(model, _of_states(model)))


def _of_states(model: Model) -> float:
    if not any(recurrent.is_recurrent(kind) for kind in model.config.layer_types):
        return 0.0
    text = torch.randint(model.config.vocab_size, (_ENDS[-1],), generator=torch.Generator().manual_seed(1)).tolist()
    right = {end: cold(model, text[:end], 0)[1] for end in _ENDS}
    return max(_distance(model, text, size, right) for size in CHUNKINGS)


def cold(model: Model, tokens: list[int], version: int) -> tuple[Tensor, State]:
    """Return the dense model's logits [T, vocab] of a text, and the state after it."""
    with torch.inference_mode():
        text = torch.tensor([tokens], device=model.device)
        logits, states = dense.forward_and_states(text, model.version(version), model.config)
    kept = []
    for group in model.groups:
        if group.layers[0] in states:
            kept.append([torch.stack(parts)[:, 0] for parts in zip(*(states[layer] for layer in group.layers), strict=True)])
    return logits[0], kept


def states_of(pools: Pools, tables: Sequence[Sequence[int]], stop: int) -> State:
    """Return the state after `stop` tokens; of a group whose table is too short, what the null page holds."""
    states = []
    for g, group in enumerate(pools.groups):
        if recurrent.is_recurrent(pools.kinds[g]):
            column = -(-stop // group.block_size) - 1
            page = tables[g][column] if column < len(tables[g]) else 0
            states.append([view[:, page].clone() for view in pools.views[g]])
    return states


def furthest(states: State, others: State) -> float:
    """Return the largest difference between two sets of states; NaN if there is one, 0 without any."""
    pairs = [(a, b) for one, other in zip(states, others, strict=True) for a, b in zip(one, other, strict=True)]
    return max((float((a.to(b.dtype) - b).abs().max().nan_to_num(nan=float("inf"))) for a, b in pairs), default=0.0)


def _distance(model: Model, text: list[int], size: int, right: dict[int, State]) -> float:
    pools, (tables,) = model.fresh(len(text))
    largest = 0.0
    for start in range(0, len(text), size):
        stop = min(start + size, len(text))
        step(pools, [Chunk(text[start:stop], start, tables)], model.weights)
        if stop in right:
            largest = max(largest, furthest(states_of(pools, tables, stop), right[stop]))
    return largest
