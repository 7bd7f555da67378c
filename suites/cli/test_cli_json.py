"""Every command prints, with `--json`, one document of a published schema, and nothing else, on
standard output.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator

from cachewitness._util import output
from cachewitness.cli import invoke, schemas
from suites.support.cli_examples import ELSEWHERE, EXAMPLES, NO_JSON, commands


def test_every_command_is_tried() -> None:
    assert EXAMPLES.keys() | ELSEWHERE | NO_JSON.keys() == commands().keys()


@pytest.mark.parametrize("name", sorted(commands().keys() - NO_JSON.keys()))
def test_the_option_names_the_schema_of_what_it_prints(name: str) -> None:
    (option,) = (
        one
        for one in commands()[name].params
        if isinstance(one, click.Option) and "--json" in one.opts
    )
    named = re.findall(r"`(?:schema )?([\w-]+)`", option.help or "")
    assert named and set(named) <= schemas.KINDS.keys()
    assert "and nothing else, on standard output" in (option.help or "")
    assert {kind for _, _, kind in EXAMPLES.get(name, [])} <= set(named)


@pytest.mark.parametrize(
    ("name", "words", "code", "kind"),
    [(name, *example) for name, examples in EXAMPLES.items() for example in examples],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_printed_is_a_document_of_that_schema(
    name: str,
    words: tuple[str, ...],
    code: int,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    claimed: list[str] = []
    monkeypatch.setattr(output, "claim", lambda: claimed.append(name))
    front, back = (
        (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, ())
    )
    assert invoke([*name.split(), *front, "--json", *back]) == code
    document: Any = json.loads(capsys.readouterr().out)
    assert claimed == [name] or name.startswith("plan "), "what an engine prints would be among it"
    schema = schemas.KINDS[kind]()
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
    if isinstance(document, dict) and "exit_code" in document:
        assert document["exit_code"] == code
    assert not Draft202012Validator(schema).is_valid({"format": "something else"})
