"""The best next tokens of one position, as servers send them, and how far two such lists lie apart.

Three forms are read: llama.cpp's (`content`, ids beside the texts), vLLM's (`top_logprobs`, with
`token_id:7` for a token, which it writes if `return_tokens_as_token_ids` is asked for), and any
server's that follows vLLM's. A list that names tokens by their texts alone is refused: the
continuation could not be asked for by ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.engines.completion_fields import Timings, Usage, restored_of, token_of

ROUNDING = 1e-3
"""A logarithm of a probability may be so much above 0."""
LEAST_MASS, MOST_MASS = 1e-6, 1.02
"""What the tokens of a list may have together: a greedy answer's own token has more than a
millionth, and 2 % are left to the rounding of narrow types.
"""
TINY = 1e-9
"""The least mass that is left to the tokens that a list does not name."""


class Step(msgspec.Struct, frozen=True):
    """One position: the token that was chosen, and the best ones by id, with natural logarithms
    of their probabilities. `best` is empty if the chosen token has no finite one.
    """

    token: int
    best: Mapping[int, float]

    @property
    def chosen(self) -> float:
        """Return the logarithm of the chosen token's probability."""
        return self.best[self.token]

    @property
    def likely(self) -> Mapping[int, float]:
        """Return the best tokens without the chosen one if it is none of them: where a bias chose
        it, any token may lie below those that the server lists.
        """
        others = {token: value for token, value in self.best.items() if token != self.token}
        return others if others and self.chosen < min(others.values()) else self.best

    @property
    def unnamed(self) -> float:
        """Return the most that the logarithm of a token can be which the list does not name: that
        of the last one that it names, and of what these leave.
        """
        left = 1.0 - math.fsum(math.exp(value) for value in self.best.values())
        return min(min(self.likely.values()), math.log(max(left, TINY)))


class Answered(msgspec.Struct, frozen=True):
    """What was answered to one prompt, and how many of its tokens were restored; −1: nobody
    counts them.
    """

    steps: list[Step]
    restored: int


def change(cold: Step, other: Step) -> float:
    """Return the mean absolute difference of the logarithms of the cold run's best tokens, in
    nats.

    A token that the other list does not name differs by as much as it must at least.
    """
    likely = cold.likely
    most = other.unnamed
    return sum(
        abs(value - other.best.get(token, min(value, most))) for token, value in likely.items()
    ) / len(likely)


def cost(cold: Step, other: Step) -> float:
    """Return what a token drawn from the cold run costs more under the other one, in nats: a
    lower bound of the Kullback-Leibler divergence, from the tokens that the lists name.
    """
    most = other.unnamed
    total = 0.0
    named = 0.0
    covered = 0.0
    for token, value in cold.likely.items():
        there = other.best.get(token)
        chance = math.exp(value)
        named += chance
        covered += math.exp(there) if there is not None else 0.0
        total += chance * (value - (min(value, most) if there is None else there))
    rest = 1.0 - named
    if rest > TINY:
        total += rest * math.log(rest / max(TINY, 1.0 - covered))
    return total


# --- as servers send them -------------------------------------------------------------------------


class _Best(msgspec.Struct, frozen=True):
    id: int | None = None
    logprob: float | None = None


class _Token(msgspec.Struct, frozen=True):
    id: int | None = None
    logprob: float | None = None
    top_logprobs: list[_Best] = []


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_Token] | None = None


class _Choice(msgspec.Struct, frozen=True):
    logprobs: _Logprobs | None = None


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    usage: Usage | None = None
    timings: Timings | None = None


class _Completion(_Counted, frozen=True, kw_only=True):
    choices: list[_Choice]


def answered(content: Any, *, zero_left_out: bool = False) -> Answered:
    """Read a completion. `zero_left_out`: the server counts restored tokens, and leaves a count of
    0 out.

    Raises UsageError if the body is none, or names no tokens by id with their logarithms.
    """
    try:
        found = msgspec.convert(content, _Completion)
    except msgspec.ValidationError as error:
        raise UsageError(f"the server answers 200 with what is no completion ({error})") from None
    if len(found.choices) != 1:
        raise UsageError(f"the server answers with {len(found.choices)} choices, not 1")
    logprobs = found.choices[0].logprobs
    if logprobs is None:
        raise UsageError(
            "the server sends no `logprobs` of its answer, which --likelihood compares"
        )
    steps = _by_content(logprobs) if logprobs.content is not None else _by_name(logprobs)
    return Answered(steps, _restored(found, zero_left_out=zero_left_out))


def restored_in(content: Any, *, zero_left_out: bool = False) -> int:
    """Return how many tokens of its prompt a completion says that it restored; −1: it does not say.

    Raises UsageError if the body is no completion.
    """
    try:
        found = msgspec.convert(content, _Counted)
    except msgspec.ValidationError as error:
        raise UsageError(f"the server answers 200 with what is no completion ({error})") from None
    return _restored(found, zero_left_out=zero_left_out)


def _restored(found: _Counted, *, zero_left_out: bool) -> int:
    count = restored_of(found.usage, found.timings)
    return count if count is not None else 0 if zero_left_out else -1


def _by_content(found: _Logprobs) -> list[Step]:
    steps = []
    for token in found.content or []:
        best = {one.id: one.logprob for one in token.top_logprobs}
        steps.append(_step(token.id, token.logprob, best))
    return steps


def _by_name(found: _Logprobs) -> list[Step]:
    names = found.tokens or []
    tops = found.top_logprobs or []
    chosen = found.token_logprobs or []
    if not len(names) == len(tops) == len(chosen):
        raise UsageError(
            f"the server sends {len(names)} tokens, {len(chosen)} logprobs and {len(tops)} lists of"
            " the best ones"
        )
    by_id = [{token_of(name): logprob for name, logprob in (top or {}).items()} for top in tops]
    return [
        _step(token_of(name), value, best)
        for name, value, best in zip(names, chosen, by_id, strict=True)
    ]


def _step(token: int | None, value: float | None, best: Mapping[int | None, float | None]) -> Step:
    if token is None or None in best:
        raise UsageError(
            "the server names tokens by their text, not by id, so what it answered cannot be asked"
            " again (vLLM's server names ids with `return_tokens_as_token_ids`, llama.cpp's always)"
        )
    named = {one: logprob for one, logprob in best.items() if one is not None}
    return step_of(token, {**named, token: value}, "the server")


def step_of(token: int, best: Mapping[int, float | None], who: str) -> Step:
    """Return a position by its token and what is known of the best ones, the chosen one among them.

    Raises UsageError if these are no logarithms of probabilities; `who` gave them.
    """
    kept = {
        one: logprob
        for one, logprob in best.items()
        if logprob is not None and math.isfinite(logprob)
    }
    if token not in kept:
        return Step(token, {})
    if (most := max(kept.values())) > ROUNDING:
        raise UsageError(f"{who} gives a token a probability beyond 1, {most:g} as logarithm")
    mass = math.fsum(map(math.exp, kept.values()))
    if not LEAST_MASS <= mass <= MOST_MASS:
        raise UsageError(
            f"the best tokens that {who} names have a probability of {mass:.3g} together"
        )
    return Step(token, kept)
