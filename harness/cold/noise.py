"""How far two right computations are apart: the noise floor of a model, in logits and in recurrent states.

The floor of logits is the engine's own (`harness.toy.oracle`); that of states is measured in the same way, on a text computed
cold in chunks of several sizes and put beside the dense model's states.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.toy.model import Model
from harness.toy.oracle import CHUNKINGS, FACTOR, FLOAT64_TOLERANCE, Noise, measured
from reference_impl.toy_model import dense, recurrent
from reference_impl.toy_model.paged import Chunk, Pools, step

_ENDS = (16, 48, 64, 100, 111, 192)


class Floors(NamedTuple):
    """The noise of a model's logits and of its recurrent states."""

    logits: Noise
    states: Noise


_MEASURED: dict[tuple[object, ...], Floors] = {}


def floors(model: Model) -> Floors:
    """Return the floors of a model, measured once for each model, precision, device and grouping."""
    key = (model.config, model.groups, model.precision, model.device, model.sha256)
    if key not in _MEASURED:
        _MEASURED[key] = Floors(measured(model), _of_states(model))
    return _MEASURED[key]


def _of_states(model: Model) -> Noise:
    fixed = FLOAT64_TOLERANCE if model.precision == "float64" else 0.0
    if not any(recurrent.is_recurrent(kind) for kind in model.config.layer_types):
        return Noise(0.0, fixed)
    text = torch.randint(model.config.vocab_size, (_ENDS[-1],), generator=torch.Generator().manual_seed(1)).tolist()
    right = {end: cold(model, text[:end], 0)[1] for end in _ENDS}
    floor = max(_distance(model, text, size, right) for size in CHUNKINGS)
    return Noise(floor, max(FACTOR * floor, fixed))


def cold(model: Model, tokens: list[int], version: int) -> tuple[Tensor, list[list[Tensor]]]:
    """Return the dense model's logits [T, vocab] of a text, and by recurrent group conv and memory [layers, ...] after it."""
    with torch.inference_mode():
        text = torch.tensor([tokens], device=model.device)
        logits, states = dense.forward_and_states(text, model.version(version), model.config)
    kept = []
    for group in model.groups:
        if group.layers[0] in states:
            kept.append([torch.stack(parts)[:, 0] for parts in zip(*(states[layer] for layer in group.layers), strict=True)])
    return logits[0], kept


def fresh(model: Model, length: int) -> tuple[Pools, list[list[int]]]:
    """Return empty pools with room for one text, and its tables."""
    columns = [-(-length // group.block_size) for group in model.groups]
    pools, free = model.pools(1 + sum(columns)), iter(range(1, 1 + sum(columns)))
    return pools, [[next(free) for _ in range(count)] for count in columns]


def states_of(pools: Pools, tables: list[list[int]], stop: int) -> list[list[Tensor]]:
    """Return by recurrent group the state after `stop` tokens."""
    return [
        [view[:, tables[g][-(-stop // group.block_size) - 1]].clone() for view in pools.views[g]]
        for g, group in enumerate(pools.groups)
        if recurrent.is_recurrent(pools.kinds[g])
    ]


def furthest(states: list[list[Tensor]], others: list[list[Tensor]]) -> float:
    """Return the largest difference between two sets of states; NaN if there is one, 0 without any."""
    pairs = [(a, b) for one, other in zip(states, others, strict=True) for a, b in zip(one, other, strict=True)]
    return max((float((a.to(b.dtype) - b).abs().max().nan_to_num(nan=float("inf"))) for a, b in pairs), default=0.0)


def _distance(model: Model, text: list[int], size: int, right: dict[int, list[list[Tensor]]]) -> float:
    pools, tables = fresh(model, len(text))
    largest = 0.0
    for start in range(0, len(text), size):
        stop = min(start + size, len(text))
        step(pools, [Chunk(text[start:stop], start, tables)], model.weights)
        if stop in right:
            largest = max(largest, furthest(states_of(pools, tables, stop), right[stop]))
    return largest
