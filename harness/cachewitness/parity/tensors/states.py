"""Recurrent states as an engine keeps them: by group, in one page of each layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cachewitness_reference.toy_model import recurrent
from cachewitness_reference.toy_model.paged import Pools

State = list[list[Tensor]]
"""By recurrent group its conv and memory [layers, ...] in one page."""
PARTS = ("conv", "memory")


def states_of(pools: Pools, tables: Sequence[Sequence[int]], stop: int) -> State:
    """Return the state after `stop` tokens; of a group whose table is too short, what the null
    page holds.
    """
    states = []
    for g, group in enumerate(pools.groups):
        if recurrent.is_recurrent(pools.kinds[g]):
            column = -(-stop // group.block_size) - 1
            page = tables[g][column] if column < len(tables[g]) else 0
            states.append([view[:, page].clone() for view in pools.views[g]])
    return states


def by_layer(pools: Pools, states: State) -> dict[tuple[int, str], Tensor]:
    """Return the parts of states by layer and name."""
    groups = [
        group for g, group in enumerate(pools.groups) if recurrent.is_recurrent(pools.kinds[g])
    ]
    return {
        (layer, name): part[index]
        for group, parts in zip(groups, states, strict=True)
        for index, layer in enumerate(group.layers)
        for name, part in zip(PARTS, parts, strict=True)
    }
