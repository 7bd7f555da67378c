"""The page of test vectors that an engine was asked: the wrong answers beside those expected,
and traces step by step.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.report import terminal
from cachewitness.report.html.page import FILMS_MAX, Picture, filmed, rendered
from cachewitness.report.summary import NotRun
from cachewitness.vectors.document import Consumed, WrongAnswer

LISTED_MAX = 200
"""So many wrong answers are listed; the others are counted."""


class Wrong(NamedTuple):
    """A wrong answer, the file of its vector, and its trace if it has one."""

    file: str
    answer: WrongAnswer
    picture: Picture | None


def of_vectors(document: Consumed, folder: Path) -> bytes:
    """Return the page of vectors. `folder` has what was stored of failing traces; the document
    names the files alone.
    """
    wrong = [(file.file, answer) for file in document.files for answer in file.failures]
    # A trace that can be seen says more than two numbers.
    wrong.sort(key=lambda one: one[1].stored is None)
    shown = [Wrong(file, answer, _picture(answer, folder)) for file, answer in wrong[:FILMS_MAX]]
    others = wrong[FILMS_MAX:]
    return rendered(
        "consumed.html.j2",
        films=True,
        verdict=(
            terminal.MEANINGS[document.exit_code][0],
            document.exit_code,
            _meaning(document.exit_code, len(wrong)),
        ),
        document=document,
        asked=sum(sum(file.asked.values()) for file in document.files),
        passed=sum(sum(file.passed.values()) for file in document.files),
        unknown=[f"{file.file}: {vector}" for file in document.files for vector in file.unknown],
        not_run=[
            NotRun(file.file, why, count)
            for file in document.files
            for why, count in file.not_run.items()
        ],
        shown=shown,
        others=others[:LISTED_MAX],
        more=max(0, len(others) - LISTED_MAX),
    )


def _meaning(code: int, wrong: int) -> str:
    return {
        EXIT_PASS: "every vector that was asked was answered as expected, or as is allowed",
        EXIT_FAIL: f"{wrong:,} answer{' is' if wrong == 1 else 's are'} wrong",
        EXIT_NOTHING_CHECKED: "the engine could be asked nothing",
    }.get(code, terminal.MEANINGS[code][2])


def _picture(answer: WrongAnswer, folder: Path) -> Picture | None:
    if answer.stored is None:
        return None
    return filmed(Picture(answer.vector, "", "", "", "", answer.comment), answer.stored, folder)
