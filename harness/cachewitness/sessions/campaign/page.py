"""The page of a campaign: its verdict, its findings step by step, and what ran on which engine."""

from __future__ import annotations

from pathlib import Path

from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.result import EXIT_PASS
from cachewitness.report import terminal
from cachewitness.report.counterexample import caused
from cachewitness.report.html.page import FILMS_MAX, Picture, filmed, rendered
from cachewitness.sessions.campaign.summary import Document, FindingRow, of_each_class

LISTED_MAX = 40
"""So many units that were not done are listed; the others are counted."""


def of_campaign(document: Document, folder: Path) -> bytes:
    """Return the page of a campaign. `folder` has what was stored of its findings; the document
    names the files alone.
    """
    ordered = of_each_class(document.findings)
    pictures = [_picture(row, folder) for row in ordered[:FILMS_MAX]]
    others = ordered[FILMS_MAX:]
    word, _, meaning = terminal.MEANINGS[document.exit_code]
    why = "; ".join(document.reasons) or (
        "nothing was found" if document.exit_code == EXIT_PASS else meaning
    )
    words = {code: word for code, (word, _, _) in terminal.MEANINGS.items()}
    return rendered(
        "campaign.html.j2",
        films=True,
        verdict=(word, document.exit_code, why),
        words=words,
        document=document,
        pictures=pictures,
        others=others,
        not_done=document.not_done[:LISTED_MAX],
    )


def _picture(row: FindingRow, folder: Path) -> Picture:
    anomaly = BY_NAME.get(row.anomaly)
    rule, implies = (anomaly.invariant, anomaly.implies) if anomaly else ("", "")
    picture = Picture(row.signature, row.anomaly, row.checker, rule, implies, row.sentence)
    picture.line = row.line
    picture.operation = row.offending
    picture.cause = caused(row.cause)
    picture = filmed(picture, row.stored, folder)
    picture.replay = row.replay
    picture.folder = ""
    picture.id = f"{row.signature}, on {', '.join(row.engines)}"
    return picture
