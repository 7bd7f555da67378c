"""One mutant in a fork: what of a pool is run on it, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.mutation.forked import Forked, Say, end_after, forked
from benchmarks.mutation.mutants import Mutant, code_of
from benchmarks.mutation.plant import Planted
from benchmarks.mutation.source import Place

SPARE, TIMES = 1.5, 4
"""A case or a test may take so many CPU seconds, and so many times what it takes on the engine as
it is, before the mutant counts as hung."""
NOT_REPLACED, AT_STATEMENT = "not replaced", "reached"
"""What a fork says of its mutant: its code cannot be put there; its statement was reached."""


class Known(Protocol):
    """What is known of a case or a test on the engine as it is: its CPU seconds, and the functions
    that it enters.
    """

    @property
    def seconds(self) -> float:
        """CPU seconds."""

    @property
    def places(self) -> frozenset[Place]:
        """Where these functions stand."""


Run = TypeVar("Run")
OnClean = TypeVar("OnClean", bound=Known)


def chosen(
    pool: Sequence[tuple[Run, OnClean]], mutant: Mutant, budget: float
) -> tuple[list[tuple[Run, OnClean]], float, int]:
    """Return what enters the function of a mutant, the first of it until `budget` CPU seconds are
    spent on the engine as it is; these seconds, and how much enters it in all.
    """
    entering = [one for one in pool if mutant.place in one[1].places]
    spent = 0.0
    taken: list[tuple[Run, OnClean]] = []
    for one in entering:
        if spent >= budget:
            break
        taken.append(one)
        spent += one[1].seconds
    return taken, spent, len(entering)


def tried(
    mutant: Mutant, planted: Planted, folder: Path, seconds: float, work: Callable[[Say], None]
) -> Forked:
    """Do some work on a mutant in a fork. `seconds`: what the work takes on the engine as it is."""
    code = code_of(mutant, folder)

    def run(say: Say) -> None:
        reached: list[bool] = []

        def reach() -> None:
            if not reached:
                reached.append(True)
                say(AT_STATEMENT)

        if planted.replace(mutant.place, code, reach):
            work(say)
        else:
            say(NOT_REPLACED)

    return forked(run, SPARE + TIMES * seconds)


def end_late(seconds: float) -> None:
    """End this fork if what comes next takes too long, which takes so many CPU seconds on the
    engine as it is.
    """
    end_after(SPARE + TIMES * seconds)
