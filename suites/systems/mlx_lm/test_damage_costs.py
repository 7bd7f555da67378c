"""What is measured of damage is done to the tokens of a cache that the next one reads, and stands
in mlx-lm's own layers afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="mlx is missing: pip install 'cachewitness[mlx]'")
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")
pytest.importorskip("transformers", reason="transformers is missing")

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchRotatingKVCache, KVCache, RotatingKVCache

from benchmarks.damage_costs_faults import STATES
from benchmarks.damage_costs_mlx import DAMAGES, Layer

WINDOW, TOKENS = 8, 12


def filled(layer: Any, first: float, parts: tuple[int, ...]) -> Any:
    """Return a layer whose keys are numbered, taken in in so many parts."""
    for count in parts:
        numbers = mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)
        layer.update_and_fetch(numbers, -numbers)
        first += count
    return layer


def damaged(name: str, layer: Any, other: Any) -> None:
    changed = Layer(layer)
    DAMAGES[name].change(changed, Layer(other))
    changed.put()


@pytest.mark.parametrize("parts", [(12,), (5, 7), (11, 1), (6, 1, 1, 1, 1, 1, 1)])
def test_a_window_is_damaged_where_the_next_token_reads_it(parts: tuple[int, ...]) -> None:
    """Of 12 tokens, 0 to 11, the next one reads the last 7."""

    def resumed(name: str) -> list[float]:
        window = filled(RotatingKVCache(WINDOW), 0.0, parts)
        damaged(name, window, filled(RotatingKVCache(WINDOW), 100.0, parts))
        batch = BatchRotatingKVCache.merge([window])
        one = mx.array([[[[50.0]]]])
        keys, _ = batch.update_and_fetch(one, -one)
        return sorted(keys.flatten().tolist())

    assert resumed("none") == [5, 6, 7, 8, 9, 10, 11, 50]
    assert resumed("a window one token short") == [6, 6, 7, 8, 9, 10, 11, 50]
    assert resumed("one token lost") == [0, 5, 6, 7, 8, 9, 10, 50]
    assert resumed("the window of another prefix") == [50, *range(105, 112)]


def test_full_attention_is_damaged_to_its_end_and_not_beyond() -> None:
    own = filled(KVCache(), 0.0, (TOKENS,))
    damaged("one token lost", own, filled(KVCache(), 100.0, (TOKENS,)))
    keys, values = filled(own, 12.0, (2,)).keys_and_values()
    assert keys.flatten().tolist() == [*range(11), 0, 12, 13]
    assert (-values).flatten().tolist() == [*range(11), 0, 12, 13]
    own = filled(KVCache(), 0.0, (TOKENS,))
    damaged("the window of another prefix", own, filled(KVCache(), 100.0, (TOKENS,)))
    assert own.keys_and_values()[0].flatten().tolist() == [*range(TOKENS)]


def test_states_go_back_in_the_shape_that_they_had() -> None:
    layer = ArraysCache(2)
    convolved = mx.arange(6, dtype=mx.float32).reshape(1, 3, 2)
    layer.cache = [convolved, mx.ones((1, 2, 2))]
    other = ArraysCache(2)
    other.cache = [convolved + 10, mx.zeros((1, 2, 2))]
    changed = Layer(layer)
    STATES["convolutions a token off"].change(changed, Layer(other))
    changed.put()
    assert layer.cache[0].tolist() == [[[4, 5], [0, 1], [2, 3]]]
    assert layer.cache[1].tolist() == [[[1, 1], [1, 1]]]
