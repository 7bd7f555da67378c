"""docs/reference/protocol.md is what the harness does: its lines are read by the real reader, and
its conversations are had.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.declared import check_declared
from cachewitness.core.driving import drive
from cachewitness.core.events import Event
from cachewitness.core.intake import AnswerIntake, Intake, taken_in
from cachewitness.core.trace_format import Submit, Trace
from cachewitness.engines.isolation import process
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.isolation.jsonl import introduced
from cachewitness.engines.isolation.messages import (
    ANSWERS,
    ASKED,
    PROTOCOL,
    VERSION,
    Answer,
    Apply,
    Happened,
    Open,
    Opened,
    Question,
)
from cachewitness.engines.registry import EngineSpec, parse

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "protocol.md").read_text(
    encoding="utf-8"
)
MESSAGE = re.compile(r"^([<>]) (\{.*\})$", re.MULTILINE)
BLOCKS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PLAYER = """
import json, os, sys
exchange = json.load(open(sys.argv[1]))
asked, answers = os.fdopen(int(os.environ["CACHEWITNESS_ASKED"])), os.fdopen(int(os.environ["CACHEWITNESS_ANSWERS"]), "w")
print(exchange[0][1], file=answers, flush=True)
for line, (expected, answer) in zip(asked, exchange[1:]):
    if json.loads(line) != json.loads(expected):
        sys.exit(f"asked {line}, the page has {expected}")
    print(answer, file=answers, flush=True)
"""  # noqa: E501
"""A driver that gives the answers of a page, as long as it is asked what the page says."""


def conversation(section: str) -> list[tuple[str, str]]:
    """Return the questions and answers in the blocks of a section, in order; an answer that was
    not asked for has none.
    """
    text = re.split(r"^## ", PAGE.split(f"\n## {section}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = list[tuple[str, str]]()
    asked = ""
    for who, line in MESSAGE.findall(text):
        if who == ">":
            asked = line
        else:
            found.append((asked, line))
            asked = ""
    return found


def test_every_line_of_the_page_is_read_and_says_all_that_it_means() -> None:
    """No line has a field that the reader does not know, or a message that it cannot read."""
    lines = [line for block in BLOCKS for line in MESSAGE.findall(block)]
    assert len(lines) > 25 and len(lines) == sum(len(block.splitlines()) for block in BLOCKS)
    kinds = {type(message).__name__ for message in map(read, lines)}
    every = {kind.__name__ for kind in (*get_args(Question), *get_args(Answer))}
    assert kinds == every, "every message of the protocol has an example"


def read(line: tuple[str, str]) -> Any:
    who, text = line
    message: Any = msgspec.json.decode(text, type=Question if who == ">" else Answer)
    if isinstance(message, Happened):
        events = msgspec.convert(message.events, list[Event])
        for event, fields in zip(events, message.events, strict=True):
            see_that_it_is_known(event, fields)
    if isinstance(message, Opened):
        check_declared(message.header)
        see_that_it_is_known(message.header, json.loads(text)["header"])
    see_that_it_is_known(message, json.loads(text))
    return message


def see_that_it_is_known(message: Any, given: Any) -> None:
    """Every field that was said is one of the message's."""
    fields = {field.encode_name for field in msgspec.structs.fields(type(message))}
    assert set(given) <= {*fields, type(message).__struct_config__.tag_field}, given


def player(folder: Path, exchange: list[tuple[str, str]]) -> EngineSpec:
    (folder / "player.py").write_text(PLAYER)
    (folder / "exchange.json").write_text(json.dumps(exchange))
    command = f"jsonl:command='{sys.executable}' {folder}/player.py {folder}/exchange.json"
    return parse(command).isolated(Isolation(deadline=10.0))


def test_the_conversation_at_manager_level_is_one_that_passes(tmp_path: Path) -> None:
    """Asked just so, the answers are followed by every checker, and a request hits what the page
    says.
    """
    exchange = [*conversation("Ready"), conversation("Open")[0], *conversation("Apply")]
    exchange = [(asked, answer) for asked, answer in exchange if asked or '"ready"' in answer]
    spec = player(tmp_path, exchange)
    opened: Open = msgspec.json.decode(exchange[1][0], type=Question)
    ops = [
        msgspec.json.decode(asked, type=Question).op for asked, _ in exchange if '"apply"' in asked
    ]
    text = json.dumps(
        [
            [asked.replace("jsonl:command=./hybrid_driver", spec.text), answer]
            for asked, answer in exchange
        ]
    )
    (tmp_path / "exchange.json").write_text(text)
    result = drive(Trace(opened.trace, ops), spec.open(opened.trace))
    assert result.findings == [] and result.activity.hits == 1 and result.activity.hit_tokens == 4
    judged = {tally.checker for tally in result.tallies if tally.opportunities}
    assert judged >= {
        "safety-law",
        "no-fabricated-snapshots",
        "ownership",
        "commit-order",
        "reuse-floor",
    }


def test_the_conversation_at_answers_level_can_be_followed() -> None:
    exchange = conversation("Answers level")
    header = taken_in(read(("<", exchange[1][1])).header, read((">", exchange[1][0])).trace)
    intake: Intake = AnswerIntake(header)
    answers = []
    for asked, answer in exchange[2:]:
        question: Any = msgspec.json.decode(asked, type=Question)
        if isinstance(question, Apply):
            if isinstance(question.op, Submit):
                note(intake, question.op)
            answers += intake.take(
                msgspec.convert(json.loads(answer)["events"], list[Event]), question.op, 0
            )
    assert len(answers) == 1


def note(intake: Any, op: Submit) -> None:
    from cachewitness.core.events import Submitted

    intake.note(Submitted(r=op.r, tokens=op.tokens, generate=op.generate))


def test_the_page_names_what_the_code_has() -> None:
    for name in (
        ASKED,
        ANSWERS,
        PROTOCOL,
        f"version {VERSION}",
        f"{process.LINE_MAX >> 20} MiB",
        f"{Isolation().deadline:g} s",
    ):
        assert name in PAGE, name


@pytest.mark.parametrize(
    ("ready", "message"),
    [
        (
            '{"is":"ready","protocol":"cachewitness.engine","version":9,"levels":["manager"]}',
            '"version":2',
        ),
        (
            '{"is":"ready","protocol":"somebody.else","version":1,"levels":["manager"]}',
            '"protocol":"cachewitness.engine"',
        ),
        (
            '{"is":"ready","protocol":"cachewitness.engine","version":2}',
            "its `ready` names no levels",
        ),
        (
            '{"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["roof"]}',
            "Invalid enum value 'roof'",
        ),
        (
            '{"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["answers"]}',
            "names no layouts",
        ),
        (
            (
                '{"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["manager"],'
                '"layouts":[{"name":"x","groups":[{"kind":"full","block_size":0}]}]}'
            ),
            "layout 'x' of its `ready`: block_size 0",
        ),
        (
            '{"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["manager"],"layouts":[{"name":"x","groups":[]}]}',
            "it has no groups",
        ),
    ],
)
def test_a_program_that_introduces_itself_wrongly_is_one_line(
    ready: str, message: str, tmp_path: Path
) -> None:
    spec = player(tmp_path, [("", ready)])
    assert spec.isolation is not None
    with pytest.raises(UsageError) as refused:
        introduced(spec.kind, spec.text, spec.isolation)
    assert message in str(refused.value) and "\n" not in str(refused.value)
