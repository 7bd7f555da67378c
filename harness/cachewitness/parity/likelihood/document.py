"""Compared likelihoods as one JSON document: verdicts, figures by position and by question, and the
questions that moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from cachewitness._util.indented import indented
from cachewitness.parity.likelihood.measuring import (
    COLD,
    NOISE,
    OFF,
    Kept,
    Measured,
    Place,
)
from cachewitness.parity.likelihood.statistics import TWICE, Pair
from cachewitness.parity.likelihood.steps import Step, change
from cachewitness.parity.likelihood.verdict import (
    Control,
    Judged,
    Rules,
    control,
    counted,
    judge,
    overall,
    pairs_of,
)
from cachewitness.parity.scores.gate import EXIT_CODES

FORMAT = "cachewitness.likelihood"
VERSION = 1
MOVED_MAX = 20
"""Questions that are listed token by token, the largest change first."""


class AtPosition(msgspec.Struct, frozen=True, kw_only=True):
    """One position of all answers: the mean change of an arm and of the noise, in nats, and the
    mean logarithm of the cold run's token, cold and in the arm; None where nothing was counted.
    """

    position: int
    count: int
    change: float | None
    noise: float | None
    cold: float | None
    arm: float | None


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One position of one answer: the cold run's token, its logarithm cold and in the arm (None:
    the arm does not name it), the change over all best tokens, and what was restored.
    """

    position: int
    token: int
    cold: float
    arm: float | None
    change: float
    restored: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question of an arm: its change and noise, in nats, and what a token costs beyond the noise.
    `tokens` is empty but for the questions that moved most.
    """

    row: int
    prefix: str
    question: str
    change: float
    noise: float
    cost: float
    moved: bool
    tokens: list[Token] = []


class ArmEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm measured; `restored` are the fewest and the most tokens that a counted request
    restored.
    """

    arm: str
    requests: int
    restored: tuple[int, int]
    seconds: float
    positions: list[AtPosition] = []
    questions: list[Asked] = []


class OwnWay(msgspec.Struct, frozen=True, kw_only=True):
    """What came of lm-eval's own request for a likelihood, sent twice: how many of its tokens the
    second one restored (−1: not counted), and why lm-eval cannot read the answer; empty if it can.
    """

    tokens: int
    restored: int
    unread: str

    @property
    def hits(self) -> bool:
        """Return whether it reads the cache, and lm-eval the answer."""
        return self.restored > 0 and not self.unread

    @property
    def line(self) -> str:
        """Return it as a sentence."""
        how = f"it has the whole text echoed (`echo`, {self.tokens:,} tokens)"
        if self.unread:
            return f"{how}; this server's answer has no such likelihood: {self.unread}"
        if self.hits:
            return f"{how}; asked twice, this server restored {self.restored:,}"
        return f"{how}; asked twice, this server restored none, so a damaged cache would pass"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of the task over `docs` documents, all of whose tokens were compared: its mean cold
    and in an arm, and how many documents have another value there.
    """

    arm: str
    name: str
    docs: int
    cold: float
    there: float
    changed: int


class LmEval(msgspec.Struct, frozen=True, kw_only=True):
    """What a task of lm-eval's adds: what came of its own way to ask (None: it asks for answers),
    the traps that a run of its own would be in, and its metrics.

    Of `partial` questions not all places were compared, so their documents are not scored; the
    longest has `places` of them.
    """

    own_way: OwnWay | None
    traps: list[str]
    metrics: list[Metric] = []
    partial: int = 0
    places: int = 0

    @property
    def lines(self) -> list[str]:
        """Return the metrics as sentences."""
        left_out = (
            f"{self.partial} questions are not scored: their answers have more places than"
            f" --positions compares; {self.places} are all"
        )
        return [left_out] * bool(self.partial) + [
            f"{one.name} of {one.docs} documents: {one.cold:.4g} cold, {one.there:.4g} in arm"
            f" {one.arm}; {one.changed} of them changed"
            for one in self.metrics
        ]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison. `against` is the other server, empty if a cache was compared; `control`
    what another prefix moves, None if nothing of it counts; `lm_eval` None unless a task of
    lm-eval's was asked.
    """

    server: str
    against: str
    verdict: str
    exit_code: int
    settings: Mapping[str, Any]
    rules: Rules
    questions: int
    prefixes: int
    shared: tuple[int, int]
    warm: int
    arms: list[ArmEntry]
    judged: list[Judged]
    control: Control | None = None
    lm_eval: LmEval | None = None
    format: str = FORMAT
    version: int = VERSION

    @property
    def other(self) -> str:
        """Return what the arm's side is called."""
        return "other server" if self.against else "cached"

    @property
    def passed(self) -> str:
        """Return what a pass means."""
        who = "the other server" if self.against else "the cache"
        return f"{who} changed no likelihood beyond the noise"


def document(
    server: str, against: str, found: Measured, rules: Rules, settings: Mapping[str, Any]
) -> Document:
    """Return the document of a comparison."""
    judged = judge(found, rules)
    verdict = overall(judged)
    shared = [question.shared for question in found.questions]
    return Document(
        server=server,
        against=against,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        settings=settings,
        rules=rules,
        questions=len(found.questions),
        prefixes=len({question.prefix for question in found.questions}),
        shared=(min(shared), max(shared)),
        warm=found.warm,
        arms=[_entry(found, arm) for arm in found.arms],
        judged=judged,
        control=control(found),
    )


def render(whole: Document) -> bytes:
    """Return a document as indented JSON."""
    return indented(whole)


def moved_of(arm: ArmEntry) -> list[Asked]:
    """Return the questions of an arm that moved, the largest change first."""
    return sorted((one for one in arm.questions if one.moved), key=lambda one: -one.change)


def _entry(found: Measured, arm: str) -> ArmEntry:
    kept = counted(found, arm)
    restored = [one.restored for one in kept.values()]
    compared = arm not in COLD
    return ArmEntry(
        arm=arm,
        requests=len(found.cold) if arm == OFF else len(found.arms[arm]),
        restored=(min(restored, default=0), max(restored, default=0)),
        seconds=found.seconds[arm],
        positions=_by_position(found, arm) if compared else [],
        questions=_by_question(found, arm) if compared else [],
    )


def _by_position(found: Measured, arm: str) -> list[AtPosition]:
    kept = counted(found, arm)
    noise = counted(found, NOISE)
    rows = []
    for position in range(max(map(len, found.cold.values()), default=0)):
        here = {place: one for place, one in kept.items() if place[1] == position}
        cold = {place: found.cold[place[0]][position] for place in here}
        again = [one for place, one in noise.items() if place[1] == position]
        again_cold = [found.cold[place[0]][position] for place in noise if place[1] == position]
        named = [place for place in here if cold[place].token in here[place].best]
        rows.append(
            AtPosition(
                position=position,
                count=len(here),
                change=_mean([change(cold[place], here[place]) for place in here]),
                noise=_mean(list(map(change, again_cold, again))),
                cold=_mean([cold[place].chosen for place in named]),
                arm=_mean([here[place].best[cold[place].token] for place in named]),
            )
        )
    return rows


def _by_question(found: Measured, arm: str) -> list[Asked]:
    places = counted(found, arm)
    rows = [_asked(found, places, index, pair) for index, pair in pairs_of(found, arm).items()]
    moved = sorted((row for row in rows if row.moved), key=lambda row: -row.change)[:MOVED_MAX]
    kept = {(row.prefix, row.row) for row in moved}
    return [
        row if (row.prefix, row.row) in kept else msgspec.structs.replace(row, tokens=[])
        for row in rows
    ]


def _asked(found: Measured, kept: Mapping[Place, Kept], index: int, pair: Pair) -> Asked:
    question = found.questions[index]
    return Asked(
        row=question.row,
        prefix=question.prefix,
        question=question.text,
        change=pair.change,
        noise=pair.noise,
        cost=pair.cost,
        moved=pair.ratio >= TWICE,
        tokens=[
            _token(position, cold, kept[index, position])
            for position, cold in enumerate(found.cold[index])
            if (index, position) in kept
        ],
    )


def _token(position: int, cold: Step, there: Kept) -> Token:
    return Token(
        position=position,
        token=cold.token,
        cold=cold.chosen,
        arm=there.best.get(cold.token),
        change=change(cold, there),
        restored=there.restored,
    )


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
