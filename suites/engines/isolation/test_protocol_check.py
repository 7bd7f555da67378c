"""`protocol-check` passes who speaks the protocol, and says of each mistake what was asked, what
came and what is wrong.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from cachewitness.cli import invoke
from cachewitness.engines.isolation import process
from suites.support.drivers import SAMPLES

PYTHON = SAMPLES / "jsonl_engine.py"
PAGE = (SAMPLES.parent / "reference" / "protocol.md").read_text(encoding="utf-8")
ANSWERER = """
import json, os
def say(message): print(json.dumps(message), file=answers, flush=True)
def event(op): return {"e": "answer", "r": op["r"], "tokens": [1, 2, 3], "logprobs": [-1.0, -1.0, -1.0], "restored": 0}
LAYOUT = {"name": "of-8", "groups": [{"kind": "full", "block_size": 8}]}
RULES = {"answering": {"dtype": "float64", "vocabulary": 64}}
HEADER = {"e": "header", "engine": "told", "level": "answers", "pools": [], "groups": [], "rules": RULES}
with os.fdopen(int(os.environ["CACHEWITNESS_ASKED"])) as questions, os.fdopen(int(os.environ["CACHEWITNESS_ANSWERS"]), "w") as answers:
    say({"is": "ready", "protocol": "cachewitness.engine", "version": 2, "levels": ["answers"], "layouts": [LAYOUT]})
    for question in map(json.loads, questions):
        if question["do"] == "open":
            fits = question["trace"]["level"] == "answers" and not question["trace"]["options"]
            say({"is": "opened", "header": HEADER} if fits else {"is": "refused", "message": "no"})
        elif question["do"] == "apply":
            say({"is": "happened", "events": [event(question["op"])] if question["op"]["op"] == "finish" else []})
        else:
            say({"is": "closed"})
"""  # noqa: E501
"""A driver at answers level that speaks the protocol, and whose answers are always the same."""


class Mistake(NamedTuple):
    """A change of a driver's source, what is said of it, and the section of the page that is
    named.
    """

    old: str
    new: str
    message: str
    section: str


READY = 'print(json.dumps({**READY, "layouts": LAYOUTS}), file=answers, flush=True)'
LOOP = (
    "    for question in map(json.loads, questions):\n"
    "        print(json.dumps(answer(pools, question)), file=answers, flush=True)\n"
)
ANSWERED = "print(json.dumps(answer(pools, question)), file=answers, flush=True)"
MISTAKES = {
    "nothing is said": Mistake(
        f"    {READY}",
        f'    __import__("time").sleep(99)\n    {READY}',
        "gave no answer within 3 seconds",
        "Ready",
    ),
    "another version": Mistake('"version": 2', '"version": 9', 'must be {"is":"ready"', "Ready"),
    "no levels": Mistake(
        '"levels": ["manager"]', '"levels": []', "its `ready` names no levels", "Ready"
    ),
    "a header without groups": Mistake(
        '"groups": [{"id": 0, "kind": "full", "block_size": self.size}],',
        "",
        "missing required field `groups`",
        "Open",
    ),
    "groups of another kind": Mistake(
        '{"id": 0, "kind": "full"',
        '{"id": 0, "kind": "recurrent"',
        "the trace's layout has full",
        "Open",
    ),
    "a page beyond the pool": Mistake(
        'list(range(trace["pages"]))',
        'list(range(99_999, 99_999 + trace["pages"]))',
        "event 1 (acquire)",
        "Events",
    ),
    "no submit": Mistake(
        'self.say("submit", r=r, tokens=tokens',
        "str(tokens",
        "`submit` of []; report 'a', once",
        "Events",
    ),
    "a step that does not end": Mistake(
        '        self.say("step_end")\n', "", "steps begin and none of them ends", "Events"
    ),
    "another text for a token": Mistake(
        "<< 16) + position", "<< 16) + position % 2", "at `$.tokens`", "Events"
    ),
    "a token beyond 2^53": Mistake(
        "<< 16) + position", "<< 60) + position", "a token id outside 0 to 8796093022207", "Events"
    ),
    "a fraction": Mistake(
        "held=self.pages - len(self.free)",
        "held=0.5",
        "Expected `int`, got `float` - at `$.held`",
        "Events",
    ),
    "no number": Mistake(
        "held=self.pages - len(self.free)",
        'held=float("nan")',
        "is none of the protocol: JSON is malformed",
        "Apply",
    ),
    "an event that nobody knows": Mistake(
        'self.say("step_end")', 'self.say("step_over")', "Invalid value 'step_over'", "Events"
    ),
    "an operation that it refuses": Mistake(
        'elif kind in ("preempt",',
        'elif kind == "preempt":\n            raise ValueError("not today")\n        elif kind'
        " in (",
        "it refuses what it says that it can do: not today",
        "Apply",
    ),
    "an exception": Mistake(
        'elif kind in ("preempt",',
        'elif kind == "preempt":\n            raise KeyError("a")\n        elif kind in (',
        'ended its process with exit code 1; the last line of its standard error is "KeyError:'
        " 'a'\"",
        "Apply",
    ),
    "no reset": Mistake(
        '                self.say("reset", ok=True)\n',
        "                pass\n",
        "no `reset`; report",
        "Events",
    ),
    "another answer": Mistake(
        '{"is": "closed"}',
        '{"is": "happened", "events": []}',
        "`closed` was expected; it answers `happened`",
        "Close",
    ),
    "two answers": Mistake(
        ANSWERED,
        ANSWERED.replace("print(", "print(*[").replace(", file", "] * 2, sep=chr(10), file"),
        "answers nothing that was asked",
        "Apply",
    ),
    "no UTF-8": Mistake(
        ANSWERED,
        'answers.buffer.write(b"\\xff\\xfe{}\\n"); answers.flush()',
        "is none of the protocol",
        "Open",
    ),
    "a short buffer": Mistake(
        "map(json.loads, questions)",
        "map(json.loads, iter(lambda: questions.readline(1 << 16), ''))",
        "exit code 1",
        "Apply",
    ),
    "any option": Mistake(
        ' or trace["options"]',
        "",
        "it was to refuse a trace with an option that no engine has",
        "Open",
    ),
    "any level": Mistake(
        ' or trace["level"] != "manager"',
        "",
        "it was to refuse a trace with the level scheduler, which it did not name",
        "Open",
    ),
    "no new field": Mistake(
        '        if question["do"] == "open":',
        '        assert "later" not in question\n        if question["do"] == "open":',
        "exit code 1",
        "Versions",
    ),
    "no end": Mistake(
        LOOP, LOOP + "    import time\n    time.sleep(99)\n", "its process goes on", "Start and end"
    ),
    "one trace alone": Mistake(
        'pools[:] = [Pool(question["trace"])]',
        'pools[:] = [Pool(question["trace"])] if not pools else 1 / 0',
        "exit code 1",
        "Open",
    ),
}
AT_ANSWERS = {
    "no answer": Mistake(
        '== "finish"',
        '== "never"',
        "no `answer` of 'b'; it comes with its `finish` at the latest",
        "Answers level",
    ),
    "two answers to one request": Mistake(
        '[event(question["op"])]',
        '[event(question["op"])] * 2',
        "'b' is answered twice",
        "Answers level",
    ),
    "too many tokens": Mistake(
        "[1, 2, 3]", "[1, 2, 3, 4]", "4 tokens - at `$.tokens`", "Answers level"
    ),
    "a probability less": Mistake(
        "[-1.0, -1.0, -1.0]", "[-1.0]", "1 of 3 tokens - at `$.logprobs`", "Answers level"
    ),
    "an answer to nobody": Mistake(
        '"r": op["r"]', '"r": "z"', "request 'z' was never submitted", "Answers level"
    ),
    "no vocabulary": Mistake(
        ', "vocabulary": 64', "", "missing required field `vocabulary`", "Open"
    ),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE", 1.0)


def checked(source: str, folder: Path, deadline: str) -> int:
    program = folder / "driver.py"
    program.write_text(source)
    return invoke(["protocol-check", "--deadline", deadline, "--", sys.executable, str(program)])


@pytest.mark.parametrize(
    "source", [PYTHON.read_text(encoding="utf-8"), ANSWERER], ids=["manager", "answers"]
)
def test_a_driver_that_speaks_it_passes(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every part is told, and so is what was not asked, and that nothing was judged."""
    assert checked(source, tmp_path, "10") == 0
    out = capsys.readouterr().out
    assert "WRONG" not in out and len(re.findall(r"^ok ", out, re.MULTILINE)) == 7
    assert (
        "not asked, as it is not among its capabilities" in out
        and "Nothing was judged of its cache" in out
    )


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told(
    mistake: Mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4; the line that was asked, the one that came, what is wrong, and the section to
    read.
    """
    tell(PYTHON.read_text(encoding="utf-8"), mistake, tmp_path, capsys)


@pytest.mark.parametrize("mistake", AT_ANSWERS.values(), ids=AT_ANSWERS.keys())
def test_a_mistake_at_answers_level_is_told(
    mistake: Mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(ANSWERER, mistake, tmp_path, capsys)


def tell(source: str, mistake: Mistake, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert source.count(mistake.old) == 1, mistake.old
    silent = "gave no answer" in mistake.message
    assert checked(source.replace(mistake.old, mistake.new), folder, "0.5" if silent else "4") == 4
    out, err = capsys.readouterr()
    assert "protocol-check: 1 problem in " in out and err == ""
    (wrong,) = re.findall(r"^  but       (.*)$", out, re.MULTILINE)
    assert mistake.message in wrong
    (section,) = re.findall(
        r"^  read      docs/reference/protocol.md, section (.*)$", out, re.MULTILINE
    )
    assert section == mistake.section and re.search(f"^##+ {section}$", PAGE, re.MULTILINE)
    assert (
        section == "Ready"
        or re.search(r"^  asked     \{", out, re.MULTILINE)
        or section == "Start and end"
    )


def test_a_command_that_cannot_be_started_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["protocol-check", "--", "/no/such/driver"]) == 4
    assert "cannot be started (No such file or directory)" in capsys.readouterr().err
    assert invoke(["protocol-check"]) == 4
    assert "name the program" in capsys.readouterr().err


def test_a_program_that_names_no_layouts_is_offered_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is asked on those that it takes; one that takes none is told to name its own."""
    source = PYTHON.read_text(encoding="utf-8")
    named = ', "layouts": LAYOUTS'
    assert source.count(named) == 1
    unnamed = source.replace(named, "").replace(
        '(group,) = trace["layout"]["groups"]', 'group, *more = trace["layout"]["groups"]'
    )
    unnamed = unnamed.replace('if group["kind"] != "full"', 'if more or group["kind"] != "full"')
    assert checked(unnamed, tmp_path, "10") == 0
    out = capsys.readouterr().out
    assert (
        "layouts that it takes: 4 answers" in out
        and "layout full: " in out
        and "layout full-mamba" not in out
    )
    assert checked(unnamed.replace("if more or", "if True or"), tmp_path, "10") == 4
    assert "it opens none of the layouts full, full-mamba" in capsys.readouterr().out
