"""A sound cache passes, each fault of one fails with thirty questions, and what proves nothing
never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

pytestmark = pytest.mark.score
pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import BackendError
from cachewitness.parity.likelihood import document, page
from cachewitness.parity.likelihood.asking import NothingRestored, check_tier, prove
from cachewitness.parity.likelihood.measuring import (
    AGAINST,
    ARMS,
    HIT,
    NOISE,
    TIER,
    Asker,
    Measured,
    Plan,
)
from cachewitness.parity.likelihood.questions import questions
from cachewitness.parity.likelihood.statistics import Pair
from cachewitness.parity.likelihood.verdict import Judged, Rules, control, decide, judge, overall
from cachewitness.parity.scores import tasks
from suites.support.likelihood_double import FAULTS, Double

QUESTIONS = 30


class Quiet:
    """Hears and says nothing."""

    def begins(self, arm: str, requests: int) -> None:
        pass

    def asked(self) -> None:
        pass


def measured(
    double: Double,
    *,
    cold: Double | None = None,
    other: Double | None = None,
    limit: int = QUESTIONS,
    plan: Plan = Plan(),  # noqa: B008  # frozen
    arms: Sequence[str] = ARMS,
) -> Measured:
    server = double.served()
    asked = questions(tasks.problems(limit), server.tokens)
    beside = cold.served("http://cold") if cold else None
    manner = prove(server, beside, asked[0].tokens)
    against = other.served("http://other") if other else None
    asker = Asker(server, beside, against, manner, plan, Quiet())
    return asker.run(asked, [AGAINST] if other else arms)


def judged(double: Double, **how: Any) -> dict[str, Judged]:
    return {arm.arm: arm for arm in judge(measured(double, **how), Rules())}


TIERED = (HIT, TIER)


@pytest.mark.parametrize(
    ("tier", "fault", "expected"),
    [
        ("", "", ("pass", "pass")),
        ("foreign prefix", "", ("pass", "fail")),
        ("stale window", "", ("pass", "fail")),
        ("", "foreign prefix", ("fail", "pass")),
        (None, "", ("pass", "nothing checked")),
    ],
)
def test_a_second_tier_is_judged_by_what_it_brings_back(
    tier: str | None, fault: str, expected: tuple[str, str]
) -> None:
    """A fault of the second tier is the arm's that it feeds, and of the own pools the other's."""
    arms = judged(Double(fault, heeds="salts", tier=tier), arms=TIERED)
    assert (arms[HIT].verdict, arms[TIER].verdict) == expected
    assert arms[TIER].positions == 240
    assert arms[TIER].dropped == ({"restored nothing": 240} if tier is None else {})


@pytest.mark.parametrize(
    ("double", "why"),
    [
        (Double(heeds="salts", forgets=False, tier=""), "the server answers 404; vLLM's"),
        (Double(heeds="cache_prompt", tier=""), "keeps no salts apart"),
    ],
)
def test_a_second_tier_that_nothing_tells_apart_is_refused(double: Double, why: str) -> None:
    server = double.served()
    prompt = [*range(64)]
    with pytest.raises(UsageError, match=why):
        check_tier(server, prove(server, None, prompt))


@pytest.mark.parametrize("heeds", ["cache_prompt", "salts"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_sound_cache_passes(heeds: Any, exact: bool) -> None:
    """Its hits differ from cold by noise, or by nothing at all."""
    arms = judged(Double(heeds=heeds, exact=exact))
    assert {arm.verdict for arm in arms.values()} == {"pass"}, arms
    assert all(arm.counted == arm.positions == QUESTIONS * 8 for arm in arms.values())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("heeds", ["cache_prompt", "salts"])
def test_each_fault_of_a_cache_fails_with_thirty_questions(fault: str, heeds: Any) -> None:
    arms = judged(Double(fault, heeds=heeds))
    assert {arm.verdict for arm in arms.values()} == {"fail"}, arms
    assert all("the cache changes" in arm.reasons[0] for arm in arms.values())


def test_a_cold_server_beside_one_that_cannot_be_asked_cold_will_do() -> None:
    beside = Double(caching=False)
    arms = judged(Double(heeds="nothing"), cold=beside)
    assert arms["hit"].verdict == "nothing checked"  # a hit of it ends in the question
    assert "restored more than the shared prefix" in arms["hit"].reasons[0]
    assert arms["replay"].verdict == "pass"
    assert judged(Double("lost blocks", heeds="nothing"), cold=beside)["replay"].verdict == "fail"
    with pytest.raises(UsageError, match="cannot be asked cold"):
        measured(Double(heeds="nothing"))


def test_a_cache_that_restores_nothing_never_passes() -> None:
    with pytest.raises(NothingRestored, match="restores nothing of"):
        measured(Double(inert=True))


def test_hits_that_cease_after_the_proof_are_nothing_checked() -> None:
    double = Double()
    restore = double._restore
    double._restore = lambda prompt, body: (  # type: ignore[method-assign]
        restore(prompt, body) if len(double.bodies) < 8 else 0
    )
    arms = judged(double)
    assert {arm.verdict for arm in arms.values()} == {"nothing checked"}
    assert "240 of 240 positions restored nothing" in arms["hit"].reasons[0]


def test_a_cold_run_that_was_warm_is_nothing_checked() -> None:
    double = Double()
    restore = double._restore
    warm = [{"prompt": [], "cache_prompt": True}]

    def forget(prompt: list[int], body: dict[str, Any]) -> int:
        return restore(prompt, body if len(double.bodies) < 8 else {**body, **warm[0]})

    double._restore = forget  # type: ignore[method-assign]
    arms = judged(double)
    assert {arm.verdict for arm in arms.values()} == {"nothing checked"}
    assert "they were not cold" in arms["hit"].reasons[0]


@pytest.mark.parametrize("fault", ["", "foreign prefix"])
def test_without_noise_nothing_fails_and_nothing_passes(fault: str) -> None:
    arms = judged(Double(fault), plan=Plan(noise=0))
    assert {arm.verdict for arm in arms.values()} == {"unknown"}
    assert all("the noise was not measured" in arm.reasons[0] for arm in arms.values())


@pytest.mark.parametrize(("margin", "verdict"), [(0.01, "fail"), (5.0, "unknown")])
def test_where_batches_change_nothing_a_hit_may_change_no_more_than_the_margin(
    margin: float, verdict: str
) -> None:
    found = judge(measured(Double("lost blocks", exact=True)), Rules(margin=margin))
    arms = {arm.arm: arm for arm in found}
    assert {arm.verdict for arm in arms.values()} == {verdict}
    assert "cold runs in other batches are equal" in arms["hit"].reasons[0]


@pytest.mark.parametrize(("limit", "why"), [(8, "8 questions; fewer than 16"), (4, "4 prefixes")])
def test_too_little_of_a_sound_cache_never_passes(limit: int, why: str) -> None:
    arms = judged(Double(), limit=limit)
    assert {arm.verdict for arm in arms.values()} == {"unknown"}
    assert any(why in reason for reason in arms["hit"].reasons)


def test_two_servers_are_compared_without_a_word_of_caches() -> None:
    same = judged(Double(), other=Double())[AGAINST]
    assert same.verdict == "pass"
    found = measured(Double(), other=Double(rounded=True))
    whole = document.document("a", "b", found, Rules(), {})
    assert whole.verdict == "fail" and whole.exit_code == 1
    assert "the other server changes" in whole.judged[0].reasons[0]
    drawn = page.of_likelihood(whole).decode()
    assert "cached" not in drawn and "other server" in drawn


def test_the_verdict_of_a_run_is_the_worst_of_its_arms() -> None:
    passed = judged(Double(), limit=16)["hit"]
    failed, unknown, unchecked = (
        msgspec.structs.replace(passed, verdict=verdict)
        for verdict in ("fail", "unknown", "nothing checked")
    )
    assert passed.verdict == overall([passed, passed]) == "pass"
    assert overall([]) == overall([passed, unchecked]) == "nothing checked"
    assert overall([unchecked, unknown, passed]) == "unknown"
    assert overall([unchecked, failed, unknown]) == "fail"


def test_noise_is_asked_at_every_position_but_the_first_alike_often() -> None:
    plan = Plan(positions=8, noise=2)
    places = [position for index in range(28) for position in plan.noisy(index, 8)]
    assert {places.count(position) for position in range(1, 8)} == {8}
    found = measured(Double())
    assert found.arms[NOISE].keys() <= found.arms["hit"].keys()
    assert all(position for _, position in found.arms[NOISE])


def test_the_page_draws_the_noise_the_change_and_the_questions_that_moved() -> None:
    found = measured(Double("foreign prefix"))
    whole = document.document("a server", "", found, Rules(), {})
    drawn = page.of_likelihood(whole).decode()
    assert drawn.count("<svg") == 6 and 'class="band"' in drawn and 'class="moved"' in drawn
    assert "30 of 30 questions moved" in drawn and "20 further questions moved" in drawn
    sound = document.document("a server", "", measured(Double()), Rules(), {})
    drawn = page.of_likelihood(sound).decode()
    assert "No question moved" in drawn and "the cache changed no likelihood beyond" in drawn


def changing(double: Double, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Double:
    """Let a double answer a completion as `change` makes it of the request and the answer."""
    post = double.post

    def answer(path: str, body: dict[str, Any]) -> Any:
        found = post(path, body)
        return found if path == "/tokenize" else change(body, found)

    double.post = answer  # type: ignore[method-assign]
    return double


def steps_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return found["choices"][0]["logprobs"]["content"]


def cached_of(found: dict[str, Any]) -> int:
    return found["usage"]["prompt_tokens_details"]["cached_tokens"]


def same(body: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Answer every prompt alike."""
    for step in steps_of(found):
        step |= {"id": 3, "logprob": -0.5, "top_logprobs": [{"id": 4, "logprob": -1.0}]}
    return found


def test_likelihoods_that_hang_on_no_prompt_never_pass() -> None:
    found = measured(changing(Double(), same))
    moved = control(found)
    assert moved is not None and moved.ratio == 1.0
    for arm in judge(found, Rules()):
        assert arm.verdict == "unknown" and "hardly depends on the prefix" in arm.reasons[-1]


def test_prompts_that_are_all_the_same_never_pass() -> None:
    double = Double()
    post = double.post
    alike = {"tokens": [5] * 100}
    double.post = lambda path, body: (  # type: ignore[method-assign]
        alike if path == "/tokenize" else post(path, body)
    )
    assert {arm.verdict for arm in judge(measured(double), Rules())} <= {
        "unknown",
        "nothing checked",
    }


def test_another_prefix_moves_a_sound_server_by_far_more_than_the_noise() -> None:
    moved = control(measured(Double()))
    assert moved is not None and moved.ratio > 10


def no_logarithm(body: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Give no logarithm to what is answered behind a hit, as not-a-numbers in a block do."""
    if cached_of(found):
        for step in steps_of(found):
            step |= {"logprob": None}
    return found


def test_an_answer_without_a_logarithm_behind_hits_alone_fails() -> None:
    for arm in judge(measured(changing(Double(), no_logarithm)), Rules()):
        assert arm.verdict == "fail" and "behind a hit the server gives" in arm.reasons[0]


def test_an_answer_without_a_logarithm_when_cold_is_refused() -> None:
    def never(body: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        steps_of(found)[0] |= {"logprob": None}
        return found

    with pytest.raises(UsageError, match="no finite logarithm, cold"):
        measured(changing(Double(), never))


def test_counts_beyond_the_prompt_prove_no_hit() -> None:
    def more(body: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        details = found["usage"]["prompt_tokens_details"]
        details["cached_tokens"] = len(body["prompt"]) * (cached_of(found) > 0)
        return found

    arms = judge(measured(changing(Double(), more)), Rules())
    assert {arm.verdict for arm in arms} == {"nothing checked"}
    assert "restored more tokens than they have" in arms[0].reasons[0]


@pytest.mark.parametrize("count", [0, 9])
def test_another_number_of_tokens_than_was_asked_for_is_no_answer(count: int) -> None:
    def many(body: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        found["choices"][0]["logprobs"]["content"] = steps_of(found)[:1] * count
        return found

    with pytest.raises(BackendError, match=f"answers with {count} tokens, 1 were asked for"):
        measured(changing(Double(), many))


@pytest.mark.parametrize(("fault", "verdict"), [("", "unknown"), ("lost blocks", "fail")])
def test_a_server_that_ends_in_between_leaves_what_it_failed(fault: str, verdict: str) -> None:
    """What was asked of the arm `replay` is lost; `hit` was judged, and passes no more."""
    server = Double(fault)

    def ends(body: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        if len(server.bodies) > 700:
            raise BackendError("question 3: gone")
        return found

    found = measured(changing(server, ends))
    arms = {arm.arm: arm for arm in judge(found, Rules())}
    assert found.broken_off == "question 3: gone"
    assert arms["hit"].verdict == verdict, arms["hit"]
    assert overall([*arms.values()]) == verdict
    if verdict == "unknown":
        assert "there were no further answers (question 3: gone)" in arms["hit"].reasons[0]


def decided(changes: list[float]) -> Judged:
    """Judge two questions behind each of eight prefixes, whose cold runs are equal."""
    pairs = [Pair(f"p{i}", change, 0.0, change**2) for i, change in enumerate(changes)] * 2
    bare = Judged(
        arm=HIT,
        verdict="unknown",
        reasons=[],
        questions=len(pairs),
        prefixes=len(changes),
        positions=len(pairs),
        counted=len(pairs),
        dropped={},
    )
    return decide([(bare, pairs)], Rules())[0]


def test_what_lies_below_rounding_fails_no_cache() -> None:
    """Cold runs are equal, and hits differ by a few units of float32's last place: behind every
    prefix, or behind one alone.
    """
    assert decided([2e-6] * 8).verdict == "pass"
    assert decided([*[0.0] * 7, 2e-5]).verdict == "unknown"


def test_where_cold_runs_are_equal_a_change_beyond_the_margin_fails() -> None:
    assert decided([5e-3] * 8).verdict == "unknown"
    assert decided([2e-2] * 8).verdict == "fail"
