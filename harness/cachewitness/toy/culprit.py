"""The first layer of a step that is wrong: in what it read from its pages, or in what it made of
it.

Layers are asked in order, each first for what it read, then for its output. So of a wrong state
that spoils everything behind it, the state is named, and of a wrong kernel with right inputs the
layer's output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cachewitness.core.events import Culprit
from cachewitness.toy.model import Model
from cachewitness.toy.noise import Floors, Noise
from cachewitness_reference.toy_model.definition import Computed, compute
from cachewitness_reference.toy_model.watch import Watch


class Place(NamedTuple):
    """Where a chunk's way through a step is kept: the step's watch, and the index of the chunk
    in it.
    """

    watch: Watch
    chunk: int


def first_wrong(
    model: Model, floors: Floors, place: Place, tokens: Sequence[int], start: int, version: int
) -> Culprit | None:
    """Return the first thing that is wrong of a chunk that began at `start` and whose own tokens
    end `tokens`; None if nothing.

    `tokens` are the request's from 0 on, as far as they are to be compared.
    """
    exact = compute([tokens], model.version(version), model.config, after=[start])
    search = _Search(model, floors, place, exact, start, len(tokens))
    for layer in range(len(model.config.layer_types)):
        culprit = search.read(layer) or search.put_out(layer)
        if culprit is not None:
            return culprit
    return None


class _Search:
    def __init__(
        self, model: Model, floors: Floors, place: Place, exact: Computed, start: int, stop: int
    ) -> None:
        self._model = model
        self._floors = floors
        self._exact = exact
        self._watch, self._chunk = place
        self._start = start
        self._stop = stop
        self._group_of = {
            layer: g for g, group in enumerate(model.groups) for layer in group.layers
        }

    def read(self, layer: int) -> Culprit | None:
        """Return what a layer read wrong."""
        read = self._watch.read(layer, self._chunk)
        size = self._model.groups[self._group_of[layer]].block_size
        if read.positions is None:
            right = self._exact.kept[layer]
            block = -(-self._start // size) - 1
            wrong = [
                (part, self._off(layer, part, ours, right[part][0]))
                for part, ours in read.parts.items()
            ]
            return next(
                (self._named(layer, part, self._start, block, off) for part, off in wrong if off),
                None,
            )
        window = self._model.config.sliding_window if self._sliding(layer) else self._stop
        seen = (read.positions > self._start - window) & (read.positions < self._stop)
        positions = read.positions[seen].cpu()
        for part, ours in read.parts.items():
            row = self._first_row(
                layer, part, ours[seen], self._exact.kept[layer][part][0][positions]
            )
            if row is not None:
                position = int(positions[row[0]])
                return self._named(layer, part, position, position // size, row[1])
        return None

    def put_out(self, layer: int) -> Culprit | None:
        """Return the first position at which a layer's output is wrong."""
        ours = self._watch.output(layer, self._chunk)[: self._stop - self._start]
        row = self._first_row(layer, "output", ours, self._exact.outputs[layer][0, self._start :])
        if row is None:
            return None
        position = self._start + row[0]
        return self._named(
            layer,
            "output",
            position,
            position // self._model.groups[self._group_of[layer]].block_size,
            row[1],
        )

    def _sliding(self, layer: int) -> bool:
        return self._model.config.layer_types[layer] == "sliding_attention"

    def _noise(self, layer: int, part: str) -> Noise:
        return self._floors.layers[layer][part]

    def _off(self, layer: int, part: str, ours: Tensor, exact: Tensor) -> float:
        """Return by how much something is off if that is too much, else 0."""
        off = _difference(ours, exact).max().item()
        return 0.0 if off <= self._noise(layer, part).tolerance else off

    def _first_row(
        self, layer: int, part: str, ours: Tensor, exact: Tensor
    ) -> tuple[int, float] | None:
        """Return the first row that is off, and by how much."""
        rows = _difference(ours, exact).flatten(1).amax(1)
        off = (~(rows <= self._noise(layer, part).tolerance)).nonzero().flatten().tolist()
        return (off[0], float(rows[off[0]])) if off else None

    def _named(self, layer: int, part: str, position: int, block: int, off: float) -> Culprit:
        return Culprit(
            layer=layer,
            layer_type=self._model.config.layer_types[layer],
            group=self._group_of[layer],
            part=part,
            position=position,
            block=block,
            off=off if math.isfinite(off) else 0.0,
            holds=no_number(off),
        )


def _difference(ours: Tensor, exact: Tensor) -> Tensor:
    return (ours.to("cpu", torch.float64) - exact).abs()


def no_number(x: float) -> str:
    """Return what a number is called that is none; empty for one that is."""
    return "" if math.isfinite(x) else "NaN" if math.isnan(x) else "infinity"
