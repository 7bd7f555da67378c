"""What is read off the log of llama.cpp's server: lines of a real one, and the same lines with something changed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness._util.errors import UsageError
from harness.checkers import fresh
from harness.engines.llama_cpp.checkpoints import FIRST, Checkpoints
from harness.engines.llama_cpp.log import Log
from harness.history.answered import AnswerSense
from harness.history.events import Answer, Answering, Event, Header, Resumed, Rules, Submitted
from harness.history.nonsense import Nonsense
from harness.run.execute import judge

A = list(range(64)) + [100] * 10
"""Of so many tokens as in the log, and B begins like it: 73 tokens of `a`, 72 of `b`."""
B = list(range(64)) + [101] * 12

LOG = (Path(__file__).parent / "llama_cpp_server.log").read_text()
"""`a`, another request `x`, and `b`, for which the prompt of `a` comes back from the host with its checkpoints."""
FROM_THE_HOST = r"  - found better prompt .*\n.* cache state: 0 prompts"
STAYS_THERE = "  - cache state: 1 prompts\n0.1 I srv        update:    - prompt 0x7f29d4167580:      75 tokens"


def edited(*changes: tuple[str, str]) -> str:
    """Return the log with each pattern replaced, which is there once."""
    text = LOG
    for pattern, new in changes:
        text, times = re.subn(pattern, new, text)
        assert times == 1, pattern
    return text


def followed(text: str = LOG) -> dict[str, list[Resumed]]:
    """Return what each request goes on from, by a log."""
    checkpoints = Checkpoints()
    for number, (r, prompt) in enumerate({"a": A, "x": [90] * 66, "b": B}.items()):
        assert checkpoints.number(r, prompt) == FIRST + number
    checkpoints.follow(text.splitlines())
    return {r: checkpoints.resumed(r) for r in ("a", "x", "b")}


def anomalies(text: str) -> list[str]:
    """Return what is found in a history of these requests and of what the log says of them."""
    told = followed(text)
    header = Header(
        engine="llama-cpp",
        height="answers",
        pools=[],
        groups=[],
        rules=Rules(answering=Answering("float32", 256, resumes="recurrent")),
    )

    def events() -> Iterator[Event]:
        for r, prompt in {"a": A, "x": [90] * 66, "b": B}.items():
            yield Submitted(r=r, tokens=prompt, generate=1)
            yield from told[r]
            yield Answer(r=r, tokens=[5], logprobs=[-0.5], restored=max((one.at for one in told[r]), default=0))

    return [finding.anomaly for finding in judge(header, events(), fresh("answers")).findings if finding.checker == "resumes"]


def test_a_checkpoint_that_comes_back_from_the_host_is_the_one_of_its_prompt() -> None:
    """`b` goes on behind the 64 tokens that it has in common with `a`, and nobody else restores anything."""
    assert followed() == {"a": [], "x": [], "b": [Resumed(r="b", at=64, of="a", taken=64, first=63)]}
    assert anomalies(LOG) == []


@pytest.mark.parametrize(
    ("changes", "anomaly"),
    [
        ([(r"(task 17 \| cached n_tokens =) 64", r"\1 65")], "state-position-skew"),
        (
            [
                (r"(task 17 \| restored .*)63, .* = 63, .* = 64, ", r"\g<1>69, pos_max = 69, n_tokens = 70, "),
                (r"(task 17 \| cached n_tokens =) 64", r"\1 70"),
            ],
            "stale-hit",
        ),
        (
            [(r"(task 17 \| restored .*)63, .* = 63, .* = 64, ", r"\g<1>60, pos_max = 60, n_tokens = 61, ")],
            "fabricated-snapshot",
        ),
        ([(FROM_THE_HOST, STAYS_THERE)], "fabricated-snapshot"),
    ],
    ids=["one token on", "of a prompt that parts earlier", "never made", "into an empty slot"],
)
def test_a_wrong_checkpoint_is_named(changes: list[tuple[str, str]], anomaly: str) -> None:
    """What a server restores wrongly follows from its log, whatever it answers."""
    assert anomalies(edited(*changes)) == [anomaly]


def test_a_prompt_for_which_there_is_no_room_stays_on_the_host() -> None:
    """A load that fails gives the slot nothing."""
    failed = r"\g<1>\n0.1 I slot  prompt_load: id  1 | task -1 | failed to load prompt from cache\n0.1 I srv  update:"
    text = edited(
        (r"(  - found better prompt .*)\n.* cache state: 0 prompts", failed + STAYS_THERE),
        (r".* task 17 \| restored .*\n", ""),
        (r"(task 17 \| cached n_tokens =) 64", r"\1 0"),
    )
    assert followed(text)["b"] == []


def test_a_log_that_does_not_fit_together_tells_nothing() -> None:
    """Where prompts are listed that should not be there, what was restored is not known, and the trace is stopped."""
    assert followed(edited((r"(- prompt 0x7f29d4167580: +)75", r"\g<1>70"))) == {"a": [], "x": [], "b": []}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([Answer(r="a", tokens=[5], restored=8)], "no `resume` of it came"),
        ([Resumed(r="a", at=8, of="a", taken=8), Answer(r="a", tokens=[5], restored=7)], "its `resume` said 8"),
        ([Resumed(r="a", at=99, of="a", taken=99)], "has not so many tokens"),
        ([Resumed(r="a", at=8, of="z", taken=8)], "request 'z' was never submitted"),
        ([Answer(r="a", tokens=[5], restored=0), Resumed(r="a", at=8, of="a", taken=8)], "'a' is answered"),
    ],
)
def test_what_is_told_fits_the_answer(events: list[Event], said: str) -> None:
    """An engine that tells what it goes on from does so for each answer that restored something."""
    rules = Rules(answering=Answering("float32", 256, resumes="recurrent"))
    header = Header(engine="e", height="answers", pools=[], groups=[], rules=rules)
    sense = AnswerSense(header)
    sense.note(Submitted(r="a", tokens=A, generate=1))
    for event in events[:-1]:
        sense.note(event)
    with pytest.raises(Nonsense, match=re.escape(said)):
        sense.note(events[-1])


WRITES = """
import os, sys
from harness.engines.llama_cpp.log import Log
log = Log(sys.argv[1])
os.write(2, b"one\\ntw")
log.await_line("one")
os.write(2, b"o\\n")
while not (lines := log.lines()):
    pass
print(lines)
if sys.argv[2] == "dies":
    os.write(2, b"last words\\n")
    os.abort()
log.close()
os.write(2, b"afterwards\\n")
"""


@pytest.mark.parametrize(("how", "status", "last"), [("closes", 0, "afterwards"), ("dies", -6, "last words")])
def test_standard_error_is_read_and_passed_on(tmp_path: Path, how: str, status: int, last: str) -> None:
    """Nothing of it is lost, whether the log is closed or the server aborts."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITES, str(tmp_path), how], capture_output=True, text=True, timeout=20, check=False
    )
    assert (ran.returncode, ran.stdout) == (status, "['two']\n" if how == "closes" else ran.stdout)
    assert ran.stderr.splitlines() == ["one", "two", last]


def test_a_log_of_another_form_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the line is missing that every server writes, it is said how to go on without the log."""
    monkeypatch.setattr("harness.engines.llama_cpp.log.PATIENCE", 0.05)
    log = Log(str(tmp_path))
    with pytest.raises(UsageError, match="log=unread"):
        log.await_line("all slots are idle")
    log.close()
