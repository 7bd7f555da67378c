"""The page of compared likelihoods: each arm beside the cold one, pictures by position and by
question, and the questions that moved.
"""

from __future__ import annotations

from typing import NamedTuple

from cachewitness.parity.likelihood import picture
from cachewitness.parity.likelihood.document import ArmEntry, Asked, Document, moved_of
from cachewitness.parity.likelihood.verdict import Judged
from cachewitness.report import terminal
from cachewitness.report.html.page import rendered

SHOWN_MAX = 10
"""Questions of an arm that are shown token by token."""


class Shown(NamedTuple):
    """An arm with its verdict, its charts, and the questions that moved most."""

    entry: ArmEntry
    judged: Judged
    charts: list[str]
    moved: list[Asked]
    more: int


def of_likelihood(whole: Document) -> bytes:
    """Return the page of a comparison."""
    judged = {arm.arm: arm for arm in whole.judged}
    shown = [_shown(entry, judged[entry.arm], whole) for entry in whole.arms if entry.arm in judged]
    word, _, _ = terminal.MEANINGS[whole.exit_code]
    return rendered(
        "likelihood.html.j2",
        films=False,
        whole=whole,
        verdict=(word, whole.exit_code, "" if whole.exit_code else whole.passed),
        arms=shown,
        judged=judged,
    )


def _shown(entry: ArmEntry, judged: Judged, whole: Document) -> Shown:
    moved = moved_of(entry)
    return Shown(
        entry,
        judged,
        picture.pictures(entry, whole.other),
        moved[:SHOWN_MAX],
        max(0, len(moved) - SHOWN_MAX),
    )
