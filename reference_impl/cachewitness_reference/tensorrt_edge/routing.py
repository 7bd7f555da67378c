"""From absolute decoder layers to sub-managers, and KV layers by head dim.

A model knows its layers by one number from 0 on. Each sub-manager knows its own, counted in order
of appearance; the routing table leads from the first to the second, and a getter asked for a layer
of the wrong kind says so. A kernel that runs over several KV layers at once needs them to agree in
head dim alone, so they are grouped by it: one group for a uniform model, one per head dim for
models that mix them.

Source: `hybridCacheManager.cpp` (0.7.1), constructor and getters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cachewitness_reference.tensorrt_edge.config import KVLayerConfig, LayerType, check

_NAMES = {LayerType.ATTENTION: "an attention layer", LayerType.MAMBA: "a Mamba layer"}


@dataclass(frozen=True)
class Route:
    """Where a layer's cache is: its kind, and its index among the layers of that kind."""

    kind: LayerType
    local: int


class Routing:
    """The table of a model, fixed when it is built."""

    def __init__(self, layer_types: Sequence[LayerType]) -> None:
        counts = dict.fromkeys(LayerType, 0)
        routes = []
        for kind in layer_types:
            routes.append(Route(kind, counts[kind]))
            counts[kind] += 1
        self.routes = tuple(routes)
        assert sum(counts.values()) == len(self.routes)

    def local(self, name: str, abs_layer_idx: int, kind: LayerType) -> int:
        """Return a layer's index in its sub-manager. Raises CacheError, in the name of `name`,
        if it is not there.
        """
        check(
            0 <= abs_layer_idx < len(self.routes),
            f"{name}: absLayerIdx {abs_layer_idx} out of range.",
        )
        route = self.routes[abs_layer_idx]
        check(route.kind is kind, f"{name}: layer {abs_layer_idx} is not {_NAMES[kind]}.")
        return route.local


@dataclass(frozen=True)
class KVLayerInfo:
    """What a kernel is told of one KV layer. `data` is where its tensor begins; a policy without
    tensors has none.
    """

    num_kv_heads: int
    max_sequence_length: int
    data: Any = None


@dataclass(frozen=True)
class KVHeadDimGroupView:
    """Read-only view of the KV layers of one head dim: `layer_infos`, one per layer in `layers`,
    which are local indices.

    `max_kv_heads` is the largest number of KV heads among them. `device_layer_infos` are the same
    infos where a kernel reads them; a policy without tensors has none.
    """

    layer_infos: tuple[KVLayerInfo, ...]
    num_layers: int
    head_dim: int
    max_kv_heads: int
    layers: tuple[int, ...]
    device_layer_infos: Any = None


def head_dim_groups(
    layers: Sequence[KVLayerConfig], max_sequence_length: int, data: Sequence[Any] = ()
) -> list[KVHeadDimGroupView]:
    """Return one view per head dim, in order of first appearance; `data[i]` is where layer i's
    tensor begins.
    """
    by_dim: dict[int, list[int]] = {}
    for index, layer in enumerate(layers):
        by_dim.setdefault(layer.head_dim, []).append(index)
    views = []
    for dim, members in by_dim.items():
        heads = [layers[index].num_kv_heads for index in members]
        infos = [
            KVLayerInfo(
                layers[index].num_kv_heads, max_sequence_length, data[index] if data else None
            )
            for index in members
        ]
        views.append(
            KVHeadDimGroupView(tuple(infos), len(members), dim, max(heads), tuple(members))
        )
    assert sum(view.num_layers for view in views) == len(layers)
    return views
