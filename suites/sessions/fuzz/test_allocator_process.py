"""An allocator in a process of its own: the sample in C passes, a fault in it is killed, and what a
process does instead of answering is one line.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from cachewitness import machines
from cachewitness.sessions.fuzz.allocator import Failure, find
from suites.support.block_pools import SAMPLE

FEW = hypothesis.settings(machines.ALLOCATOR_SETTINGS, max_examples=60)
MANY = hypothesis.settings(machines.ALLOCATOR_SETTINGS, max_examples=2_000)
PROCESS = """
import json, os, signal, sys, time
mode = sys.argv[1]
asks = os.fdopen(int(os.environ["CACHEWITNESS_ASKED"]))
answers = os.fdopen(int(os.environ["CACHEWITNESS_ANSWERS"]), "w", buffering=1)
ready = {"is": "ready", "protocol": "cachewitness.allocator", "version": 1, "methods": ["alloc"]}
if mode == "mute":
    sys.exit("no memory")
if mode == "old":
    ready["version"] = 0
if mode == "unknown":
    ready["methods"] = ["realloc"]
if mode == "nothing":
    ready["methods"] = []
print("hello" if mode == "greets" else json.dumps(ready), file=answers)
for line in asks:
    asked = json.loads(line)
    result = None
    if asked["do"] == "make":
        free = list(range(asked["size"]))
    elif len(free) < 2 and mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif len(free) < 2 and mode == "exits":
        sys.exit("corrupted free list")
    elif len(free) < 2 and mode == "hangs":
        time.sleep(1_000)
    elif len(free) < 2 and mode == "rubbish":
        print("corrupted free list", file=answers)
        continue
    elif asked["n"] > len(free):
        print('{"is":"refused"}', file=answers)
        continue
    else:
        result, free = free[:asked["n"]], free[asked["n"]:]
        result = result[0] if mode == "shape" else result
    print(json.dumps({"is": "done", "result": result}), file=answers)
"""


def process(mode: str, folder: Path) -> type[machines.AllocatorProcess]:
    """Return the class of a process that does something else than it should."""
    program = folder / "pool.py"
    program.write_text(PROCESS)

    class TestMine(machines.AllocatorProcess):
        command = (sys.executable, "-S", "-E", str(program), mode)
        seconds = 1 if mode == "hangs" else 60
        settings = FEW

    return TestMine


@pytest.mark.parametrize(
    ("mode", "kind", "sentence"),
    [
        ("killed", "died", "was ended by SIGKILL instead of answering alloc"),
        ("exits", "died", "exit code 1 instead of answering alloc; the last line of its standard"),
        ("hangs", "hung", "within 1 seconds"),
        ("rubbish", "malformed", "answered alloc with 'corrupted free list', which is none"),
        ("shape", "malformed", "answered alloc with 0; the result is a list of blocks"),
    ],
)
def test_what_is_no_answer_is_one_line_and_the_calls(
    mode: str, kind: str, sentence: str, tmp_path: Path
) -> None:
    found = find(process(mode, tmp_path))
    assert isinstance(found, Failure)
    head, _, calls = found.text.partition("\n\n")
    assert found.kind == kind and sentence in head and "\n" not in head, found.text
    assert calls.splitlines()[0] == "    pool = TestMine()"
    assert calls.splitlines()[-1].startswith("    pool.")


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("mute", "it ended its process with exit code 1; the last line of its standard error is"),
        ("greets", "its first line is 'hello', which is none of the protocol"),
        ("old", "its first line is another one"),
        ("unknown", "Invalid enum value 'realloc'"),
        ("nothing", "TestMine: alloc is not overridden"),
    ],
)
def test_what_does_not_begin_is_one_line(mode: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        process(mode, tmp_path)().test_allocator()
    assert sentence in str(failed.value) and "\n" not in str(failed.value)


def test_a_program_that_is_not_there_is_one_line() -> None:
    for command, sentence in (("", "does not name a program"), ("./absent", "cannot be started")):
        absent = type("TestMine", (machines.AllocatorProcess,), {"command": command})
        with pytest.raises(pytest.fail.Exception, match=sentence):
            absent().test_allocator()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_fault_in_c_is_killed(tmp_path: Path) -> None:
    """The sample with a line less; as it is, the page's own test runs it."""
    source = SAMPLE.with_suffix(".c").read_text()
    line = "        pool[block].key[0] = '\\0';\n"
    assert source.count(line) == 1
    (tmp_path / "pool.c").write_text(source.replace(line, ""))
    subprocess.run(["gcc", "-o", "pool", "pool.c"], cwd=tmp_path, check=True)

    class TestInC(machines.AllocatorProcess):
        command = str(tmp_path / "pool")
        settings = MANY

    found = find(TestInC)
    assert isinstance(found, Failure)
    assert found.kind == "stale-key", found.text
    assert "pool.publish('k1', 1)" in found.text
