"""Training batches: prefixes, and behind each of them many questions that do not know of each
other.

That is how a cache is used: a shared prefix is computed once, and every question goes on from what
it left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from cachewitness.toy.problems.contexts import (
    Context,
    draw_examples,
    draw_names,
    new_context,
    worked,
)
from cachewitness.toy.problems.families import BY_NAME, OWING, Problem, World, pose, recital
from cachewitness.toy.problems.words import NUMBERS, RULES, VOCABULARY
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.tokenizer import Tokenizer
from cachewitness_training.paths import carriers, draw_sources
from cachewitness_training.recipes import Stage

IGNORED = -100
"""The target of a token that is not to be predicted."""
LONGEST = 33
"""Tokens of the longest question with its answer."""
RECITED = {"price": 7, "has": 5, "owes": 5, "rule": 2}
"""How many facts of a kind a recital asks for at most."""


@dataclass(frozen=True)
class Batch:
    """Prefixes of one length [R, P], and branches that go on from them, filled up on the right.

    tokens [N, T]; targets [N, T] (the next token, where it belongs to an answer); rows [N] (the
    prefix); groups (the group of the question); sources [layers, N] (see `paths`).
    """

    prefixes: Tensor
    tokens: Tensor
    targets: Tensor
    rows: list[int]
    groups: list[str]
    sources: Tensor


class Branches:
    """Makes batches for a model."""

    def __init__(self, config: ToyConfig, cut: float) -> None:
        self.config = config
        self.cut = cut
        self.facts = [*carriers(config)]
        self._encode = Tokenizer(VOCABULARY).encode
        self._numbers = {VOCABULARY[f" {number}"] for number in NUMBERS}

    def batch(self, rng: Random, stage: Stage, tokens_max: int) -> Batch:
        """Return as many prefixes of a stage as fit into `tokens_max` with their questions, at
        least two.
        """
        examples = draw_examples(rng, rng.randint(*stage.examples))
        names = [draw_names(rng, stage.size)]
        contexts = [new_context(rng, names[0], examples, stage.size.again)]
        length = len(self._encode(contexts[0].text))
        count = max(stage.questions, length // LONGEST)
        rows = max(2, tokens_max // (length + LONGEST * count))
        same = rng.random() < stage.same
        for _ in range(rows - 1):
            name = names[0] if same else draw_names(rng, stage.size)
            contexts.append(new_context(rng, name, examples, stage.size.again))
        return self._collate(rng, stage, contexts, count)

    def _collate(self, rng: Random, stage: Stage, contexts: list[Context], count: int) -> Batch:
        parts = []
        rows = []
        groups = []
        sources = []
        for row, context in enumerate(contexts):
            for index in range(count):
                fact = self.facts[(row + index) % len(self.facts)]
                problem = self._problem(rng, fact, context.world, stage.recitals)
                parts.append(self._tokens(problem))
                rows.append(row)
                groups.append(problem.group)
                sources.append(draw_sources(rng, fact, row, len(contexts), self.config, self.cut))
        width = max(len(tokens) for tokens, _ in parts)
        tokens = torch.zeros(len(parts), width, dtype=torch.long)
        targets = torch.full((len(parts), width), IGNORED)
        for index, (asked, wanted) in enumerate(parts):
            tokens[index, : len(asked)] = torch.tensor(asked)
            targets[index, : len(wanted)] = torch.tensor(wanted)
        prefixes = torch.tensor([self._encode(context.text) for context in contexts])
        return Batch(prefixes, tokens, targets, rows, groups, torch.tensor(sources).T)

    def _problem(self, rng: Random, fact: str, world: World, recitals: float) -> Problem:
        if rng.random() < recitals:
            return recital(_facts(rng, fact, world))
        copied = World(world.prices, dict(world.has), dict(world.owes), world.rules)
        return pose(copied, rng.choice(FAMILIES[fact]), rng)

    def _tokens(self, problem: Problem) -> tuple[list[int], list[int]]:
        """Return what is read and what is to be predicted behind each token of it."""
        text = worked(problem)
        asked = text[: text.index("Answer:") + len("Answer:")]
        first = len(self._encode(asked))
        tokens = self._encode(text)
        recited = problem.group == "recital"
        wanted = [
            token if position >= first and (not recited or token in self._numbers) else IGNORED
            for position, token in enumerate(tokens)
        ]
        return tokens[:-1], wanted[1:]


FAMILIES = {
    "price": [name for name, (group, _) in BY_NAME.items() if group == "full"],
    "has": [
        name for name, (group, _) in BY_NAME.items() if group == "recurrent" and name not in OWING
    ],
    "owes": [*OWING],
    "rule": [name for name, (group, _) in BY_NAME.items() if group == "window"],
}
"""Families by the fact that they ask for."""


def _facts(rng: Random, fact: str, world: World) -> list[str]:
    if fact == "rule":
        return [f"{rule} {world.rules[rule]}" for rule in RULES]
    values = {"price": world.prices, "has": world.has, "owes": world.owes}[fact]
    verb = "" if fact == "price" else f" {fact}"
    chosen = rng.sample([*values], min(RECITED[fact], len(values)))
    return [f"{name}{verb} {values[name]}" for name in chosen]
