"""Standard output is the harness's alone: what an engine in its process prints, however and
whenever, is on the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util import data
from suites.support.checkout import PYTHONPATH

MODULE = """
import atexit, ctypes, os, sys

from cachewitness.engines.answers import Answer
from cachewitness.engines.answers import Prompts
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.reference import open_engine

libc = ctypes.CDLL(None)


def say(when):
    print("python", when)
    sys.__stdout__.write(f"first {when}\\n")
    os.write(1, f"descriptor {when}\\n".encode())
    libc.printf(f"library {when}\\n".encode())  # kept in C's buffer until the process ends
    os.system(f"echo child {when}")


class Talker:
    def __init__(self, engine):
        self.engine, self.has_stepped = engine, False

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def apply(self, op):
        if not self.has_stepped:
            say("in a step")
        self.has_stepped = True
        return self.engine.apply(op)


class Answering:
    name = "talker"

    def versions(self):
        say("in an answer")
        return {}

    def reset(self, external=False):
        return True

    def close(self):
        pass


say("when it is imported")
atexit.register(say, "at the end")
ENGINE = EngineKind(
    name="talker",
    summary="the reference, which prints",
    levels=("manager",),
    open=lambda header, options: Talker(open_engine(header, {})),
    prompts=Prompts(lambda options, opening: Answering()),
)
"""
WAYS = ("python", "first", "descriptor", "library", "child")
TRACE = data.fixtures() / "traces" / "mutants" / "hit-is-maximum-over-groups.jsonl"
VECTORS = data.fixtures() / "vectors" / "vllm" / "lookup.json"
HELD = ("--engine", "talker", "--isolate", "no")
COMMANDS = {
    "run": (*HELD, "--layout", "full", "--suite", "invariants", "--jobs", "1"),
    "fuzz": (*HELD, "--operations", "20", "--jobs", "1"),
    "replay": (str(TRACE), *HELD),
    "ls": ("engines",),
}


@pytest.fixture
def talker(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the engine `talker` is installed."""
    (tmp_path / "talker_engine.py").write_text(MODULE)
    info = tmp_path / "talker-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: talker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cachewitness.engines]\ntalker = talker_engine:ENGINE\n"
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), PYTHONPATH])}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cachewitness.cli", *words]


def ways_in(text: str, when: str) -> set[str]:
    """Return in which ways the engine printed then."""
    return {way for way in WAYS if f"{way} {when}" in text}


@pytest.mark.parametrize("name", COMMANDS)
def test_only_the_document_is_on_standard_output(
    name: str, talker: dict[str, str], tmp_path: Path
) -> None:
    asked = command(name, *COMMANDS[name], "--json")
    ran = subprocess.run(asked, cwd=tmp_path, env=talker, capture_output=True, text=True)
    document: Any = json.loads(ran.stdout)
    assert document if name == "ls" else document["exit_code"] == ran.returncode
    assert ways_in(ran.stderr, "when it is imported") == set(WAYS)
    assert ways_in(ran.stderr, "at the end") == set(WAYS)
    if name != "ls":
        assert {"python", "descriptor", "child"} <= ways_in(ran.stderr, "in a step")


def test_neither_is_anything_among_what_a_reader_sees(
    talker: dict[str, str], tmp_path: Path
) -> None:
    asked = command("run", *COMMANDS["run"])
    ran = subprocess.run(asked, cwd=tmp_path, env=talker, capture_output=True, text=True)
    assert "verdict: " in ran.stdout and not any(way + " " in ran.stdout for way in WAYS)


def test_a_server_tells_its_address_in_one_line_and_nothing_else(
    talker: dict[str, str], tmp_path: Path
) -> None:
    """`serve --json`: who started it reads one line, and asks there; Ctrl-C ends it with 0."""
    asked = command("serve", "--engine", "talker", "--port", "0", "--json")
    with subprocess.Popen(
        asked, cwd=tmp_path, env=talker, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        line = json.loads(server.stdout.readline())
        assert line["engine"] == "talker" and line["url"].startswith("http://127.0.0.1:")
        server.send_signal(signal.SIGINT)
        rest, errors = server.communicate(timeout=60)
    assert (rest, server.returncode) == ("", 0)
    assert "stopped after 0 requests" in errors and ways_in(errors, "when it is imported") == set(
        WAYS
    )


def test_without_standard_error_the_document_is_whole_as_well(
    talker: dict[str, str], tmp_path: Path
) -> None:
    asked = ["bash", "-c", 'exec "$@" 2>&-', "-", *command("ls", "engines", "--json")]
    ran = subprocess.run(asked, cwd=tmp_path, env=talker, stdout=subprocess.PIPE, text=True)
    assert "talker" in {one["name"] for one in json.loads(ran.stdout)}


@pytest.mark.parametrize("asked", ["run --help", "--version", "ls layouts"])
def test_what_the_harness_says_itself_stays_on_standard_output(asked: str, tmp_path: Path) -> None:
    surroundings = os.environ | {"PYTHONPATH": PYTHONPATH}
    ran = subprocess.run(
        command(*asked.split()), cwd=tmp_path, env=surroundings, capture_output=True, text=True
    )
    assert ran.stdout and not ran.stderr and ran.returncode == 0
