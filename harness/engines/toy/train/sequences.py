"""Training sequences: whole contexts, with what to predict, what to drop and what to hide."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from harness.engines.toy.problems.contexts import FULL_SIZE, Context, Size, header, new_context, worked
from harness.engines.toy.problems.families import GROUPS, Problem, recital
from harness.engines.toy.problems.words import NUMBERS, VOCABULARY
from harness.engines.toy.train.recipes import Phase
from reference_impl.toy_model.tokenizer import Tokenizer

IGNORED = -100
"""The target of a token that is not to be predicted."""


@dataclass(frozen=True)
class Batch:
    """Sequences of unequal length, filled up on the right.

    tokens [B, T]; targets [B, T] (the next token, where it belongs to an answer); groups [B, T] (index of the problem's
    group, where there is a target); forget [B, T] (recurrent memories are dropped before this token); hidden [B, T, T]
    (query, key: full attention must do without it).
    """

    tokens: Tensor
    targets: Tensor
    groups: Tensor
    forget: Tensor
    hidden: Tensor


@dataclass
class _Sequence:
    tokens: list[int]
    targets: list[int]
    groups: list[int]
    stated: list[int]
    coins_at: int


class Sequences:
    """Makes the batches of a phase.

    `window` [tokens] is how far full attention always sees. Behind the examples of every sequence `recited` facts are asked for
    at once, which teaches recall faster than answers do.
    """

    def __init__(self, phase: Phase, *, window: int, recited: int) -> None:
        self.phase, self.window, self.recited = phase, window, recited
        self._encode, self._groups = Tokenizer(VOCABULARY).encode, [*GROUPS]
        self._coins, self._has = VOCABULARY["Coins"], VOCABULARY[" has"]
        self._numbers = {VOCABULARY[f" {number}"] for number in NUMBERS}

    def batch(self, rng: Random, examples: tuple[int, int], tokens_max: int, size: Size = FULL_SIZE) -> Batch:
        """Return contexts of a size, with a number of examples between the two given, as many as fit into `tokens_max`."""
        count = rng.randint(*examples)
        made = [self._sequence(_context(rng, count, size), rng)]
        while (len(made) + 1) * max(len(s.tokens) for s in made) <= tokens_max:
            made.append(self._sequence(_context(rng, count, size), rng))
        return self._collate(made, rng)

    def _sequence(self, context: Context, rng: Random) -> _Sequence:
        tokens = self._encode(header(context.world))
        spoken, groups = [False] * len(tokens), [0] * len(tokens)
        for problem in context.examples:
            asked, answered = self._parts(problem)
            tokens += asked + answered
            spoken += [False] * len(asked) + [True] * len(answered)
            groups += [self._groups.index(problem.group)] * (len(asked) + len(answered))
        if self.recited:
            asked, answered = self._parts(recital(context.world, self.recited, rng, repeats=self.phase.repeats))
            tokens += asked + answered
            spoken += [False] * len(asked) + [token in self._numbers for token in answered]
            groups += [0] * (len(asked) + len(answered))
        targets = [t if s else IGNORED for t, s in zip(tokens[1:], spoken[1:], strict=True)] + [IGNORED]
        stated = [i + d for i, token in enumerate(tokens) if token == self._has for d in (-1, 0, 1)]
        return _Sequence(tokens, targets, [*groups[1:], 0], stated, tokens.index(self._coins))

    def _parts(self, problem: Problem) -> tuple[list[int], list[int]]:
        text = worked(problem)
        asked, colon, answer = text.partition("Answer:")
        return self._encode(asked + colon), self._encode(answer)

    def _collate(self, made: list[_Sequence], rng: Random) -> Batch:
        rows, width = len(made), max(len(s.tokens) for s in made)
        tokens, groups = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width, dtype=torch.long)
        targets = torch.full((rows, width), IGNORED)
        forget, stated = torch.zeros(rows, width, dtype=torch.bool), torch.zeros(rows, width, dtype=torch.bool)
        for row, s in enumerate(made):
            tokens[row, : len(s.tokens)] = torch.tensor(s.tokens)
            targets[row, : len(s.tokens)] = torch.tensor(s.targets)
            groups[row, : len(s.tokens)] = torch.tensor(s.groups)
            forget[row, s.coins_at] = rng.random() < self.phase.dropped
            if rng.random() < self.phase.hidden:
                stated[row, s.stated] = True
        positions = torch.arange(width)
        far = positions[:, None] - positions[None, :] >= self.window
        return Batch(tokens, targets, groups, forget, stated[:, None, :] & far)


def _context(rng: Random, count: int, size: Size) -> Context:
    return new_context(rng, lambda _text, examples: examples >= count, size)
