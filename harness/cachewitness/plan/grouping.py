"""The groups that vLLM makes of a model: a layout, by the arithmetic of
`cachewitness_reference.vllm.planning`.

Sources (vLLM 0.33.0): `v1/core/kv_cache_planning.py`, `get_kv_cache_groups`; `config/cache.py`,
DEFAULT_BLOCK_SIZE.
"""

from __future__ import annotations

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, Layout
from cachewitness.plan.serving import Serving, rank_of
from cachewitness.workloads.model import Model, Recurrent
from cachewitness_reference.vllm.options import ConfigError
from cachewitness_reference.vllm.planning import LayerGroup, groups_of


def layout_of(model: Model, named: str, name: str = "") -> Layout:
    """Return the layout that vLLM makes of a model on one rank; `named` is the option that named
    it, for messages.

    Raises UsageError for layers that these rules do not fit.
    """
    if all(isinstance(cache, Recurrent) for cache in model.caches):
        raise UsageError(
            f"{named}: model.caches: vLLM caches no prefix of a model without attention"
        )
    serving = Serving(checkpoint_alignment=model.checkpoint_alignment)
    try:
        groups = groups_of(rank_of(model, serving, named).layers)
    except ConfigError as error:
        raise UsageError(f"{named}: model.caches: {error}") from None
    return Layout(name or model.checkpoint, [spec_of(group) for group in groups])


def spec_of(group: LayerGroup) -> GroupSpec:
    """Return a group in the words of a layout."""
    layer = group.first
    layers = len(group.layers)
    if layer.kind == "recurrent":
        return GroupSpec("recurrent", layer.block_size, layers=layers)
    if layer.kind == "sliding":
        return GroupSpec("sliding", layer.block_size, layers=layers, window=layer.window)
    return GroupSpec("full", layer.block_size, layers=layers)
