"""Arms in processes of their own, since one arm keeps one core busy.

Each process keeps the answers of its arm as they come, in the file that a run in one process would
write; so a run that is cut short goes on from there, whichever way it is repeated.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial

from cachewitness._util.workers import cores, workers
from cachewitness.engines.answers import BackendError
from cachewitness.parity.scores.arm_run import ArmRun, Questions, run_arm
from cachewitness.parity.scores.arms import Arm

WORTH = 100
"""So many questions take longer than it takes to start a process."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def jobs_for(asked: Questions, arms: Sequence[Arm], wanted: int | None) -> int:
    """Return how many arms to run at a time: as many as wanted, or as there are cores if that is
    worth the start.

    1 where the engine cannot be opened in another process.
    """
    try:
        pickle.dumps(asked)
    except (pickle.PicklingError, AttributeError, TypeError):
        return 1
    if wanted is None:
        wanted = cores()
        if len(asked.task.asked) < WORTH or asked.opening.device != "cpu":
            return 1
    return min(wanted, len(arms))


@contextmanager
def side_by_side(
    arms: Sequence[Arm], asked: Questions, jobs: int
) -> Iterator[Mapping[str, Callable[[], ArmRun]]]:
    """Begin with all arms, `jobs` at a time; yield by arm how to wait for it, which raises
    BackendError if the engine died. A cold run of second turns begins once it is waited for, and
    the arm that asked the first turns is over.
    """
    with workers(jobs, _one_thread, method="spawn") as pool:

        def begun(arm: Arm) -> Callable[[], ArmRun]:
            if arm.turns_of not in ("", arm.name):
                return lambda: _result(arm, pool.submit(run_arm, arm, asked))
            return partial(_result, arm, pool.submit(run_arm, arm, asked))

        yield {arm.name: begun(arm) for arm in arms}


def _one_thread() -> None:
    """Leave the other cores to the other arms; a library reads this when it is imported."""
    for name in _THREADS:
        os.environ.setdefault(name, "1")


def _result(arm: Arm, run: Future[ArmRun]) -> ArmRun:
    try:
        return run.result()
    except BrokenProcessPool:
        raise BackendError(
            f"arm {arm.name}: the engine ended the process that it answered in"
        ) from None
