"""Damage of the caches that mlx-lm resumes from, for `benchmarks.damage_costs`: what is done to a
layer of transformers is done to one of mlx-lm, and what is kept in `QuantizedKVCache`.

Keys and values have the shape [1, heads, tokens, width], those of a window its last tokens alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.models.cache import ArraysCache, RotatingKVCache, make_prompt_cache
from torch import Tensor

from benchmarks import damage_costs_faults
from benchmarks.damage_costs_faults import NOTHING, Damage, Damaged, rounded
from cachewitness.engines.fault_tools import wrap
from cachewitness.systems.mlx_lm.server import model_of

GROUP = 64
"""Values that share a scale and a bias in mlx-lm's `QuantizedKVCache`, by default."""


def _affine(bits: int) -> Callable[[Tensor], Tensor]:
    """Return what rounds values to so many bits as `QuantizedKVCache` does."""

    def change(kept: Tensor) -> Tensor:
        packed = mx.quantize(mx.array(kept.numpy()), group_size=GROUP, bits=bits)
        return _tensor(mx.dequantize(*packed, group_size=GROUP, bits=bits))

    return change


DAMAGES: Mapping[str, Damage] = {
    **{
        name: damage
        for name, damage in damage_costs_faults.DAMAGES.items()
        if "q8_0" not in name and "q4_0" not in name
    },
    "keys and values in mlx-lm's 8 bits": rounded(keys=_affine(8), values=True),
    "keys in mlx-lm's 4 bits": rounded(keys=_affine(4)),
    "keys and values in mlx-lm's 4 bits": rounded(keys=_affine(4), values=True),
}


class Layer:
    """A layer of mlx-lm's cache as transformers has one: tensors to be changed in place, of a
    window's the last tokens that the next one reads. `conv_states` end at the last token.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.is_sliding = isinstance(layer, RotatingKVCache)
        self.conv_states: dict[int, Tensor] = {}
        self.recurrent_states: dict[int, Tensor] = {}
        if isinstance(layer, ArraysCache):
            convolved, recurrent = layer.cache
            self.conv_states[0] = _tensor(convolved).swapaxes(1, 2)
            self.recurrent_states[0] = _tensor(recurrent)
            return
        if self.is_sliding:
            self.sliding_window = layer.max_size
            keys, values = map(layer._temporal_order, (layer.keys, layer.values))
            read = min(layer.offset, layer.max_size - 1)
        else:
            keys, values = layer.keys_and_values()
            read = layer.offset
        self.keys, self.values = (_tensor(kept[..., -read:, :]) for kept in (keys, values))

    def get_seq_length(self) -> int:
        """Return how many tokens went through the layer."""
        return int(self._layer.offset)

    def put(self) -> None:
        """Write what was changed into mlx-lm's layer."""
        if self.conv_states:
            self._layer.cache = [
                _array(self.conv_states[0].swapaxes(1, 2)),
                _array(self.recurrent_states[0]),
            ]
            return
        self._layer.keys = _array(self.keys)
        self._layer.values = _array(self.values)
        if self.is_sliding:
            # A window's oldest token, which no further one reads, is left out. The library counts
            # it, so one that is masked stands in its place.
            pad = self._layer.size() - self.keys.shape[2]
            for name in ("keys", "values"):
                kept = getattr(self._layer, name)
                setattr(self._layer, name, mx.pad(kept, [(0, 0), (0, 0), (pad, 0), (0, 0)]))
            self._layer._idx = self._layer.keys.shape[2]


class Library(Damaged):
    """mlx-lm over a folder, with a model that is loaded once."""

    def __init__(self, checkpoint: Path, damages: Mapping[str, Damage]) -> None:
        super().__init__("mlx-lm", checkpoint, damages)
        self._checkpoint = checkpoint

    def plant(self, server: Any, damage: Damage) -> None:
        """Damage what the store of a server finds; where nothing is, its cache stays the library's
        own.
        """
        if damage is NOTHING:
            return

        def fetch(original: Any, model: str, tokens: list[int]) -> Any:
            cache, rest = original(model, tokens)
            if cache is not None:
                held = tokens[: len(tokens) - len(rest)]
                source = tuple(self.source(damage, held))
                for layer, other in zip(cache, self._computed(source), strict=True):
                    changed = Layer(layer)
                    damage.change(changed, Layer(other))
                    changed.put()
            return cache, rest

        wrap(server.store, "fetch_nearest_cache", fetch)

    @functools.lru_cache(maxsize=2)  # noqa: B019  # as long as the one library of a run
    def _computed(self, tokens: tuple[int, ...]) -> list[Any]:
        """Return mlx-lm's cache of these tokens."""
        model = model_of(str(self._checkpoint))
        cache: list[Any] = make_prompt_cache(model)
        model(mx.array([tokens]), cache=cache)
        mx.eval([layer.state for layer in cache])
        return cache


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


def _array(tensor: Tensor) -> Any:
    return mx.array(tensor.contiguous().numpy())
