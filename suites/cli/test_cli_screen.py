"""On a narrow terminal no command breaks a word, NO_COLOR takes every escape away, and hints
name commands that there are.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from cachewitness.cli import invoke
from cachewitness.cli.ls import KINDS
from cachewitness.cli.schemas import KINDS as SCHEMAS
from cachewitness.report.tables import new_table, print_table
from cachewitness.report.terminal import console, is_copied
from suites.support.cli_examples import EXAMPLES, commands

ROOT = Path(__file__).resolve().parents[2]
WIDTH, WIDE = 60, 500
SHOWN = {name: examples[0] for name, examples in EXAMPLES.items() if name not in ("fill", "new")}
"""Those that print more than names of files."""
STYLE = re.compile(r"\x1b\[[0-9;]*m")
TIMES = re.compile(r"[0-9.,]+(s|%|operations/s)?[,;]?")


def printed(
    words: list[str],
    width: int,
    plain: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Return what a command prints on a terminal of so many columns, with NO_COLOR or without."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1") if plain else monkeypatch.delenv("NO_COLOR", raising=False)
    invoke(words)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SHOWN)
def test_sixty_columns_break_no_word_and_no_color_has_no_escapes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every word of the narrow output is one of the wide one; a longer line is a command to
    copy, or one long word.
    """
    words = [*name.split(), *SHOWN[name][0]]
    narrow = printed(words, WIDTH, True, tmp_path / "narrow", monkeypatch, capsys)
    wide = STYLE.sub("", printed(words, WIDE, False, tmp_path / "wide", monkeypatch, capsys))
    assert "\x1b" not in narrow
    too_long = [line for line in narrow.splitlines() if len(line) > WIDTH and not is_copied(line)]
    assert [line for line in too_long if max(map(len, line.split())) < WIDTH - 10] == []
    whole = {word.strip(":") for word in wide.replace("narrow", "wide").split()}
    broken = {word.strip(":").replace("narrow", "wide") for word in narrow.split()} - whole
    assert {word for word in broken if not TIMES.fullmatch(word)} == set()


def test_colours_are_there_without_no_color(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the test above would see none either way."""
    words = ["replay", *EXAMPLES["replay"][1][0]]
    assert "\x1b[1;31m" in printed(words, WIDTH, False, tmp_path / "a", monkeypatch, capsys)


def test_a_table_too_wide_for_its_words_becomes_a_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = []
    for width in ("30", "16"):
        monkeypatch.setenv("COLUMNS", width)
        out = console()
        table = new_table(out, ["name", "kind of thing"], numbers=False)
        table.add_row("first", "something long to say")
        print_table(table, out)
        shown.append([line.rstrip() for line in capsys.readouterr().out.splitlines()])
    assert shown[0] == ["name   kind of thing", "first  something long to say"]
    assert shown[1] == ["first", "  kind of thing:", "  something long", "  to say"]


ANY = re.compile(r"\bcachewitness ([a-z][a-z-]+)")
PROSE = {
    "is",
    "and",
    "itself",
    "again",
    "for",
    "that",
    "wrote",
    "with",
    "finds",
    "in",
    "under",
    "planned",
}
"""What follows the name where a sentence is about the tool."""


@cache
def texts() -> list[tuple[str, str]]:
    """Return every text that the sources of the harness may print, with the file that it is in:
    docstrings are no such text.
    """
    found = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        nodes = [*ast.walk(ast.parse(source))] if "cachewitness " in source else []
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and id(node) not in docstrings
        ]
        found += [
            (str(path.relative_to(ROOT)), text)
            for text in constants
            if isinstance(text, str) and "cachewitness " in text
        ]
    return found


def test_every_hint_names_a_command_that_there_is() -> None:
    known = {name.split()[0] for name in commands()}
    named = [
        (path, word) for path, text in texts() for word in ANY.findall(text) if word not in PROSE
    ]
    assert len(named) > 8
    assert [(path, word) for path, word in named if word not in known] == []


def test_every_hint_of_a_list_or_a_schema_names_one_that_there_is() -> None:
    found = 0
    for path in sorted((ROOT / "harness").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for command, kinds in (("ls", KINDS), ("schema", SCHEMAS)):
            for kind in re.findall(rf"`(?:cachewitness )?{command} ([a-z-]+)`", text):
                found += 1
                assert kind in kinds, f"{path}: {command} {kind}"
    assert found > 10


def test_every_option_that_a_hint_gives_a_command_is_one_of_it() -> None:
    """As in `cachewitness run --report DIR`."""
    checked = 0
    for path, text in texts():
        for command, option in re.findall(r"\bcachewitness ([a-z-]+)[^`;\n]*? (--[a-z-]+)", text):
            known = {
                flag
                for name, one in commands().items()
                if name.split()[0] == command
                for flag in flags(one)
            }
            if command in {name.split()[0] for name in commands()}:
                checked += 1
                assert option in known, f"{path}: cachewitness {command} {option}"
    assert checked >= 3


def flags(command: click.Command) -> set[str]:
    options = [one for one in command.params if isinstance(one, click.Option)]
    return {"--help", "--", *(flag for one in options for flag in (*one.opts, *one.secondary_opts))}


def test_a_pipe_breaks_no_word_of_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is as wide as its words, even if that is wider than what is printed in a pipe
    otherwise.
    """
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    out = console(pipe_width=30)
    table = new_table(out, ["suite", "traces", "hits"])
    table.add_row("differential-scheduler", "1,921", "16")
    table.add_row("some other suite with a long name", "1", "2")
    print_table(table, out)
    head, first, *_, last = [
        " ".join(line.split()) for line in capsys.readouterr().out.splitlines()
    ]
    assert (head, first) == ("suite traces hits", "differential-scheduler 1,921 16")
    assert last == "name" or (last.endswith("long name") and out.width == 30)
