"""Runs the arms of a comparison through lm-eval, one after the other, and judges them.

lm-eval builds the prompts, asks, filters and scores. Its `evaluate` is called rather than `simple_evaluate`, which adds a
survey of the machine that takes seconds for every arm. What is scored comes back as its samples: one row for each question and
filter, with the hash of the prompt, by which rows of two arms are paired.
"""

from __future__ import annotations

import importlib.metadata
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from harness import __version__
from harness.engines.answers import Answer, Backend, Opening
from harness.score.answer_store import AnswerStore
from harness.score.arms import AGAIN, OFF, Arm
from harness.score.asking import Asking
from harness.score.gate import Judged, Noise, Rules, exit_code, judge
from harness.score.offline import quiet
from harness.score.pairs import Scored, Scores
from harness.score.tasks import Task
from harness.verdict.result import EXIT_FAIL, EXIT_USAGE

Open = Callable[[Opening], Backend]
OPENED = ("caching", "tier", "preempt", "drafts", "scarce")
"""What an arm says of how the engine is opened."""
PACKAGES = ("lm_eval", "datasets", "torch", "transformers")


class Listener(Protocol):
    """Who hears how a run goes."""

    def begins(self, arm: str, questions: int, reused: int) -> None:
        """Hear that an arm begins, and how many of its questions an earlier run has answered."""

    def answered(self, count: int) -> None:
        """Hear that so many more were answered."""

    def measured(self, cold: Scores, again: Scores | None) -> None:
        """Hear, once the cold arms are through, what the rest will be compared with."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found. `reused` answers came from an earlier run that was cut short.

    `broken_list` says why the list of expected failures itself fails the run.
    """

    noise: Noise
    judged: list[Judged]
    scores: Mapping[str, Scores]
    versions: Mapping[str, str]
    salts: Mapping[str, Mapping[int, str]]
    reused: int
    seconds: Mapping[str, float]
    broken_list: list[str] = []

    @property
    def exit_code(self) -> int:
        """Return the exit code that the verdicts amount to."""
        code = exit_code(self.judged)
        return EXIT_USAGE if self.broken_list and code != EXIT_FAIL else code


class Runner:
    """What a run needs. `model` makes lm-eval's model for an arm; `nonce` tells the salts from those of any other run."""

    def __init__(
        self,
        task: Task,
        opener: Open,
        folder: Path,
        *,
        opening: Opening,
        listener: Listener,
        model: Callable[[Asking], Any] | None = None,
        nonce: str = "",
    ) -> None:
        self._task = task
        self._opener = opener
        self._folder = folder
        self._opening = opening
        self._listener = listener
        self._model = model or _in_process
        self._nonce = nonce
        self._versions: dict[str, str] = {}
        self._salts: dict[str, Mapping[int, str]] = {}
        self._reused = 0
        self._seconds: dict[str, float] = {}

    def run(self, arms: Sequence[Arm], rules: Rules) -> Outcome:
        """Run every arm and judge those that are compared.

        Raises BackendError if the engine does not answer (what was answered is kept), Unpaired if two arms cannot be compared.
        """
        scores: dict[str, Scores] = {}
        for arm in arms:
            if arm.name not in (OFF, AGAIN) and not set(scores) - {OFF, AGAIN}:
                self._listener.measured(scores[OFF], scores.get(AGAIN))
            scores[arm.name] = self._arm(arm)
        others = [(scores[arm.name], arm.need) for arm in arms if arm.name not in (OFF, AGAIN)]
        noise, judged = judge(scores[OFF], others, scores.get(AGAIN), rules)
        return Outcome(
            noise=noise,
            judged=judged,
            scores=scores,
            versions=installed() | self._versions,
            salts=self._salts,
            reused=self._reused,
            seconds=self._seconds,
        )

    def _arm(self, arm: Arm) -> Scores:
        kept = AnswerStore(self._folder, arm.name)
        opening = msgspec.structs.replace(self._opening, **{key: getattr(arm, key) for key in OPENED})
        asking = Asking(arm, kept, lambda: self._opener(opening), nonce=self._nonce, tell=self._listener.answered)
        self._listener.begins(arm.name, len(self._task.asked), kept.reused)
        started = time.monotonic()
        try:
            samples = _evaluate(self._task, self._model(asking), self._opening.seed)
        finally:
            asking.close()
        self._seconds[arm.name] = time.monotonic() - started
        self._versions |= kept.versions
        self._reused += kept.reused
        answers = {doc: asking.answer(asking.ask(doc, *arguments)) for doc, arguments in _arguments(samples)}
        self._salts[arm.name] = {int(line.answer.id): line.salt for line in kept.lines.values() if line.answer}
        return scores_of(arm.name, samples, answers)


def installed() -> dict[str, str]:
    """Return the versions of the packages that answers may depend on."""
    found = {"cachewitness": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def scores_of(arm: str, samples: Sequence[Mapping[str, Any]], answers: Mapping[int, Answer]) -> Scores:
    """Return lm-eval's samples of an arm as scores."""
    rows = tuple(
        Scored(
            doc=int(sample["doc_id"]),
            filter=str(sample["filter"]),
            prompt_hash=str(sample["prompt_hash"]),
            correct=bool(sample["exact_match"]),
            extracted=str(sample["filtered_resps"][0]),
            target=str(sample["target"]),
            **{key: sample["doc"][key] for key in ("question", "group", "family", "tenant", "row")},
        )
        for sample in samples
    )
    return Scores(arm=arm, rows=rows, answers=answers)


def _in_process(asking: Asking) -> Any:
    from harness.score.lm import BackendLM

    return BackendLM(asking)


def _evaluate(task: Task, model: Any, seed: int) -> list[Mapping[str, Any]]:
    with quiet():
        from lm_eval import evaluator
        from lm_eval.tasks import TaskManager

        random.seed(seed)
        loaded = TaskManager(include_defaults=False).load([task.config()])
        for each in loaded["tasks"].values():
            each.set_fewshot_seed(seed=seed)
        result = evaluator.evaluate(lm=model, task_dict=loaded, limit=task.limit or None, bootstrap_iters=0, log_samples=True)
    (samples,) = result["samples"].values()
    return list(samples)


def _arguments(samples: Sequence[Mapping[str, Any]]) -> list[tuple[int, tuple[str, Mapping[str, Any]]]]:
    """Return each question's arguments once, although its sample comes once for each filter."""
    return list({int(sample["doc_id"]): sample["arguments"][0] for sample in samples}.items())
