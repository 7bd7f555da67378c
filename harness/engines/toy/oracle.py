"""The cold oracle: what the dense model says of the same tokens, unsplit and without a cache, and how far apart is too far.

Tests of caches often compare with a run that was split like the cached one, and share its fault. Here the comparison is with
one forward pass over the whole text. How much two right computations may differ is measured before anything is judged: the
same texts are computed cold in several ways (in one chunk, in chunks of several sizes, token by token, in company), and the
largest difference to the dense model is the noise floor. Beyond is what exceeds a multiple of it; in float64 the bound is
fixed, and the floor lies far below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from harness.engines.toy.model import Model
from harness.history.events import Compare
from reference_impl.toy_model import dense
from reference_impl.toy_model.paged import Chunk, step

FACTOR = 4.0
"""The tolerance as a multiple of the noise floor."""
FLOAT64_TOLERANCE = 1e-10
CHUNKINGS = (192, 64, 50, 37, 16, 7, 1)
_LENGTH = 192
_AHEAD = 64

T = TypeVar("T")


class Noise(NamedTuple):
    """How far two right computations are apart, in logits, and how far they may be."""

    floor: float
    tolerance: float


class Oracle:
    """Knows what every request computes if nothing is cached. `truth(r, n)` are the first n model tokens of r, or more."""

    def __init__(self, model: Model, truth: Callable[[str, int], Sequence[int]]) -> None:
        self.model, self._truth = model, truth
        self.noise = measured(model)
        self._cold: dict[tuple[str, int], Tensor] = {}

    def compare(self, r: str, start: int, tokens: Sequence[int], logits: Tensor, version: int, step: int) -> Compare:
        """Compare the logits [n, vocab] of tokens [start, start + n) of r with the cold ones, as far as the tokens are r's own.

        `tokens` are what was computed; behind the first draft that r does not go on with nothing is compared.
        """
        stop = start + len(tokens)
        truth = self._truth(r, stop)[start:stop]
        right = next((i for i, (a, b) in enumerate(zip(tokens, truth, strict=True)) if a != b), len(tokens))
        differences = (logits[:right] - self._rows(r, start + right, version)[start : start + right]).abs().amax(-1)
        numbers = [float(x) for x in differences.tolist()]
        finite = [x for x in numbers if math.isfinite(x)]
        return Compare(
            step=step,
            r=r,
            start=start,
            stop=start + right,
            beyond=sum(not x <= self.noise.tolerance for x in numbers),
            largest=max(finite, default=0.0),
            floor=self.noise.floor,
            tolerance=self.noise.tolerance,
        )

    def _rows(self, r: str, count: int, version: int) -> Tensor:
        held = self._cold.get((r, version))
        if held is None or len(held) < count:
            held = self._cold[r, version] = self._forward(self._truth(r, count + _AHEAD), version)
        return held

    def _forward(self, tokens: Sequence[int], version: int) -> Tensor:
        with torch.inference_mode():
            text = torch.tensor([tokens], device=self.model.device)
            return dense.forward(text, self.model.version(version), self.model.config)[0]


def tolerated(model: Model, floor: float) -> Noise:
    """Return the noise of a model that has a floor."""
    return Noise(floor, max(FACTOR * floor, FLOAT64_TOLERANCE if model.precision == "float64" else 0.0))


def once(measure: Callable[[Model], T]) -> Callable[[Model], T]:
    """Measure once for each model, precision, device and grouping."""
    known: dict[tuple[object, ...], T] = {}

    def remembered(model: Model) -> T:
        key = (model.config, model.groups, model.precision, model.device, model.sha256)
        if key not in known:
            known[key] = measure(model)
        return known[key]

    return wraps(measure)(remembered)


@once
def measured(model: Model) -> Noise:
    """Return the noise of a model's logits."""
    return tolerated(model, max(_distance(model, size) for size in CHUNKINGS))


def _distance(model: Model, size: int) -> float:
    """Return the largest difference between two texts computed side by side in chunks of a size, and the dense model."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(model.config.vocab_size, (2, _LENGTH), generator=generator)
    pools, tables = model.fresh(_LENGTH, len(texts))
    largest = 0.0
    with torch.inference_mode():
        cold = dense.forward(texts.to(model.device), model.weights, model.config)
    for start in range(0, _LENGTH, size):
        stop = min(start + size, _LENGTH)
        chunks = [
            Chunk(text[start:stop].tolist(), start, t, outputs=stop - start) for text, t in zip(texts, tables, strict=True)
        ]
        logits = step(pools, chunks, model.weights).unflatten(0, (2, -1))
        largest = max(largest, float((logits - cold[:, start:stop]).abs().max()))
    return largest
