"""Arms in processes of their own: the same outcome, and an engine that ends its process is one
that did not answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Answer, Ask, Backend, BackendError, Opening
from cachewitness.parity.scores import arms, offline, tasks
from cachewitness.parity.scores.arm_run import ArmRun, Questions, run_arm
from cachewitness.parity.scores.gate import Rules
from cachewitness.parity.scores.run import Outcome, Runner
from cachewitness.parity.scores.side_by_side import WORTH, jobs_for, side_by_side
from suites.support import turns_double
from suites.support.sampled import of_all
from suites.support.stub_backend import Silent, Stub, opener

ARMS = arms.named("off,off-again,hit")


@pytest.fixture(autouse=True)
def _prepared() -> Iterator[None]:
    offline.prepare()
    yield


def sound(opening: Opening) -> Backend:
    return opener(tasks.problems(limit=16), [])(opening)


class Ending(Stub):
    """Ends its process, and says that all is well."""

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        os._exit(0)


def ending(opening: Opening) -> Backend:
    return Ending({}, opening)


def asked(folder: Path, open_backend: object, limit: int = 16, device: str = "cpu") -> Questions:
    folder.mkdir()
    task = tasks.problems(limit=limit)
    opening = Opening(device=device)
    return Questions(task=task, opener=open_backend, folder=folder, opening=opening)  # type: ignore[arg-type]


def test_the_outcome_is_that_of_one_process_and_a_second_run_goes_on_from_what_was_kept(
    tmp_path: Path,
) -> None:
    one = _run(asked(tmp_path / "1", sound), 1)
    questions = asked(tmp_path / "2", sound)
    two = _run(questions, 2)
    assert one.exit_code == two.exit_code and [arm.arm for arm in two.judged] == ["hit"]
    assert msgspec.structs.replace(one, seconds={}) == msgspec.structs.replace(two, seconds={})
    assert two.judged[0].n == 16 and set(two.seconds) == {"off", "off-again", "hit"}
    assert two.reused == 0 and _run(questions, 2).reused == 48


def talking(opening: Opening) -> Backend:
    return turns_double.opener(tasks.problems(limit=16), named=False)(opening)


def test_cold_runs_of_second_turns_wait_for_the_first_ones(tmp_path: Path) -> None:
    """These are answered in another process, and the cold runs ask behind the same answers."""
    outcome = _run(asked(tmp_path / "run", talking), 2, "off,off-again,turns")
    assert [(arm.verdict, arm.restored.reached) for arm in outcome.judged] == [("pass", 16)]
    assert [*outcome.scores][2:] == ["turns", "turns-off", "turns-off-again"]


class Telling(Silent):
    """Also counts the answers that it is told of."""

    count = 0

    def answered(self, count: int) -> None:
        self.count += count


def test_what_was_kept_is_told_before_an_arm_begins(tmp_path: Path) -> None:
    questions = asked(tmp_path / "run", sound)
    heard = Telling()
    run_arm(ARMS[0], questions)
    Runner(questions, listener=heard, jobs=2).run(ARMS, Rules(tokens="declared"))
    assert (
        heard.heard == [("off", 16, 16), ("off-again", 16, 0), "measured", ("hit", 16, 0)]
        and heard.count == 32
    )


def full_disk(opening: Opening) -> Backend:
    raise UsageError("answers-off.jsonl: cannot be written (No space left on device)")


def test_what_a_process_cannot_do_arrives_as_its_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No space left on device"):
        _run(asked(tmp_path / "run", full_disk), 2)


def test_an_engine_that_ends_its_process_did_not_answer(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="arm off: the engine ended the process"):
        _run(asked(tmp_path / "run", ending), 2)


@of_all("the outcome of two processes is looked at above", toy=True)
def test_arms_run_at_once(tmp_path: Path) -> None:
    """Also before anybody waits for them."""
    with side_by_side(ARMS, asked(tmp_path / "run", sound), 2) as runs:
        found: list[ArmRun] = [runs[name]() for name in ("hit", "off", "off-again")]
    assert [len(run.scores.answers) for run in found] == [16, 16, 16]


def test_how_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run, a GPU and an engine that only this process has stay in one process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    few = asked(tmp_path / "few", sound)
    many = asked(tmp_path / "many", sound, limit=WORTH)
    assert [jobs_for(few, ARMS, None), jobs_for(many, ARMS, None)] == [1, 2]
    assert [jobs_for(few, ARMS, 8), jobs_for(many, ARMS, 1)] == [3, 1]
    assert jobs_for(asked(tmp_path / "gpu", sound, WORTH, "cuda"), ARMS, None) == 1
    assert jobs_for(asked(tmp_path / "own", lambda opening: sound(opening)), ARMS, 2) == 1


def _run(questions: Questions, jobs: int, names: str = "") -> Outcome:
    chosen = arms.named(names) if names else ARMS
    return Runner(questions, listener=Silent(), jobs=jobs).run(chosen, Rules(tokens="declared"))
