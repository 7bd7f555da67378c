"""The verdict of each arm: pass, fail, unknown, or nothing checked.

Asked in this order:

1. Was the cold arm cold, and did the arm hit? Positions without the proof of their hit do not
   count; if fewer than `min_share` of them do, nothing was checked.
2. Does the server give its own token a finite logarithm cold, and none behind a hit? Then the arm
   fails.
3. Is there noise to compare with? Without it the verdict is unknown, never fail.
4. Is the change larger than the noise, over all or behind one prefix, or does it cost more than the
   margin? Then the arm fails, at 5 % over these tests and all arms (Holm).
   Where cold runs are equal, ratios show nothing: the arm fails if the change is beyond the margin.
5. Are a change of twice the noise, one of three times behind one prefix alone, and a cost of the
   margin excluded, and does another prefix move the likelihoods by more than that? Then it passes;
   else it is unknown, and the report says how many questions would decide.

If a server stopped answering in between, a failure stands, and nothing else is more than unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from cachewitness.parity.likelihood.measuring import (
    AGAINST,
    COLD,
    FOREIGN,
    NOISE,
    Kept,
    Measured,
    Place,
)
from cachewitness.parity.likelihood.statistics import (
    FLOOR,
    HIDDEN,
    TWICE,
    Cost,
    Pair,
    Size,
    Worst,
    cost,
    size,
    smallest,
    worst,
)
from cachewitness.parity.likelihood.steps import change
from cachewitness.parity.likelihood.steps import cost as cost_of
from cachewitness.parity.scores.decision import MIN_PREFIXES, MIN_QUESTIONS
from cachewitness.parity.scores.gate import EXIT_CODES, Verdict
from cachewitness.parity.scores.restored import MIN_SHARE
from cachewitness.parity.scores.statistics import ALPHA, holm


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict depends on: the margin in nats a token, the least share of positions that
    must count, and the error rate.
    """

    margin: float = 0.01
    min_share: float = MIN_SHARE
    alpha: float = ALPHA


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. `counted` of `positions` have the proof of their hit, `dropped` says why others have
    not; `size`, `cost` and
    `worst` are None without noise.
    """

    arm: str
    verdict: Verdict
    reasons: list[str]
    questions: int
    prefixes: int
    positions: int
    counted: int
    dropped: Mapping[str, int]
    size: Size | None = None
    cost: Cost | None = None
    worst: Worst | None = None
    p_adjusted: float = 1.0
    test: str = ""


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What another prefix moves: the medians of its changes and of the noise in nats a token, and
    how many times the noise that is.
    """

    change: float
    noise: float
    ratio: float


def judge(found: Measured, rules: Rules) -> list[Judged]:
    """Judge every arm beside the cold one, in the order in which they were asked."""
    judged: dict[str, Judged] = {}
    tested = []
    for arm in found.arms:
        if arm in COLD:
            continue
        pairs = [*pairs_of(found, arm).values()]
        judged[arm] = _bare(found, arm, pairs)
        unchecked = _unchecked(found, judged[arm], rules)
        if pairs and not unchecked:
            tested.append((judged[arm], pairs))
        else:
            judged[arm] = _undecided(judged[arm], unchecked)
    judged |= {arm.arm: arm for arm in decide(tested, rules)}
    moved = control(found)
    return [_last(arm, moved, found.broken_off) for arm in judged.values()]


def decide(arms: Sequence[tuple[Judged, Sequence[Pair]]], rules: Rules) -> list[Judged]:
    """Decide arms by their pairs, of which each has one at least."""
    measured = []
    for arm, pairs in arms:
        found = (size(pairs), cost(pairs, rules.margin), worst(pairs))
        p, test = smallest(*found)
        measured.append(
            msgspec.structs.replace(
                arm, size=found[0], cost=found[1], worst=found[2], p_adjusted=p, test=test
            )
        )
    adjusted = holm([arm.p_adjusted for arm in measured])
    return [
        _decided(msgspec.structs.replace(arm, p_adjusted=p), rules)
        for arm, p in zip(measured, adjusted, strict=True)
    ]


def control(found: Measured) -> Control | None:
    """Return what another prefix moves, None if that was not asked or nothing of it counts."""
    noise = _changes(found, NOISE)
    moved = _changes(found, FOREIGN)
    if not noise or not moved:
        return None
    usual = median(noise)
    change = median(moved)
    return Control(change=change, noise=usual, ratio=(change + FLOOR) / (usual + FLOOR))


def _changes(found: Measured, arm: str) -> list[float]:
    return [change(found.cold[i][at], kept) for (i, at), kept in counted(found, arm).items()]


def overall(judged: Sequence[Judged]) -> Verdict:
    """Return the worst verdict of all arms, nothing checked without any."""
    verdicts = {arm.verdict for arm in judged}
    return next((verdict for verdict in EXIT_CODES if verdict in verdicts), "nothing checked")


def counted(found: Measured, arm: str) -> dict[Place, Kept]:
    """Return the positions of an arm that count."""
    return {place: kept for place, kept in found.arms[arm].items() if not kept.why}


def pairs_of(found: Measured, arm: str) -> dict[int, Pair]:
    """Return a pair, by the index of its question, for each that has a position with a hit and
    with noise.
    """
    kept = counted(found, arm)
    noise = counted(found, NOISE)
    by_question: dict[int, list[int]] = {}
    for index, position in kept.keys() & noise.keys():
        by_question.setdefault(index, []).append(position)
    pairs = {}
    for index, positions in sorted(by_question.items()):
        cold = [found.cold[index][position] for position in positions]
        there = [kept[index, position] for position in positions]
        again = [noise[index, position] for position in positions]
        pairs[index] = Pair(
            prefix=found.questions[index].prefix,
            change=_mean(list(map(change, cold, there))),
            noise=_mean(list(map(change, cold, again))),
            cost=_mean(list(map(cost_of, cold, there))) - _mean(list(map(cost_of, cold, again))),
        )
    return pairs


def _bare(found: Measured, arm: str, pairs: Sequence[Pair]) -> Judged:
    answers = found.arms[arm].values()
    dropped = Counter[str](kept.why for kept in answers if kept.why)
    return Judged(
        arm=arm,
        verdict="unknown",
        reasons=[],
        questions=len(pairs),
        prefixes=len({pair.prefix for pair in pairs}),
        positions=len(answers),
        counted=len(answers) - dropped.total(),
        dropped=dict(dropped),
    )


def _last(arm: Judged, moved: Control | None, broken_off: str) -> Judged:
    """Return an arm as it is judged in the end, by what is no matter of its statistics."""
    lost = arm.dropped.get("no logarithm", 0)
    if lost:
        who = "the other server" if arm.arm == AGAINST else "behind a hit the server"
        why = (
            f"at {lost} of {arm.positions} positions {who} gives its own token no finite logarithm;"
            " cold it has one"
        )
        return msgspec.structs.replace(arm, verdict="fail", reasons=[why])
    if arm.verdict == "fail":
        return arm
    if broken_off:
        why = f"there were no further answers ({broken_off})"
        return msgspec.structs.replace(arm, verdict="unknown", reasons=[why, *arm.reasons])
    blind = _blind(moved) if arm.size is not None else ""
    if blind:
        return msgspec.structs.replace(arm, verdict="unknown", reasons=[*arm.reasons, blind])
    return arm


def _blind(moved: Control | None) -> str:
    """Return why a run could not have seen even another prefix; empty if it could."""
    if moved is None:
        return "no prompt was asked cold behind another prefix, so nothing shows what one changes"
    if moved.ratio >= HIDDEN:
        return ""
    return (
        f"another prefix changes the likelihoods by {_nats(moved.change)}, {moved.ratio:.2f} times"
        " the noise: what they say hardly depends on the prefix, so a cache that restores another"
        " one would not be found"
    )


def _unchecked(found: Measured, arm: Judged, rules: Rules) -> list[str]:
    """Return why an arm has checked nothing; empty if it has."""
    if len(found.cold) < rules.min_share * len(found.questions):
        return [
            f"{found.warm} of {len(found.questions)} cold requests restored something: they"
            " were not cold"
        ]
    if arm.counted >= rules.min_share * arm.positions:
        return []
    return [
        f"{count} of {arm.positions} positions {_DROPPED[why]}"
        for why, count in arm.dropped.items()
    ]


_DROPPED = {
    "restored nothing": "restored nothing",
    "restored less": "restored less than half of what was cached for them",
    "restored more": "restored more than the shared prefix, so it was no hit of it",
    "restored too much": "say that they restored more tokens than they have, or all of them",
    "no logarithm": "have no finite logarithm of the server's own token",
}


def _undecided(arm: Judged, unchecked: list[str]) -> Judged:
    """Return an arm that has checked nothing, or has no noise to be compared with."""
    if unchecked:
        return msgspec.structs.replace(arm, verdict="nothing checked", reasons=unchecked)
    why = "the noise was not measured: without it no change is too large"
    return msgspec.structs.replace(arm, reasons=[why])


def _decided(arm: Judged, rules: Rules) -> Judged:
    assert arm.size is not None
    assert arm.cost is not None
    change = arm.size.change
    noise = arm.size.noise
    # Where batches change nothing, a hit changes nothing either, but another server may; and what
    # little it does may be how logarithms are rounded, of which no test of ratios knows.
    noiseless = noise < FLOOR
    if noiseless and change > FLOOR:
        why = "cold runs in other batches are equal"
        if change > rules.margin and arm.arm != AGAINST:
            reasons = [f"{why}, and behind a hit the likelihoods move by {_nats(change)}"]
            return msgspec.structs.replace(arm, verdict="fail", reasons=reasons)
        reasons = [f"{why}, so they measure no noise to compare {_nats(change)} with"]
        return msgspec.structs.replace(arm, reasons=reasons)
    if arm.p_adjusted < rules.alpha and not noiseless:
        return msgspec.structs.replace(arm, verdict="fail", reasons=[_changed(arm)])
    open_ = _open(arm, rules)
    return msgspec.structs.replace(arm, verdict="unknown" if open_ else "pass", reasons=open_)


def _changed(arm: Judged) -> str:
    assert arm.size is not None
    assert arm.cost is not None
    who = "the other server" if arm.arm == AGAINST else "the cache"
    if arm.test == "prefix" and arm.worst is not None:
        return (
            f"{who} changes the logarithms of the best tokens behind prefix {arm.worst.prefix} by"
            f" {arm.worst.ratio:.1f} times the noise, and over all prefixes by"
            f" {arm.size.ratio:.2f} times"
        )
    return (
        f"{who} changes the logarithms of the best tokens by {_nats(arm.size.change)}, the noise by"
        f" {_nats(arm.size.noise)} ({arm.size.ratio:.1f} times as much), and costs"
        f" {arm.cost.mean:+.4f} nats a token (95 %: {arm.cost.lower:+.4f} to {arm.cost.upper:+.4f})"
    )


def _open(arm: Judged, rules: Rules) -> list[str]:
    """Return what keeps an arm from passing; empty if nothing does."""
    size = arm.size
    cost = arm.cost
    worst = arm.worst
    assert size is not None
    assert cost is not None
    assert worst is not None
    reasons = []
    if arm.questions < MIN_QUESTIONS:
        reasons.append(f"{arm.questions} questions; fewer than {MIN_QUESTIONS} never pass")
    if arm.prefixes < MIN_PREFIXES:
        reasons.append(f"{arm.prefixes} prefixes; fewer than {MIN_PREFIXES} never pass")
    if size.upper >= TWICE:
        reasons.append(
            f"a change of {TWICE:g} times the noise is not excluded (it is {size.ratio:.2f} times,"
            f" {size.upper:.2f} at most){_decides(size, arm.questions)}"
        )
    if worst.upper is None or worst.upper >= HIDDEN:
        reasons.append(
            f"a change of {HIDDEN:g} times the noise behind one prefix alone is not excluded"
            f" (prefix {worst.prefix} moved by {worst.ratio:.2f} times, {_times(worst.upper)} at"
            " most); more questions behind each prefix narrow it"
        )
    if cost.upper >= rules.margin:
        reasons.append(
            f"a cost of {rules.margin:g} nats a token is not excluded (it is {cost.mean:+.4f},"
            f" {cost.upper:+.4f} at most)"
        )
    return reasons


def _decides(size: Size, questions: int) -> str:
    """Return how many questions would exclude twice the noise, if the ratio stayed as it is."""
    room = math.log(TWICE / size.ratio)
    if room <= 0 or not math.isfinite(size.upper):
        return ""
    needed = math.ceil(questions * (math.log(size.upper / size.ratio) / room) ** 2)
    return f"; about {needed:,} questions would decide"


def _times(value: float | None) -> str:
    return "any number" if value is None else f"{value:.2f}"


def _nats(value: float) -> str:
    return f"{value:.2g} nats"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
