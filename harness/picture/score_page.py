"""The page of a score: each arm beside the cold one, and every lost or gained answer beside what the cold run answered."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from harness.picture.page import rendered
from harness.score.groups import GroupScore
from harness.verdict.report import terminal

FORMAT, VERSION = "cachewitness.score", 1
SHOWN_MAX = 60
"""So many changed answers are shown; the others are counted."""
LETTERS_MAX, WORDS_MAX = 4_000, 400
"""Of a longer text the beginning is shown, and of texts with more words no word is marked."""


class Arm(msgspec.Struct, kw_only=True):
    """What an arm answered right, by filter."""

    arm: str
    questions: int
    right: Mapping[str, int]


class Judged(msgspec.Struct, kw_only=True):
    """An arm beside the cold one."""

    arm: str
    verdict: str
    n: int
    right_cold: int
    right: int
    lost: int
    gained: int
    restored: Mapping[str, Any]
    reasons: list[str] = []
    groups: list[GroupScore] = []

    @property
    def share(self) -> str:
        """The share of its prompts that the arm restored, in percent."""
        parts = [self.restored.get(name) for name in ("tokens", "prompt_tokens")]
        tokens, asked = (part if isinstance(part, int) else 0 for part in parts)
        return f"{100 * tokens / asked:.1f} %" if asked else "–"


class Changed(msgspec.Struct, kw_only=True):
    """A question whose score changed, and what either arm answered."""

    arm: str
    change: str
    row: int
    group: str
    question: str
    target: str
    cold: str
    other: str
    restored: Mapping[str, int]


class Score(msgspec.Struct, kw_only=True):
    """What the page shows of the report of a score."""

    engine: str
    exit_code: int
    verdict: str
    arms: list[Arm]
    judged: list[Judged]
    changed: list[Changed]
    format: str
    version: int


class Words(NamedTuple):
    """A part of a text, and whether the other text has it not."""

    text: str
    apart: bool


class Shown(NamedTuple):
    """A changed answer, with the words marked in which it and the cold one part."""

    of: Changed
    cold: list[Words]
    other: list[Words]


def of_score(score: Score) -> bytes:
    """Return the page of a score."""
    shown = [Shown(one, *parted(one.cold, one.other)) for one in score.changed[:SHOWN_MAX]]
    word, _, _ = terminal.MEANINGS[score.exit_code]
    more = len(score.changed) - len(shown)
    filters = list(dict.fromkeys(name for arm in score.arms for name in arm.right))
    return rendered("score.html.j2", score=score, word=word, shown=shown, more=more, filters=filters)


def parted(one: str, other: str) -> tuple[list[Words], list[Words]]:
    """Return two texts in parts, those marked that the other text has not."""
    texts = [text.strip()[:LETTERS_MAX] for text in (one, other)]
    words = [text.split(" ") for text in texts]
    if max(map(len, words)) > WORDS_MAX:
        return [Words(texts[0], False)], [Words(texts[1], False)]
    sides: tuple[list[Words], list[Words]] = ([], [])
    for tag, a, b, c, d in difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, own, (first, last) in zip(sides, words, ((a, b), (c, d)), strict=True):
            if first < last:
                side.append(Words(" ".join(own[first:last]), tag != "equal"))
    return sides
