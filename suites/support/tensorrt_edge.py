"""Small configurations of TensorRT-Edge-LLM's manager, and how a call of it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cachewitness_reference.tensorrt_edge.config import (
    CacheError,
    Config,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)

A = LayerType.ATTENTION
M = LayerType.MAMBA
ROWS, LONGEST = 4, 32
MAMBA = MambaConfig(2, ROWS, 2, 8, 4, 16, 4)


def config(types: tuple[LayerType, ...] = (A, M, A, M), dims: tuple[int, ...] = (64, 64)) -> Config:
    """Return a hybrid configuration; `dims` are the head dims of its attention layers, whose
    layer i has i + 1 heads.
    """
    layers = tuple(KVLayerConfig(heads, dim) for heads, dim in enumerate(dims, start=1))
    mamba = replace(MAMBA, num_recurrent_layers=types.count(M))
    return Config(types, KVConfig(len(dims), ROWS, LONGEST, layers), mamba, ROWS)


def refused(what: Any, *arguments: Any) -> str:
    """Return the text with which a call is refused."""
    with pytest.raises(CacheError) as caught:
        what(*arguments)
    return str(caught.value)
