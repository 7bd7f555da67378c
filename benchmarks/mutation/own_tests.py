"""What an engine's own tests make of mutants: pytest collects once, and each mutant runs, in a fork,
the tests that enter its function.
"""  # noqa: E501

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from benchmarks.mutation.forked import Say, forked
from benchmarks.mutation.kept import Side, append, once, rows
from benchmarks.mutation.mutants import Mutant, code_of
from benchmarks.mutation.plant import Planted, entered
from benchmarks.mutation.source import Place
from benchmarks.vllm_tests import Recorder

BUDGET = 8.0
"""Of the tests that enter a function those are run that are the shortest, until they take so many
CPU seconds on the engine as it is."""
SPARE = 10.0
FILE_SECONDS = 300.0
"""So many CPU seconds the tests of a file may take on the engine as it is."""
TEST_SECONDS = 10.0
"""A test that takes more on the engine as it is, is not run for mutants."""


class CleanTest(msgspec.Struct):
    """A test on the engine as it is: what came of it, its CPU seconds, and which functions it
    enters.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    places: frozenset[Place] = frozenset()


class OwnTests:
    """A plugin of pytest: in place of the tests it runs mutants under them."""

    def __init__(self, mutants: Sequence[Mutant], folder: Path, kept: Path) -> None:
        self._mutants = mutants
        self._folder = folder
        self._kept = kept
        self._failed: list[CleanTest] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            lines = str(report.longrepr).strip().splitlines()
            self._failed.append(CleanTest(report.nodeid, lines[-1][:200] if lines else "failed"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all mutants that were not run yet."""
        known = once(
            self._kept / "theirs-clean.jsonl",
            CleanTest,
            lambda: [*self._failed, *_clean(session.items, self._folder)],
        )
        items = {item.nodeid: item for item in session.items}
        usable = sorted(
            (one for one in known if one.outcome == "passed" and one.seconds <= TEST_SECONDS),
            key=lambda one: one.seconds,
        )
        pool = [(items[one.name], one) for one in usable if one.name in items]
        planted = Planted(self._folder)
        gc.collect()
        gc.freeze()
        done = {side.number for side in rows(self._kept / "theirs.jsonl", Side)}
        for mutant in self._mutants:
            if mutant.number not in done:
                append(self._kept / "theirs.jsonl", _judged(mutant, pool, planted, self._folder))
        return True


def _clean(items: Sequence[pytest.Item], folder: Path) -> Iterator[CleanTest]:
    """Run all tests, each file's twice, in forks: for what comes of them and their seconds, and for
    the functions that they enter.
    """
    for _, group in groupby(items, key=lambda item: item.nodeid.split("::")[0]):
        tests = list(group)
        found = _once(tests, None)
        traced = _once([test for test in tests if _passed(found, test)], folder)
        for test in tests:
            if test.nodeid not in found:
                yield CleanTest(test.nodeid, "its file took too long, or ended the process")
            elif _passed(found, test) and _passed(traced, test):
                places = traced[test.nodeid].places
                yield msgspec.structs.replace(found[test.nodeid], places=places)
            elif _passed(found, test):
                yield CleanTest(test.nodeid, "does not pass always")
            else:
                yield found[test.nodeid]


def _passed(found: dict[str, CleanTest], test: pytest.Item) -> bool:
    return test.nodeid in found and found[test.nodeid].outcome == "passed"


def _once(tests: Sequence[pytest.Item], folder: Path | None) -> dict[str, CleanTest]:
    """Run tests in a fork; with a folder their functions are noted."""

    def work(say: Say) -> None:
        for number, test in enumerate(tests):
            began = time.process_time()
            places = frozenset[Place]()
            if folder:
                with entered(folder) as seen:
                    outcome = run(tests, number)
                places = frozenset(seen)
            else:
                outcome = run(tests, number)
            seconds = time.process_time() - began
            say(msgspec.to_builtins(CleanTest(test.nodeid, outcome, seconds, places)))

    sent = forked(work, FILE_SECONDS).sent
    found = [msgspec.convert(one, CleanTest) for one in sent]
    return {one.name: one for one in found}


def run(tests: Sequence[pytest.Item], number: int) -> str:
    """Run one of some tests that are run in turn, and return what came of it."""
    test = tests[number]
    following = tests[number + 1] if number + 1 < len(tests) else None
    recorder = Recorder()
    test.config.pluginmanager.register(recorder)
    try:
        test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
    finally:
        test.config.pluginmanager.unregister(recorder)
    return recorder.outcomes.get(test.nodeid, "skipped")


def chosen(
    pool: Sequence[tuple[pytest.Item, CleanTest]], mutant: Mutant
) -> tuple[list[pytest.Item], float, int]:
    """Return the tests that a mutant is run under, their seconds on the engine as it is, and how
    many enter its function.
    """
    entering = [one for one in pool if mutant.place in one[1].places]
    spent = 0.0
    taken: list[pytest.Item] = []
    for item, known in entering:
        if spent >= BUDGET:
            break
        taken.append(item)
        spent += known.seconds
    return taken, spent, len(entering)


def _judged(
    mutant: Mutant,
    pool: Sequence[tuple[pytest.Item, CleanTest]],
    planted: Planted,
    folder: Path,
) -> Side:
    tests, spent, entering = chosen(pool, mutant)
    if not tests:
        return Side(mutant.number, "not entered")
    code = code_of(mutant, folder)

    def work(say: Say) -> None:
        reached: list[bool] = []

        def reach() -> None:
            if not reached:
                reached.append(True)
                say("reached")

        if not planted.replace(mutant.place, code, reach):
            say("not replaced")
            return
        for number, test in enumerate(tests):
            outcome = run(tests, number)
            say([test.nodeid, outcome])
            if outcome != "passed":
                return

    ended = forked(work, SPARE + 3 * spent)
    if "not replaced" in ended.sent:
        return Side(mutant.number, "not replaced", entering=entering)
    ran = [one for one in ended.sent if isinstance(one, list)]
    outcome, by = _verdict(ran, ended.ended)
    return Side(
        mutant.number,
        outcome,
        by,
        reached="reached" in ended.sent,
        differs=outcome != "alive",
        ran=len(ran),
        entering=entering,
        seconds=round(ended.seconds, 3),
    )


def _verdict(ran: Sequence[list[str]], ended: str) -> tuple[str, str]:
    """Return what a mutant came to, of its tests with their outcomes, and what says so."""
    if ran and ran[-1][1] != "passed":
        return "test", ran[-1][0]
    if ended:
        return ("hung" if ended == "too long" else "died"), ended
    return "alive", ""
