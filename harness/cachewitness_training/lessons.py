"""What a model is taught: word problems, or text."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model import dense
from cachewitness_training.branches import IGNORED, Branches
from cachewitness_training.needs import Needs, needs
from cachewitness_training.paths import branch
from cachewitness_training.recipes import Recipe, Stage
from cachewitness_training.text import Text


class Lessons(Protocol):
    """What is learnt in each step, and how what has been learnt is measured.

    `measured` names what `needs` returns; `source` says what the lessons are made from, as far as
    the recipe does not.
    """

    measured: str
    source: dict[str, Any]

    def loss(self, step: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a step."""

    def needs(self, parameters: Mapping[str, Tensor], batches: int, step: int) -> Needs:
        """Return what the model answers after a step on so many held-out batches, by what was
        damaged.
        """


class Problems:
    """Word problems behind contexts, which grow from stage to stage."""

    measured = "right"

    def __init__(self, recipe: Recipe) -> None:
        self.source = dict[str, Any]()
        self._recipe = recipe
        self._branches = Branches(recipe.config, recipe.cut)

    def loss(self, step: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of answers behind what prefixes left, in nats a token."""
        recipe = self._recipe
        batch = self._branches.batch(
            Random(f"{recipe.seed}/{step}"), self._stage(step), recipe.tokens_per_step
        )
        empty = [None] * len(recipe.config.layer_types)
        _, left = dense.resume(batch.prefixes, parameters, recipe.config, 0, empty)
        past = branch(left, batch.sources, recipe.config)
        start = batch.prefixes.shape[1]
        logits, _ = dense.resume(batch.tokens, parameters, recipe.config, start, past)
        wanted = batch.targets != IGNORED
        return F.cross_entropy(logits[wanted], batch.targets[wanted])

    def needs(self, parameters: Mapping[str, Tensor], batches: int, step: int) -> Needs:
        """Return the share of right answers by group, by what was damaged."""
        return needs(parameters, self._recipe.config, batches, self._stage(step))

    def _stage(self, step: int) -> Stage:
        return [stage for stage in self._recipe.stages if stage.start <= step][-1]


def lessons(recipe: Recipe) -> Lessons:
    """Return what a recipe teaches."""
    return Text(recipe) if recipe.packages else Problems(recipe)
