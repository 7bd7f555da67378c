"""The commit of a fork since which a trace fails is found, in a work tree of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cachewitness.cli import invoke, schemas
from cachewitness.sessions.bisect import step
from cachewitness.sessions.bisect.step import Settings

SAMPLE = Path(__file__).resolve().parents[2] / "docs" / "samples" / "jsonl_engine.py"
SOUND = 'self.free, request["pages"] = self.free + request["pages"], []'
FAULTY = 'self.free, request["pages"] = request["pages"] * 2 + self.free, []'
ENGINE = f"jsonl:command={sys.executable} {{source}}/engine.py"
TRACE = """\
{"name":"twice","layout":{"name":"full","groups":[{"kind":"full","block_size":16}]},"pages":6,\
"level":"manager","policy":"vllm","options":{},"needs":[],"format":"cachewitness.trace","version":3}
{"op":"submit","r":"a","prompt":"x:16"}
{"op":"step","run":[["a",16]]}
{"op":"finish","r":"a"}
{"op":"submit","r":"b","prompt":"y:32"}
{"op":"step","run":[["b",32]]}
"""
COMMITS = {
    "the pool": {"pool.py": SOUND},
    "unrelated": {"notes": "1"},
    "renamed": {"engine.py": "import pools"},
    "first in, last out": {"pool.py": FAULTY},
    "named back": {"engine.py": "import pool"},
    "unrelated again": {"notes": "2"},
}
"""What each commit changes, the oldest first: from the third on the engine cannot be imported, the
fourth gives each page of a request back twice, the fifth can be imported again.
"""


def git(folder: Path, *command: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of a fork with `COMMITS`, and with what a user may have there."""
    folder = tmp_path_factory.mktemp("bisected") / "fork"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "engine.py").write_text("import pool")
    text = SAMPLE.read_text(encoding="utf-8")
    assert text.count(SOUND) == 1
    for subject, changes in COMMITS.items():
        for name, change in changes.items():
            content = text.replace(SOUND, change) if name == "pool.py" else change
            (folder / name).write_text(content)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", subject)
    (folder / "notes").write_text("mine")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {folder}/hooked\n")
    hook.chmod(0o755)
    git(folder, "bisect", "start")
    (folder.parent / "trace.jsonl").write_text(TRACE)
    return folder


def state(fork: Path) -> list[str]:
    """Return what of a checkout a bisection could change."""
    asked = (("status", "--short"), ("bisect", "log"), ("branch", "--all"), ("worktree", "list"))
    return [git(fork, *command) for command in asked] + [git(fork, "rev-parse", "HEAD")]


def bisect(fork: Path, good: str, bad: str, *more: str) -> int:
    trace = str(fork.parent / "trace.jsonl")
    ends = ("--good", good, "--bad", bad, "--repo", str(fork))
    return invoke(["bisect", "--trace", trace, "--engine", ENGINE, *ends, *more])


def test_the_first_bad_commit_is_named_with_what_happens_there(
    fork: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The user's checkout, its hooks and a bisection of his own are left alone."""
    before = state(fork)
    assert bisect(fork, "main~5", "main", "--build", "sed -i s/pools/pool/ engine.py") == 0
    captured = capfd.readouterr()
    commit = git(fork, "rev-parse", "main~2")
    first, anomaly = captured.out.splitlines()[1:]
    assert first == f"first bad commit: {commit} first in, last out"
    assert anomaly.startswith("  double-free: ") and "the engine counts free 7" in anomaly
    assert f"bad {commit[:10]} first in, last out: double-free" in captured.err
    assert state(fork) == before and not (fork / "hooked").exists()


def test_a_commit_that_cannot_be_imported_is_skipped(
    fork: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If the first bad one may be among such, all that may be are named, and that is no success."""
    assert bisect(fork, "main~4", "main~1", "--json") == 5
    whole = json.loads(capfd.readouterr().out)
    Draft202012Validator(schemas.KINDS["bisection"]()).validate(whole)
    subjects = [one["subject"] for one in whole["candidates"]]
    assert whole["first_bad"] is None
    assert subjects == ["named back", "first in, last out", "renamed"]
    skipped = [one for one in whole["tested"] if one["outcome"] == "skip"]
    assert skipped and all("No module named 'pools'" in one["why"] for one in skipped)


def settings(tmp_path: Path, **more: str) -> Settings:
    (tmp_path / "trace.jsonl").write_text(TRACE)
    given = {"engine": ENGINE, "build": "", "anomaly": "", **more}
    trace = str(tmp_path / "trace.jsonl")
    return Settings(trace=trace, options=[], log=str(tmp_path / "log"), **given)


def test_what_git_is_answered(fork: Path, tmp_path: Path) -> None:
    """Another anomaly than the one looked for says nothing, and neither does a failing build."""
    tree = tmp_path / "tree"
    shutil.copytree(fork, tree)
    other = step.test(settings(tmp_path, anomaly="leak"), tree)
    assert other.outcome == "skip" and other.why == "fails, and not with leak"
    broken = step.test(settings(tmp_path, build="echo no compiler >&2; exit 7"), tree)
    assert (broken.outcome, broken.why) == ("skip", "cannot be built: no compiler")
    assert [step.CODES[outcome] for outcome in ("good", "bad", "skip")] == [0, 1, 125]
    assert not [*tree.rglob("__pycache__")]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("nowhere", "main", "--good: nowhere is no commit of"),
        ("main~5", "main~4", "--bad main~4: the trace passes there"),
        ("main~1", "main", "--good main~1: the trace fails there too (double-free)"),
    ],
)
def test_ends_that_are_none_are_a_mistake(
    good: str, bad: str, message: str, fork: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = state(fork)
    assert bisect(fork, good, bad) == 4
    assert message in capfd.readouterr().err and state(fork) == before


def test_an_engine_that_is_the_same_at_every_commit_is_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = ("--trace", "x", "--engine", "vllm", "--good", "a", "--bad", "b")
    assert invoke(["bisect", *given]) == 4
    assert "names no {source}" in capfd.readouterr().err
