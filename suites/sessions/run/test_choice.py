"""Traces that are chosen by their ids, and what failed last: run alone, or before everything
else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.cli.suites import SUITES
from cachewitness.engines.registry import parse
from cachewitness.sessions.run import last_failed
from cachewitness.sessions.run.choice import Choice
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import first_number
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

FULL = Configuration(layouts.load("full-swa"), {"retention_interval": 0})
AT = "@full-swa[retention_interval=0]"
NARROW = ("--layout", "full-swa", "--option", "retention_interval=0")
FAULTY = "reference:mutant=window-freed-early"


def ids(choice: Choice, *suites: str, seed: int = 0) -> list[str]:
    """Return the ids of what a run on the reference runs, in order."""
    ran: list[str] = []
    runner = Runner(parse("reference"), [FULL], seed=seed, choice=choice)
    weigh = runner.expected.weigh
    runner.expected.weigh = lambda name, *found: ran.append(name) or weigh(name, *found)  # type: ignore[func-returns-value,method-assign]
    runner.run([suite for suite in SUITES if suite.name in suites])
    return ran


def document(folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    return whole


def test_only_what_fits_a_pattern_is_run() -> None:
    """A random trace is drawn by its number, also one behind those of a run, or of another seed."""
    scenario = "invariants:exact-replay@*"
    far = f"random:random-{first_number(FULL, 3) + 500}{AT}"
    ran = ids(Choice(only=(scenario, far, "random:random-1[@?]*")), "invariants", "random")
    assert ran == [f"invariants:exact-replay{AT}", far]
    assert ids(Choice(only=("random:random-1@*",)), "invariants", "random") == [
        f"random:random-1{AT}"
    ]


def test_each_configuration_draws_numbers_of_its_own_whatever_else_is_run() -> None:
    """With one number for all, a single draw of how many requests are live was that of a whole
    run.
    """
    alone = ids(Choice(), "random")
    other = Configuration(layouts.load("full-mamba"))
    assert alone[0] == f"random:random-{first_number(FULL, 0)}{AT}"
    both = Runner(parse("reference"), [other, FULL], choice=(choice := Choice()))
    both.run([suite for suite in SUITES if suite.name == "random"])
    assert [name for name in alone if name in choice.ran] == alone
    assert not {number_of(name) for name in choice.ran - {*alone}} & {*map(number_of, alone)}


def test_the_random_longest_prompts_of_a_configuration_are_its_own() -> None:
    """So an id names one trace, whichever other configurations are run."""
    other = Configuration(layouts.load("full-mamba"))

    def operations(configurations: list[Configuration]) -> int:
        choice = Choice(only=("scheduler*:longest-prompt-random@full-swa*",))
        runner = Runner(parse("reference"), configurations, choice=choice)
        report = runner.run([suite for suite in SUITES if suite.name == "scheduler"])
        assert len(choice.ran) == 1
        return sum(suite.activity.operations for suite in report.suites)

    assert operations([FULL]) == operations([other, FULL]) > 50


def number_of(name: str) -> str:
    """Return the name of a random trace without its suite and configuration."""
    return name.removeprefix("random:").partition("@")[0]


def test_what_failed_last_is_run_first_and_nothing_twice() -> None:
    plain = ids(Choice(), "invariants", "random")
    failed = [plain[4], plain[-1], f"random:random-400{AT}"]
    ran = ids(Choice(failed=frozenset(failed)), "invariants", "random")
    assert sorted(ran) == sorted([*plain, failed[2]])
    assert ran[0] == failed[0]
    first_random = next(place for place, name in enumerate(ran) if name.startswith("random:"))
    assert set(ran[first_random : first_random + 2]) == {*failed[1:]}
    alone = Choice(failed=frozenset(failed), failed_only=True)
    assert sorted(ids(alone, "invariants", "random")) == sorted(failed)


def test_an_endless_suite_in_which_nothing_fits_ends() -> None:
    runner = Runner(parse("reference"), [FULL], seconds=600, choice=Choice(only=("random:no*",)))
    report = runner.run([suite for suite in SUITES if suite.name == "random"])
    assert report.exit_code == 5 and "--only random:no* fits no trace" in report.vacuous


def test_a_narrowed_pass_says_so_and_rules_without_opportunity_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pattern = "invariants:exact-replay@*"
    code = invoke(["run", *NARROW, "--only", pattern, "--report", "out"])
    out = capsys.readouterr().out
    whole = document(tmp_path / "out")
    assert code == 0 and f"nothing found by --only {pattern}, which is no verdict" in out
    assert whole["only"] == [f"--only {pattern}"] and whole["nothing_to_judge"] == []
    assert any(entry["what"].startswith("checker ") for entry in whole["not_run"])
    assert any(entry["what"] == "invariants: other traces" for entry in whole["not_run"])
    assert not (tmp_path / "out" / "failures" / last_failed.NAME).exists()
    assert invoke(["run", *NARROW, "--only", "invarints:*", "--quiet"]) == 5


def test_a_folder_remembers_what_failed_until_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A narrowed run forgets nothing of what it did not run; without a list every trace is run, and
    that is said.
    """
    monkeypatch.chdir(tmp_path)

    def run(engine: str, *more: str) -> int:
        limits = ("--max-failures", "1", "--shrink-attempts", "0", "--quiet")
        return invoke(["run", "--engine", engine, *NARROW, *limits, "--suite", "invariants", *more])

    assert run("reference", "--last-failed") == 0
    failures = Path(".cachewitness", "failures")
    line = f"nothing in {failures} says that a trace failed; every trace is run"
    assert line in capsys.readouterr().err and not failures.exists()
    assert run(FAULTY) == 1
    failed = last_failed.load(failures)
    assert len(failed) > 2
    one, *others = sorted(failed)
    assert run("reference", "--only", one) == 0
    assert last_failed.load(failures) == {*others}
    capsys.readouterr()
    assert run("reference", "--last-failed") == 0
    assert f"{len(others)} traces" in capsys.readouterr().out
    assert last_failed.load(failures) == frozenset()
    (failures / last_failed.NAME).write_text("{")
    assert last_failed.load(failures) == frozenset()


def test_a_failure_that_is_expected_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("known").write_text("*  premature-release  # known\n")
    given = ("--suite", "invariants", "--expected", "known", "--report", "out", "--quiet")
    assert invoke(["run", "--engine", FAULTY, *NARROW, *given]) == 0
    assert last_failed.load(tmp_path / "out" / "failures") == frozenset()
