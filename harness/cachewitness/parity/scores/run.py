"""Runs the arms of a comparison, one after the other or side by side, and judges them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from cachewitness import __version__
from cachewitness.core.result import EXIT_FAIL, EXIT_USAGE
from cachewitness.parity.scores.answer_store import AnswerStore
from cachewitness.parity.scores.arm_run import ArmRun, Questions, run_arm
from cachewitness.parity.scores.arms import AGAIN, OFF, Arm, cold_of, is_cold
from cachewitness.parity.scores.asking import Asking
from cachewitness.parity.scores.gate import (
    Compared,
    Judged,
    Noise,
    Rules,
    exit_code,
    judge,
    noise_floor,
)
from cachewitness.parity.scores.pairs import Scores
from cachewitness.parity.scores.side_by_side import side_by_side

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
    """Runs the arms. `model` makes lm-eval's model for an arm; with `jobs` over 1, arms run in
    so many processes at a time.
    """

    def __init__(
        self,
        asked: Questions,
        *,
        listener: Listener,
        model: Callable[[Asking], Any] | None = None,
        jobs: int = 1,
    ) -> None:
        self._asked = asked
        self._listener = listener
        self._model = model
        self._jobs = jobs

    def run(self, arms: Sequence[Arm], rules: Rules) -> Outcome:
        """Run every arm and judge those that are compared.

        Raises BackendError if the engine does not answer (what was answered is kept), Unpaired if
        two arms cannot be compared.
        """
        runs: dict[str, ArmRun] = {}
        with self._starting(arms) as run:
            for arm in arms:
                if arm.name not in (OFF, AGAIN) and not set(runs) - {OFF, AGAIN}:
                    again = runs.get(AGAIN)
                    self._listener.measured(runs[OFF].scores, again.scores if again else None)
                runs[arm.name] = run(arm)
        scores = {name: one.scores for name, one in runs.items()}
        others = [_compared(arm, scores) for arm in arms if not is_cold(arm.name)]
        return Outcome(
            noise=noise_floor(scores[OFF], scores.get(AGAIN), rules),
            judged=judge(others, rules),
            scores=scores,
            versions=installed()
            | {key: value for one in runs.values() for key, value in one.versions.items()},
            salts={name: one.salts for name, one in runs.items()},
            reused=sum(one.reused for one in runs.values()),
            seconds={name: one.seconds for name, one in runs.items()},
        )

    @contextmanager
    def _starting(self, arms: Sequence[Arm]) -> Iterator[Callable[[Arm], ArmRun]]:
        """Yield what runs an arm, here or in a process that began with it before it was asked
        for.
        """
        if self._jobs == 1:
            yield self._here
            return
        kept = {arm.name: AnswerStore(self._asked.folder, arm.name).reused for arm in arms}
        with side_by_side(arms, self._asked, self._jobs) as runs:
            yield lambda arm: self._elsewhere(arm, kept[arm.name], runs[arm.name])

    def _here(self, arm: Arm) -> ArmRun:
        total = len(self._asked.task.asked)

        def begins(reused: int) -> None:
            self._listener.begins(arm.name, total, reused)

        return run_arm(arm, self._asked, self._model, begins, self._listener.answered)

    def _elsewhere(self, arm: Arm, kept: int, result: Callable[[], ArmRun]) -> ArmRun:
        total = len(self._asked.task.asked)
        self._listener.begins(arm.name, total, kept)
        ran = result()
        self._listener.answered(total - kept)
        return ran


def _compared(arm: Arm, scores: Mapping[str, Scores]) -> Compared:
    cold, again = cold_of(arm.name)
    return Compared(scores[arm.name], arm.need, scores[cold], scores.get(again))


def installed() -> dict[str, str]:
    """Return the versions of the packages that answers may depend on."""
    found = {"cachewitness": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
