"""Where two answers to one prompt part, and whether rounding could have done that.

A cached run may cut the prompt at other places than a cold one, which changes the last bits of the logits. Where the two best
tokens are all but equal, that may exchange them: a near-tie. It needs both runs to have been undecided at the very step at
which they part; everything else is a hard divergence, and so is one whose margins are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from harness.engines.answers import Answer

NEAR_TIE = 1e-3
"""The margin, in logits, up to which two tokens are all but equal."""


class Divergence(msgspec.Struct, frozen=True):
    """Where the answers to a question part: the step of the first differing token, -1 if only the texts are known."""

    doc: int
    step: int
    kind: Literal["near-tie", "hard"]


def divergences(cold: Mapping[int, Answer], other: Mapping[int, Answer], near_tie: float = NEAR_TIE) -> list[Divergence]:
    """Return the questions whose answers differ, in the cold arm's order; both arms must have answered the same ones."""
    return [found for doc, answer in cold.items() if (found := _compare(doc, answer, other[doc], near_tie))]


def _compare(doc: int, cold: Answer, other: Answer, near_tie: float) -> Divergence | None:
    if not (cold.tokens and other.tokens):
        return None if cold.text == other.text else Divergence(doc, -1, "hard")
    if cold.tokens == other.tokens:
        return None
    shorter = min(len(cold.tokens), len(other.tokens))
    step = next((i for i in range(shorter) if cold.tokens[i] != other.tokens[i]), shorter)
    tied = all(step < len(answer.margins) and answer.margins[step] <= near_tie for answer in (cold, other))
    return Divergence(doc, step, "near-tie" if tied else "hard")
