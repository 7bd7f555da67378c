"""The arm of turns: a question counts behind the engine's own answer to another one, and only if
the hit reads of that answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.engines.answers import Answer, Ask, BackendError, Opening
from cachewitness.parity.scores import arms, offline, tasks, turns
from cachewitness.parity.scores.arm_run import Questions
from cachewitness.parity.scores.gate import Judged, Rules
from cachewitness.parity.scores.restored import measure, shortfalls
from cachewitness.parity.scores.run import Outcome, Runner
from cachewitness.parity.scores.server import LocalServer
from cachewitness.parity.scores.tasks import Task
from cachewitness.parity.scores.turns import FirstTurn
from suites.support.gsm8k_rows import rows_like_gsm8k
from suites.support.stub_backend import Silent
from suites.support.turns_double import Talker, opener

ASKED = 16
WITH_TURNS = "off,off-again,hit,replay,turns"


@pytest.fixture(autouse=True)
def _prepared() -> Iterator[None]:
    offline.prepare()
    yield


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks.problems(limit=ASKED)


def run(task: Task, folder: Path, names: str = "off,off-again,turns", **how: Any) -> Outcome:
    asked = Questions(task=task, opener=opener(task, **how), folder=folder, opening=Opening())
    return Runner(asked, listener=Silent()).run(arms.named(names), Rules(tokens="declared"))


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {arm.arm: arm.verdict for arm in outcome.judged}


def judged(outcome: Outcome, arm: str = "turns") -> Judged:
    return next(one for one in outcome.judged if one.arm == arm)


@pytest.mark.parametrize(("block", "ended"), [(1, ASKED), (4, 1)])
def test_a_sound_cache_passes_and_its_hits_reach_into_every_answer(
    task: Task, tmp_path: Path, block: int, ended: int
) -> None:
    """To the end of all of them only where a hit ends at any word."""
    outcome = run(task, tmp_path, block=block)
    found = judged(outcome)
    assert (found.verdict, found.right_cold, found.right) == ("pass", ASKED, ASKED)
    assert found.restored.reached == ASKED and ended <= found.restored.ended
    assert (found.restored.ended == ASKED) == (block == 1)
    assert {name: len(one.answers) for name, one in outcome.scores.items()} == dict.fromkeys(
        ("off", "off-again", "turns", "turns-off", "turns-off-again"), ASKED
    )


@pytest.mark.parametrize("fault", ["drafts", "last token"])
def test_what_an_answer_leaves_wrong_is_read_by_its_next_turn_alone(
    task: Task, tmp_path: Path, fault: str
) -> None:
    """The shared prefix and the prompts themselves are cached rightly; each answer is right."""
    outcome = run(task, tmp_path, WITH_TURNS, fault=fault)
    assert verdicts(outcome) == {"hit": "pass", "replay": "pass", "turns": "fail"}
    assert judged(outcome).lost == ASKED and outcome.exit_code == 1
    assert (
        outcome.scores["turns"].answers[0].text == outcome.scores["turns-off"].answers[0].text + "9"
    )


NOT_READ = {
    "prompts alone are kept": ({"keeps_answers": False}, "0 of 16", "keeps nothing of answers"),
    "blocks are longer than answers": ({"block": 256}, "0 of 16", "or blocks longer than these"),
    "all is said to be restored": ({"claims": True}, "0 of 16", "or had the whole question before"),
}


@pytest.mark.parametrize(("how", "count", "why"), NOT_READ.values(), ids=NOT_READ.keys())
@pytest.mark.parametrize("fault", ["", "drafts"])
def test_hits_that_end_elsewhere_have_checked_nothing(
    task: Task, tmp_path: Path, how: dict[str, Any], count: str, why: str, fault: str
) -> None:
    outcome = run(task, tmp_path, fault=fault, **how)
    (reason,) = judged(outcome).reasons
    assert outcome.exit_code == 5 and count in reason and why in reason


def test_a_backend_that_does_not_count_an_answers_tokens_is_not_believed(
    task: Task, tmp_path: Path
) -> None:
    """It needs not name them: a count is enough."""
    assert verdicts(run(task, tmp_path, named=False)) == {"turns": "pass"}
    turn = FirstTurn(prompt_tokens=10, answer_tokens=0, drafted=0)
    assert not turn.reached_by(Answer("0", "", prompt_tokens=20, restored={"": 12}))


@pytest.mark.parametrize(
    ("restored", "reached", "ended"),
    [
        ({"": 100}, False, False),
        ({"": 101}, True, False),
        ({"": 108}, True, False),
        ({"": 109}, True, True),
        ({"": 110}, True, True),
        ({"": 120}, True, True),
        ({"": 121}, False, False),
        ({"": 109, "recurrent": 96}, False, False),
        ({"": 109, "recurrent": 104}, True, False),
        ({}, False, False),
    ],
)
def test_a_hit_counts_from_the_answers_first_token_to_shortly_behind_its_last(
    restored: dict[str, int], reached: bool, ended: bool
) -> None:
    """Prompt of 100 tokens, answer of 10, 20 more; every group has to reach."""
    turn = FirstTurn(prompt_tokens=100, answer_tokens=10, drafted=0)
    answer = Answer("0", "", prompt_tokens=130, restored=restored)
    assert (turn.reached_by(answer), turn.ended_by(answer)) == (reached, ended)


def test_an_answer_that_is_made_into_fewer_tokens_than_were_generated_is_not_judged() -> None:
    turn = FirstTurn(prompt_tokens=9, answer_tokens=12, drafted=0)
    assert not turn.reached_by(Answer("0", "", prompt_tokens=19, restored={"": 18}))
    assert not turn.reached_by(Answer("0", "", prompt_tokens=21, restored={"": 20}))


def test_half_of_the_hits_reach_and_drafts_happened_where_they_must() -> None:
    answers = {doc: Answer(f"{doc}", "", prompt_tokens=30, restored={"": 15}) for doc in range(10)}

    def first(reached: int, drafted: int) -> dict[int, FirstTurn]:
        return {
            doc: FirstTurn(
                prompt_tokens=10 if doc < reached else 15,
                answer_tokens=8,
                drafted=int(doc < drafted),
            )
            for doc in answers
        }

    assert shortfalls(measure(answers, first(5, 0)), "turns") == []
    assert len(shortfalls(measure(answers, first(4, 0)), "turns")) == 1
    assert shortfalls(measure(answers, first(5, 1)), "drafted turns") == []
    assert shortfalls(measure(answers, first(5, 0)), "drafted turns") == [
        "0 of 10 first turns went on with a guessed token"
    ]
    assert len(shortfalls(measure(answers, first(0, 9)), "turns", 0.0)) == 1


def test_a_second_turn_is_the_first_one_with_its_answer_and_the_question() -> None:
    """Examples stand once, and an answer ends with an empty line whether the engine wrote one or
    not.
    """
    shots = "Question: a\nAnswer: b\n\nQuestion: c\nAnswer: d\n\n"
    asks = [Ask(str(i), f"{shots}Question: {i}?\n\nAnswer:") for i in range(3)]
    pairs = turns.paired(asks, [f"{shots}Question: "])
    assert [pairs[str(i)].first.prompt for i in range(3)] == [asks[i].prompt for i in (2, 0, 1)]
    for text, gap in ((" x\n#### 1", "\n\n"), (" x\n", "\n"), (" x\n\n", ""), (" x\n\n\n", "")):
        second = pairs["1"].second(asks[1], Answer("1", text))
        assert second.prompt == f"{asks[0].prompt}{text}{gap}Question: 1?\n\nAnswer:"
        assert second.id == "1"


def test_without_shared_examples_the_last_paragraph_is_asked() -> None:
    asks = [Ask(str(i), f"Question: e{i}\nAnswer: f\n\nQuestion: {i}\nAnswer:") for i in range(2)]
    for shared in ([], ["Question: e"]):
        pairs = turns.paired(asks, shared)
        assert {turn.tail for turn in pairs.values()} == {f"Question: {i}\nAnswer:" for i in (0, 1)}
    alone = turns.paired([Ask("0", "Question: 0\nAnswer:"), Ask("1", "b")], [])
    assert alone["0"].tail == "Question: 0\nAnswer:"


def test_a_question_that_is_alone_behind_its_prefix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="question 0 is the only one behind its prefix"):
        run(tasks.problems(limit=8), tmp_path)


def test_a_run_that_was_cut_short_asks_first_turns_again_of_what_is_missing(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache that the first attempt filled is gone. What was answered is kept, and cold runs
    ask the same texts.
    """
    monkeypatch.setattr("cachewitness.parity.scores.turns.BATCH", 4)
    with pytest.raises(BackendError, match="question 9: the talker has died"):
        run(task, tmp_path, "off,turns", dies_after=8 + 8 + 5)
    opened: list[Talker] = []
    outcome = run(task, tmp_path, "off,turns", opened=opened)
    asked = [int(ask.id) for ask in opened[0].asked]
    assert verdicts(outcome) == {"turns": "pass"} and outcome.reused == ASKED + 8
    assert asked == [doc for start in (8, 12) for doc in [*range(start, start + 4)] * 2]
    again: list[Talker] = []
    assert run(task, tmp_path, "off,turns", opened=again).judged == outcome.judged
    assert again == []


def test_the_cold_runs_of_turns_are_named_by_their_arm_and_repeated_where_the_others_are() -> None:
    assert [arm.name for arm in arms.named("turns,off")] == ["off", "turns", "turns-off"]
    names = [arm.name for arm in arms.named("off,turns-drafts,turns,off-again")]
    assert names == [
        "off",
        "off-again",
        *("turns", "turns-off", "turns-off-again"),
        *("turns-drafts", "turns-drafts-off", "turns-drafts-off-again"),
    ]
    assert [arms.is_cold(name) for name in names[1:5]] == [True, False, True, True]
    assert [arms.is_noise(name) for name in names[:5]] == [False, True, False, False, True]
    with pytest.raises(UsageError, match="no arm is called 'turns-off'"):
        arms.named("off,turns-off")


def test_a_policy_that_keeps_nothing_of_answers_says_so_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = invoke(["score", "--policy", "tensorrt_edge", "--arms", "off,turns-drafts"])
    error = capsys.readouterr().err
    assert code == 4 and "policy tensorrt_edge keeps nothing of answers" in error
    assert "leave `turns-drafts` out" in error


@pytest.mark.parametrize(("fault", "expected"), [("", 0), ("drafts", 1)])
def test_turns_through_a_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    expected: int,
) -> None:
    """gsm8k's form through lm-eval's client: the server says how long an answer is and what it
    restored, and names no tokens.
    """
    monkeypatch.chdir(tmp_path)
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_like_gsm8k(37)))
    talker = Talker(tasks.gsm8k("test.jsonl"), Opening(), fault=fault)
    with LocalServer(talker) as local:
        code = invoke(
            [
                *("score", "--base-url", local.url, "--gsm8k", "test.jsonl", "--bit-exact"),
                *("--arms", "off,off-again,hit,turns", "--json"),
            ]
        )
    whole = json.loads(capsys.readouterr().out)
    found = {arm["arm"]: arm for arm in whole["judged"]}
    assert code == expected and found["hit"]["verdict"] == "pass", whole["judged"]
    assert found["turns"]["restored"]["reached"] == found["turns"]["restored"]["ended"] == 32
    assert found["turns"]["lost"] == 32 * expected
    salts = {ask.salt for ask in talker.asked if "turns" in ask.salt}
    assert len(salts) == 1 + 2 * 32, "second turns share their arm's salt, cold ones nobody's"
