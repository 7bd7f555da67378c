"""`run --diff` on a fork: what a change touches is run first where a map knows it, and the verdict
says what of it no suite enters.

The fork is a package that copies the reference policy (`suites/support/forked.py`), in a git
repository of its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from cachewitness._util import plugins
from cachewitness.cli import invoke
from cachewitness.engines.entered import Seen
from cachewitness.engines.registry import parse
from cachewitness.sessions.change.entered_map import Configured
from cachewitness.sessions.change.measured import Measured
from cachewitness.sessions.change.touched import Touching
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from suites.support.forked import EARLY, make_fork
from suites.support.git_repository import committed, git

ON = "invariants@full-swa[retention_interval=0]"
SHORT = ("--layout", "full-swa", "--option", "retention_interval=0")
ONE = (*SHORT, "--only", "invariants:exact-replay@*")
UNUSED = "\n\ndef unused(x):\n    return x\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return committed(make_fork(tmp_path_factory.mktemp("change") / "fork"))


@pytest.fixture
def fork(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Have the fork as it was, installed for this test, which runs in a folder of its own."""
    git(made, "reset", "-q", "--hard", "base")
    git(made, "clean", "-qfd")
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.chdir(tmp_path)
    plugins.every.cache_clear()
    yield made
    plugins.every.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "forked_vllm"]:
        del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs the fork against its base, and returns the exit code and what was printed,
    its blanks and ends of lines alike.
    """

    def run_(*words: str) -> tuple[int, str, str]:
        code = invoke(["run", "--engine", "fork", "--diff", "base", *words])
        done = capsys.readouterr()
        return code, " ".join(done.out.split()), done.err

    return run_


def edit(fork: Path, file: str, old: str, new: str) -> None:
    path = fork / "forked_vllm" / file
    text = path.read_text()
    assert old in text, f"{file} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


def add(fork: Path, name: str, text: str) -> None:
    (fork / name).parent.mkdir(exist_ok=True)
    with (fork / name).open("a") as file:
        file.write(text)
    git(fork, "add", "-A")


def test_each_function_is_told_by_what_enters_it(fork: Path, run: Run, tmp_path: Path) -> None:
    """A line that is run, one in a branch that is not, and a function that nobody calls: a pass
    names what was not tested, in its last line and in report.json.
    """
    touch = "    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:\n"
    edit(fork, "block_pool.py", touch, f"{touch}        if not self:\n            return\n")
    add(fork, "forked_vllm/block_pool.py", UNUSED)
    code, out, err = run(*ONE, "--report", str(tmp_path / "report"))
    assert code == 0, out + err
    assert "changed since base: 2 functions; no map says what enters that" in err
    never = "forked_vllm.block_pool:unused no suite enters it"
    part = (
        f"forked_vllm.block_pool:BlockPool.touch 1 of 2 changed lines entered, by {ON}; no suite"
        " enters line 69 of forked_vllm/block_pool.py"
    )
    assert f"changed since base: {never} {part} covered:" in out
    verdict = (
        "verdict: pass (exit code 0): nothing found by --only invariants:exact-replay@*, which is"
        " no verdict on the other traces; not all that changed since base was tested:"
        " forked_vllm.block_pool:unused is not entered, forked_vllm.block_pool:BlockPool.touch is"
        " entered in part"
    )
    assert f"{verdict} written:" in out
    page = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert "forked_vllm.block_pool:unused  no suite enters it" in page
    assert "unused is not entered" in (tmp_path / "report/comment.md").read_text(encoding="utf-8")
    change = json.loads((tmp_path / "report/report.json").read_bytes())["change"]
    assert [(one["name"], one["entered"]) for one in change["functions"]] == [
        ("forked_vllm.block_pool:BlockPool.touch", [68]),
        ("forked_vllm.block_pool:unused", []),
    ]


def test_a_change_that_no_suite_enters_is_no_pass(fork: Path, run: Run) -> None:
    """Neither a function that nobody calls, with a kernel beside it, nor a module that nobody
    imports, nor what importing one runs: that says nothing of what uses it.
    """
    add(fork, "forked_vllm/block_pool.py", f"{UNUSED}\n\nLIMIT = 3\n")
    add(fork, "forked_vllm/constants.py", "LIMIT = 3\n")
    add(fork, "csrc/a.cu", "// a kernel\n")
    code, out, _ = run(*ONE)
    assert code == 5
    assert "kernels and other native code: csrc/a.cu: not driven" in out
    assert "constants (what importing it runs) no suite enters it" in out
    assert "block_pool (what importing it runs) run by importing the module alone" in out
    assert out.endswith("no suite enters a line that changed since base")


def test_a_fault_is_as_red_as_without_it(fork: Path, run: Run) -> None:
    """And the change is shown with what enters it."""
    EARLY.plant(fork / "forked_vllm")
    on = (
        "--layout",
        "full-swa-unequal",
        "--option",
        "retention_interval=none",
        "--shrink-attempts",
    )
    code, out, _ = run(*on, "0", "--only", "invariants:exact-replay@*")
    assert code == 1
    assert "get_num_skipped_tokens 1 of 1 changed line entered, by invariants@full-swa-une" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--diff", "nowhere"), r"--diff nowhere: \S+ has no such commit"),
        (("--engine", "reference"), "engine reference is a part of cachewitness"),
        (("--isolate", "no"), "seen in a process of its own alone; add --isolate yes"),
        (("--engine", "jsonl:command=true"), "."),
        (
            ("--engine", "openai-server:url=http://127.0.0.1:1/v1,model=m"),
            "engine openai-server runs as a program or a server of its own",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    fork: Path, run: Run, words: tuple[str, ...], why: str
) -> None:

    code, out, err = run(*words)
    assert (code, out) == (4, "")
    assert re.search(why, err.splitlines()[-1]), err


class Noting(Measured):
    """What is run first, and the order in which all is run."""

    def take(self, suite: str, configuration: str, seen: Iterable[Seen]) -> None:
        super().take(suite, configuration, seen)
        order.append(f"{suite}@{configuration}")


order: list[str] = []


def in_order(*first: Configured, engine: str = "reference") -> Runner:
    """Run two suites on two configurations, two random traces each, and note the order."""
    order.clear()
    configurations = [Configuration(layouts.load(name)) for name in ("full", "full-swa")]
    change = Noting(Touching("base"), first, "it 1.0")
    runner = Runner(parse(engine), configurations, change=change, shrunk=0)
    suites = [suite for suite in SUITES if suite.name in ("random", "scheduler-random")]
    report = runner.run(suites)
    assert report.change is not None
    assert report.change.first == len(first)
    runner.report = report  # type: ignore[attr-defined]
    return runner


def test_what_enters_a_change_is_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its suite in front of the others, and in the suite its configuration; all else is run
    behind it, and nothing twice.
    """
    monkeypatch.setattr("cachewitness.sessions.run.streams.random_traces", lambda *_, **__: 2)
    in_order()
    usual = list(order)
    in_order(Configured("scheduler-random", "full-swa"))
    assert sorted(order) == sorted(usual)
    assert order[:3] == [*["scheduler-random@full-swa"] * 2, "scheduler-random@full"]
    assert order[4:] == [one for one in usual if one.startswith("random@")]


def test_other_engines_are_run_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What enters a change with other options of the engine's name has them in its id, and in the
    command that shows its failure again.
    """
    monkeypatch.setattr("cachewitness.sessions.run.streams.random_traces", lambda *_, **__: 2)
    fault = {"mutant": "hit-is-maximum-over-groups"}
    runner = in_order(Configured("random", "full-mamba", {}, fault))
    beside = "random@full-mamba/mutant=hit-is-maximum-over-groups"
    assert order[:2] == [beside] * 2 and order.count(beside) == 2
    failures = runner.report.failures  # type: ignore[attr-defined]
    assert {one.engine for one in failures} == {"reference:mutant=hit-is-maximum-over-groups"}
    assert all(one.id.endswith("/mutant=hit-is-maximum-over-groups") for one in failures)
