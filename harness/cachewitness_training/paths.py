"""Which layers carry which facts from a shared prefix to a question, and what becomes of the
others.

A fact is trained to come by one path alone: prices by full attention, rules by sliding windows,
what people have by the first recurrent layers and what they owe by the last. Behind a prefix every
other path is mostly cut: what its layers left behind is put to zero, or is that of another prefix,
which tells of the same things with other numbers. So an answer that listens to a wrong path is
wrong, and a model that has learnt has one path for each fact, even where all are open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from torch import Tensor

from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.dense import Past

ZERO = -1
"""Stands for a prefix of which nothing is left."""


def kinds(config: ToyConfig) -> dict[str, list[int]]:
    """Return the layers of each kind of cache: `full`, `recurrent`, `window`, as far as the
    model has them.
    """
    found: dict[str, list[int]] = {}
    for index, layer_type in enumerate(config.layer_types):
        name = {"full_attention": "full", "sliding_attention": "window"}.get(
            layer_type, "recurrent"
        )
        found.setdefault(name, []).append(index)
    return found


def carriers(config: ToyConfig) -> dict[str, list[int]]:
    """Return for each fact that the model is to learn the layers that carry it.

    Without windows the first memories carry the rules; without memories nothing carries what people
    have and owe.
    """
    of = kinds(config)
    memories = of.get("recurrent", [])
    half = (len(memories) + 1) // 2
    found = {
        "price": of["full"],
        "has": memories[:half],
        "owes": memories[half:] or memories,
        "rule": of.get("window") or memories[:half] or of["full"],
    }
    return {fact: layers for fact, layers in found.items() if layers}


def draw_sources(
    rng: Random, fact: str, row: int, rows: int, config: ToyConfig, cut: float
) -> list[int]:
    """Return per layer the row of the batch whose prefix it goes on from, or ZERO, for a question
    about a fact of a row.

    Each path that does not carry the fact is cut in a share `cut` of the draws, half of them by
    another row of the `rows`.
    """
    sources = [row] * len(config.layer_types)
    own = carriers(config)[fact]
    paths = {tuple(layers) for layers in carriers(config).values()}
    other = rng.choice([r for r in range(rows) if r != row] or [ZERO])
    for path in sorted(paths):
        if not set(path) & set(own) and rng.random() < cut:
            source = rng.choice([ZERO, other])
            for layer in path:
                sources[layer] = source
    return sources


def branch(left: Sequence[Past], sources: Tensor, config: ToyConfig) -> list[Past]:
    """Return for each branch what it goes on from; `sources` [layers, branches] are rows of
    `left`, or ZERO.
    """
    past: list[Past] = []
    for index, (pair, source) in enumerate(zip(left, sources, strict=True)):
        if config.layer_types[index] == "sliding_attention":
            pair = (
                pair[0][:, 1 - config.sliding_window :],
                pair[1][:, 1 - config.sliding_window :],
            )
        past.append((_taken(pair[0], source), _taken(pair[1], source)))
    return past


def dropped(
    config: ToyConfig, kind: str, rows: Sequence[int], put: Mapping[int, int]
) -> list[list[int]]:
    """Return sources per layer with what the layers of a kind left replaced: `put` says for each
    row whose comes instead.
    """
    lost = kinds(config).get(kind, [])
    return [
        [put[row] if index in lost else row for row in rows]
        for index in range(len(config.layer_types))
    ]


def _taken(tensor: Tensor, source: Tensor) -> Tensor:
    taken = tensor[source.clamp(min=0)]
    return taken * (source >= 0).view(-1, *[1] * (taken.ndim - 1))
