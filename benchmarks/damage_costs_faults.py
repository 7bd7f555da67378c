"""Damage of the caches that `cachewitness.systems.transformers` resumes from, for
`benchmarks.damage_costs`: every layer of a found cache is changed in place.

A layer's keys and values have the shape [1, heads, tokens, width], those of a window its last
tokens alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.registry import parse
from cachewitness.parity.likelihood.asking import Subject
from cachewitness.parity.likelihood.of_engine import EngineServed
from cachewitness.systems.transformers.model import Model

Change = Callable[[Any, Any], None]
"""Takes a layer of a cache, which it changes, and the same layer of another cache."""


@dataclass(frozen=True)
class Damage:
    """What is done to each layer of a cache that is found. The other cache has as many tokens of
    another prefix or, of what goes stale, the first of the same one.
    """

    change: Change
    stale: bool = False


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


def rounded(*, keys: Callable[[Tensor], Tensor], values: bool = False) -> Damage:
    """Return what rounds keys, and values if they are named too."""

    def change(layer: Any, other: Any) -> None:
        layer.keys.copy_(keys(layer.keys))
        if values:
            layer.values.copy_(keys(layer.values))

    return Damage(change)


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


def whole(layer: Any, other: Any) -> None:
    """Put the other cache's keys and values into a layer that has any."""
    if getattr(layer, "keys", None) is not None:
        layer.keys.copy_(other.keys)
        layer.values.copy_(other.values)


def _window(layer: Any, other: Any) -> None:
    if _moved(layer):
        whole(layer, other)


def _moved(layer: Any) -> bool:
    """Whether a layer has a window that does not hold all tokens."""
    return bool(
        getattr(layer, "is_sliding", False) and layer.get_seq_length() >= layer.sliding_window
    )


NOTHING = Damage(_nothing)
DAMAGES: Mapping[str, Damage] = {
    "none": NOTHING,
    "keys in q8_0": rounded(keys=q8_0),
    "keys and values in q8_0": rounded(keys=q8_0, values=True),
    "keys and values in fp8": rounded(keys=fp8, values=True),
    "keys in q4_0": rounded(keys=q4_0),
    "keys and values in q4_0": rounded(keys=q4_0, values=True),
    "a window one token short": Damage(_short),
    "one token lost": Damage(_token),
    "a block of 16 tokens of another prefix": Damage(_block),
    "the last two blocks, two blocks stale": Damage(_stale),
    "two blocks of the window lost": Damage(_lost),
    "the window of another prefix": Damage(_window),
    "another prefix": Damage(whole),
}
"""What is done to layers of attention."""


def _states(change: Callable[[Tensor, Tensor], Tensor], *names: str) -> Change:
    """Return what changes the states of these names in a layer that has any: `change` is given a
    state, and that of the other cache.
    """

    def changed(layer: Any, other: Any) -> None:
        for name in names:
            for index, state in getattr(layer, name, {}).items():
                if state is not None:
                    state.copy_(change(state, getattr(other, name)[index]))

    return changed


def _zeros(own: Tensor, other: Tensor) -> Tensor:
    return torch.zeros_like(own)


def _others(own: Tensor, other: Tensor) -> Tensor:
    return other


RECURRENT, CONVOLVED = "recurrent_states", "conv_states"
STATES: Mapping[str, Damage] = {
    "none": NOTHING,
    "recurrent states in bfloat16": Damage(
        _states(lambda own, _: own.bfloat16().float(), RECURRENT)
    ),
    "recurrent states in fp8": Damage(_states(lambda own, _: fp8(own), RECURRENT)),
    "convolutions a token off": Damage(_states(lambda own, _: own.roll(1, dims=-1), CONVOLVED)),
    "recurrent states skipped": Damage(_states(_zeros, RECURRENT)),
    "all states skipped": Damage(_states(_zeros, RECURRENT, CONVOLVED)),
    "all states 32 tokens stale": Damage(_states(_others, RECURRENT, CONVOLVED), stale=True),
    "all states of another prefix": Damage(_states(_others, RECURRENT, CONVOLVED)),
    "keys and values of another prefix": Damage(whole),
}
"""What is done to layers of a recurrent hybrid: to its states or, by the last one, to what else it
keeps."""


class Damaged:
    """An engine that is named over a checkpoint, opened anew for each of `damages`. `prompts` are
    those of which one has another prefix than a request.
    """

    def __init__(self, name: str, checkpoint: Path, damages: Mapping[str, Damage]) -> None:
        self.prompts: Sequence[Sequence[int]] = ()
        self.damages = damages
        self._spec = parse(f"{name}:checkpoint={checkpoint}")
        level = self._spec.kind.answers_level
        assert level is not None
        assert level.texts is not None
        self._texts = level.texts

    def opened(self, damage: str) -> Subject:
        """Return the engine with one damage."""

        def open_damaged(header: Any, options: Mapping[str, str]) -> Any:
            engine: Any = self._spec.kind.open(header, options)
            self.plant(engine.server, self.damages[damage])
            return engine

        spec = replace(self._spec, kind=replace(self._spec.kind, open=open_damaged))
        return EngineServed(spec, self._texts.configuration, self._tokens)

    @functools.cached_property
    def _tokens(self) -> Callable[[str], list[int]]:
        return self._texts.tokens(self._spec.options)

    def plant(self, server: Any, damage: Damage) -> None:
        """Damage what hits of a server find."""
        raise NotImplementedError

    def source(self, damage: Damage, own: Sequence[int]) -> Sequence[int]:
        """Return the tokens of the other cache, for one of these tokens."""
        return before(own) if damage.stale else another(self.prompts, own)


class Library(Damaged):
    """transformers, with a model that is loaded once.

    What goes on from no hit is the same each time, and is computed once.
    """

    def __init__(self, checkpoint: Path, damages: Mapping[str, Damage]) -> None:
        super().__init__("transformers", checkpoint, damages)
        self._computed: dict[tuple[tuple[int, ...], ...], tuple[Any, Tensor]] = {}
        self._model: Model | None = None

    def plant(self, server: Any, damage: Damage) -> None:
        """Damage what the store of a server finds."""
        if self._model is None:
            self._model = server.model
            wrap(server.model, "resumed", self._once)

        def find(original: Any, identity: str, tokens: Sequence[int]) -> tuple[int, Any]:
            held, cache = original(identity, tokens)
            if cache is not None:
                vars(cache).pop(HOLDS, None)
                source = self.source(damage, tokens[:held])
                with torch.inference_mode():
                    for layer, other in zip(cache.layers, self._layers(source), strict=True):
                        damage.change(layer, other)
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

    def _layers(self, tokens: Sequence[int]) -> list[Any]:
        """Return the layers of a cache of these tokens."""
        assert self._model is not None
        cache = self._model.empty()
        self._model.resumed(cache, tokens, 0)
        return list(cache.layers)


def another(prompts: Sequence[Sequence[int]], own: Sequence[int]) -> Sequence[int]:
    """Return as many tokens of a prompt that begins otherwise."""
    return next(
        one[: len(own)]
        for one in prompts
        if len(one) >= len(own) and [*one[:MIDDLE]] != [*own[:MIDDLE]]
    )


def before(own: Sequence[int]) -> Sequence[int]:
    """Return tokens without the last ones, as a state has seen them that is two blocks stale."""
    return own[:-TWO]


setattr(Model, "loaded", functools.cache(Model.loaded))  # noqa: B010  # a class method no more
