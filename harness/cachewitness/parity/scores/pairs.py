"""Pairs of answers to one question, cold and cached.

Two accuracies say little: a cache that spoils some answers and luckily mends others looks innocent.
What is compared is each question with itself, so both runs must have asked the same: the same
question under the same filter, with a prompt of the same hash. Whatever has no such counterpart is
refused, not left out, since the questions that are missing may be the damaged ones.

Where two answers part, rounding may have done that. A cached run may cut the prompt at other places
than a cold one, which changes the last bits of the logits. Where the two best tokens are all but
equal, that may exchange them: a near-tie. It needs both runs to have been undecided at the very
step at which they part; everything else is a hard divergence, and so is one whose margins are
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from cachewitness.engines.answers import Answer
from cachewitness.parity.scores.turns import FirstTurn

NEAR_TIE = 1e-3
"""The margin, in logits, up to which two tokens are all but equal, in float32."""
_NEAR_TIES = {"bfloat16": 0.25, "bf16-state": 0.25, "float16": 0.03125}
"""The same where logits, or the memories that they are read from, are rounded: twice the step
between numbers from 16 to 32."""


class Unpaired(RuntimeError):
    """Two arms that did not ask the same questions; the message is one line."""


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as one filter read it. `row` counts the lines of the file, from 1; `doc` the
    questions asked, from 0.
    """

    doc: int
    filter: str
    prompt_hash: str
    correct: bool
    extracted: str = ""
    target: str = ""
    question: str = ""
    group: str = ""
    family: str = ""
    tenant: str = ""
    row: int = 0


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """All that one arm answered: rows by question and filter, and the answers themselves by
    question; `first` has the first turns that it asked.
    """

    arm: str
    rows: tuple[Scored, ...]
    answers: Mapping[int, Answer]
    first: Mapping[int, FirstTurn] = {}

    def of(self, filter_name: str) -> list[Scored]:
        """Return the rows of one filter."""
        return [row for row in self.rows if row.filter == filter_name]


class Pair(msgspec.Struct, frozen=True):
    """One question under one filter in two arms."""

    cold: Scored
    other: Scored

    @property
    def lost(self) -> bool:
        """Whether the answer was right in the cold arm alone."""
        return self.cold.correct and not self.other.correct

    @property
    def gained(self) -> bool:
        """Whether the answer was right in the other arm alone."""
        return self.other.correct and not self.cold.correct


def pair_up(cold: Scores, other: Scores) -> list[Pair]:
    """Return the pairs of two arms, in the cold arm's order.

    Raises Unpaired if a question is missing in either arm, occurs twice, or was asked with another
    prompt.
    """
    first = _by_key(cold)
    second = _by_key(other)
    for one, arm, against in (
        (first.keys() - second.keys(), other, cold),
        (second.keys() - first.keys(), cold, other),
    ):
        if one:
            doc, name = min(one)
            more = f" and {len(one) - 1} more" if len(one) > 1 else ""
            raise Unpaired(
                f"arm {arm.arm}: question {doc} ({name}){more} of arm {against.arm} is not there;"
                " nothing to pair it with"
            )
    for key, row in first.items():
        if row.prompt_hash != second[key].prompt_hash:
            raise Unpaired(
                f"arm {other.arm}: question {key[0]} was asked with another prompt than in arm"
                f" {cold.arm} (hash {second[key].prompt_hash[:12]}, not {row.prompt_hash[:12]})"
            )
    return [Pair(row, second[key]) for key, row in first.items()]


def near_tie_of(dtype: str) -> float:
    """Return the margin up to which two tokens are all but equal, for a model that computes in
    `dtype`.
    """
    return _NEAR_TIES.get(dtype, NEAR_TIE)


def right_in_both(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Return how many answers are right in the cold arm and in the other."""
    return sum(pair.cold.correct for pair in pairs), sum(pair.other.correct for pair in pairs)


def counts(pairs: Iterable[Pair]) -> tuple[int, int]:
    """Return how many answers were lost and how many gained."""
    lost = gained = 0
    for pair in pairs:
        lost += pair.lost
        gained += pair.gained
    return lost, gained


def _by_key(scores: Scores) -> dict[tuple[int, str], Scored]:
    found: dict[tuple[int, str], Scored] = {}
    for row in scores.rows:
        if (row.doc, row.filter) in found:
            raise Unpaired(
                f"arm {scores.arm}: question {row.doc} ({row.filter}) was answered twice"
            )
        found[row.doc, row.filter] = row
    return found


# --- where answers part ---------------------------------------------------------------------------


class Divergence(msgspec.Struct, frozen=True):
    """Where the answers to a question part: the step of the first differing token, -1 if only the
    texts are known.

    Texts that differ though no token does part behind the last one.
    """

    doc: int
    step: int
    kind: Literal["near-tie", "hard"]


def divergences(
    cold: Mapping[int, Answer], other: Mapping[int, Answer], near_tie: float = NEAR_TIE
) -> list[Divergence]:
    """Return the questions whose answers differ, in the cold arm's order; both arms must have
    answered the same ones.
    """
    return [
        found
        for doc, answer in cold.items()
        if (found := _compare(doc, answer, other[doc], near_tie))
    ]


def _compare(doc: int, cold: Answer, other: Answer, near_tie: float) -> Divergence | None:
    if not (cold.tokens and other.tokens):
        return None if cold.text == other.text else Divergence(doc, -1, "hard")
    if cold.tokens == other.tokens:
        return None if cold.text == other.text else Divergence(doc, len(cold.tokens), "hard")
    shorter = min(len(cold.tokens), len(other.tokens))
    step = next((i for i in range(shorter) if cold.tokens[i] != other.tokens[i]), shorter)
    tied = all(
        step < len(answer.margins) and answer.margins[step] <= near_tie for answer in (cold, other)
    )
    return Divergence(doc, step, "near-tie" if tied else "hard")
