"""The folder that keeps a run's answers: what lies there already, and what becomes of it when a
write fails or is ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")

from cachewitness.cli import invoke
from cachewitness.engines.answers import Prompts
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.reference import ENGINE as REFERENCE
from cachewitness.parity.scores import tasks
from cachewitness.parity.scores.answer_store import AnswerStore, Line
from suites.support.engine_kinds import only
from suites.support.stub_backend import Stub, knowing

PROBLEMS = tasks.problems(limit=48)
COMMAND = ("score", "--engine", "stub", "--limit", "48", "--arms", "off,off-again,hit")


@pytest.fixture(autouse=True)
def _stub_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stub = EngineKind(
        name="stub",
        summary="",
        levels=(),
        open=REFERENCE.open,
        prompts=Prompts(
            lambda options, opening: Stub(knowing(PROBLEMS), opening), lambda options: True
        ),
    )
    only(monkeypatch, stub, REFERENCE)


def _run(capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = invoke(COMMAND)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _cut_short(capsys: pytest.CaptureFixture[str]) -> Path:
    """Leave a run that has its answers and no report, and return the answers of its first arm."""
    assert _run(capsys)[0] == 0
    (report,) = Path(".cachewitness/score").glob("*/report.json")
    report.unlink()
    return report.with_name("answers-off.jsonl")


@contextmanager
def _files_of(most: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


STRANGE = {
    "no JSON": (b"what is this", "JSON is malformed"),
    "no UTF-8": (b'{"answer":{"id":"\xff","text":""}}', "invalid"),
    "no object": (b"[1]", "Expected `object`"),
    "no question's number": (
        b'{"answer":{"id":"abc","text":"x"}}',
        "'abc' is no question's number",
    ),
}


@pytest.mark.parametrize(("line", "problem"), STRANGE.values(), ids=STRANGE.keys())
def test_a_line_that_no_run_wrote_is_named_and_kept(
    line: bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the end of the file, which a run that is ended may leave: the answers behind it are
    not thrown away.
    """
    path = _cut_short(capsys)
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    strange = b"".join([first, second, line + b"\n", *rest])
    path.write_bytes(strange)
    code, _, err = _run(capsys)
    assert (code, err.count("\n")) == (4, 1), err
    assert f"{path}:3: no answer of this run" in err and problem in err and "remove the file" in err
    assert path.read_bytes() == strange


def test_a_folder_where_the_answers_belong_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = _cut_short(capsys)
    path.unlink()
    path.mkdir()
    code, _, err = _run(capsys)
    assert (code, err) == (4, f"cachewitness: {path}: cannot be read (Is a directory)\n")


def test_a_folder_that_is_a_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path(".cachewitness").write_text("")
    code, _, err = _run(capsys)
    assert (code, err.count("\n")) == (4, 1) and "cannot be made ready" in err


@pytest.mark.parametrize("written", [0, 1, 20])
def test_terminated_while_it_writes_it_goes_on_from_the_last_whole_line(
    written: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the very first line was cut: what is written behind it must not run into it."""
    append = AnswerStore._append
    lines = list[Line]()

    def ended(store: AnswerStore, line: Line) -> None:
        lines.append(line)
        if len(lines) <= written:
            append(store, line)
        else:
            with store.path.open("ab") as file:
                file.write(b'{"answer":{"id":"7","te')
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(AnswerStore, "_append", ended)
        code, _, err = _run(capsys)
    assert (code, err.strip()) == (130, "cachewitness: interrupted")
    code, out, err = _run(capsys)
    assert (code, err) == (0, "")
    assert (f"arm off: {written - 1} of 48 answers are kept" in out) == (written > 1)
    (path,) = Path(".cachewitness/score").glob("*/answers-off.jsonl")
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["answer"]["id"] for line in kept if "answer" in line} == {
        str(number) for number in range(48)
    }


@pytest.mark.parametrize("most", [2_000, 12_000, 30_000])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with _files_of(most):
        code, _, err = _run(capsys)
    assert (code, err.count("\n")) == (4, 1), err
    assert "cannot be written (File too large)" in err
    assert not list(Path(".cachewitness/score").glob("*/report.json"))
    code, _, err = _run(capsys)
    assert (code, err) == (0, "")
