"""What an engine's own tests make of mutants: pytest collects once, and each mutant runs, in a fork,
the tests that enter its function.
"""  # noqa: E501

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from benchmarks.mutation.forked import Say, end_after, forked
from benchmarks.mutation.kept import Side, append, rows
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.plant import Planted, entered
from benchmarks.mutation.source import Place
from benchmarks.mutation.trial import AT_STATEMENT, NOT_REPLACED, chosen, end_late, tried
from benchmarks.vllm_tests import reason

BUDGET = 8.0
"""Of the tests that enter a function those are run that are the shortest, until they take so many
CPU seconds on the engine as it is."""
TEST_SECONDS = 4.0
"""A test that takes more on the engine as it is, its functions noted, is not run for mutants."""
VARIANTS = 3
"""Of a parametrized test so many variants are run, the first ones."""


class CleanTest(msgspec.Struct):
    """A test on the engine as it is: what came of it, its CPU seconds, and which functions it
    enters.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    places: frozenset[Place] = frozenset()


def run_all(
    named: Sequence[str],
    elsewhere: Sequence[str],
    mutants: Sequence[Mutant],
    folder: Path,
    kept: Path,
) -> None:
    """Run the mutants of what stands below a folder under all tests that are named, but for those
    with the words `elsewhere` in their paths.
    """
    flags = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir=."]
    flags += ["--continue-on-collection-errors", *(f"--ignore-glob=*{name}*" for name in elsewhere)]
    pytest.main([*flags, *named], plugins=[OwnTests(mutants, folder, kept)])


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
        file = self._kept / "theirs-clean.jsonl"
        _measure_clean(first_variants(session.items), self._failed, self._folder, file)
        known = rows(file, CleanTest)
        items = {item.nodeid: item for item in session.items}
        usable = sorted(
            (one for one in known if one.outcome == "passed"),
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


def first_variants(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return tests without the later variants of those that are parametrized."""
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    for item in items:
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] <= VARIANTS:
            kept.append(item)
    return kept


def _measure_clean(
    items: Iterable[pytest.Item], failed: Iterable[CleanTest], folder: Path, file: Path
) -> None:
    """Run all tests whose files were not run yet, and append what came of them."""
    known = {one.name.split("::")[0] for one in rows(file, CleanTest)}
    for one in failed:
        if one.name not in known:
            append(file, one)
    for name, group in groupby(items, key=lambda item: item.nodeid.split("::")[0]):
        if name not in known:
            for test in _clean(list(group), folder):
                append(file, test)


def _clean(tests: Sequence[pytest.Item], folder: Path) -> Iterator[CleanTest]:
    """Run tests in a fork, and in another what comes behind one that ends it."""

    def work(say: Say) -> None:
        for number, test in enumerate(tests):
            end_after(TEST_SECONDS)
            began = time.process_time()
            with entered(folder) as places:
                outcome = run(tests, number)
            seconds = time.process_time() - began
            say(msgspec.to_builtins(CleanTest(test.nodeid, outcome, seconds, frozenset(places))))

    found = [
        msgspec.convert(one, CleanTest) for one in forked(work, TEST_SECONDS * len(tests)).sent
    ]
    yield from found
    if len(found) < len(tests):
        yield CleanTest(tests[len(found)].nodeid, "took too long, or ended the process")
        yield from _clean(tests[len(found) + 1 :], folder)


class Outcome:
    """A plugin of pytest that notes what comes of the test that is run."""

    def __init__(self) -> None:
        self.text = "skipped"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note it; an error before or after the test counts as its own."""
        if report.failed or (report.when == "call" and report.passed and self.text == "skipped"):
            self.text = "passed" if report.passed else reason(report)


def run(tests: Sequence[pytest.Item], number: int) -> str:
    """Run one of some tests that are run in turn, and return what came of it."""
    test = tests[number]
    following = tests[number + 1] if number + 1 < len(tests) else None
    noted = Outcome()
    test.config.pluginmanager.register(noted)
    try:
        test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
    finally:
        test.config.pluginmanager.unregister(noted)
    return noted.text


def _judged(
    mutant: Mutant,
    pool: Sequence[tuple[pytest.Item, CleanTest]],
    planted: Planted,
    folder: Path,
) -> Side:
    taken, seconds, entering = chosen(pool, mutant, BUDGET)
    tests = [test for test, _ in taken]
    if not tests:
        return Side(mutant.number, "not entered")

    def work(say: Say) -> None:
        for number, (test, usual) in enumerate(taken):
            end_late(usual.seconds)
            outcome = run(tests, number)
            say([test.nodeid, outcome])
            if outcome != "passed":
                return

    ended = tried(mutant, planted, folder, seconds, work)
    if NOT_REPLACED in ended.sent:
        return Side(mutant.number, "not replaced", entering=entering)
    ran = [one for one in ended.sent if isinstance(one, list)]
    outcome, by = _verdict(ran, ended.ended)
    return Side(
        mutant.number,
        outcome,
        by,
        reached=AT_STATEMENT in ended.sent,
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
