"""The exhaustive search: every state of every configuration within a bound, on two processes.

A task is a configuration, a level and the first prompt; what a task finds does not depend on the
others, so the result is the same however many processes share the work: the first failure in the
order of tasks. Where a search is interrupted before that is known, a failure that was found is told
all the same.

States must be comparable, which `fingerprint` defines for the reference of `vllm` alone: another
engine of that policy has the reference beside it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from cachewitness._util.errors import EngineBroken, UsageError
from cachewitness._util.names import nearest
from cachewitness._util.worker_pool import WorkerDied, WorkerPool
from cachewitness._util.workers import context
from cachewitness.core.trace_format import Level, Submit
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.summary import Failure, NotRun
from cachewitness.sessions.fuzz.explore import Found, Watched, explore
from cachewitness.sessions.fuzz.scope import CONFIGURATIONS, Bound, Scope
from cachewitness.sessions.run.minimize import shrink
from cachewitness.workloads.configurations import Configuration

POLICY = "vllm"
PROCESSES = 2
LEVELS: tuple[Level, ...] = ("manager", "scheduler")
ASKED = {
    "manager": ("preempt", "reset", "withdraw"),
    "scheduler": ("abort", "preempt", "reset", "withdraw"),
}
"""What a search asks for that an engine need not be able to do."""
UNREAD = ("tier_delay",)
"""Options whose state the fingerprint does not read."""
TELL_S = 1.0
"""Seconds between two words on how far a search is."""
Progress = Callable[[int, int, bool], None]


@dataclass
class Covered:
    """What came of one configuration at one level. `complete`: every state was seen and
    everything tried in it.
    """

    scope: Scope
    states: set[bytes] = field(default_factory=set)
    transitions: int = 0
    operations: int = 0
    hits: int = 0
    depth: int = 0
    complete: bool = True

    def add(self, found: Found) -> None:
        """Add what one task found."""
        self.states |= found.states
        self.transitions += found.transitions
        self.operations += found.operations
        self.hits += found.hits
        self.depth = max(self.depth, found.depth)
        self.complete &= found.complete


@dataclass
class Coverage:
    """What came of a search: what was covered, and the first failure if there is one."""

    bound: Bound
    covered: list[Covered]
    failure: Failure | None = None
    interrupted: bool = False
    crashed: str = ""
    """Why nothing can be said of the rest: a checker crashed, or a task ended the process that
    carried it out."""
    stopped: str = ""
    """Why the search could not go on behind a failure."""
    seconds: float = 0.0
    not_run: list[NotRun] = field(default_factory=list)
    """What the engine cannot be asked, and what was left out, and why."""
    left_out: int = 0
    """How many configurations were left out, since searching them takes longer."""

    @property
    def complete(self) -> bool:
        """Whether nothing within the bound was left out."""
        whole = not (self.failure or self.interrupted or self.crashed)
        return whole and all(one.complete for one in self.covered)

    @property
    def hits(self) -> int:
        """How many look-ups of the engine hit something."""
        return sum(one.hits for one in self.covered)


BOUND_MAX = 64
"""A search within a wider bound would not end."""


def bound_of(text: str) -> Bound:
    """Read `requests=2,blocks=3,pages=7`; what is not named stays as it is by default.

    Raises UsageError for anything else.
    """
    given: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in Bound.__dataclass_fields__:
            raise UsageError(
                "--bound: there is no bound"
                f" {name!r}{nearest(name, list(Bound.__dataclass_fields__))}"
            )
        least = 2 if name == "pages" else 1
        digits = value.isascii() and value.isdigit() and len(value) < 5
        if not equals or not digits or not least <= int(value) <= BOUND_MAX:
            raise UsageError(
                f"--bound: {part!r} is not of the form {name}=N with a whole number N from {least}"
                f" to {BOUND_MAX}"
            )
        given[name] = int(value)
    return Bound(**given)


def check(
    engine: EngineSpec,
    policy: str,
    configurations: Sequence[Configuration],
    levels: Sequence[Level] = LEVELS,
) -> None:
    """Raise UsageError for what cannot be searched exhaustively, and if the engine refuses every
    one of the configurations.
    """
    if policy != POLICY or not engine.kind.follows(POLICY) or "manager" not in engine.kind.levels:
        raise UsageError(
            f"--exhaustive: states are those of the reference of {POLICY}, not of"
            f" {engine.kind.name}, {policy}"
        )
    offered = [level for level in levels if level in engine.kind.levels]
    if not offered:
        raise UsageError(f"--level: {engine.kind.name} has no {' or '.join(levels)} level")
    for configuration in configurations:
        for name in UNREAD:
            if configuration.options.get(name):
                raise UsageError(
                    f"--exhaustive: option {name!r} is not searched exhaustively; fuzz without"
                    " --exhaustive"
                )
        if not any(map(configuration.runs_at, offered)):
            raise UsageError(
                f"--exhaustive: the options of {configuration.name} mean nothing at"
                f" {' or '.join(offered)} level"
            )
    taken, not_run = _asked(
        engine, [Scope(one, next(filter(one.runs_at, offered)), Bound()) for one in configurations]
    )
    if configurations and not taken:
        raise UsageError(not_run[0].why)


def _asked(engine: EngineSpec, scopes: Sequence[Scope]) -> tuple[list[Scope], list[NotRun]]:
    """Return the scopes that the engine takes, and what is not run: scopes that it refuses, and
    what it cannot be asked.
    """
    taken = []
    not_run = Counter[tuple[str, str]]()
    for scope in scopes:
        try:
            opened = engine.open(scope.header())
        except EngineBroken:
            raise
        except UsageError as error:
            not_run[f"configuration {scope.name}", str(error)] += 1
            continue
        header = opened.describe()
        Watched(opened).close()
        taken.append(scope)
        for name in ASKED[scope.level]:
            if name not in header.capabilities:
                not_run[name, header.not_applicable.get(name, "the engine cannot")] += 1
    return taken, [NotRun(what, why, count) for (what, why), count in not_run.items()]


def search(
    engine: EngineSpec,
    bound: Bound,
    configurations: Sequence[Configuration] = CONFIGURATIONS,
    levels: Sequence[Level] = LEVELS,
    *,
    full: bool = True,
    seconds: float = 0.0,
    on_progress: Progress | None = None,
    on_died: Callable[[str], None] | None = None,
    processes: int = PROCESSES,
) -> Coverage:
    """Search every configuration at every level, for so many seconds at most (0: until all is
    seen).

    Without `full` only those that take a minute or two in all; the others are listed as not run.
    `on_progress` is called with how many tasks are done, how many states they had, and whether a
    failure is known; `on_died` of each process that was replaced.
    """
    started = time.monotonic()
    deadline = started + seconds if seconds else 0.0
    offered = [level for level in levels if level in engine.kind.levels]
    scopes = [
        Scope(one, level, bound)
        for one in configurations
        for level in offered
        if one.runs_at(level)
    ]
    left_out = [
        NotRun(scope.name, "it takes longer; --full searches it")
        for scope in scopes
        if not (full or scope.quick)
    ]
    scopes, not_run = _asked(engine, [scope for scope in scopes if full or scope.quick])
    coverage = Coverage(
        bound,
        [Covered(scope) for scope in scopes],
        not_run=not_run + left_out,
        left_out=len(left_out),
    )
    left = Counter({id(covered): len(list(covered.scope.first())) for covered in coverage.covered})
    tasks = _Tasks(engine, coverage, deadline)
    try:
        with WorkerPool(processes, tasks.carry_out, on_died) as pool:
            _search(pool, tasks, coverage, left, on_progress)
        if coverage.failure:
            shrink(coverage.failure, engine, "rules")
    # What was searched until then stands in every case: a failure that is known is reported,
    # however the search ended.
    except KeyboardInterrupt:
        coverage.interrupted = True
    except WorkerDied as died:
        coverage.crashed = str(died)
    except UsageError as error:
        if coverage.failure is None:
            raise
        coverage.stopped = str(error)
    for covered in coverage.covered:
        covered.complete &= not left[id(covered)]
    coverage.seconds = time.monotonic() - started
    return coverage


class _Task(NamedTuple):
    number: int
    covered: Covered
    first: Submit


class _Tasks:
    """Carries out tasks, in whichever process. Those behind one that is known to fail stop: they
    change nothing any more.
    """

    def __init__(self, engine: EngineSpec, coverage: Coverage, deadline: float) -> None:
        pairs = [
            (covered, first) for covered in coverage.covered for first in covered.scope.first()
        ]
        self.all = [_Task(number, *pair) for number, pair in enumerate(pairs)]
        self._engine = engine
        self._deadline = deadline
        self._failed: Any = context().Array(
            "b", len(pairs), lock=False
        )  # whoever dies holds no lock
        """Whether each of them is known to fail."""

    @property
    def failing(self) -> bool:
        """Whether some task failed."""
        return any(self._failed)

    def carry_out(self, number: int) -> Found:
        """Carry out a task, until time is up or one before it is known to fail."""
        _, covered, first = self.all[number]
        found = explore(self._engine, covered.scope, (first,), stop=partial(self._stop, number))
        if found.failure:
            self._failed[number] = 1
        return found

    def _stop(self, number: int) -> bool:
        return bool(self._deadline and time.monotonic() > self._deadline) or any(
            self._failed[:number]
        )


def _search(
    pool: WorkerPool[int, Found],
    tasks: _Tasks,
    coverage: Coverage,
    left: Counter[int],
    on_progress: Progress | None,
) -> None:
    """Carry out all tasks, or until one finds a failure; `left` counts those that were not.

    Where it is interrupted, or cannot go on, the first failure counts that was found by then.
    """
    try:
        for number, task in pool.in_order(range(len(tasks.all))):
            while not task.wait(TELL_S):
                _report_progress(on_progress, coverage, number, tasks)
            found = task.result()
            covered = tasks.all[number].covered
            covered.add(found)
            left[id(covered)] -= 1
            _report_progress(on_progress, coverage, number + 1, tasks)
            if found.crashed:
                coverage.crashed = f"{covered.scope.name}: {found.crashed}"
            if found.failure or found.crashed:
                coverage.failure = _failed(covered, found)
                return
    except (KeyboardInterrupt, UsageError, WorkerDied):
        failed = [
            (tasks.all[number].covered, found) for number, found in pool.finished() if found.failure
        ]
        coverage.failure = _failed(*failed[0]) if failed else None
        raise


def _report_progress(
    on_progress: Progress | None, coverage: Coverage, done: int, tasks: _Tasks
) -> None:
    if on_progress:
        on_progress(done, sum(len(one.states) for one in coverage.covered), tasks.failing)


def _failed(covered: Covered, found: Found) -> Failure | None:
    if found.failure is None:
        return None
    trace, finding = found.failure
    name = f"exhaustive:{covered.scope.level}@{covered.scope.configuration.name}"
    return Failure.of(name, trace, finding)
