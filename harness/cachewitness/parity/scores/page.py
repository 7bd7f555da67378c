"""The page of a score: each arm beside the cold one, and every lost or gained answer beside what
the cold run answered.
"""

from __future__ import annotations

import difflib
from typing import NamedTuple

from cachewitness.parity.scores.document import Changed, Document
from cachewitness.report import terminal
from cachewitness.report.html.page import rendered

SHOWN_MAX = 60
"""So many changed answers are shown; the others are counted."""
LETTERS_MAX, WORDS_MAX = 4_000, 400
"""Of a longer text the beginning is shown, and of texts with more words no word is marked."""


class Words(NamedTuple):
    """A part of a text, and whether the other text has it not."""

    text: str
    apart: bool


class Shown(NamedTuple):
    """A changed answer, with the words marked in which it and the cold one part."""

    of: Changed
    cold: list[Words]
    other: list[Words]


def of_score(score: Document) -> bytes:
    """Return the page of a score."""
    shown = [Shown(one, *parted(one.cold, one.other)) for one in score.changed[:SHOWN_MAX]]
    word, _, _ = terminal.MEANINGS[score.exit_code]
    more = len(score.changed) - len(shown)
    filters = list(dict.fromkeys(name for arm in score.arms for name in arm.right))
    verdict = (word, score.exit_code, "")
    return rendered(
        "score.html.j2",
        films=False,
        score=score,
        verdict=verdict,
        shown=shown,
        more=more,
        filters=filters,
    )


def parted(one: str, other: str) -> tuple[list[Words], list[Words]]:
    """Return two texts in parts, those marked that the other text has not."""
    texts = [text.strip()[:LETTERS_MAX] for text in (one, other)]
    words = [text.split(" ") for text in texts]
    if max(map(len, words)) > WORDS_MAX:
        return [Words(texts[0], False)], [Words(texts[1], False)]
    sides: tuple[list[Words], list[Words]] = ([], [])
    for tag, a, b, c, d in difflib.SequenceMatcher(
        None, words[0], words[1], autojunk=False
    ).get_opcodes():
        for side, own, (first, last) in zip(sides, words, ((a, b), (c, d)), strict=True):
            if first < last:
                side.append(Words(" ".join(own[first:last]), tag != "equal"))
    return sides
