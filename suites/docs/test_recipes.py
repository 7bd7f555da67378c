"""What the recipes show works: their code runs, what they quote stands in the files, and their
commands end with 0.
"""

from __future__ import annotations

import re
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util import plugins
from cachewitness.cli import invoke

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
NAMES = ("checker", "engine", "mutant", "policy", "vector")
LINES_MAX = 110
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"# (docs/\S+)\n")


def blocks(name: str, language: str) -> list[str]:
    """Return the code blocks of a recipe in one language."""
    return [
        code
        for found, code in _BLOCK.findall((RECIPES / f"{name}.md").read_text(encoding="utf-8"))
        if found == language
    ]


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the sample policy as an installed package would."""
    registered = plugins.registered

    def with_sample(group: str) -> dict[str, EntryPoint]:
        sample = {"toy_policy": EntryPoint("toy_policy", "toy_policy.policy:POLICY", group)}
        return registered(group) | (sample if group.endswith(".policies") else {})

    monkeypatch.syspath_prepend(str(ROOT / "docs" / "samples" / "toy_policy"))
    monkeypatch.setattr(plugins, "registered", with_sample)


def test_every_recipe_is_there_and_is_a_page() -> None:
    """One for each thing that is added to the harness, short enough to be read at once."""
    assert sorted(path.stem for path in RECIPES.glob("*.md")) == sorted(NAMES)
    for name in NAMES:
        assert len((RECIPES / f"{name}.md").read_text(encoding="utf-8").splitlines()) <= LINES_MAX


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("sample")
def test_the_code_of_a_recipe_runs(name: str) -> None:
    """The blocks of a page are one program, whose own assertions hold."""
    namespace: dict[str, Any] = {"__name__": f"recipe_{name}"}
    for code in blocks(name, "python"):
        if not _QUOTED.match(code):
            exec(compile(code, f"{name}.md", "exec"), namespace)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_quoted_stands_in_the_file(name: str) -> None:
    """A block whose first line names a file is a passage of it, letter by letter."""
    for code in blocks(name, "python") + blocks(name, "toml"):
        if quoted := _QUOTED.match(code):
            assert code[quoted.end() :] in (ROOT / quoted[1]).read_text(encoding="utf-8"), quoted[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("sample")
def test_the_commands_of_a_recipe_end_with_0(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks(name, "sh")).splitlines():
        program, *arguments = shlex.split(line)
        assert (program, invoke(arguments)) == ("cachewitness", 0), line
