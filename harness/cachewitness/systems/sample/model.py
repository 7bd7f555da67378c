"""A hybrid language model of some hundred numbers: one recurrent layer, one layer that sums over
all tokens.

Both are needed for the next token. A state that is wrong, or one token off, or a key that is
missing, moves logprobs by 0.0001 to 1 and often leaves the likeliest token alone, as with real
models.
"""

from __future__ import annotations

import random
from math import cos, exp, log
from typing import NamedTuple

VOCABULARY, WIDTH = 89, 6
State = tuple[float, ...]
"""What the recurrent layer carries."""
Key = tuple[float, ...]
"""What the attention layer keeps of a token."""


class Chosen(NamedTuple):
    """The likeliest token, and the logarithm of its probability."""

    token: int
    logprob: float


class Model:
    """The model; `recurrent` False leaves its recurrent layer out."""

    def __init__(self, *, recurrent: bool = True) -> None:
        drawn = random.Random(7)
        rows = [[drawn.gauss(0, 1) for _ in range(WIDTH)] for _ in range(4 * VOCABULARY)]
        self._into_state = rows[:VOCABULARY]
        self._into_key = rows[VOCABULARY : 2 * VOCABULARY]
        self._of_state = rows[2 * VOCABULARY : 3 * VOCABULARY]
        self._of_sum = rows[3 * VOCABULARY :]
        self._decay = [0.5 + 0.49 * index / (WIDTH - 1) for index in range(WIDTH)]
        self.recurrent = recurrent
        self.empty: State = (0.0,) * WIDTH

    def advance(self, state: State, token: int) -> State:
        """Return the state after one token more."""
        if not self.recurrent:
            return state
        rows = zip(self._decay, state, self._into_state[token % VOCABULARY], strict=True)
        return tuple(decay * old + (1 - decay) * new for decay, old, new in rows)

    def key(self, token: int, position: int) -> Key:
        """Return what attention keeps of a token at a position."""
        turn = cos(position * 0.37)
        return tuple(turn * value for value in self._into_key[token % VOCABULARY])

    def choose(self, state: State, total: Key, count: int, noise: float = 0.0) -> Chosen:
        """Return what follows: `total` is the sum of the keys of `count` tokens; `noise` moves
        every logit by that share.
        """
        scale = 1.0 / max(count, 1) ** 0.5
        logits = [
            (_dot(of_state, state) * 1.5 + scale * _dot(of_sum, total)) * (1 + noise)
            for of_state, of_sum in zip(self._of_state, self._of_sum, strict=True)
        ]
        token = max(range(VOCABULARY), key=logits.__getitem__)
        return Chosen(
            token,
            logits[token]
            - log(sum(exp(logit - logits[token]) for logit in logits))
            - logits[token],
        )


def _dot(one: list[float], other: tuple[float, ...]) -> float:
    return sum(map(float.__mul__, one, other))


def added(total: Key, key: Key) -> Key:
    """Return the sum with one key more."""
    return tuple(a + b for a, b in zip(total, key, strict=True))
