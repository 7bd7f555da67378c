"""An engine in another program: the sample in Python passes, and a fault in it, or in what it
says, is found.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from cachewitness.cli import invoke

SAMPLE = Path(__file__).resolve().parents[3] / "docs" / "samples" / "jsonl_engine.py"
LINES_MAX = 110
ANSWERING = (
    "import os, sys; os.write(int(os.environ['CACHEWITNESS_ANSWERS']), {!r}); sys.stdin.read()"
)


def run(program: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = invoke(["run", "--engine", f"jsonl:command='{sys.executable}' '{program}'", *arguments])
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "engine.py"


def test_the_sample_passes_and_every_rule_had_something_to_judge(
    capsys: pytest.CaptureFixture[str], changed: Path
) -> None:
    code, out, _ = run(SAMPLE, capsys)
    assert code == 0, out
    assert "in a process of its own" in out and "preempt" in out


def test_the_sample_is_short_and_imports_nothing_of_the_harness() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    imported = [
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    assert (
        len(text.splitlines()) <= LINES_MAX
        and set(imported) <= set(sys.stdlib_module_names)
        and "ImportFrom" not in text
    )


def test_a_fault_in_the_program_is_found(capsys: pytest.CaptureFixture[str], changed: Path) -> None:
    """A page that is free again while its request goes on reading it."""
    text = SAMPLE.read_text(encoding="utf-8")
    old = "pages, self.free = self.free[:new], self.free[new:]"
    assert text.count(old) == 1
    changed.write_text(text.replace(old, "pages = self.free[:new]"))
    code, out, _ = run(changed, capsys, "--fail-fast")
    assert code == 1 and "FAIL" in out and "replay: cachewitness replay" in out


def test_an_operation_that_is_refused_stops_its_trace_alone(
    capsys: pytest.CaptureFixture[str], changed: Path
) -> None:
    """The line names engine, trace and operation; all other traces are judged, and the run
    cannot pass.
    """
    text = SAMPLE.read_text(encoding="utf-8")
    old = '        self.events, kind, r = [], op["op"], op.get("r")\n'
    assert text.count(old) == 1
    changed.write_text(
        text.replace(
            old, old + "        if kind == 'preempt':\n            raise ValueError('not today')\n"
        )
    )
    code, out, _ = run(changed, capsys)
    assert (
        code == 4
        and "refuses it: not today" in out
        and "(preempt" in out
        and "trace preempt-and-resume" in out
    ), out
    assert "2 suites" in out


@pytest.mark.parametrize(
    ("program", "message"),
    {
        "print('hello')": "ended its process with exit code 0",
        ANSWERING.format(b"hello\n"): "is none of the protocol",
        ANSWERING.format(b'{"is":"closed"}\n'): "the first line of its process",
        ANSWERING.format(b'{"is":"opened"}\n'): "missing required field `header`",
    }.items(),
)
def test_a_bad_handshake_is_one_line(
    program: str, message: str, capsys: pytest.CaptureFixture[str], changed: Path
) -> None:
    """Exit code 4, and never a pass."""
    changed.write_text(program)
    code, out, err = run(changed, capsys)
    assert (code, err.count("\n")) == (4, 1) and "pass" not in out
    assert message in err, err


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("jsonl", "needs the command that starts it"),
        ("jsonl:command='", "cannot be split into words"),
        (
            "jsonl:command=/no/such/program",
            "/no/such/program cannot be started (No such file or directory)",
        ),
    ],
)
def test_a_command_that_is_none_is_one_line(
    engine: str, message: str, capsys: pytest.CaptureFixture[str], changed: Path
) -> None:
    assert invoke(["run", "--engine", engine, "--layout", "full"]) == 4
    assert message in capsys.readouterr().err


def test_it_has_no_other_process(capsys: pytest.CaptureFixture[str], changed: Path) -> None:
    code, _, err = run(SAMPLE, capsys, "--isolate", "no")
    assert code == 4 and "jsonl is a program" in err
