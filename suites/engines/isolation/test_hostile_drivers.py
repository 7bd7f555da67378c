"""Whatever a program does on the line is a verdict or one clear line, soon after its deadline,
and nothing of it is left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core import result as verdict
from cachewitness.core.driving import attempt, drive
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.isolation import engine as child
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import EngineSpec, parse
from suites.support.drivers import SAMPLES
from suites.support.sampled import chosen

DEADLINE, GRACE, PATIENCE = 1.0, 5.0, 30.0
"""The deadline where a program is silent, what it may take beyond that, and the deadline of
programs that say something."""
TRACE = Trace(
    TraceHeader(name="short", layout=Layout("full", [GroupSpec("full", 16)]), pages=9),
    [Submit("a", "x:20"), Step([("a", 20)]), Finish("a")],
)
HOSTILE = """
import os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
how, at = sys.argv[1:3]
HAPPENED = '{"is":"happened","events":[%s]}'
COUNTS = '{"e":"counts","pool":0,"free":%s,"held":0,"cached":0}'

def raw(data):
    answers.flush()
    while data:
        data = data[os.write(answers.fileno(), data):]

def forever(do):
    while True:
        do()

def lingering():
    if os.fork() == 0:
        os.setsid()
        open("pid", "w").write(str(os.getpid()))
        time.sleep(600)
    time.sleep(0.3)
    os._exit(0)

def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)

def without_pipe():
    os.closerange(3, 4096)
    time.sleep(600)

HOW = {
    "exit 0": lambda: os._exit(0),
    "exit 77": lambda: os._exit(77),
    "segmentation fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(600),
    "deaf": deaf,
    "half a line": lambda: (raw(b'{"is":'), time.sleep(600)),
    "flood on standard output": lambda: forever(lambda: os.write(1, b"x" * 65536)),
    "flood on standard error": lambda: forever(lambda: os.write(2, b"y" * 65536)),
    "flood of answers": lambda: forever(lambda: raw(b'{"is":"happened","events":[]}\\n' * 999)),
    "no pipe": without_pipe,
    "a child that lingers": lingering,
    "garbage": lambda: raw(b"hello\\n"),
    "an empty line": lambda: raw(b"\\n"),
    "null": lambda: raw(b"null\\n"),
    "a list": lambda: raw(b"[1,2]\\n"),
    "an object of nothing": lambda: raw(b"{}\\n"),
    "an unknown message": lambda: raw(b'{"is":"happy"}\\n'),
    "another answer": lambda: raw(b'{"is":"closed"}\\n'),
    "ready again": lambda: raw(b'{"is":"ready","protocol":"cachewitness.engine","version":2}\\n'),
    "no UTF-8": lambda: raw(b'{"is":"happened","events":["\\xff\\xfe"]}\\n'),
    "a null byte": lambda: raw(b'{"is":"happened",\\0"events":[]}\\n'),
    "a line of 100 MB": lambda: raw(b'{"is":"happened","events":"' + b"x" * 100_000_000 + b'"}\\n'),
    "deep nesting": lambda: raw(b'{"is":"happened","events":' + b"[" * 200_000 + b"]" * 200_000 + b"}\\n"),
    "NaN": lambda: raw((HAPPENED % (COUNTS % "NaN")).encode() + b"\\n"),
    "infinity": lambda: raw((HAPPENED % (COUNTS % "1e999")).encode() + b"\\n"),
    "a fraction": lambda: raw((HAPPENED % (COUNTS % "0.5")).encode() + b"\\n"),
    "beyond 2^53": lambda: raw((HAPPENED % (COUNTS % (2**53 + 1))).encode() + b"\\n"),
    "beyond 2^64": lambda: raw((HAPPENED % (COUNTS % 2**70)).encode() + b"\\n"),
    "a thousand digits": lambda: raw((HAPPENED % (COUNTS % ("9" * 1000))).encode() + b"\\n"),
    "a text for events": lambda: raw(b'{"is":"happened","events":"none"}\\n'),
    "numbers for events": lambda: raw(b'{"is":"happened","events":[1,2]}\\n'),
    "an event of the device": lambda: raw(b'{"is":"happened","events":[{"e":"zero","pool":0,"pages":[0]}]}\\n'),
    "refused in many lines": lambda: raw(b'{"is":"refused","message":"one\\\\ntwo\\\\u001b[31m"}\\n'),
    "raised in many lines": lambda: raw(b'{"is":"raised","error":"one\\\\ntwo"}\\n'),
}
"""  # noqa: E501
"""In front of the sample: what it does instead of an answer."""


class Outcome(NamedTuple):
    """The exit code of a run of one trace, and what it says."""

    code: int
    text: str


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a driver that does something instead of an answer: `driver HOW AT`, at ready, open,
    step or close.
    """
    monkeypatch.chdir(tmp_path)
    sample = (SAMPLES / "jsonl_engine.py").read_text(encoding="utf-8")
    ready, loop = (
        "    print(json.dumps({**READY",
        "        print(json.dumps(answer(pools, question))",
    )
    assert sample.count(ready) == sample.count(loop) == 1
    sample = sample.replace(ready, f"    if at == 'ready':\n        HOW[how]()\n{ready}")
    asked = "question.get('op', {}).get('op', question['do'])"
    sample = sample.replace(
        loop, f"        if at == {asked}:\n            HOW[how]()\n            continue\n{loop}"
    )
    program = tmp_path / "driver.py"
    program.write_text(HOSTILE + sample)
    yield program
    if Path("pid").exists():
        assert not _runs(int(Path("pid").read_text())), "a process is left behind"


def _runs(pid: int) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.02)
    return True


def outcome(driver: Path, how: str, at: str) -> Outcome:
    """Run a trace; return the exit code and what is said. It takes no longer than the deadline
    and a few seconds.
    """
    spec: EngineSpec = parse(f"jsonl:command='{sys.executable}' {driver} '{how}' {at}")
    silent = LOST.get(how) == SILENT
    opening = DEADLINE + 1 if silent and at in ("ready", "open") else PATIENCE
    spec = spec.isolated(Isolation(deadline=DEADLINE if silent else PATIENCE, opening=opening))
    begun = time.monotonic()
    try:
        result, bad = attempt(lambda: drive(TRACE, spec.open(TRACE.header)))
        text = bad or " ".join(finding.sentence for finding in result.findings)
        found = Outcome(verdict.exit_code(result, bad), text)
    except UsageError as error:
        found = Outcome(4, str(error))
    assert time.monotonic() - begun < DEADLINE + 1 + GRACE
    assert found.text.isprintable() and len(found.text) < 2000, "one line, whatever was said"
    return found


SILENT = "gave no answer within"
LOST = {
    "exit 0": "ended its process with exit code 0",
    "exit 77": "ended its process with exit code 77",
    "segmentation fault": "was ended by SIGSEGV",
    "killed": "was ended by SIGKILL",
    "no pipe": "closed its pipe to the harness and ran on",
    "a child that lingers": "ended its process with exit code 0",
    "stopped": SILENT,
    "hang": SILENT,
    "deaf": SILENT,
    "half a line": SILENT,
    "flood on standard output": SILENT,
    "flood on standard error": SILENT,
}
"""What a program does that ends it, and how that is told: a finding in an operation, one line when
it is opened."""
EVERYWHERE = ("exit 0", "hang", "a child that lingers", "deaf")
MALFORMED = {
    "garbage": "is none of the protocol: JSON is malformed",
    "an empty line": "is none of the protocol",
    "null": "is none of the protocol: Expected `object`, got `null`",
    "a list": "is none of the protocol: Expected `object`, got `array`",
    "an object of nothing": "missing required field `is`",
    "an unknown message": "Invalid value 'happy'",
    "another answer": "it answers 'closed'",
    "ready again": "it answers 'ready'",
    "no UTF-8": "is none of the protocol",
    "a null byte": "is none of the protocol",
    "a line of 100 MB": "has more than 67108864 bytes",
    "deep nesting": "is none of the protocol",
    "NaN": "is none of the protocol: JSON is malformed",
    "infinity": "is none of the protocol: Number out of range",
    "a fraction": "Expected `int`, got `float` - at `$.free`",
    "beyond 2^64": "can't serialize ints < -2**63 or > 2**64 - 1",
    "a thousand digits": "can't serialize ints < -2**63 or > 2**64 - 1",
    "a text for events": "return a list of events",
    "numbers for events": "event 1 (a int)",
    "an event of the device": "event 1 (zero)",
    "flood of answers": "answers nothing that was asked",
    "refused in many lines": "refuses it: one\\ntwo\\x1b[31m",
}
"""What a program says instead of the events of a step; exit code 4."""


def places(how: str) -> list[str]:
    """Return where a program does it: wherever it is asked, or before it was asked anything and
    in an operation.
    """
    return (
        chosen(["ready", "open", "step", "close"], "ready", "step")
        if how in EVERYWHERE
        else ["step"]
    )


@pytest.mark.parametrize(("how", "at"), [(how, at) for how in LOST for at in places(how)])
def test_a_program_that_ends_or_is_silent(how: str, at: str, driver: Path) -> None:
    """A finding where it was asked for something, one line with exit code 4 where it was not
    ready yet.
    """
    found = outcome(driver, how, at)
    assert LOST[how] in found.text
    assert found.code == (1 if at in ("step", "close") else 4)


@pytest.mark.parametrize("how", MALFORMED)
def test_an_answer_that_is_none(how: str, driver: Path) -> None:
    found = outcome(driver, how, "step")
    assert found.code == 4 and MALFORMED[how] in found.text


@pytest.mark.parametrize(
    "how", ["garbage", "no UTF-8", "a line of 100 MB", "ready again", "flood of answers", "null"]
)
@pytest.mark.parametrize("at", ["ready", "open", "close"])
def test_no_answer_elsewhere_either(how: str, at: str, driver: Path) -> None:
    assert outcome(driver, how, at).code == 4


def test_a_number_is_what_it_says(driver: Path) -> None:
    """A count beyond 2^53 is read to the last digit, and is wrong; an engine that says that it
    failed is believed.
    """
    found = outcome(driver, "beyond 2^53", "step")
    assert found.code == 4 and "no `step_begin`" in found.text
    found = outcome(driver, "raised in many lines", "step")
    assert found.code == 1 and "however it raised one\\ntwo" in found.text


def test_a_question_that_nobody_reads_is_a_hang(driver: Path) -> None:
    """Also if it is larger than the pipe."""
    trace = Trace(
        TRACE.header,
        [Step([("a", 1)]), Submit("b", " ".join(f"{place:0>100}:1" for place in range(4_000)))],
    )
    program = driver.with_name("deaf.py")
    ready = '{"is":"ready","protocol":"cachewitness.engine","version":2,"levels":["manager"]}'
    program.write_text(
        "import json, os, time\nanswers = os.fdopen(int(os.environ['CACHEWITNESS_ANSWERS']),"
        f" 'w')\nasked = os.fdopen(int(os.environ['CACHEWITNESS_ASKED']))\nprint('{ready}',"
        " file=answers, flush=True)\nasked.readline()\nheader = {'e': 'header', 'engine': 'deaf',"
        " 'level': 'manager', 'pools': [{'id': 0, 'pages': 9}],\n  'groups': [{'id': 0,"
        " 'kind': 'full', 'block_size': 16}]}\nprint(json.dumps({'is': 'opened', 'header':"
        " header}), file=answers, flush=True)\ntime.sleep(600)\n"
    )
    spec = parse(f"jsonl:command='{sys.executable}' {program}").isolated(
        Isolation(deadline=DEADLINE, opening=10)
    )
    begun = time.monotonic()
    (finding,) = drive(trace, spec.open(trace.header)).findings
    assert finding.anomaly == "hung" and time.monotonic() - begun < DEADLINE + GRACE + 2


def test_nothing_of_them_is_left(driver: Path) -> None:
    """Neither descriptors nor processes, after many that died and hung."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for how in ("exit 0", "hang", "garbage", "a child that lingers"):
        outcome(driver, how, "step")
    child._CHILDREN.end()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
