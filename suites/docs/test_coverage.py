"""The map from documents to tests is complete and true: every test that it names exists, and every
line has one or a reason.

A line is `| statement | rule | tests |`. Tests are named `file.py::test`, the file from the root of
the repository or, where no other one below `suites` has its name, by that alone. A line without a
test gives the reason: "not testable: needs" something that is not here (a GPU, a device, a model's
weights), or "no rule:" where the document states none that a cache could break.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "coverage.md"
SECTIONS = ("OpenVINO GenAI", "LMCache", "Furiosa-LLM", "TensorRT-Edge-LLM", "vLLM")
HEAD = ["statement", "rule", "test"]
NAMED = re.compile(r"`([^`\s]+\.py)::([^`\s]+)`")
REASON = re.compile(r"not testable: needs .*\b(GPU|device|devices|weights)\b|no rule: *\S")


class Line(NamedTuple):
    """A line of a table: where it stands on the page, and its cells."""

    number: int
    section: str
    configurations: list[str]


def lines_of(text: str) -> Iterator[Line]:
    """Yield the lines of every table, heads and rules left out."""
    section = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        if raw.startswith("## "):
            section = raw[3:].partition(":")[0].strip()
        elif raw.startswith("|"):
            configurations = [
                configuration.strip() for configuration in re.split(r"(?<!\\)\|", raw.strip())[1:-1]
            ]
            if configurations != HEAD and not all(
                re.fullmatch(r":?-+:?", configuration) for configuration in configurations
            ):
                yield Line(number, section, configurations)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the tests of a module, those of classes as `Class::test`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef)
            }
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test"))


@cache
def files_below(folder: Path) -> tuple[Path, ...]:
    """Return the Python files below a folder."""
    return tuple(folder.rglob("*.py"))


def paths_of(file: str) -> list[Path]:
    """Return the files that a name on the page can mean."""
    return (
        [ROOT / file]
        if "/" in file
        else [path for path in files_below(ROOT / "suites") if path.name == file]
    )


def problem(file: str, name: str) -> str:
    """Return what is wrong with a test's name; empty if it exists."""
    paths = paths_of(file)
    if len(paths) > 1:
        return f"there are {len(paths)} files {file} below suites; name it from the root"
    if not paths or not paths[0].is_file():
        return f"there is no file {file}" + ("" if "/" in file else " below suites")
    path = paths[0]
    if name.partition("[")[0] not in names_in(path):
        return f"there is no test {name.partition('[')[0]} in {path.relative_to(ROOT)}"
    return ""


def findings(text: str) -> list[str]:
    """Return what is wrong with a page, a line each."""
    found = []
    lines = list(lines_of(text))
    for section in SECTIONS:
        if not any(line.section == section for line in lines):
            found.append(f"section {section!r} has no lines: map the statements of its document")
    for number, section, configurations in lines:
        where = f"line {number} ({section}: {configurations[0][:60]!r})"
        if len(configurations) != len(HEAD):
            found.append(
                f"{where}: {len(configurations)} cells, not statement, rule and test; write \\| for"
                " a bar inside a cell"
            )
            continue
        if not all(configurations):
            found.append(f"{where}: the cell {HEAD[configurations.index('')]!r} is empty")
        named = NAMED.findall(configurations[2])
        if not REASON.match(configurations[2]) and (
            not named or "not testable" in configurations[2]
        ):
            found.append(
                f"{where}: neither a test (`file.py::name`), 'not testable: needs …' nor 'no"
                " rule: …'"
            )
        found += [f"{where}: {what}" for file, name in named if (what := problem(file, name))]
    return found


def test_every_statement_has_a_test_that_exists_or_a_reason() -> None:
    """The page as it is."""
    found = findings(PAGE.read_text(encoding="utf-8"))
    assert not found, "docs/reference/coverage.md:\n" + "\n".join(found)


def test_pytest_finds_every_test_that_is_named() -> None:
    """By its id, with all its cases. Files whose extra is not installed are listed as not run,
    and left to the test above.
    """
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    tests = {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for file, name in named
        for path in paths_of(file)
    }
    files = sorted({test.partition("::")[0] for test in tests})
    flags = [
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    command = [sys.executable, "-m", "pytest", *flags, *files]
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }  # it is no worker of ours
    printed = subprocess.run(
        command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False
    ).stdout
    collected, _, not_run = printed.partition("= not run =")
    found = {line.partition("[")[0] for line in collected.splitlines()}
    lost = {test for test in tests - found if f"{test.partition('::')[0]}: " not in not_run}
    assert not lost and tests & found, "\n".join(sorted(lost)) or printed


def page(row: str) -> str:
    """Return a page on which every section has a good line, and the first one this row besides."""
    good = "| it holds | rule | `test_coverage.py::test_a_good_page_passes` |"
    sections = [
        f"## {name}: a document\n\n| statement | rule | test |\n|---|---|---|\n{good}\n"
        for name in SECTIONS
    ]
    return "\n".join([sections[0] + row + "\n", *sections[1:]])


@pytest.mark.parametrize(
    "row",
    [
        "| a | b | `suites/docs/test_coverage.py::test_a_good_page_passes` |",
        "| a | b | `test_coverage.py::test_a_good_page_passes[row0]`, and more |",
        "| a \\| b | - | not testable: needs a GPU |",
        "| a | - | no rule: advice |",
        "",
    ],
)
def test_a_good_page_passes(row: str) -> None:
    """Both ways to name a file, cases of a test, bars inside cells."""
    assert findings(page(row)) == []


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (
            "| a | b | `test_coverage.py::test_that_is_not_there` |",
            "there is no test test_that_is_not_there in suites/docs",
        ),
        ("| a | b | `test_coverage.py::findings` |", "there is no test findings"),
        ("| a | b | `test_nowhere.py::test_x` |", "there is no file test_nowhere.py below suites"),
        (
            "| a | b | `suites/test_coverage.py::test_x` |",
            "there is no file suites/test_coverage.py",
        ),
        (
            "| a | b | `conftest.py::test_x` |",
            "files conftest.py below suites; name it from the root",
        ),
        ("| a | b | tested somewhere |", "neither a test"),
        ("| a | b | not testable: |", "neither a test"),
        ("| a | b | not testable: nobody has written one |", "neither a test"),
        ("| a | b | no rule: |", "neither a test"),
        (
            "| a | b | not testable: left out; `test_coverage.py::test_a_good_page_passes` |",
            "neither a test",
        ),
        ("| a | b |  |", "the cell 'test' is empty"),
        ("|  | b | no rule: advice |", "the cell 'statement' is empty"),
        ("| a | b | c | no rule: advice |", "4 cells"),
    ],
)
def test_a_bad_line_is_found_where_it_stands(row: str, what: str) -> None:
    """The message says which line, and what to do about it."""
    found = findings(page(row))
    assert (
        found
        and what in " ".join(found)
        and all(message.startswith("line 6 (OpenVINO GenAI: ") for message in found)
    )


def test_a_section_without_lines_is_found() -> None:
    """A document that nobody mapped."""
    assert findings(page("").replace("## vLLM: a", "## Else: a")) == [
        "section 'vLLM' has no lines: map the statements of its document"
    ]
