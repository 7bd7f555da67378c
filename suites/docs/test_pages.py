"""The generated pages are what their templates and the code make of them, and every page says
which command writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import failure_picture
from benchmarks import pages as writers
from cachewitness._util import pages
from cachewitness.sessions.mutants import page as kill_matrix

DOCS = pages.folder()
RENDERED = writers.rendered()
TEMPLATES = {path.name.removesuffix(".j2") for path in (DOCS / "templates").glob("*.md.j2")}
GENERATED = sorted(
    path
    for folder in ("reference", "results")
    for path in (DOCS / folder).glob("*.md")
    if path.name in TEMPLATES
)


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_page_is_fresh(name: str) -> None:
    """If not: `python -m benchmarks.pages`."""
    assert (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8") == RENDERED[name]


def test_list_of_faults_is_fresh() -> None:
    """The end of the kill matrix, which no hunt changes. If not: `cachewitness mutants --seeds 5
    --write`.
    """
    assert (
        (DOCS / "results" / "kill-matrix.md")
        .read_text(encoding="utf-8")
        .endswith(kill_matrix.faults())
    )


def test_picture_of_a_failure_is_fresh() -> None:
    """If not: `python -m benchmarks.failure_picture`."""
    assert (DOCS / "failure.svg").read_text(encoding="utf-8") == failure_picture.picture()


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_generated_page_names_the_command_that_writes_it(page: Path) -> None:
    """In its first lines, so that nobody edits the page by hand."""
    head = "\n".join(page.read_text(encoding="utf-8").splitlines()[:4])
    assert re.search(
        r"^Written by `[^`]+` from `docs/templates`; not edited by hand\.$", head, re.MULTILINE
    )


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    """A command that is added without a section is found."""
    from cachewitness.cli import cli

    sections = re.findall(r"^## ([\w-]+)", RENDERED["cli"], re.MULTILINE)
    assert set(cli.commands) <= set(sections)
