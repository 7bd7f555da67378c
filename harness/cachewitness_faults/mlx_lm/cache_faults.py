"""Seeded faults of the loop over mlx-lm: what is done wrong to the library's caches when they
are kept or found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from cachewitness.engines.fault_tools import last_of_another, longest_shorter, wrap
from cachewitness.engines.mutant import declared, mutant

SHORT = 40
_OWN: dict[str, Any] = {
    "checker": "answers",
    "engines": ("mlx-lm",),
    "level": "answers",
    "anomaly": "answer-differs",
}


def _arrays(cache: list[Any]) -> Iterator[Any]:
    """Yield the caches of recurrent and convolution states, also those inside of others."""
    for layer in cache:
        if hasattr(layer, "caches"):
            yield from _arrays(layer.caches)
        elif isinstance(getattr(layer, "cache", None), list):
            yield layer


def _when_found(engine: Any, change: Callable[[list[Any]], None]) -> None:
    """Have `change` done to every cache that is found for a request."""
    store = engine.server.store
    if store is None:
        return

    def fetch(original: Any, model: str, tokens: list[int]) -> Any:
        cache, rest = original(model, tokens)
        if cache is not None:
            change(cache)
        return cache, rest

    wrap(store, "fetch_nearest_cache", fetch)


@mutant(name="mlx-resumed-without-its-state", mirrors="mlx-lm#1162", group="A", **_OWN)
def _stateless(engine: Any) -> None:
    """A request that resumes starts from empty recurrent states."""

    def emptied(cache: list[Any]) -> None:
        for layer in _arrays(cache):
            layer.cache = [None if state is None else state * 0 for state in layer.cache]

    _when_found(engine, emptied)


@mutant(name="mlx-convolution-one-token-off", mirrors="sglang#33450", group="A", **_OWN)
def _shifted(engine: Any) -> None:
    """The convolution state of a request that resumes ends a token early."""
    import mlx.core as mx

    def shifted(cache: list[Any]) -> None:
        for layer in _arrays(cache):
            convolved, *others = layer.cache
            layer.cache = [None if convolved is None else mx.roll(convolved, 1, axis=1), *others]

    _when_found(engine, shifted)


@mutant(name="mlx-kept-a-token-late", mirrors="vllm-mlx#683", group="A", **_OWN)
def _late(engine: Any) -> None:
    """What is kept at the end of a segment is named by one token less than it has seen."""
    keep = engine.server.keep

    def named(owner: str, tokens: list[int], cache: list[Any], kind: str) -> None:
        keep(owner, tokens[:-1] if kind != "assistant" else tokens, cache, kind)

    engine.server.keep = named


@mutant(name="mlx-window-merged-from-its-front", mirrors="ml-explore/mlx-lm", group="G", **_OWN)
def _front(engine: Any) -> None:
    """Of a window's cache that holds more than the window the oldest go into the batch, and not the
    newest.
    """

    def cut(cache: list[Any]) -> None:
        for layer in cache:
            if hasattr(layer, "_temporal_order") and layer.keys is not None:
                size = layer.size()
                for name in ("keys", "values"):
                    ordered = layer._temporal_order(getattr(layer, name))
                    setattr(layer, name, ordered[..., :size, :])
                layer._idx = size

    _when_found(engine, cut)


@mutant(name="mlx-part-of-a-window-lost", mirrors="transformers#47708", group="G", **_OWN)
def _lost(engine: Any) -> None:
    """Of a window a sixteenth is empty, in front of the last one: two blocks of Gemma 3's."""

    def emptied(cache: list[Any]) -> None:
        for layer in cache:
            if hasattr(layer, "_temporal_order") and layer.keys is not None:
                part = -(-layer.max_size // 16)
                for name in ("keys", "values"):
                    ordered = layer._temporal_order(getattr(layer, name))
                    ordered[..., -2 * part : -part, :] = 0.0
                    setattr(layer, name, ordered)
                layer._idx = layer.keys.shape[2]

    _when_found(engine, emptied)


Kept = tuple[str, list[int]]
"""A cache that is kept: whose it is, and its tokens."""


def _with_states_of(engine: Any, chosen: Callable[[list[Kept], Kept], Kept | None]) -> None:
    """Have a cache that is found get the states of another one: `chosen` is told all that are
    kept, and what was found.
    """
    store = engine.server.store
    if store is None:
        return

    def fetch(original: Any, model: str, tokens: list[int]) -> Any:
        cache, rest = original(model, tokens)
        kept = [place for recent in store._lru._lrus.values() for place in recent]
        own = model, tokens[: len(tokens) - len(rest)]
        other = None if cache is None else chosen(kept, own)
        if other is not None:
            states = _arrays(store._trie.get(*other).prompt_cache)
            for layer, source in zip(_arrays(cache), states, strict=True):
                layer.cache = [*source.cache]
        return cache, rest

    wrap(store, "fetch_nearest_cache", fetch)


@mutant(name="mlx-state-of-a-shorter-prefix", mirrors="llama.cpp#18552", group="A", **_OWN)
def _stale_state(engine: Any) -> None:
    """A request that resumes gets the states of the longest shorter prefix that is kept."""
    _with_states_of(engine, longest_shorter)


@mutant(name="mlx-state-of-another-prompt", mirrors="vllm#36622", group="I", **_OWN)
def _foreign_state(engine: Any) -> None:
    """A request that resumes gets the states of a prompt that begins otherwise."""
    _with_states_of(engine, last_of_another)


@mutant(name="mlx-resumed-from-another-prompt", mirrors="vllm#36622", group="I", **_OWN)
def _foreign(engine: Any) -> None:
    """A request that resumes gets the cache of another prompt, of a system's part if one is
    kept.
    """
    store = engine.server.store
    if store is None:
        return

    def fetch(original: Any, model: str, tokens: list[int]) -> Any:
        cache, rest = original(model, tokens)
        others = [
            (whose, kept)
            for recent in store._lru._lrus.values()
            for whose, kept in recent
            if kept[: len(kept) // 2] != tokens[: len(kept) // 2]
        ]
        if cache is not None and others:
            cache = copy.deepcopy(store._trie.get(*others[-1]).prompt_cache)
        return cache, rest

    wrap(store, "fetch_nearest_cache", fetch)


@mutant(name="mlx-trimmed-one-token-short", mirrors="vllm-mlx#683", group="A", **_OWN)
def _stale(engine: Any) -> None:
    """A longer text's cache is trimmed by a token less than it holds behind the shared prefix."""
    store = engine.server.store
    if store is None:
        return

    def fetch(original: Any, model: str, tokens: list[int]) -> Any:
        kept = [held for recent in store._lru._lrus.values() for _, held in recent]
        cache, rest = original(model, tokens)
        if cache is not None and tokens[: len(tokens) - len(rest)] not in kept:
            for layer in cache:
                layer.trim(-1)
        return cache, rest

    wrap(store, "fetch_nearest_cache", fetch)


@mutant(
    name="mlx-file-counts-what-a-window-has",
    mirrors="ml-explore/mlx-lm (the state of RotatingKVCache)",
    group="G",
    **_OWN,
)
def _counted(engine: Any) -> None:
    """A window that comes from a file takes the number of its entries for that of the tokens before
    it.
    """

    def through_file(original: Any, cache: list[Any], file: str) -> Any:
        loaded = original(cache, file)
        for layer in loaded:
            if hasattr(layer, "_temporal_order"):
                layer.offset = layer.size()
        return loaded

    wrap(engine.server, "through_file", through_file)


@mutant(
    name="mlx-short-prefixes-not-kept",
    mirrors="ml-explore/mlx-lm (prompts below a length are not kept)",
    group="N",
    **{**_OWN, "anomaly": "lost-repeat"},
)
def _short(engine: Any) -> None:
    """Nothing is kept of the first 40 tokens of a prompt."""
    keep = engine.server.keep

    def long_enough(owner: str, tokens: list[int], cache: list[Any], kind: str) -> None:
        if len(tokens) >= SHORT:
            keep(owner, tokens, cache, kind)

    engine.server.keep = long_enough


MUTANTS = declared(globals())
FAULTS = {fault.name: fault for fault in MUTANTS}
