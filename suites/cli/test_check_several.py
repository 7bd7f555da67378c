"""`check` of several histories: each is judged as if it were alone, and none that cannot be
judged keeps the others from it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cachewitness._util.worker_pool import WorkerPool
from cachewitness.cli import check_several, invoke
from cachewitness.core import stored
from cachewitness.core import trace_format as trace
from cachewitness.core.driving import drive
from cachewitness.core.events import History
from cachewitness.engines.registry import parse
from suites.support.cli_examples import FAULT, FAULTY, TRACES

KINDS = {"good": 0, "bad": 1, "cut": 4, "idle": 5}
"""By name of a history: the exit code of `check` for it alone."""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a history of each kind into the working folder, and a second good one."""
    monkeypatch.chdir(tmp_path)
    asked = trace.load(TRACES / f"{FAULT}.jsonl")
    good, bad = (
        drive(asked, parse(engine).open(asked.header)).history for engine in ("reference", FAULTY)
    )
    for name, history in {
        "good": good,
        "other": good,
        "bad": bad,
        "idle": History(good.header, [], []),
    }.items():
        stored.save(history, Path(f"{name}.jsonl"))
    Path("cut.jsonl").write_bytes(Path("good.jsonl").read_bytes()[:-20])


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(["check", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("names", "code", "verdict"),
    [
        ("good other", 0, "pass (exit code 0): no contradiction in 2 histories"),
        (
            "good bad other",
            1,
            "FAIL (exit code 1): 1 of 3 histories contradict a rule (group-misalignment in 1)",
        ),
        ("good cut", 4, "does not fit (exit code 4): 1 of 2 histories cannot be read or followed"),
        ("idle good", 5, "nothing checked (exit code 5): 1 of 2 histories have nothing to judge"),
        (
            "idle nowhere cut",
            4,
            "does not fit (exit code 4): 2 of 3 histories cannot be read or followed; 1 of 3",
        ),
        (
            "cut idle bad bad",
            1,
            (
                "FAIL (exit code 1): 2 of 4 histories contradict a rule (group-misalignment in 2);"
                " 1 of 4"
            ),
        ),
    ],
)
def test_the_worst_of_them_is_the_exit_code(
    names: str, code: int, verdict: str, jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"{name}.jsonl" for name in names.split()]
    found, out, _ = _run(capsys, *files, "--jobs", jobs)
    assert found == code and out.rpartition("verdict: ")[2].startswith(verdict)
    lines = out.splitlines()[: len(files)]
    assert all(file in line for file, line in zip(files, lines, strict=True))
    assert out.count("\nFAIL  group-misalignment") == ("bad" in names)


def test_a_finding_is_told_though_the_history_breaks_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a recorder leaves it whose engine crashed; without a finding it is refused as ever."""
    whole = Path("bad.jsonl").read_bytes()
    Path("broken.jsonl").write_bytes(whole + b'{"e":"rea')
    line = len(whole.splitlines()) + 1
    code, out, _ = _run(capsys, "broken.jsonl")
    assert code == 1 and "FAIL  group-misalignment  found by safety-law" in out and "\n> " in out
    assert f"the rest was not judged: broken.jsonl:{line}: " in out.rpartition("verdict: ")[2]
    code, out, _ = _run(capsys, "good.jsonl", "broken.jsonl")
    assert code == 1 and "1 of 2 histories contradict a rule (group-misalignment in 1)" in out
    assert f"the rest was not judged: broken.jsonl:{line}: " in out
    Path("known.txt").write_text("check:broken.jsonl@*  group-misalignment  # ours\n")
    code, out, err = _run(capsys, "broken.jsonl", "--expected", "known.txt")
    assert code == 4 and out == "" and err.startswith(f"cachewitness: broken.jsonl:{line}: ")


def test_the_page_shows_a_history_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    whole = Path("bad.jsonl").read_bytes()
    Path("broken.jsonl").write_bytes(whole + b'{"e":"rea')
    code, _, err = _run(capsys, "broken.jsonl", "--report", "drawn")
    assert (code, err) == (1, "") and "group-misalignment" in Path("drawn/report.html").read_text()


def test_a_pipe_is_read_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As `<(…)` of a shell: what it shows is told, without the lines around it."""
    os.mkfifo("pipe")
    for others in ((), ("good.jsonl",)):
        writing = Thread(
            target=lambda: Path("pipe").write_bytes(Path("bad.jsonl").read_bytes()), daemon=True
        )
        writing.start()
        code, out, _ = _run(capsys, "pipe", *others)
        writing.join()
        assert (
            code == 1
            and "FAIL  group-misalignment  found by safety-law in pipe" in out
            and "a contradiction." in " ".join(out.split())
        )


@pytest.mark.parametrize("name", KINDS)
def test_each_is_judged_as_if_it_were_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code, findings, tallies and what happened are those of `check FILE`; what cannot be
    read says why.
    """
    code, out, err = _run(capsys, f"{name}.jsonl", "--json")
    assert code == KINDS[name]
    _, together, _ = _run(capsys, "other.jsonl", f"{name}.jsonl", "--json", "--jobs", "2")
    _, judged = json.loads(together)["histories"]
    if name == "cut":
        assert judged["exit_code"] == 4 and err == f"cachewitness: {judged['bad_events']}\n"
    else:
        assert judged == json.loads(out)


def test_quiet_leaves_out_what_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys, "good.jsonl", "other.jsonl", "--quiet")[1].startswith("verdict: pass")
    out = _run(capsys, "good.jsonl", "idle.jsonl", "cut.jsonl", "--quiet")[1]
    assert [line.split()[0] for line in out.splitlines()[:2]] == [
        "nothing",
        "does",
    ] and "good.jsonl" not in out


def test_a_list_excuses_what_it_names_in_each(capsys: pytest.CaptureFixture[str]) -> None:
    Path("known.txt").write_text(
        "check:bad.jsonl@*  group-misalignment  # ours\ncheck:good.jsonl@*  leak strict # mended\n"
    )
    code, out, _ = _run(capsys, "bad.jsonl", "other.jsonl", "--expected", "known.txt")
    assert code == 0 and "1 of 2 histories fail as listed (ours)" in out and "FAIL" not in out
    code, out, _ = _run(capsys, "bad.jsonl", "good.jsonl", "--expected", "known.txt")
    assert code == 4 and "expected check:good.jsonl@* leak, and nothing failed so" in out


def test_a_process_that_dies_leaves_the_others_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that the system ends for its memory, twice: the history is not judged, and that is
    no pass.
    """
    judge = check_several.judged

    def judged(file: Path) -> object:
        if file.name == "other.jsonl":
            os.kill(os.getpid(), signal.SIGKILL)
        return judge(file)

    monkeypatch.setattr(check_several, "judged", judged)
    code, out, _ = _run(capsys, "good.jsonl", "other.jsonl", "idle.jsonl", "--jobs", "2")
    assert (
        code == 2
        and "1 of 3 histories were not judged to the end; 1 of 3 histories have nothing to judge"
        in out
    )
    assert (
        "other.jsonl: a process of the run was ended by signal 9, and it had nothing else to do"
        in out
    )


def test_what_was_judged_until_ctrl_c_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = check_several.judged

    def judged(file: Path) -> object:
        if file.name == "other.jsonl":
            raise KeyboardInterrupt
        return judge(file)

    monkeypatch.setattr(check_several, "judged", judged)
    code, out, _ = _run(capsys, "bad.jsonl", "other.jsonl", "good.jsonl", "--jobs", "1")
    assert code == 130 and "FAIL  group-misalignment" in out
    assert "stopped after 1 of 3 histories; until then 1 of 1 histories contradict a rule" in out


def test_what_others_judged_until_ctrl_c_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their turn had not come, behind a history that takes long."""
    judge = check_several.judged
    plain = check_several.WorkerPool.in_order

    def judged(file: Path) -> object:
        while file.name == "other.jsonl":
            time.sleep(1)
        return judge(file)

    def interrupted(self: WorkerPool[Path, Any], files: Any) -> Iterator[Any]:
        for file, task in plain(self, files):
            while len(self.finished()) < 2:
                time.sleep(0.01)
            yield file, Ctrl()
            task.wait(0)

    class Ctrl:
        def result(self) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(check_several, "judged", judged)
    monkeypatch.setattr(check_several.WorkerPool, "in_order", interrupted)
    code, out, _ = _run(capsys, "other.jsonl", "bad.jsonl", "good.jsonl", "--jobs", "2")
    assert code == 130 and "FAIL  group-misalignment" in out
    assert "stopped after 2 of 3 histories; until then 1 of 2 histories contradict a rule" in out


def test_what_belongs_to_one_history_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("good.jsonl", "other.jsonl", "--report", "x"), ("good.jsonl", "-")):
        code, out, err = _run(capsys, *words)
        assert (code, out) == (4, "") and err.count("\n") == 1


def test_a_history_that_the_harness_itself_cannot_judge_is_its_own_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash of the harness is no verdict: exit code 3, as with one history."""

    def crash(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("cachewitness.core.driving.judge", crash)
    assert invoke(["check", "good.jsonl", "other.jsonl", "--jobs", "2"]) == 3
