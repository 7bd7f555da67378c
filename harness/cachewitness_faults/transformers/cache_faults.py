"""Seeded faults of the server over transformers: what is done wrong to the library's caches when
they are kept or resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachewitness.engines.fault_tools import wrap
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

    def resumed(original: Any, cache: Any, tokens: Any, at: int) -> Any:
        if at and len(tokens) > 1:
            with torch.inference_mode():
                for layer in cache.layers:
                    for state in _states(layer, "recurrent_states").values():
                        state.zero_()
        return original(cache, tokens, at)

    wrap(engine.server.model, "resumed", resumed)


@mutant(name="convolution-one-token-off", mirrors="sglang#33450", group="A", **_OWN)
def _shifted(engine: Any) -> None:
    """The convolution state of a request that resumes ends a token early."""

    def shift(layer: Any) -> None:
        for state in _states(layer, "conv_states").values():
            state.copy_(state.roll(1, dims=-1))

    _when_found(engine, shift)


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


MUTANTS = declared(globals())
FAULTS = {fault.name: fault for fault in MUTANTS}
