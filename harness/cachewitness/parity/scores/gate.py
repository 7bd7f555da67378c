"""The verdict of each arm against the cold one: pass, fail, unknown, or nothing checked.

Asked in this order, the first that answers decides:

1. Did the arm do what it is for? A warm arm that restored little, or a cold one that restored much,
   has checked nothing.
2. Is the model good enough? If both arms answer next to nothing right, there is nothing to lose:
   nothing checked.
3. Do tokens decide? They do if the engine declares that its answers do not depend on chance (or the
   user says that they shall): then one answer that differs beyond a near-tie fails the arm, and it
   passes if no token differs. That two cold runs agree is no such declaration: none in n that
   differ bounds the true share by three in n, no lower.
4. Otherwise the score does: lost answers fail the arm, a loss that is surely less than the margin
   passes, all else is unknown (`cachewitness.parity.scores.decision`), and the report names the
   number of questions that would decide.

An engine that declares to be bit-exact and answers otherwise the second time does not pass,
whatever its score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS, EXIT_UNKNOWN
from cachewitness.parity.scores.counting import counted
from cachewitness.parity.scores.decision import (
    MIN_PREFIXES,
    MIN_QUESTIONS,
    NOISE_MAX,
    NOISE_SHARE,
    Counts,
    Decision,
    Risk,
    decide,
    decides_at,
    suspect,
)
from cachewitness.parity.scores.distributions import binomial_tail, binomial_upper
from cachewitness.parity.scores.groups import GroupScore, group_scores, suspects
from cachewitness.parity.scores.pairs import (
    NEAR_TIE,
    Divergence,
    Pair,
    Scores,
    counts,
    divergences,
    pair_up,
    right_in_both,
)
from cachewitness.parity.scores.restored import MIN_SHARE, Need, Restored, measure, shortfalls
from cachewitness.parity.scores.statistics import mde

Verdict = Literal["pass", "fail", "unknown", "nothing checked"]
Tokens = Literal["declared", "strict", "reported"]
EXIT_CODES: Mapping[Verdict, int] = {
    "fail": EXIT_FAIL,
    "unknown": EXIT_UNKNOWN,
    "nothing checked": EXIT_NOTHING_CHECKED,
    "pass": EXIT_PASS,
}
"""The exit code of each verdict, the worst first."""
PRIMARY = "strict-match"
UNTOUCHED = (
    "nothing came from the second tier, in which this policy keeps its prefixes; run the arm tier"
)


class Rules(Risk, frozen=True, kw_only=True):
    """What a verdict depends on.

    `tokens`: they decide since the engine declares to be bit-exact, or since the user is strict;
    else they are reported. `tiered`: the policy keeps its prefixes in a second tier, so that
    nothing passes if nothing came from there.
    """

    floor: float = 0.1
    min_share: float = MIN_SHARE
    near_tie: float = NEAR_TIE
    primary: str = PRIMARY
    tokens: Tokens = "reported"
    tiered: bool = False


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the cold one, under the primary filter.

    `lost` were right without the cache and are wrong with it, `gained` the reverse; `alone` of the
    lost were right in the second cold run too, and `again` were lost by that run and not by this
    arm. `p` is the smallest p value of a loss, that of `test`, `p_adjusted` the same corrected for
    the number of arms, `lower` the lower bound of the change as a share of the questions,
    `prefixes` how many they share, `needed` the number of questions that would decide (0 if
    decided). `suspects` are the groups that lost significantly, the worst first. `anomalies` are
    what a failure is called; `expected` is the listed reason if all of them are expected.
    """

    arm: str
    verdict: Verdict
    reasons: list[str]
    n: int
    right_cold: int
    right: int
    lost: int
    gained: int
    alone: int
    again: int
    prefixes: int
    test: str
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
    """How much two cold runs differ: in how many answers the tokens do, in how many the score. `n`
    is 0 if not measured.

    `tokens_upper` and `scores_upper` are the shares that these counts do not exclude, with 95 %
    confidence each.
    """

    n: int = 0
    tokens: int = 0
    scores: int = 0
    tokens_upper: float = 1.0
    scores_upper: float = 1.0

    @property
    def discordance(self) -> float:
        """Return the share of questions whose score differs between two cold runs."""
        return self.scores / self.n if self.n else 0.0


def noise_floor(cold: Scores, again: Scores | None, rules: Rules) -> Noise:
    """Compare two cold runs. Raises Unpaired if they did not ask the same."""
    if again is None:
        return Noise()
    pairs = _primary(pair_up(cold, again), rules)
    n = len(pairs)
    tokens = len(divergences(cold.answers, again.answers, rules.near_tie))
    scores = sum(counts(pairs))
    upper = [binomial_upper(found, n, rules.alpha) for found in (tokens, scores)]
    return Noise(n=n, tokens=tokens, scores=scores, tokens_upper=upper[0], scores_upper=upper[1])


class Compared(NamedTuple):
    """An arm, what it needs, and the cold run that it is compared with; `again` is that once more,
    if it was.
    """

    scores: Scores
    need: Need
    cold: Scores
    again: Scores | None


def judge(others: Sequence[Compared], rules: Rules) -> list[Judged]:
    """Judge every arm against its cold one. Raises Unpaired if it did not ask the same
    questions.
    """
    colds = {one.cold.arm: one for one in others}
    bases = {name: _base(one.cold, one.again, rules) for name, one in colds.items()}
    seen = [_look(one, bases[one.cold.arm], rules) for one in others]
    # Decided together, because several tests share one error rate; an arm that is not judged must
    # not use up any of it.
    tested = [index for index, look in enumerate(seen) if not look.short]
    decided = dict(
        zip(tested, decide([seen[index].counts for index in tested], rules), strict=True)
    )
    judged = [
        _judge(look, decided.get(i) or decide([look.counts], rules)[0], rules)
        for i, look in enumerate(seen)
    ]
    untouched = rules.tiered and not any(arm.restored.from_tier for arm in judged)
    return [_vacuous(arm) for arm in judged] if untouched else judged


def _vacuous(arm: Judged) -> Judged:
    """Return an arm of a run in which nothing came from the tier that the run is about: it has
    not passed.
    """
    if arm.verdict != "pass":
        return arm
    return msgspec.structs.replace(arm, verdict="nothing checked", reasons=[UNTOUCHED])


def overall(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict of a run: the worst that any arm has that is not expected to, nothing
    checked without any.
    """
    verdicts = {"pass" if arm.expected else arm.verdict for arm in judged}
    return next((verdict for verdict in EXIT_CODES if verdict in verdicts), "nothing checked")


def exit_code(judged: Sequence[Judged]) -> int:
    """Return the exit code of a run."""
    return EXIT_CODES[overall(judged)]


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see in an arm before it is judged."""

    arm: str
    pairs: list[Pair]
    counts: Counts
    short: list[str]
    restored: Restored
    differing: list[Divergence]
    noise: Noise

    @property
    def hard(self) -> list[int]:
        """Return the questions whose answers differ beyond a near-tie."""
        return [found.doc for found in self.differing if found.kind == "hard"]


class _Base(NamedTuple):
    """What there is to see in a cold run and in the one that repeats it."""

    repeated: list[Pair] | None
    short: list[str]
    noise: Noise


def _base(cold: Scores, again: Scores | None, rules: Rules) -> _Base:
    # A cold arm that hit its cache makes every comparison with it worthless, so its shortfall is
    # one of every arm.
    short = [
        f"arm {arm.arm}: {line}"
        for arm in (cold, again)
        if arm
        for line in shortfalls(measure(arm.answers), "cold")
    ]
    repeated = _primary(pair_up(cold, again), rules) if again else None
    return _Base(repeated, short, noise_floor(cold, again, rules))


def _look(one: Compared, base: _Base, rules: Rules) -> _Look:
    scores = one.scores
    cold = one.cold
    pairs = _primary(pair_up(cold, scores), rules)
    restored = measure(scores.answers, scores.first)
    return _Look(
        arm=scores.arm,
        pairs=pairs,
        counts=counted(pairs, base.repeated),
        short=[*base.short, *shortfalls(restored, one.need, rules.min_share)],
        restored=restored,
        differing=divergences(cold.answers, scores.answers, rules.near_tie),
        noise=base.noise,
    )


def _primary(pairs: list[Pair], rules: Rules) -> list[Pair]:
    return [pair for pair in pairs if pair.cold.filter == rules.primary]


def _judge(look: _Look, decided: Decision, rules: Rules) -> Judged:
    whole = look.counts.whole
    groups = group_scores(look.pairs)
    noise = look.noise
    verdict, reasons = _verdict(look, decided, rules)
    return Judged(
        arm=look.arm,
        verdict=verdict,
        reasons=reasons,
        n=whole.n,
        right_cold=whole.right,
        right=right_in_both(look.pairs)[1],
        lost=whole.lost,
        gained=whole.gained,
        alone=whole.alone,
        again=whole.again,
        prefixes=len(look.counts.prefixes),
        test=decided.test,
        p=decided.p,
        p_adjusted=decided.p_adjusted,
        lower=decided.lower,
        mde=mde(whole.n, (whole.lost + whole.gained) / whole.n, rules.alpha) if whole.n else None,
        needed=(
            decides_at(look.counts, rules)
            if verdict == "unknown" and _wide(look.counts, noise, decided, rules)
            else 0
        ),
        restored=look.restored,
        near_ties=len(look.differing) - len(look.hard),
        hard=look.hard,
        groups=groups,
        suspects=suspects(groups, rules.alpha),
        anomalies=_anomalies(look, noise, decided, rules) if verdict == "fail" else [],
    )


def _verdict(look: _Look, decided: Decision, rules: Rules) -> tuple[Verdict, list[str]]:
    noise = look.noise
    # The order is that of the evidence: nothing to judge, a proven loss, then what makes a pass
    # worthless, and only then a pass. A loss outweighs few questions, since too few can hide a loss
    # and not make one.
    if look.short or not look.pairs:
        return "nothing checked", look.short or [f"no question under filter {rules.primary}"]
    if _by_tokens(noise, rules) and look.hard:
        return "fail", [_changed(look, noise)]
    if decided.outcome == "lost":
        return "fail", [_lost(look.counts, decided)]
    right = max(right_in_both(look.pairs))
    if not right or right < rules.floor * len(look.pairs):
        reason = (
            f"the model is too weak to judge by: at most {right} of {len(look.pairs)} answers right"
            " in either arm"
        )
        return "nothing checked", [f"{reason}, less than {rules.floor:.0%}" if right else reason]
    if len(look.pairs) < MIN_QUESTIONS:
        return "unknown", [
            f"{len(look.pairs)} questions are too few to pass by; ask {MIN_QUESTIONS} or more"
        ]
    if _by_tokens(noise, rules) and not look.differing:
        return "pass", ["every token is the same as without a cache"]
    if _refuted(noise, rules):
        reason = (
            f"the engine is declared bit-exact, but {noise.tokens:,} of {noise.n:,} answers differ"
            " between two cold runs"
        )
        return "unknown", [f"{reason}; without the declaration the score decides"]
    if decided.outcome == "kept" and noise.discordance > NOISE_MAX:
        reason = (
            f"two cold runs disagree about {noise.scores:,} of {noise.n:,} scores: what is compared"
            " with is damaged itself"
        )
        return "unknown", [f"{reason}; run the cold arms without a cache (of a server: --cold-url)"]
    return _by_score(look.counts, decided, rules)


def _by_tokens(noise: Noise, rules: Rules) -> bool:
    """Whether tokens decide: on request, or by a declaration that two cold runs have not
    refuted.
    """
    return rules.tokens == "strict" or (rules.tokens == "declared" and not _refuted(noise, rules))


def _refuted(noise: Noise, rules: Rules) -> bool:
    """Whether two cold runs contradict the declaration that an engine is bit-exact."""
    return rules.tokens == "declared" and noise.tokens > 0


def _wide(found: Counts, noise: Noise, decided: Decision, rules: Rules) -> bool:
    """Whether an open verdict is for want of questions: the bound is beyond the margin, and
    nothing else is in the way.
    """
    return (
        found.whole.n >= MIN_QUESTIONS
        and decided.lower <= -rules.margin
        and not _refuted(noise, rules)
    )


def _changed(look: _Look, noise: Noise) -> str:
    line = f"{len(look.hard):,} of {len(look.pairs):,} answers differ beyond a near-tie"
    if noise.n:
        line += f"; between two runs without a cache {noise.tokens or 'none'}"
    return line


def _lost(found: Counts, decided: Decision) -> str:
    whole = found.whole
    p = f"p = {decided.p_adjusted:.2g} after Holm's correction"
    if decided.test == "net":
        return f"{whole.lost:,} answers lost and {whole.gained:,} gained: {p}"
    if decided.test == "noise":
        line = (
            f"{whole.lost:,} answers lost, {whole.alone:,} of which a second run without a cache"
            " keeps"
        )
        return f"{line}, while it loses {whole.again:,} others: {p}"
    return f"{_worst(found)}, more than noise takes: {p}"


def _worst(found: Counts) -> str:
    """Return the loss behind one prefix that chance explains least, in words."""
    worst = min(
        found.prefixes or (found.whole,),
        key=lambda tally: binomial_tail(tally.lost, tally.right, NOISE_SHARE),
    )
    where = "behind one shared prefix " if found.prefixes else ""
    return f"{where}{worst.lost:,} of {worst.right:,} right answers are lost"


def _by_score(found: Counts, decided: Decision, rules: Rules) -> tuple[Verdict, list[str]]:
    worst = f"{-100 * decided.lower:.2f} points"
    if decided.outcome == "kept":
        return "pass", [f"at most {worst} are lost, less than the margin of {100 * rules.margin:g}"]
    if suspect(found, rules):
        caveat = (
            "which chance may do to one prefix, and a bad block does; ask behind that prefix again"
        )
        return "unknown", [f"{_worst(found)}, {caveat}"]
    if found.prefixes and len(found.prefixes) < MIN_PREFIXES and decided.lower > -rules.margin:
        few = (
            f"the questions share {len(found.prefixes)} prefixes, which is too few to judge a"
            " score by"
        )
        return "unknown", [f"{few}; ask behind {MIN_PREFIXES} or more"]
    return "unknown", [f"up to {worst} may be lost, more than the margin of {100 * rules.margin:g}"]


def _anomalies(look: _Look, noise: Noise, decided: Decision, rules: Rules) -> list[str]:
    """Return every way in which an arm failed."""
    changed = _by_tokens(noise, rules) and bool(look.hard)
    lost = decided.outcome == "lost"
    return ["changed-answer"] * changed + ["lost-answers"] * lost
