"""Writes `docs/results/sensitivity.md` from what `benchmarks/sensitivity.py` measured. No number is
typed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.damages import DAMAGES, WHOLE
from benchmarks.needed import LEFT_AT_MOST, OTHERS_AT_LEAST, QUESTIONS, Row
from benchmarks.sensitivity_result import CONDITIONS, Found, Outcome
from cachewitness._util import pages
from cachewitness.parity.scores.groups import GroupScore

OTHERS_MEMORY, OTHERS_BLOCKS = (
    "recurrent memory of another tenant",
    "all full-attention blocks of another tenant",
)
GROUPS = ("full", "recurrent", "window")
VERDICTS = {
    "pass": "pass",
    "fail": "**fail**",
    "unknown": "unknown",
    "nothing checked": "nothing checked",
}


def page(found: Found) -> str:
    """Return the page."""
    undamaged = {outcome.condition: outcome for outcome in found.outcomes[""]}
    cold = {condition: outcome.judged for condition, outcome in undamaged.items()}
    gained = _names(found, lambda outcome: outcome.judged.gained > 0)
    counted, listed = _seen(found)
    return pages.render(
        "sensitivity",
        found=found,
        groups=list(GROUPS),
        needs=[
            _need(checkpoint, where, row, rows)
            for (checkpoint, where), rows in found.needs.items()
            for row in rows
        ],
        bounds={"left": LEFT_AT_MOST, "others": OTHERS_AT_LEAST, "n": QUESTIONS},
        cold=cold,
        positions={condition: outcome.distance.rows for condition, outcome in undamaged.items()},
        damaged={condition: _figures(found, condition) for condition in CONDITIONS},
        detectors=_detectors(found),
        counted=counted | {"gained": len(gained)},
        listed=listed,
        imperfect=found.outcomes[""][0].judged.right_cold < found.outcomes[""][0].judged.n,
        named=_named(found),
        loss={
            "memory": _group_loss(found, OTHERS_MEMORY),
            "blocks": _group_loss(found, OTHERS_BLOCKS),
        },
    )


def _need(checkpoint: str, where: str, row: Row, rows: Sequence[Row]) -> list[str]:
    """Return a line of the table of what each cache is for."""
    caches = sorted({other.cache for other in rows if other.cache})
    shares = (f"{100 * row.right[group]:.0f}" for group in GROUPS)
    return [
        checkpoint,
        where,
        row.damage or "*nothing*",
        *shares,
        _alone(row, caches) if row.cache else "–",
    ]


def _alone(row: Row, caches: Sequence[str]) -> str:
    return "yes" if row.alone(caches) else "**no**"


def _figures(found: Found, condition: str) -> list[list[str]]:
    rows = []
    for name, outcomes in found.outcomes.items():
        outcome = _of(outcomes, condition)
        judged = outcome.judged
        distance = outcome.distance
        groups = {group.group: f"{100 * group.right / group.n:.0f}" for group in judged.groups}
        rows.append(
            [
                name or "*none: cached, undamaged*",
                f"{100 * judged.right / judged.n:.1f}",
                *(groups.get(group, "") for group in GROUPS),
                _own(name, judged.groups, condition),
                f"{outcome.changed}",
                f"{judged.lost}",
                f"{judged.gained}",
                f"{distance.kl:.1e}",
                f"{distance.mean:.1e}",
                f"{distance.largest:.1e}",
            ]
        )
    return rows


def _own(damage: str, scores: Sequence[GroupScore], condition: str) -> str:
    """Return whether a damage that takes a whole cache costs its own group of questions, and no
    other.
    """
    cache = next((cache for cache, names in WHOLE.items() if damage in names), "")
    if not cache or condition != "hit":
        return "–"
    return _alone(
        Row(damage, cache, {score.group: score.right / score.n for score in scores}), GROUPS
    )


def _detectors(found: Found) -> list[list[str]]:
    rows = []
    for damage in DAMAGES:
        outcomes = [_of(found.outcomes[damage.name], condition) for condition in CONDITIONS]
        rows.append(
            [
                damage.name,
                "yes" if damage.ledger else "no",
                _both(outcomes, lambda outcome: "yes" if _beyond(found, outcome) else "no"),
                _both(outcomes, lambda outcome: VERDICTS[outcome.judged.verdict]),
                _both(outcomes, lambda outcome: VERDICTS[outcome.blind.verdict]),
                _both(outcomes, lambda outcome: ", ".join(outcome.judged.suspects) or "–"),
            ]
        )
    return rows


def _seen(found: Found) -> tuple[dict[str, int], dict[str, str]]:
    """Return how many damages each detector sees, and the names of those that it misses or that
    it alone sees.
    """
    every = {damage.name for damage in DAMAGES}
    ledger = {damage.name for damage in DAMAGES if damage.ledger}
    tensors = _names(found, lambda outcome: _beyond(found, outcome))
    tokens = _names(found, lambda outcome: outcome.judged.verdict == "fail")
    hit, replay = (_costly(found, condition) for condition in CONDITIONS)
    sets = {"every": every, "by_ledger": ledger, "by_tensors": tensors, "by_tokens": tokens}
    sets |= {"on_hit": hit, "on_replay": replay, "costly": hit | replay}
    lists = {
        "only_on_replay": replay - hit,
        "only_on_hit": hit - replay,
        "not_by_score": every - hit - replay,
        "not_by_tokens": every - tokens,
        "not_by_tensors": every - tensors,
        "not_by_ledger": every - ledger,
        "by_ledger_alone": ledger - tensors,
        "by_tensors_alone": tensors - ledger - tokens,
    }
    return {name: len(names) for name, names in sets.items()}, {
        name: _listed(names) for name, names in lists.items()
    }


def _costly(found: Found, condition: str) -> set[str]:
    return _names(
        found, lambda outcome: outcome.condition == condition and outcome.blind.verdict == "fail"
    )


def _names(found: Found, holds: Callable[[Outcome], bool]) -> set[str]:
    return {
        name
        for name, outcomes in found.outcomes.items()
        if name and any(holds(outcome) for outcome in outcomes)
    }


def _beyond(found: Found, outcome: Outcome) -> bool:
    return not outcome.distance.largest <= found.tolerance


def _of(outcomes: Sequence[Outcome], condition: str) -> Outcome:
    return next(outcome for outcome in outcomes if outcome.condition == condition)


def _both(outcomes: Sequence[Outcome], tell: Callable[[Outcome], str]) -> str:
    return " / ".join(tell(outcome) for outcome in outcomes)


def _listed(names: Iterable[str]) -> str:
    order = [damage.name for damage in DAMAGES]
    return ", ".join(f"*{name}*" for name in sorted(names, key=order.index)) or "none"


def _named(found: Found) -> dict[str, Any]:
    """Tell whether the group of questions that lost most is that of the cache which was damaged."""
    right: dict[str, list[str]] = {group: [] for group in GROUPS}
    wrong = []
    for damage in DAMAGES:
        for outcome in found.outcomes[damage.name]:
            if damage.cache and (first := "".join(outcome.judged.suspects[:1])):
                where = f"*{damage.name}* (`{outcome.condition}`)"
                if first == damage.cache:
                    right[first].append(where)
                else:
                    wrong.append(f"{where} accuses `{first}`")
    return {"right": right, "wrong": wrong}


def _group_loss(found: Found, damage: str) -> float:
    """Return how many points questions of group `recurrent` lose at the shared prefix."""
    score = next(
        score
        for score in _of(found.outcomes[damage], "hit").judged.groups
        if score.group == "recurrent"
    )
    return 100 * (score.right_cold - score.right) / score.n
