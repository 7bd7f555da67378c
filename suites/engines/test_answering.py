"""What the engines that only answer have in common: they refuse a chunk that is none, and wait
for nobody for ever.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Finish, Submit, TraceHeader, msgspec
from cachewitness.engines import answering
from cachewitness.engines.registry import parse
from cachewitness.systems.sample.engine import SampleEngine
from cachewitness.workloads.answer_stories import write


def header(name: str, **options: object) -> TraceHeader:
    """Return the header of a trace on an engine's first configuration."""
    shape = parse(name).configurations[0].shape("answers")
    return msgspec.structs.replace(write(shape, "idle", 0).header, options=options)


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True, "many"])
@pytest.mark.parametrize("name", ["mlx-lm", "onnxruntime-genai", "sample", "transformers"])
def test_a_chunk_is_a_number_of_tokens(name: str, chunk: Any) -> None:
    """An engine that computes no token in a step would be taken for one that hangs; it is
    refused before it is imported.
    """
    with pytest.raises(
        UsageError, match=rf"--engine {name}: chunk is a number of tokens, 1 or more, not {chunk!r}"
    ):
        parse(name).open(header(name, chunk=chunk))


def test_a_request_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that computes nothing any more is an error with the request's name, not a loop."""
    monkeypatch.setattr(answering, "STEPS_MAX", 20)
    engine = SampleEngine(header("sample"), {})
    engine.apply(Submit(r="a", prompt="x:3", generate=2, tokens=[1, 2, 3]))
    monkeypatch.setattr(engine.server, "step", lambda: None)
    with pytest.raises(RuntimeError, match="a has not ended after 20 steps"):
        engine.apply(Finish("a"))


AT_THE_END = """
from dataclasses import replace
from cachewitness.engines.isolation import engine
from cachewitness.engines.registry import parse
from cachewitness.systems.sample.engine import configurations
from cachewitness.parity.answers.baseline import baseline_of
from cachewitness.workloads.answer_stories import write

def told(self, question, seconds):
    print(type(question).__name__, flush=True)
    return asked(self, question, seconds)

asked, engine.Child.ask = engine.Child.ask, told
trace = write(configurations()[0].shape("answers"), "cancelled", 0)
baseline_of(replace(parse("sample"), isolation=engine.Isolation()), trace.header)
"""


def test_a_twin_is_closed_before_its_process_ends() -> None:
    """What an engine clears away when it is closed, such as folders and servers, is not left
    behind by the baseline.
    """
    ran = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stderr, ran.stdout.split()) == ("", ["Open", "Close"])


def test_what_a_library_says_of_a_checkpoint_is_one_line() -> None:
    """The first line of its message may be a place in its own source."""
    with (
        pytest.raises(UsageError) as refused,
        answering.loading("named", Path("folder")),
    ):
        raise RuntimeError("Exception from core.cpp:84:\nCheck failed:\n  no weights\n")
    assert str(refused.value) == (
        "--engine named: checkpoint folder: RuntimeError: Exception from core.cpp:84: Check failed:"
        " no weights"
    )
