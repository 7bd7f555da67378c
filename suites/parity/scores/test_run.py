"""Arms run through lm-eval: scored as gsm8k is, paired, judged; what was scored outlives a
backend that dies.
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
from cachewitness.engines.answers import BackendError, Opening
from cachewitness.parity.scores import arms, offline, tasks
from cachewitness.parity.scores.answer_store import AnswerStore, folder_of, prompt_hash
from cachewitness.parity.scores.arm_run import Questions
from cachewitness.parity.scores.gate import Rules
from cachewitness.parity.scores.run import Outcome, Runner
from cachewitness.parity.scores.tasks import Task
from suites.support.stub_backend import Silent, Stub, opener, wrong_in


@pytest.fixture(autouse=True)
def _prepared() -> Iterator[None]:
    offline.prepare()
    yield


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks.problems(limit=48)


def run(
    task: Task, folder: Path, names: str = "off,off-again,miss,hit,replay", **faults: Any
) -> Outcome:
    opened: list[Stub] = faults.pop("opened", [])
    listener = faults.pop("listener", Silent())
    asked = Questions(
        task=task, opener=opener(task, opened, **faults), folder=folder, opening=Opening()
    )
    return Runner(asked, listener=listener).run(arms.named(names), Rules(tokens="declared"))


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {arm.arm: arm.verdict for arm in outcome.judged}


def test_a_sound_cache_passes_in_every_arm(task: Task, tmp_path: Path) -> None:
    outcome = run(task, tmp_path, "off,off-again,miss,hit,replay,tier,preempted")
    assert verdicts(outcome) == dict.fromkeys(
        ("miss", "hit", "replay", "tier", "preempted"), "pass"
    )
    assert outcome.exit_code == 0 and (outcome.noise.tokens, outcome.noise.n) == (0, 48)
    hit = {arm.arm: arm for arm in outcome.judged}["hit"]
    assert hit.right_cold == hit.right == 48
    assert hit.restored.least > 0 and set(hit.restored.groups) == {"full", "recurrent", "window"}
    assert outcome.versions["engine"] == "stub 1" and "lm_eval" in outcome.versions


@pytest.mark.parametrize("group", ["full", "recurrent", "window"])
def test_a_cache_that_spoils_one_group_fails_and_is_named(
    task: Task, tmp_path: Path, group: str
) -> None:
    outcome = run(task, tmp_path, wrong=wrong_in(task, group))
    found = {arm.arm: arm for arm in outcome.judged}
    assert (found["hit"].verdict, found["hit"].suspects) == ("fail", [group])
    assert found["miss"].verdict == "pass" and outcome.exit_code == 1


def test_a_model_that_knows_nothing_is_no_pass(task: Task, tmp_path: Path) -> None:
    outcome = run(task, tmp_path, wrong=lambda ask, restored: True)
    assert outcome.exit_code == 5 and "too weak" in outcome.judged[0].reasons[0]


def test_a_backend_that_dies_leaves_what_it_answered_and_the_next_run_goes_on(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are kept batch by batch; the second run opens nothing for arms that are
    complete.
    """
    monkeypatch.setattr("cachewitness.parity.scores.asking.BATCH", 8)
    names = "off,hit"
    with pytest.raises(BackendError, match="question 16: the stub has died"):
        run(task, tmp_path, names, dies_after=16)
    opened: list[Stub] = []
    listener = Silent()
    outcome = run(task, tmp_path, names, opened=opened, listener=listener)
    assert listener.heard[0] == ("off", 48, 16) and outcome.reused == 16
    assert [ask for ask in opened[0].asked if ask != "closed"] == [
        str(doc) for doc in range(16, 48)
    ]
    again: list[Stub] = []
    assert run(task, tmp_path, names, opened=again).judged == outcome.judged and again == []


def test_every_backend_is_closed_also_one_that_died(task: Task, tmp_path: Path) -> None:
    opened: list[Stub] = []
    with pytest.raises(BackendError):
        run(task, tmp_path, "off,hit", opened=opened, dies_after=3)
    assert opened[0].asked[-1] == "closed"


def test_an_engine_that_breaks_is_an_engine_that_did_not_answer(task: Task, tmp_path: Path) -> None:
    def breaks(ask: Any, restored: int) -> bool:
        raise KeyError("q3")

    with pytest.raises(BackendError, match="arm off: the engine died: KeyError: 'q3'"):
        run(task, tmp_path, "off,hit", wrong=breaks)


def test_answers_to_other_questions_are_refused(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Stub.answer
    monkeypatch.setattr(Stub, "answer", lambda self, asks: plain(self, asks)[::-1])
    with pytest.raises(BackendError, match="answered other questions than it was asked"):
        run(task, tmp_path, "off,hit")


def test_an_engine_that_does_not_forget_is_no_tier_arm(task: Task, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="arm tier: the engine did not forget"):
        run(task, tmp_path, "off,tier", forgets=False)


def test_an_answer_that_was_cut_short_on_disk_is_asked_again(tmp_path: Path) -> None:
    from cachewitness.engines.answers import Answer, Ask

    kept = AnswerStore(tmp_path, "off")
    for name in ("0", "1"):
        kept.keep(Ask(name, "prompt"), Answer(name, "text"))
    content = kept.path.read_bytes()
    kept.path.write_bytes(content[:-10])
    again = AnswerStore(tmp_path, "off")
    assert (
        again.reused == 1
        and again.answer_to(Ask("0", "prompt"))
        and not again.answer_to(Ask("1", "prompt"))
    )
    again.keep(Ask("1", "prompt"), Answer("1", "text"))
    assert AnswerStore(tmp_path, "off").reused == 2


def test_an_answer_to_another_prompt_is_not_reused(tmp_path: Path) -> None:
    from cachewitness.engines.answers import Answer, Ask

    AnswerStore(tmp_path, "off").keep(Ask("0", "prompt"), Answer("0", "text"))
    assert AnswerStore(tmp_path, "off").answer_to(Ask("0", "another prompt")) is None


def test_a_finished_run_begins_anew_and_an_unfinished_one_goes_on(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "stub", {"seed": 0})
    (folder / "answers-off.jsonl").write_text("{}\n")
    assert (
        folder_of(tmp_path, "stub", {"seed": 0}) == folder
        and (folder / "answers-off.jsonl").exists()
    )
    assert folder_of(tmp_path, "stub", {"seed": 1}) != folder
    (folder / "report.json").write_text("{}")
    folder_of(tmp_path, "stub", {"seed": 0})
    assert not (folder / "answers-off.jsonl").exists()


def test_prompts_are_hashed_as_lm_eval_hashes_them(task: Task, tmp_path: Path) -> None:
    outcome = run(task, tmp_path, "off,hit")
    doc = task.docs[0]
    row = outcome.scores["off"].rows[0]
    assert row.prompt_hash == prompt_hash(f"{doc.context}Question: {doc.question}\nAnswer:")


def test_a_limit_takes_questions_of_all_tenants_and_groups_alike(task: Task) -> None:
    tenants = [doc.tenant for doc in task.asked]
    assert {tenants.count(name) for name in set(tenants)} == {6} and len(set(tenants)) == 8
    assert {
        [doc.group for doc in task.asked].count(group) for group in ("full", "recurrent", "window")
    } == {16}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


GOOD = [
    {"question": f"What is {i} + 1?", "answer": f"{i} + 1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"}
    for i in range(30)
]


def test_gsm8k_is_asked_behind_its_first_rows_which_are_not_asked(tmp_path: Path) -> None:
    """The prefix is shared, both filters are scored, and what the shipped definition ignores is
    ignored.
    """
    task = tasks.gsm8k(str(write(tmp_path / "rows.jsonl", *GOOD)), shots=3)
    asked: list[str] = []

    def seen(ask: Any, restored: int) -> bool:
        asked.append(ask.prompt)
        return False

    outcome = run(task, tmp_path, "off,hit", wrong=seen)
    shots = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in GOOD[:3])
    assert asked[0] == f"{shots}Question: {GOOD[3]['question']}\nAnswer:"
    scores = outcome.scores["hit"]
    assert [row.row for row in scores.of("strict-match")] == list(range(4, 31))
    assert all(
        row.correct for name in ("strict-match", "flexible-extract") for row in scores.of(name)
    )
    assert {row.filter for row in scores.rows} == {"strict-match", "flexible-extract"}


def test_random_examples_differ_from_question_to_question_and_leave_it_out(tmp_path: Path) -> None:
    task = tasks.gsm8k(
        str(write(tmp_path / "rows.jsonl", *GOOD)), shots=3, random_shots=True, limit=16
    )
    asked: list[str] = []

    def seen(ask: Any, restored: int) -> bool:
        asked.append(ask.prompt)
        return False

    outcome = run(task, tmp_path, "off,off-again,replay", wrong=seen)
    prompts = list(dict.fromkeys(prompt for prompt in asked if prompt.count("Question:") == 4))
    assert len(prompts) == 16 and len({prompt[:60] for prompt in prompts}) > 1
    assert all(
        prompt.count(prompt.rpartition("Question: ")[2].removesuffix("\nAnswer:")) == 1
        for prompt in prompts
    )
    assert verdicts(outcome) == {"replay": "pass"}


def test_with_examples_from_another_file_every_question_is_asked(tmp_path: Path) -> None:
    path = str(write(tmp_path / "rows.jsonl", *GOOD[10:]))
    examples = str(write(tmp_path / "train.jsonl", *GOOD[:10]))
    task = tasks.gsm8k(path, shots=4, shots_from=examples)
    assert [doc.question for doc in task.asked] == [row["question"] for row in GOOD[10:]]
    assert [doc.question for doc in task.shots] == [row["question"] for row in GOOD[:4]]
    assert len(tasks.gsm8k(path, shots=4, shots_from=examples, random_shots=True).shots) == 10
    with pytest.raises(UsageError, match="too few rows"):
        tasks.gsm8k(path, shots=11, shots_from=examples)


def test_from_the_hub_every_test_row_is_asked_behind_training_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "datasets.load_dataset", lambda path, name: {"test": GOOD[10:], "train": GOOD[:10]}
    )
    task = tasks.gsm8k("hub", shots=4)
    assert (len(task.asked), [doc.question for doc in task.shots]) == (
        20,
        [row["question"] for row in GOOD[:4]],
    )


def test_a_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(path: str, name: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(
        UsageError,
        match=r"--gsm8k hub: cannot be had \(ConnectionError: no route\); give a file instead",
    ):
        tasks.gsm8k("hub")


BAD = {
    "no JSON": ("{", ":2: "),
    "a field is missing": ('{"question": "x"}', ":2: Object missing required field `answer`"),
    "a field is no text": (
        '{"question": 1, "answer": "#### 1"}',
        ":2: Expected `str`, got `int` - at `$.question`",
    ),
    "no number to compare": ('{"question": "x", "answer": "1"}', ":2: $.answer"),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_refused_with_file_line_and_field(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD[0]) + "\n" + line + "\n")
    with pytest.raises(UsageError) as refused:
        tasks.gsm8k(str(path), shots=0)
    assert f"{path}{message}" in str(refused.value)


def test_too_few_rows_for_the_examples_are_refused(tmp_path: Path) -> None:
    path = str(write(tmp_path / "rows.jsonl", *GOOD[:5]))
    for random_shots in (False, True):
        with pytest.raises(UsageError, match="too few rows for 5 examples"):
            tasks.gsm8k(path, shots=5, random_shots=random_shots)
    assert len(tasks.gsm8k(path, shots=4).asked) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [("off", "compares nothing"), ("hit", "compares nothing"), ("off,hitt", "'hit'")],
)
def test_arms_that_compare_nothing_are_refused(names: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arms.named(names)


def test_scores_without_lm_eval_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"lm_eval, which is not installed; install cachewitness\[score\]"
    ):
        offline.prepare()
