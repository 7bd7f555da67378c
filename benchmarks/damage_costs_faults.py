"""Damage of the caches that `cachewitness.systems.transformers` resumes from, for
`benchmarks.damage_costs`: every layer of a found cache is changed in place.

A layer's keys and values have the shape [1, heads, tokens, width], those of a window its last
tokens alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.registry import parse
from cachewitness.parity.likelihood.asking import Subject
from cachewitness.parity.likelihood.of_engine import EngineServed
from cachewitness.systems.transformers.model import Model

Damage = Callable[[Any, Any], None]
"""Takes a layer of a cache, and the same layer of a cache of as many tokens of another prefix."""
BLOCK, TWO = 16, 32
MIDDLE = 256
"""So many tokens in front of its end lies the middle of a window."""
HOLDS = "holds_tokens"
"""The attribute of a cache that says which tokens it holds, by which it is found again: in the
passes that computed them, since these round otherwise if they are cut otherwise."""
QUANTISED = 32
"""Values that share a scale in llama.cpp's q8_0 and q4_0."""


def fp8(kept: Tensor) -> Tensor:
    """Return values rounded to eight bits, four of them an exponent, with the scale 1."""
    return kept.to(torch.float8_e4m3fn).to(kept.dtype)


def q8_0(kept: Tensor) -> Tensor:
    """Return values rounded as llama.cpp's q8_0 does: to 127 steps of the largest of a block."""
    blocks = kept.unflatten(-1, (-1, QUANTISED))
    scale = blocks.abs().amax(-1, keepdim=True).div(127)
    return _inverse(scale).mul(blocks).round().mul(_stored(scale)).flatten(-2)


def q4_0(kept: Tensor) -> Tensor:
    """Return values rounded as llama.cpp's q4_0 does: to 16 steps, the largest of a block being the
    outermost.
    """
    blocks = kept.unflatten(-1, (-1, QUANTISED))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest.div(-8)
    steps = _inverse(scale).mul(blocks).add(8.5).floor().clamp(max=15).sub(8)
    return steps.mul(_stored(scale)).flatten(-2)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _stored(scale: Tensor) -> Tensor:
    """Return a scale as it is kept, in half precision."""
    return scale.half().float()


def _rounded(*, keys: Callable[[Tensor], Tensor], values: bool = False) -> Damage:
    def damage(layer: Any, other: Any) -> None:
        layer.keys.copy_(keys(layer.keys))
        if values:
            layer.values.copy_(keys(layer.values))

    return damage


def _nothing(layer: Any, other: Any) -> None:
    """Leave it as it is."""


def _short(layer: Any, other: Any) -> None:
    if _moved(layer):
        for kept in (layer.keys, layer.values):
            kept[..., 0, :] = kept[..., 1, :]


def _token(layer: Any, other: Any) -> None:
    for kept in (layer.keys, layer.values):
        kept[..., -1:, :] = 0.0


def _block(layer: Any, other: Any) -> None:
    layer.keys[..., -BLOCK:, :] = other.keys[..., -BLOCK:, :]
    layer.values[..., -BLOCK:, :] = other.values[..., -BLOCK:, :]


def _stale(layer: Any, other: Any) -> None:
    for kept in (layer.keys, layer.values):
        kept[..., -TWO:, :] = kept[..., -2 * TWO : -TWO, :].clone()


def _lost(layer: Any, other: Any) -> None:
    for kept in (layer.keys, layer.values):
        kept[..., -MIDDLE : TWO - MIDDLE, :] = 0.0


def _whole(layer: Any, other: Any) -> None:
    layer.keys.copy_(other.keys)
    layer.values.copy_(other.values)


def _window(layer: Any, other: Any) -> None:
    if _moved(layer):
        _whole(layer, other)


def _moved(layer: Any) -> bool:
    """Whether a layer has a window that does not hold all tokens."""
    return bool(
        getattr(layer, "is_sliding", False) and layer.get_seq_length() >= layer.sliding_window
    )


DAMAGES: Mapping[str, Damage] = {
    "none": _nothing,
    "keys in q8_0": _rounded(keys=q8_0),
    "keys and values in q8_0": _rounded(keys=q8_0, values=True),
    "keys and values in fp8": _rounded(keys=fp8, values=True),
    "keys in q4_0": _rounded(keys=q4_0),
    "keys and values in q4_0": _rounded(keys=q4_0, values=True),
    "a window one token short": _short,
    "one token lost": _token,
    "a block of 16 tokens of another prefix": _block,
    "the last two blocks, two blocks stale": _stale,
    "two blocks of the window lost": _lost,
    "the window of another prefix": _window,
    "another prefix": _whole,
}


class Library:
    """The engine over a checkpoint, opened anew for each damage, with a model that is loaded once.

    What goes on from no hit is the same each time, and is computed once. `prompts` are those
    of which one has another prefix than a request.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.prompts: Sequence[Sequence[int]] = ()
        self._spec = parse(f"transformers:checkpoint={checkpoint}")
        level = self._spec.kind.answers_level
        assert level is not None
        assert level.texts is not None
        self._texts = level.texts
        self._computed: dict[tuple[tuple[int, ...], ...], tuple[Any, Tensor]] = {}
        self._model: Model | None = None

    def opened(self, damage: str) -> Subject:
        """Return the engine with one damage."""

        def open_damaged(header: Any, options: Mapping[str, str]) -> Any:
            engine: Any = self._spec.kind.open(header, options)
            self._plant(engine.server, DAMAGES[damage])
            return engine

        spec = replace(self._spec, kind=replace(self._spec.kind, open=open_damaged))
        return EngineServed(spec, self._texts.configuration, self._tokens)

    @functools.cached_property
    def _tokens(self) -> Callable[[str], list[int]]:
        return self._texts.tokens(self._spec.options)

    def _plant(self, server: Any, damage: Damage) -> None:
        if self._model is None:
            self._model = server.model
            wrap(server.model, "resumed", self._once)

        def find(original: Any, identity: str, tokens: Sequence[int]) -> tuple[int, Any]:
            held, cache = original(identity, tokens)
            if cache is not None:
                vars(cache).pop(HOLDS, None)
                with torch.inference_mode():
                    for layer, other in zip(cache.layers, self._other(tokens[:held]), strict=True):
                        damage(layer, other)
            return held, cache

        wrap(server.store, "find", find)

    def _once(self, original: Any, cache: Any, tokens: Sequence[int], at: int) -> Tensor:
        """Compute tokens behind a cache, if the same were not computed before. A cache that was
        damaged, or went on from such a one, says no more what it holds.
        """
        if at and not hasattr(cache, HOLDS):
            computed: Tensor = original(cache, tokens, at)
            return computed
        key = (*getattr(cache, HOLDS, ()), tuple(tokens))
        if key not in self._computed:
            logprobs = original(cache, tokens, at)
            self._computed[key] = copy.deepcopy(cache.layers), logprobs
        layers, logprobs = self._computed[key]
        cache.layers = copy.deepcopy(layers)
        setattr(cache, HOLDS, key)
        return logprobs

    def _other(self, tokens: Sequence[int]) -> list[Any]:
        """Return the layers of a cache of as many tokens of another prompt."""
        assert self._model is not None
        others = [one for one in self.prompts if [*one[:MIDDLE]] != [*tokens[:MIDDLE]]]
        other = next(one for one in others if len(one) >= len(tokens))
        cache = self._model.empty()
        self._model.resumed(cache, other[: len(tokens)], 0)
        return list(cache.layers)


setattr(Model, "loaded", functools.cache(Model.loaded))  # noqa: B010  # a class method no more
