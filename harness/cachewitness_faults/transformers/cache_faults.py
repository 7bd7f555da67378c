"""Seeded faults of the server over transformers: what is done wrong to the library's caches when
they are kept or resumed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cachewitness.engines.fault_tools import last_of_another, longest_shorter, wrap
from cachewitness.engines.mutant import declared, mutant

if TYPE_CHECKING:
    import torch

_OWN: dict[str, Any] = {
    "checker": "answers",
    "engines": ("transformers",),
    "level": "answers",
    "anomaly": "answer-differs",
}


SHORT = 40


def _when_found(engine: Any, change: Any) -> None:
    """Have `change` done to every cache that is found for a request."""
    store = engine.server.store
    if store is None:
        return

    def find(original: Any, identity: str, tokens: Any) -> Any:
        held, cache = original(identity, tokens)
        if cache is not None:
            for layer in cache.layers:
                change(layer)
        return held, cache

    wrap(store, "find", find)


Kept = tuple[str, tuple[int, ...]]
"""A cache that is kept: its identity, and its tokens."""


def _with_states_of(engine: Any, chosen: Callable[[list[Kept], Kept], Kept | None]) -> None:
    """Have a cache that is found get the states of another one: `chosen` is told all that are kept,
    the newest last, and what was found.
    """
    store = engine.server.store
    if store is None:
        return

    def find(original: Any, identity: str, tokens: Any) -> Any:
        held, cache = original(identity, tokens)
        own = identity, tuple(tokens[:held])
        other = None if cache is None else chosen([*store._kept], own)
        if other is not None:
            for layer, source in zip(cache.layers, store._kept[other].layers, strict=True):
                for which in ("conv_states", "recurrent_states"):
                    for index, state in _states(source, which).items():
                        getattr(layer, which)[index].copy_(state)
        return held, cache

    wrap(store, "find", find)


def _states(layer: Any, which: str) -> dict[int, torch.Tensor]:
    """Return the convolution states, or the recurrent ones, that a layer of a cache has."""
    return {index: state for index, state in getattr(layer, which, {}).items() if state is not None}


@mutant(name="resumed-without-its-state", mirrors="transformers#46032", group="A", **_OWN)
def _stateless(engine: Any) -> None:
    """A request that resumes starts from an empty recurrent state."""

    def empty(layer: Any) -> None:
        for state in _states(layer, "recurrent_states").values():
            state.zero_()

    _when_found(engine, empty)


@mutant(name="chunk-from-an-empty-state", mirrors="transformers#46032", group="A", **_OWN)
def _chunked(engine: Any) -> None:
    """A chunk of several tokens starts from an empty recurrent state, whatever came before it."""
    import torch

    def together(original: Any, cache: Any, rows: Any, at: int) -> Any:
        if at and len(rows[0]) > 1:
            with torch.inference_mode():
                for layer in cache.layers:
                    for state in _states(layer, "recurrent_states").values():
                        state.zero_()
        return original(cache, rows, at)

    wrap(engine.server.model, "together", together)


@mutant(name="convolution-one-token-off", mirrors="sglang#33450", group="A", **_OWN)
def _shifted(engine: Any) -> None:
    """The convolution state of a request that resumes ends a token early."""

    def shift(layer: Any) -> None:
        for state in _states(layer, "conv_states").values():
            state.copy_(state.roll(1, dims=-1))

    _when_found(engine, shift)


@mutant(name="state-of-a-shorter-prefix", mirrors="llama.cpp#18552", group="A", **_OWN)
def _stale(engine: Any) -> None:
    """A request that resumes gets the states of the longest shorter prefix that is kept."""
    _with_states_of(engine, longest_shorter)


@mutant(name="state-of-another-prompt", mirrors="vllm#36622", group="I", **_OWN)
def _foreign(engine: Any) -> None:
    """A request that resumes gets the states of the newest prompt that begins otherwise."""
    _with_states_of(engine, last_of_another)


@mutant(name="cache-shared-instead-of-copied", mirrors="FreeToken#287", group="H", **_OWN)
def _shared(engine: Any) -> None:
    """A cache is kept and resumed as it is, and its owners go on writing into it."""
    if engine.server.store is not None:
        engine.server.store.copied = lambda cache: cache


@mutant(name="cropped-one-token-short", mirrors="vllm-mlx#683", group="A", **_OWN)
def _short(engine: Any) -> None:
    """A longer text's cache is cropped by a token less than it holds behind the shared prefix."""
    if engine.server.store is not None:
        wrap(
            engine.server.store, "crop", lambda original, cache, tokens: original(cache, tokens - 1)
        )


@mutant(name="window-one-token-short", mirrors="transformers#47708", group="G", **_OWN)
def _narrow(engine: Any) -> None:
    """A full window is resumed without its oldest token, in whose place the next one is read."""

    def narrow(layer: Any) -> None:
        if getattr(layer, "is_sliding", False) and layer.get_seq_length() >= layer.sliding_window:
            for kept in (layer.keys, layer.values):
                kept[..., 1 - layer.sliding_window, :] = kept[..., 2 - layer.sliding_window, :]

    _when_found(engine, narrow)


@mutant(
    name="short-prefixes-not-kept",
    mirrors="ml-explore/mlx-lm (prompts below a length are not kept)",
    group="N",
    **{**_OWN, "anomaly": "lost-repeat"},
)
def _forgotten(engine: Any) -> None:
    """Nothing is kept of the first 40 tokens of a prompt or answer."""
    if engine.server.store is not None:
        wrap(
            engine.server.store,
            "keep",
            lambda original, identity, tokens, cache: (
                original(identity, tokens, cache) if len(tokens) >= SHORT else None
            ),
        )


@mutant(name="rows-chosen-without-states", mirrors="transformers#46612", group="A", **_OWN)
def _stateless_rows(engine: Any) -> None:
    """Where rows of a batch are chosen, states stay in the order of before."""

    def choose(original: Any, cache: Any, rows: Any) -> None:
        before = [(kept, dict(kept)) for kept in _kept_states(cache)]
        original(cache, rows)
        for kept, states in before:
            kept.update({index: _in_order(state, len(rows)) for index, state in states.items()})

    wrap(engine.server.rows, "choose", choose)


@mutant(name="rows-chosen-without-a-layer", mirrors="transformers#46612", group="I", **_OWN)
def _layer_left_out(engine: Any) -> None:
    """Where rows of a batch are chosen, one layer's keys and values stay in the order of before."""

    def choose(original: Any, cache: Any, rows: Any) -> None:
        layer = next((one for one in cache.layers if getattr(one, "is_initialized", False)), None)
        before = (layer.keys, layer.values) if layer is not None else None
        original(cache, rows)
        if layer is not None and before is not None:
            layer.keys, layer.values = (_in_order(one, len(rows)) for one in before)

    wrap(engine.server.rows, "choose", choose)


def _kept_states(cache: Any) -> Iterator[dict[int, torch.Tensor | None]]:
    for layer in cache.layers:
        for which in ("conv_states", "recurrent_states"):
            yield getattr(layer, which, {})


def _in_order(kept: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    """Return so many rows of a tensor in their order, from its first again behind its last."""
    return None if kept is None else kept[[row % len(kept) for row in range(rows)]]


@mutant(
    name="static-cache-handed-on-with-states",
    mirrors="huggingface/transformers (StaticCache.reset of layers with states)",
    group="I",
    **_OWN,
)
def _uncleared(engine: Any) -> None:
    """A static cache that a request gives back is cleared but for its states."""

    def cleared(original: Any, cache: Any) -> Any:
        before = [(kept, copy.deepcopy(kept)) for kept in _kept_states(cache)]
        had = [copy.copy(getattr(layer, "has_previous_state", {})) for layer in cache.layers]
        original(cache)
        for kept, states in before:
            kept.update(states)
        for layer, previous in zip(cache.layers, had, strict=True):
            getattr(layer, "has_previous_state", {}).update(previous)
        return cache

    wrap(engine.server, "cleared", cleared)


MUTANTS = declared(globals())
FAULTS = {fault.name: fault for fault in MUTANTS}
