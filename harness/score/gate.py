"""The verdict of each arm against the cold one: pass, fail, unknown, or nothing checked.

Asked in this order, the first that answers decides:

1. Did the arm do what it is for? A warm arm that restored little, or a cold one that restored much, has checked nothing.
2. Is the model good enough? If both arms answer next to nothing right, there is nothing to lose: nothing checked.
3. Does the engine answer the same twice without a cache? Then a cached answer may differ where rounding could have done it, at
   a near-tie, and nowhere else: one hard divergence fails, and if no token differs the arm passes.
4. Otherwise statistics of the paired answers: a significant loss (exact McNemar, Holm's correction over the arms) fails, also
   one inside the margin, since a cache may not lose answers; a loss that is surely below the margin (Tango) passes; all else is
   unknown, and the report names the number of questions that would decide.

Each group of questions needs one kind of cache more than the others, so where an arm loses answers, the groups that lose
significantly say which cache is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from harness.score.pairs import NEAR_TIE, Divergence, Pair, Scores, counts, divergences, pair_up
from harness.score.restored import MIN_SHARE, Need, Restored, measure, shortfalls
from harness.score.statistics import ALPHA, holm, mcnemar, mde, n_for_margin, tango_lower
from harness.verdict.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS, EXIT_UNKNOWN

Verdict = Literal["pass", "fail", "unknown", "nothing checked"]
EXIT_CODES: Mapping[Verdict, int] = {
    "fail": EXIT_FAIL,
    "unknown": EXIT_UNKNOWN,
    "nothing checked": EXIT_NOTHING_CHECKED,
    "pass": EXIT_PASS,
}
"""The exit code of each verdict, the worst first."""
PRIMARY = "strict-match"
FLOOR = 0.1
"""The share of right answers under which a model is too weak to judge by."""
N_MAX = 10_000_000
UNTOUCHED = "nothing came from the second tier, in which this policy keeps its prefixes; run the arm tier"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict depends on. `margin` is the largest loss that is accepted if it cannot be excluded, 0.01 for one point.

    `tiered`: the policy keeps its prefixes in a second tier, so that nothing passes if nothing came from there.
    """

    margin: float = 0.01
    alpha: float = ALPHA
    floor: float = FLOOR
    min_share: float = MIN_SHARE
    near_tie: float = NEAR_TIE
    primary: str = PRIMARY
    tiered: bool = False


class GroupScore(msgspec.Struct, frozen=True, kw_only=True):
    """What one group of questions lost; `p` is corrected for the number of groups."""

    group: str
    n: int
    right_cold: int
    right: int
    lost: int
    gained: int
    p: float


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the cold one, under the primary filter.

    `p` is the exact one-sided p value of the loss, `p_adjusted` the same corrected for the number of arms, `lower` the lower
    bound of the change as a share of the questions, `needed` the number of questions that would decide (0 if decided).
    `suspects` are the groups that lost significantly, the worst first. `anomalies` are what a failure is called; `expected` is
    the listed reason if all of them are expected.
    """

    arm: str
    verdict: Verdict
    reasons: list[str]
    n: int
    right_cold: int
    right: int
    lost: int
    gained: int
    p: float
    p_adjusted: float
    lower: float
    mde: float | None
    needed: int
    restored: Restored
    near_ties: int
    hard: list[int]
    groups: list[GroupScore]
    suspects: list[str]
    anomalies: list[str] = []
    expected: str = ""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """How much two cold runs differ: in how many answers the tokens do, in how many the score. `n` is 0 if not measured."""

    n: int = 0
    tokens: int = 0
    scores: int = 0

    @property
    def zero(self) -> bool:
        """Whether it was measured, and no token differed."""
        return self.n > 0 and not self.tokens

    @property
    def discordance(self) -> float:
        """Return the share of questions whose score differs between two cold runs."""
        return self.scores / self.n if self.n else 0.0


def noise_floor(cold: Scores, again: Scores | None, rules: Rules) -> Noise:
    """Compare two cold runs. Raises Unpaired if they did not ask the same."""
    if again is None:
        return Noise()
    pairs = _primary(pair_up(cold, again), rules)
    differing = divergences(cold.answers, again.answers, rules.near_tie)
    return Noise(n=len(pairs), tokens=len(differing), scores=sum(counts(pairs)))


def judge(
    cold: Scores, others: Sequence[tuple[Scores, Need]], again: Scores | None, rules: Rules
) -> tuple[Noise, list[Judged]]:
    """Judge every arm against the cold one; `again` is the cold arm run once more, if it was.

    Raises Unpaired if an arm did not ask the same questions as the cold one.
    """
    noise = noise_floor(cold, again, rules)
    warm = [f"arm {arm.arm}: {line}" for arm in (cold, again) if arm for line in shortfalls(measure(arm.answers), "cold")]
    seen = [_look(cold, scores, need, rules) for scores, need in others]
    short = [[*warm, *look.short] for look in seen]
    tested = [index for index, lines in enumerate(short) if not lines]
    adjusted = dict(zip(tested, holm([seen[index].p for index in tested]), strict=True))
    judged = [_judge(look, short[i], noise, adjusted.get(i, look.p), rules) for i, look in enumerate(seen)]
    untouched = rules.tiered and not any(arm.restored.from_tier for arm in judged)
    return noise, [_vacuous(arm) for arm in judged] if untouched else judged


def _vacuous(arm: Judged) -> Judged:
    """Return an arm of a run in which nothing came from the tier that the run is about: it has not passed."""
    if arm.verdict != "pass":
        return arm
    return msgspec.structs.replace(arm, verdict="nothing checked", reasons=[UNTOUCHED])


def overall(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict of a run: the worst that any arm has that is not expected to, nothing checked without any."""
    verdicts = {"pass" if arm.expected else arm.verdict for arm in judged}
    return next((verdict for verdict in EXIT_CODES if verdict in verdicts), "nothing checked")


def exit_code(judged: Sequence[Judged]) -> int:
    """Return the exit code of a run."""
    return EXIT_CODES[overall(judged)]


def decides_at(lost: int, gained: int, n: int, rules: Rules) -> int:
    """Return how many questions would decide, if answers went on to differ at the rates seen so far.

    Never fewer than would show with power 80 % that nothing is lost, if nothing is; 0 if none would do.
    """
    least = n_for_margin((lost + gained) / n, rules.margin)
    size = max(n, least)
    while size <= N_MAX:
        more_lost, more_gained = round(lost * size / n), round(gained * size / n)
        if mcnemar(more_lost, more_gained) < rules.alpha or tango_lower(more_lost, more_gained, size) > -rules.margin:
            return size
        size = size + max(1, size // 100)
    return 0


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see in an arm before it is judged."""

    arm: str
    pairs: list[Pair]
    short: list[str]
    restored: Restored
    p: float
    differing: list[Divergence]

    @property
    def hard(self) -> list[int]:
        """Return the questions whose answers differ beyond a near-tie."""
        return [found.doc for found in self.differing if found.kind == "hard"]


def _look(cold: Scores, scores: Scores, need: Need, rules: Rules) -> _Look:
    pairs = _primary(pair_up(cold, scores), rules)
    restored = measure(scores.answers)
    return _Look(
        arm=scores.arm,
        pairs=pairs,
        short=shortfalls(restored, need, rules.min_share),
        restored=restored,
        p=mcnemar(*counts(pairs)),
        differing=divergences(cold.answers, scores.answers, rules.near_tie),
    )


def _primary(pairs: list[Pair], rules: Rules) -> list[Pair]:
    return [pair for pair in pairs if pair.cold.filter == rules.primary]


def _judge(look: _Look, short: list[str], noise: Noise, p_adjusted: float, rules: Rules) -> Judged:
    n, (lost, gained), (right_cold, right) = len(look.pairs), counts(look.pairs), _right(look.pairs)
    lower = tango_lower(lost, gained, n, rules.alpha) if n else -1.0
    verdict, reasons = _verdict(look, short, noise, p_adjusted, lower, rules)
    groups = group_scores(look.pairs)
    return Judged(
        arm=look.arm,
        verdict=verdict,
        reasons=reasons,
        n=n,
        right_cold=right_cold,
        right=right,
        lost=lost,
        gained=gained,
        p=look.p,
        p_adjusted=p_adjusted,
        lower=lower,
        mde=mde(n, (lost + gained) / n, rules.alpha) if n else None,
        needed=decides_at(lost, gained, n, rules) if verdict == "unknown" else 0,
        restored=look.restored,
        near_ties=len(look.differing) - len(look.hard),
        hard=look.hard,
        groups=groups,
        suspects=_suspects(groups, rules.alpha),
        anomalies=_anomalies(look, noise, p_adjusted, rules) if verdict == "fail" else [],
    )


def _verdict(
    look: _Look, short: list[str], noise: Noise, p_adjusted: float, lower: float, rules: Rules
) -> tuple[Verdict, list[str]]:
    if short or not look.pairs:
        return "nothing checked", short or [f"no question under filter {rules.primary}"]
    right = max(_right(look.pairs))
    if not right or right < rules.floor * len(look.pairs):
        told = f"the model is too weak to judge by: at most {right} of {len(look.pairs)} answers right in either arm"
        return "nothing checked", [f"{told}, less than {rules.floor:.0%}" if right else told]
    if noise.zero and look.hard:
        return "fail", [f"{len(look.hard)} answers differ beyond a near-tie, and without a cache none does"]
    if noise.zero and not look.differing:
        return "pass", ["every token is the same, as in two runs without a cache"]
    lost, gained = counts(look.pairs)
    if p_adjusted < rules.alpha:
        return "fail", [f"{lost} answers lost and {gained} gained: p = {p_adjusted:.2g} after Holm's correction"]
    if lower > -rules.margin:
        return "pass", [f"at most {-100 * lower:.2f} points are lost, less than the margin of {100 * rules.margin:g}"]
    return "unknown", [f"up to {-100 * lower:.2f} points may be lost, more than the margin of {100 * rules.margin:g}"]


def _anomalies(look: _Look, noise: Noise, p_adjusted: float, rules: Rules) -> list[str]:
    """Return every way in which an arm failed."""
    changed, lost = noise.zero and bool(look.hard), p_adjusted < rules.alpha
    return ["changed-answer"] * changed + ["lost-answers"] * lost


def group_scores(pairs: Sequence[Pair]) -> list[GroupScore]:
    """Return what each group of questions lost, if the questions have groups."""
    members: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.cold.group:
            members.setdefault(pair.cold.group, []).append(pair)
    adjusted = holm([mcnemar(*counts(group)) for group in members.values()])
    return [_group_score(name, group, p) for (name, group), p in zip(members.items(), adjusted, strict=True)]


def _group_score(name: str, pairs: Sequence[Pair], p: float) -> GroupScore:
    (lost, gained), (right_cold, right) = counts(pairs), _right(pairs)
    return GroupScore(group=name, n=len(pairs), right_cold=right_cold, right=right, lost=lost, gained=gained, p=p)


def _right(pairs: Sequence[Pair]) -> tuple[int, int]:
    """Return how many answers are right in the cold arm and in the other."""
    return sum(pair.cold.correct for pair in pairs), sum(pair.other.correct for pair in pairs)


def _suspects(groups: Sequence[GroupScore], alpha: float) -> list[str]:
    significant = [group for group in groups if group.p < alpha]
    return [group.group for group in sorted(significant, key=lambda group: (group.gained - group.lost) / group.n)]
