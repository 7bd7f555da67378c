"""A shell that asks for completions gets them, and nothing else is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cachewitness.cli import cli, invoke
from cachewitness.cli.completion import VARIABLE


def completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, word: str
) -> list[str]:
    """Return what fish is told for a line whose last word is being typed."""
    monkeypatch.setenv(VARIABLE, "fish_complete")
    monkeypatch.setenv("COMP_WORDS", f"{line} {word}")
    monkeypatch.setenv("COMP_CWORD", word)
    assert invoke([]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [row.partition(",")[2].partition("\t")[0] for row in captured.out.splitlines() if row]


@pytest.mark.parametrize(
    ("line", "word", "wanted"),
    [
        ("cachewitness", "mut", ["mutants"]),
        ("cachewitness run --engine", "ref", ["reference"]),
        ("cachewitness run --engine", "reference:rel", ["reference:release="]),
        ("cachewitness run --engine", "sample:mutant=name-w", ["sample:mutant=name-without-salt"]),
        ("cachewitness run --engine", "sample:caching=on,mut", ["sample:caching=on,mutant="]),
        ("cachewitness run --engine", "sample:caching=o", []),
        ("cachewitness run --engine", "nobody:x", []),
        ("cachewitness fuzz --layout", "full-swa-m", ["full-swa-mamba"]),
        ("cachewitness run --suite", "inv", ["invariants"]),
        ("cachewitness run --policy", "furi", ["furiosa"]),
        ("cachewitness mutants --mutant", "null-block-p", ["null-block-published"]),
        ("cachewitness explain", "stale-h", ["stale-hit"]),
    ],
)
def test_names_are_completed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    word: str,
    wanted: list[str],
) -> None:
    assert completed(monkeypatch, capsys, line, word) == wanted


def test_every_command_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(completed(monkeypatch, capsys, "cachewitness", "")) == set(cli.commands)


def test_bash_completes_by_the_script_that_is_printed(tmp_path: Path) -> None:
    tool = tmp_path / "cachewitness"
    tool.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m cachewitness.cli "$@"\n', encoding="utf-8"
    )
    tool.chmod(0o755)
    typed = (
        "COMP_WORDS=(cachewitness explain stale-h) COMP_CWORD=2; _cachewitness_completion"
        " cachewitness; echo ${COMPREPLY[@]}"
    )
    script = f'PATH={tmp_path}:$PATH; eval "$(cachewitness completion bash)" && {typed}'
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["stale-hit"] and not done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["completion", shell]) == 0
    assert VARIABLE in (script := capsys.readouterr().out) and "cachewitness" in script


def test_what_asks_in_no_known_way_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "nushell_complete")
    assert invoke([]) == 1 and not list(tmp_path.iterdir())
