"""The gate asks in its order and errs no more often than it says; every way to be judged has its
opposite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

from cachewitness.engines.answers import Answer
from cachewitness.parity.scores import gate
from cachewitness.parity.scores.counting import counted
from cachewitness.parity.scores.expected import with_expectations
from cachewitness.parity.scores.gate import Compared, Judged, Noise, Rules, exit_code
from cachewitness.parity.scores.groups import group_scores
from cachewitness.parity.scores.pairs import (
    Scored,
    Scores,
    Unpaired,
    divergences,
    near_tie_of,
    pair_up,
)
from cachewitness.parity.scores.restored import Need, measure, shortfalls
from cachewitness.parity.scores.run import Outcome
from cachewitness.report.expected import Entry, Expectations

GROUPS = ("full", "recurrent", "window")


def scores(
    arm: str,
    right: Callable[[int], bool],
    n: int = 300,
    *,
    restored: int = 0,
    token: Callable[[int], int] | None = None,
    margin: float = 5.0,
) -> Scores:
    """Return an arm of n questions whose answers are one token: the given one, or one that tells
    right from wrong.
    """
    say = token or (lambda doc: int(right(doc)))
    return Scores(
        arm=arm,
        rows=tuple(
            Scored(
                doc=doc,
                filter="strict-match",
                prompt_hash=f"h{doc}",
                correct=right(doc),
                group=GROUPS[doc % 3],
            )
            for doc in range(n)
        ),
        answers={
            doc: Answer(
                str(doc),
                "",
                tokens=(say(doc),),
                prompt_tokens=100,
                restored={"": restored, "recurrent": restored},
                margins=(margin,),
            )
            for doc in range(n)
        },
    )


def always(doc: int) -> bool:
    return True


def judge(
    cold: Scores, others: Sequence[tuple[Scores, Need]], again: Scores | None, rules: Rules
) -> list[Judged]:
    """Judge arms against one cold run."""
    return gate.judge([Compared(scores, need, cold, again) for scores, need in others], rules)


def one(
    cold: Scores,
    other: Scores,
    again: Scores | None = None,
    need: str = "restored",
    **rules: float | str,
) -> Judged:
    """Judge one arm."""
    return judge(cold, [(other, need)], again, Rules(**rules))[0]  # type: ignore[arg-type, list-item]


COLD = scores("off", always)
AGAIN = scores("off-again", always)
NOISY = scores("off-again", always, token=lambda doc: 7 if doc == 0 else 1)


@pytest.mark.parametrize(
    ("tokens", "n", "expected"),
    [
        ("declared", 20, "pass"),
        ("strict", 20, "pass"),
        ("declared", 15, "unknown"),
        ("reported", 20, "unknown"),
    ],
)
def test_an_arm_without_a_changed_token_passes_where_tokens_decide_and_enough_were_asked(
    tokens: str, n: int, expected: str
) -> None:
    """Elsewhere twenty answers that did not change are twenty answers: up to one in eight may be
    lost.
    """
    for again in (scores("off-again", always, n), None):
        judged = one(
            scores("off", always, n), scores("hit", always, n, restored=90), again, tokens=tokens
        )
        assert (judged.verdict, judged.near_ties, judged.hard) == (expected, 0, [])


def test_each_arm_is_judged_by_its_own_cold_runs() -> None:
    """A cold run that was warm, or that is answered otherwise the second time, is nothing to the
    others.
    """
    rules = Rules(tokens="declared")
    hit = Compared(scores("hit", always, restored=90), "restored", COLD, AGAIN)
    own = scores("turns-off", always)
    turns = Compared(scores("turns", always, restored=90), "restored", own, None)
    warm = turns._replace(cold=scores("turns-off", always, restored=90))
    assert [one.verdict for one in gate.judge([hit, warm], rules)] == ["pass", "nothing checked"]
    assert gate.judge([hit, warm], rules)[1].reasons[0].startswith("arm turns-off: a cold arm")
    noisy = turns._replace(again=NOISY)
    assert [one.verdict for one in gate.judge([hit, noisy], rules)] == ["pass", "unknown"]


@pytest.mark.parametrize(
    ("from_tier", "expected"), [(0, "nothing checked"), (90, "pass")], ids=["untouched", "served"]
)
def test_where_prefixes_lie_in_a_tier_nothing_passes_that_took_nothing_from_it(
    from_tier: int, expected: str
) -> None:
    """One arm that took from it is enough for all: what the others show of the engine's own
    cache is true as well.
    """
    hit = scores("hit", always, restored=90)
    replay = scores("replay", always, restored=90)
    served = {
        doc: msgspec.structs.replace(answer, from_tier=from_tier)
        for doc, answer in replay.answers.items()
    }
    others: list[tuple[Scores, Need]] = [
        (hit, "restored"),
        (msgspec.structs.replace(replay, answers=served), "restored"),
    ]
    judged = judge(COLD, others, AGAIN, Rules(tiered=True))
    assert [arm.verdict for arm in judged] == [expected, expected]
    assert (exit_code(judged) == 5) == (not from_tier) and (
        "run the arm tier" in judged[0].reasons[0]
    ) == (not from_tier)


def test_an_arm_that_lost_answers_fails_though_nothing_came_from_the_tier() -> None:
    """A contradiction outranks what was not checked."""
    wrong = scores("hit", lambda doc: doc % 3 > 0, restored=90)
    judged = judge(
        COLD,
        [(wrong, "restored"), (scores("replay", always, restored=90), "restored")],
        AGAIN,
        Rules(tiered=True),
    )
    assert [arm.verdict for arm in judged] == ["fail", "nothing checked"] and exit_code(judged) == 1


@pytest.mark.parametrize(
    ("restored", "reason"),
    [(0, "restored 0.0%"), (49, "restored 49.0%")],
    ids=["nothing restored", "too little restored"],
)
def test_an_arm_that_was_not_served_from_the_cache_checked_nothing(
    restored: int, reason: str
) -> None:
    """Even where every answer is wrong: an arm that did not do what it is for is no evidence."""
    judged = one(COLD, scores("hit", lambda doc: False, restored=restored), AGAIN)
    assert judged.verdict == "nothing checked" and reason in judged.reasons[0]
    assert exit_code([judged]) == 5


def test_one_request_that_restored_nothing_is_told() -> None:
    warm = scores("hit", always, restored=90)
    cold_one = {
        **warm.answers,
        17: msgspec.structs.replace(warm.answers[17], restored={"": 0, "recurrent": 90}),
    }
    judged = one(COLD, msgspec.structs.replace(warm, answers=cold_one), AGAIN)
    assert judged.reasons == ["question 17 restored nothing"]


def test_a_cache_group_that_restored_nothing_is_told_although_the_request_did() -> None:
    """A request that resumed attention and recomputed its state was not a hit of the hybrid
    cache.
    """
    answers = {0: Answer("0", "", prompt_tokens=100, restored={"": 90, "full": 90, "recurrent": 0})}
    assert shortfalls(measure(answers), "restored") == [
        "group recurrent restored 0.0% of the prompts, less than 50%",
        "group recurrent restored nothing in some request",
    ]


@pytest.mark.parametrize("which", ["off", "off-again"])
def test_a_cold_arm_that_was_warm_makes_the_comparison_empty(which: str) -> None:
    warm = scores(which, always, restored=50)
    cold, again = (warm, AGAIN) if which == "off" else (COLD, warm)
    judged = one(cold, scores("hit", always, restored=90), again)
    assert judged.verdict == "nothing checked" and judged.reasons[0].startswith(
        f"arm {which}: a cold arm restored 50.0%"
    )


def test_salted_requests_that_find_each_others_prefix_checked_nothing() -> None:
    judged = one(COLD, scores("miss", always, restored=90), AGAIN, need="cold")
    assert judged.verdict == "nothing checked" and "salts are ignored" in judged.reasons[0]
    assert one(COLD, scores("miss", always), AGAIN, need="cold").verdict == "pass"


def test_the_tier_must_have_given_what_was_restored() -> None:
    given = scores("tier", always, restored=90)
    assert one(COLD, given, AGAIN, need="tier").reasons == [
        "the second tier gave 0.0% of the prompts, less than 50%"
    ]
    answers = {
        doc: msgspec.structs.replace(answer, from_tier=90) for doc, answer in given.answers.items()
    }
    assert (
        one(COLD, msgspec.structs.replace(given, answers=answers), AGAIN, need="tier").verdict
        == "pass"
    )


def test_an_arm_under_preemption_needs_requests_that_lost_their_place() -> None:
    calm = scores("preempted", always)
    assert one(COLD, calm, AGAIN, need="preempted").reasons == ["0 of 300 requests were preempted"]
    answers = {
        doc: msgspec.structs.replace(answer, preemptions=doc % 2)
        for doc, answer in calm.answers.items()
    }
    assert (
        one(COLD, msgspec.structs.replace(calm, answers=answers), AGAIN, need="preempted").verdict
        == "pass"
    )


@pytest.mark.parametrize(
    ("need", "happened", "short"),
    [
        ("drafted", {"drafted": 3}, "0 of 300 requests went on with a guessed token"),
        ("evicted", {"evictions": 7}, "0 of 300 requests saw a cached block make room"),
    ],
)
def test_an_arm_needs_what_it_is_for_to_have_happened(
    need: Need, happened: dict[str, int], short: str
) -> None:
    idle = scores("arm", always, restored=90)
    assert one(COLD, idle, AGAIN, need=need).reasons == [short]
    answers = {
        doc: msgspec.structs.replace(answer, **happened) if doc % 2 else answer
        for doc, answer in idle.answers.items()
    }
    assert (
        one(COLD, msgspec.structs.replace(idle, answers=answers), AGAIN, need=need).verdict
        == "pass"
    )


def test_a_model_that_knows_nothing_is_too_weak_in_both_arms_and_not_a_pass() -> None:
    judged = one(
        scores("off", lambda doc: doc < 29), scores("hit", lambda doc: doc < 28, restored=90), AGAIN
    )
    assert judged.verdict == "nothing checked" and "at most 29 of 300" in judged.reasons[0]


def test_a_weak_model_that_loses_what_it_knows_has_lost_it() -> None:
    weak = scores("off", lambda doc: doc < 29)
    judged = one(
        weak,
        scores("hit", lambda doc: doc < 9, restored=90),
        msgspec.structs.replace(weak, arm="off-again"),
    )
    assert judged.verdict == "fail" and judged.reasons[0].startswith("20 ")


def test_two_arms_without_a_right_answer_are_nothing_checked_whatever_the_floor() -> None:
    judged = one(
        scores("off", lambda doc: False),
        scores("hit", lambda doc: False, restored=90),
        AGAIN,
        floor=0.0,
    )
    assert judged.verdict == "nothing checked" and judged.reasons[0].endswith(
        "at most 0 of 300 answers right in either arm"
    )


def test_a_cache_that_ruins_a_good_model_is_no_weak_model() -> None:
    assert one(COLD, scores("hit", lambda doc: False, restored=90), AGAIN).verdict == "fail"


def test_one_hard_divergence_fails_where_tokens_decide_and_nowhere_else() -> None:
    """That two cold runs agree in 300 answers says only that fewer than one in a hundred differ
    by chance.
    """
    other = scores("hit", always, restored=90, token=lambda doc: 7 if doc == 5 else 1)
    for again in (AGAIN, None):
        judged = one(COLD, other, again, tokens="declared")
        assert (judged.verdict, judged.hard, judged.lost, judged.anomalies) == (
            "fail",
            [5],
            0,
            ["changed-answer"],
        )
        assert one(COLD, other, again).verdict == "pass", "the score decides"
    assert one(COLD, other, NOISY, tokens="strict").verdict == "fail", "as was asked for"


def test_strict_fails_a_weak_model_too() -> None:
    """Of which the score could say nothing."""
    weak, again, same, changed = (
        scores(
            arm,
            lambda doc: doc < 3,
            restored=restored,
            token=lambda doc, other=other: other if doc == 5 else 1,
        )  # type: ignore[misc]
        for arm, restored, other in (
            ("off", 0, 1),
            ("off-again", 0, 1),
            ("hit", 90, 1),
            ("hit", 90, 7),
        )
    )
    assert one(weak, same, again, tokens="strict").verdict == "nothing checked"
    assert one(weak, changed, again, tokens="strict").verdict == "fail"


def test_an_engine_that_is_declared_bit_exact_and_is_not_does_not_pass() -> None:
    same = scores("hit", always, restored=90)
    lost = scores("hit", lambda doc: doc > 60, restored=90)
    judged = one(COLD, same, NOISY, tokens="declared")
    assert (
        judged.verdict == "unknown"
        and "1 of 300 answers differ between two cold runs" in judged.reasons[0]
    )
    assert not judged.needed, "more questions would not help"
    assert one(COLD, lost, NOISY, tokens="declared").verdict == "fail", (
        "its score is judged all the same"
    )


def test_texts_that_differ_though_no_token_does_are_a_hard_divergence() -> None:
    """Scores are of texts: a server whose tokens say one thing and whose text says another has
    not answered the same.
    """
    other = scores("hit", always, restored=90)
    answers = {**other.answers, 5: msgspec.structs.replace(other.answers[5], text="something else")}
    judged = one(COLD, msgspec.structs.replace(other, answers=answers), AGAIN, tokens="declared")
    assert (judged.verdict, judged.hard) == ("fail", [5])


def test_a_near_tie_is_left_to_the_score() -> None:
    tied = scores("off", always, margin=1e-4)
    flipped = scores(
        "hit", always, restored=90, token=lambda doc: 7 if doc == 5 else 1, margin=2e-4
    )
    judged = one(tied, flipped, scores("off-again", always, margin=1e-4), tokens="declared")
    assert (judged.verdict, judged.near_ties, judged.hard) == ("pass", 1, [])


def test_a_near_tie_is_as_wide_as_the_precision_is_coarse() -> None:
    assert (
        near_tie_of("float32")
        == near_tie_of("")
        < near_tie_of("float16")
        < near_tie_of("bfloat16")
        < 1
    )


def test_a_divergence_is_a_near_tie_only_if_both_runs_were_undecided_at_its_step() -> None:
    def answer(
        tokens: Sequence[int], margins: Sequence[float] = (), text: str = ""
    ) -> dict[int, Answer]:
        return {0: Answer("0", text, tokens=tuple(tokens), margins=tuple(margins))}

    def kinds(cold: dict[int, Answer], other: dict[int, Answer]) -> list[tuple[int, str]]:
        return [(found.step, found.kind) for found in divergences(cold, other, 0.01)]

    assert kinds(answer([1, 2, 3], [9, 0.001, 9]), answer([1, 4, 3], [9, 0.002, 9])) == [
        (1, "near-tie")
    ]
    assert kinds(answer([1, 2], [9, 0.001]), answer([1, 4], [9, 3])) == [(1, "hard")]
    assert kinds(answer([1, 2]), answer([1, 4])) == [(1, "hard")], "unknown margins excuse nothing"
    assert kinds(answer([1, 2], [9, 0.001]), answer([1, 2, 3], [9, 0.001, 0.001])) == [(2, "hard")]
    assert kinds(answer([], text="a"), answer([], text="b")) == [(-1, "hard")]
    assert kinds(answer([1, 2]), answer([1, 2])) == []


def test_losing_significantly_fails_and_the_group_that_lost_is_named() -> None:
    judged = one(
        COLD, scores("hit", lambda doc: not (doc % 3 == 1 and doc < 60), restored=90), NOISY
    )
    assert (judged.verdict, judged.lost, judged.suspects) == ("fail", 20, ["recurrent"])
    assert {group.group: group.lost for group in judged.groups} == {
        "full": 0,
        "recurrent": 20,
        "window": 0,
    }


def test_losing_significantly_inside_the_margin_fails_all_the_same() -> None:
    other = scores("hit", lambda doc: doc >= 12, 5000, restored=90)
    judged = one(
        scores("off", always, 5000), other, scores("off-again", always, 5000, token=lambda doc: doc)
    )
    assert judged.lower > -0.01 and judged.verdict == "fail"


def test_suspects_are_ordered_by_what_they_lost() -> None:
    other = scores(
        "hit", lambda doc: not (doc % 3 == 1 or (doc % 3 == 2 and doc < 150)), restored=90
    )
    assert one(COLD, other, AGAIN).suspects == ["recurrent", "window"]


def test_too_few_questions_are_unknown_and_the_number_that_decides_is_told() -> None:
    cold = scores("off", always, 200)
    again = scores("off-again", always, 200, token=lambda doc: doc)
    judged = one(cold, scores("hit", always, 200, restored=90), again)
    assert judged.verdict == "unknown" and exit_code([judged]) == 2
    # z² / (n + z²) < 0.01 from n = 268 on; steps of one in a hundred overshoot by at most that.
    assert 268 <= judged.needed <= 271


def test_holm_spares_an_arm_that_is_significant_on_its_own_only() -> None:
    """Six losses of six are p = 1/64, of an error rate of 0.6 alpha: alone a failure, among
    three arms open.
    """
    six = scores("hit", lambda doc: doc >= 6, restored=90)
    assert one(COLD, six, NOISY).verdict == "fail"
    even = [(scores(f"hit{i}", always, restored=90), "restored") for i in (1, 2)]
    judged = judge(COLD, [(six, "restored"), *even], NOISY, Rules())  # type: ignore[list-item]
    assert judged[0].verdict == "unknown" and judged[0].p_adjusted == pytest.approx(3 / 64 / 0.6)


def test_what_the_second_cold_run_loses_too_is_not_held_against_an_arm() -> None:
    """Of twelve that the arm loses, the repetition loses ten; of the same twelve, lost by the
    arm alone, nothing is left.
    """
    arm = scores("hit", lambda doc: doc >= 12, 2000, restored=90)
    cold = scores("off", always, 2000)
    again = scores("off-again", lambda doc: doc >= 10, 2000)
    judged = one(cold, arm, again)
    assert (judged.lost, judged.alone, judged.again) == (12, 2, 0)


def test_questions_of_a_tenant_are_one_prefix_and_those_of_none_are_independent() -> None:
    cold = scores("off", always)
    other = scores("hit", lambda doc: doc >= 3, restored=90)
    shared = [
        msgspec.structs.replace(
            each,
            rows=tuple(msgspec.structs.replace(row, tenant=f"t{row.doc % 4}") for row in each.rows),
        )
        for each in (cold, other)
    ]
    judged = one(*shared)
    assert (judged.prefixes, one(cold, other).prefixes) == (4, 0)
    found = counted(pair_up(*shared), None)
    assert [tally.lost for tally in found.prefixes] == [1, 1, 1, 0] and found.whole.lost == 3


def test_an_arm_that_checked_nothing_costs_the_others_no_power() -> None:
    six = scores("hit", lambda doc: doc >= 6, restored=90)
    idle = scores("tier", always)
    judged = judge(COLD, [(six, "restored"), (idle, "tier")], NOISY, Rules())
    assert [arm.verdict for arm in judged] == ["fail", "nothing checked"] and exit_code(judged) == 1


def test_exit_codes_follow_the_worst_arm_and_no_arm_is_nothing_checked() -> None:
    assert exit_code([]) == 5


UNPAIRED = {
    "missing": (
        lambda rows: rows[:-1],
        "arm hit: question 4 (strict-match) of arm off is not there",
    ),
    "added": (
        lambda rows: [*rows, msgspec.structs.replace(rows[0], doc=9)],
        "arm off: question 9 (strict-match) of arm hit",
    ),
    "other prompt": (
        lambda rows: [msgspec.structs.replace(rows[0], prompt_hash="x"), *rows[1:]],
        "arm hit: question 0 was asked with another prompt than in arm off (hash x, not h0)",
    ),
    "twice": (
        lambda rows: [*rows, rows[0]],
        "arm hit: question 0 (strict-match) was answered twice",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNPAIRED.values(), ids=UNPAIRED.keys())
def test_questions_without_a_counterpart_are_refused_in_one_line(
    change: Callable[[Sequence[Scored]], list[Scored]], message: str
) -> None:
    cold = scores("off", always, 5)
    other = scores("hit", always, 5)
    with pytest.raises(Unpaired) as refused:
        pair_up(cold, msgspec.structs.replace(other, rows=tuple(change(other.rows))))
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_questions_without_groups_name_no_suspect() -> None:
    cold = scores("off", always, 5)
    bare = msgspec.structs.replace(
        cold, rows=tuple(msgspec.structs.replace(row, group="") for row in cold.rows)
    )
    assert group_scores(pair_up(bare, bare)) == []


def test_a_listed_arm_does_not_fail_a_score_and_another_anomaly_does() -> None:
    """An arm is excused by its id and by every way in which it failed; a stale strict list is a
    mistake of its own.
    """
    lost = one(COLD, scores("hit", lambda doc: doc % 10 > 0, restored=90), NOISY)
    assert (lost.verdict, lost.anomalies) == ("fail", ["lost-answers"])
    outcome = Outcome(
        noise=Noise(), judged=[lost], scores={}, versions={}, salts={}, reused=0, seconds={}
    )

    def weighed(anomaly: str, *, strict: bool = False) -> Outcome:
        entries = [Entry(pattern="score:hit@*", anomaly=anomaly, reason="our issue 17")]
        return with_expectations(outcome, "problems", Expectations(entries, strict=strict))

    assert (weighed("lost-answers").exit_code, weighed("lost-answers").judged[0].expected) == (
        0,
        "our issue 17",
    )
    assert (weighed("changed-answer").exit_code, weighed("changed-answer").judged[0].expected) == (
        1,
        "",
    )
    kept = msgspec.structs.replace(
        outcome, judged=[msgspec.structs.replace(lost, verdict="pass", anomalies=[])]
    )
    assert with_expectations(kept, "problems", Expectations([], strict=True)).exit_code == 0
    stale = Expectations(
        [Entry(pattern="score:hit@*", anomaly="lost-answers", reason="our issue 17")], strict=True
    )
    assert with_expectations(kept, "problems", stale).exit_code == 4


def test_nothing_passes_beside_cold_runs_that_are_damaged_themselves() -> None:
    """A worker that copies no state damages cold requests too: of 400 questions 62 scores
    changed between two cold runs.
    """
    cold = scores("off", lambda doc: doc % 3 == 0, 400)
    again = scores("off-again", lambda doc: (doc % 3 == 0) != (doc < 62), 400)
    cached = scores("hit", lambda doc: doc % 3 == 0 or doc % 11 == 1, 400, restored=90)
    judged = one(cold, cached, again, tokens="reported", margin=0.05)
    assert judged.verdict == "unknown"
    assert "62 of 400 scores" in judged.reasons[0]
    steady = scores("off-again", lambda doc: (doc % 3 == 0) != (doc < 12), 400)
    assert one(cold, cached, steady, tokens="reported", margin=0.05).verdict == "pass"
