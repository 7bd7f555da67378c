"""The forms for issues can be read, and ask what a false pass or a false alarm is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is missing: pip install -e '.[dev]'")

FORMS = sorted(
    (Path(__file__).resolve().parents[2] / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")
)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_names_itself_and_each_of_its_questions_once(path: Path) -> None:
    """What GitHub asks of a form: a name, a description, and questions with ids of their own and
    a label.
    """
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    ids = [question["id"] for question in questions]
    assert form["name"] and form["description"] and len(set(ids)) == len(ids) > 0
    assert all(question["attributes"]["label"] for question in questions)


@pytest.mark.parametrize("name", ["false_alarm", "false_pass"])
def test_a_wrong_verdict_comes_with_all_that_shows_it_again(name: str) -> None:
    (path,) = (path for path in FORMS if path.stem == name)
    asked = yaml.safe_load(path.read_text(encoding="utf-8"))["body"]
    required = {part["id"] for part in asked if part.get("validations", {}).get("required")}
    assert required >= {"engine", "version", "trace", "replay"}
