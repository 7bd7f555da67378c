"""The cold oracle: what the definition of the model says of the same tokens, in float64, without a
cache.

Tests of caches often compare with a run of the same kernels that was split like the cached one, and
share its faults. Here nothing is shared: `cachewitness_reference.toy_model.definition` is written
apart from all that an engine computes with, and how far a right computation may be from it is
measured on the definition alone (`cachewitness.toy.noise`). So a kernel that is wrong in every run
is found as well, and no fault can widen its own tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cachewitness.core.events import Compare
from cachewitness.toy.culprit import Place, first_wrong, no_number
from cachewitness.toy.model import Model
from cachewitness.toy.noise import Noise, floors
from cachewitness_reference.toy_model.definition import Computed, compute

_AHEAD = 64
_TOGETHER = 64
"""Texts of one run of the definition; more would only need more memory."""

Text = tuple[tuple[int, ...], int]
"""Tokens of the model, and the version of its weights."""


class Answer(NamedTuple):
    """What the definition says of one text: its logits [T, vocab], and by layer what is kept
    after some tokens.
    """

    logits: Tensor
    kept: list[dict[str, Tensor]]


def answers(model: Model, after: Mapping[Text, int]) -> dict[Text, Answer]:
    """Return what the definition says of texts, many at a time, the states after as many tokens
    as stands with each.
    """
    answered: dict[Text, Answer] = {}
    for version in {version for _, version in after}:
        ours = sorted((text for text in after if text[1] == version), key=lambda text: len(text[0]))
        for first in range(0, len(ours), _TOGETHER):
            some = ours[first : first + _TOGETHER]
            texts = [text for text, _ in some]
            ends = [after[text] for text in some]
            computed = compute(texts, model.version(version), model.config, after=ends)
            answered |= {text: _row(computed, row, len(text[0])) for row, text in enumerate(some)}
    return answered


def _row(computed: Computed, row: int, length: int) -> Answer:
    kept = [{name: part[row] for name, part in layer.items()} for layer in computed.kept]
    return Answer(computed.logits[row, :length], kept)


class Oracle:
    """Knows what every request computes if nothing is cached. `truth(r, n)` are the first n
    model tokens of r, or more.
    """

    def __init__(self, model: Model, truth: Callable[[str, int], Sequence[int]]) -> None:
        self.model = model
        self._truth = truth
        self.floors = floors(model)
        self._cold: dict[tuple[str, int], Tensor] = {}

    def prepare(self, wanted: Iterable[tuple[str, int]], version: int) -> None:
        """Compute what is missing of requests up to so many tokens, side by side."""
        missing = [
            (r, count) for r, count in wanted if len(self._cold.get((r, version), ())) < count
        ]
        texts = {r: (tuple(self._truth(r, count + _AHEAD)), version) for r, count in missing}
        answered = answers(self.model, {text: len(text[0]) for text in texts.values()})
        self._cold |= {(r, version): answered[text].logits for r, text in texts.items()}

    def compare(
        self,
        r: str,
        start: int,
        tokens: Sequence[int],
        logits: Tensor,
        version: int,
        step: int,
        place: Place | None = None,
    ) -> Compare:
        """Compare the logits [n, vocab] of tokens [start, start + n) of r with the right ones.

        `tokens` are what was computed; from the first draft on that r does not go on with nothing
        is compared. With `place`, where the step kept what it computed on its way, the first wrong
        layer is looked for.
        """
        stop = start + len(tokens)
        truth = self._truth(r, stop)[:stop]
        right = next(
            (i for i, (a, b) in enumerate(zip(tokens, truth[start:], strict=True)) if a != b),
            len(tokens),
        )
        stop = start + right
        self.prepare([(r, stop)], version)
        event = compared(
            logits[:right],
            self._cold[r, version][start:stop],
            self.model.precision,
            self.floors.logits,
        )
        event.step = step
        event.r = r
        event.start = start
        event.stop = stop
        if event.beyond:
            event.at += start
            event.first = (
                first_wrong(self.model, self.floors, place, truth[:stop], start, version)
                if place
                else None
            )
        return event


def compared(ours: Tensor, exact: Tensor, dtype: str, noise: Noise) -> Compare:
    """Return what comparing logits [n, vocab] with exact ones comes to, `at` counted from the
    first of them.
    """
    rows = ours.to("cpu", torch.float64)
    numbers: list[float] = (rows - exact).abs().amax(-1).tolist()
    event = Compare(r="", start=0, stop=len(numbers), dtype=dtype, **noise._asdict())
    event.largest = max((x for x in numbers if math.isfinite(x)), default=0.0)
    beyond = [i for i, x in enumerate(numbers) if not x <= noise.tolerance]
    if beyond:
        names = [no_number(x) for x in numbers]
        event.beyond = len(beyond)
        event.nan = names.count("NaN")
        event.infinite = names.count("infinity")
        event.at = beyond[0]
        event.right = int(exact[beyond[0]].argmax())
        event.chose = -1 if names[event.at] else int(rows[event.at].argmax())
    return event
