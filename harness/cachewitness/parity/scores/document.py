"""A score as one JSON document: verdicts, figures, and every answer that was lost or gained,
with both transcripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cachewitness._util.indented import indented
from cachewitness.parity.scores.arms import cold_of, is_cold
from cachewitness.parity.scores.gate import Judged, Noise, Rules, overall
from cachewitness.parity.scores.pairs import Scores, pair_up
from cachewitness.parity.scores.restored import Restored, measure
from cachewitness.parity.scores.run import Outcome

FORMAT = "cachewitness.score"
VERSION = 1


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A question whose score changed under the primary filter, and what either arm answered."""

    arm: str
    change: str
    doc: int
    row: int
    group: str
    tenant: str
    prompt_hash: str
    question: str
    target: str
    cold: str
    other: str
    restored: Mapping[str, int]


class ArmEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm answered right, by filter, and what it restored."""

    arm: str
    questions: int
    right: Mapping[str, int]
    restored: Restored
    seconds: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    engine: str
    verdict: str
    exit_code: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    rules: Rules
    noise: Noise
    arms: list[ArmEntry]
    judged: list[Judged]
    changed: list[Changed]
    reused: int
    broken_list: list[str] = []
    format: str = FORMAT
    version: int = VERSION


def document(engine: str, outcome: Outcome, rules: Rules, settings: Mapping[str, Any]) -> Document:
    """Return the document of a run."""
    return Document(
        engine=engine,
        verdict=overall(outcome.judged),
        exit_code=outcome.exit_code,
        settings=settings,
        versions=outcome.versions,
        rules=rules,
        noise=outcome.noise,
        arms=[_entry(name, scores, outcome) for name, scores in outcome.scores.items()],
        judged=outcome.judged,
        changed=changed(outcome, rules.primary),
        reused=outcome.reused,
        broken_list=outcome.broken_list,
    )


def changed(outcome: Outcome, primary: str) -> list[Changed]:
    """Return every answer that an arm lost or gained against its cold one, the lost ones of each
    arm first.
    """
    found = []
    for arm, scores in outcome.scores.items():
        if is_cold(arm):
            continue
        cold = outcome.scores[cold_of(arm)[0]]
        pairs = [
            pair
            for pair in pair_up(cold, scores)
            if pair.cold.filter == primary and (pair.lost or pair.gained)
        ]
        for pair in sorted(pairs, key=lambda pair: not pair.lost):
            row = pair.cold
            found.append(
                Changed(
                    arm=arm,
                    change="lost" if pair.lost else "gained",
                    cold=cold.answers[row.doc].text,
                    other=scores.answers[row.doc].text,
                    restored=scores.answers[row.doc].restored,
                    **{key: getattr(row, key) for key in _COPIED},
                )
            )
    return found


_COPIED = ("doc", "row", "group", "tenant", "prompt_hash", "question", "target")


def render(whole: Document) -> bytes:
    """Return a document as indented JSON."""
    return indented(whole)


def _entry(name: str, scores: Scores, outcome: Outcome) -> ArmEntry:
    filters = dict.fromkeys(row.filter for row in scores.rows)
    return ArmEntry(
        arm=name,
        questions=len(scores.answers),
        right={each: sum(row.correct for row in scores.of(each)) for each in filters},
        restored=measure(scores.answers, scores.first),
        seconds=outcome.seconds.get(name, 0.0),
    )
