"""`cachewitness score`: exit codes, what is printed, what is left on disk, and one line for
every mistake of the user's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.score
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")

import pandas

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.engines.answers import Ask, Backend, Opening, Prompts
from cachewitness.engines.reference import ENGINE as REFERENCE
from cachewitness.engines.registry import EngineKind
from cachewitness.parity.scores import tasks
from suites.support.engine_kinds import only
from suites.support.stub_backend import Stub, knowing, wrong_in

PROBLEMS = tasks.problems(limit=48)
QUICK = ("score", "--engine", "stub", "--limit", "48", "--arms", "off,off-again,hit")


def _wrong(options: Mapping[str, str]) -> Callable[[Ask, int], bool]:
    fault = options.get("fault", "")
    if fault == "weak":
        return lambda ask, restored: True
    if fault == "recurrent always":
        lost = wrong_in(PROBLEMS, "recurrent")
        return lambda ask, restored: lost(ask, 1)
    return wrong_in(PROBLEMS, fault)


def _open(options: Mapping[str, str], opening: Opening) -> Backend:
    if opening.device == "cuda":
        raise UsageError("--device: this machine has no CUDA device")
    return Stub(knowing(PROBLEMS), opening, _wrong(options), int(options.get("dies", "-1")))


@pytest.fixture(autouse=True)
def _stub_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {
        "fault": "a group of problems, or `weak`",
        "dies": "after so many answers",
        "dtype": "float32 or bfloat16",
    }
    stub = EngineKind(
        name="stub",
        summary="",
        levels=(),
        open=REFERENCE.open,
        options=options,
        prompts=Prompts(_open, lambda options: options.get("dtype", "float32") == "float32"),
    )
    only(monkeypatch, stub, REFERENCE)


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_clean_engine_passes_and_the_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed before the run: what it can show. After: noise floor, restored share by group,
    verdict. Nothing of lm-eval's.
    """
    code, out, err = _run(capsys, *QUICK)
    assert (code, err) == (0, "")
    assert (
        out.index("smallest loss that 48 questions show")
        < out.index("noise floor 0 of 48")
        < out.index("verdict: pass")
    )
    assert "group recurrent" in out and "48/48" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("words", [("--engine", "stub:dtype=bfloat16"), ("--dtype", "bfloat16")])
def test_a_narrow_dtype_is_not_bit_exact(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it was named. Tokens are reported then, and a near-tie is as wide as the dtype
    makes it.
    """
    for more, tokens, near_tie in ((), "declared", 0.001), (words, "reported", 0.25):
        _, out, _ = _run(capsys, *QUICK, *more, "--json")
        rules = json.loads(out)["rules"]
        assert (rules["tokens"], rules["near_tie"]) == (tokens, near_tie)


def test_a_fault_fails_names_its_group_and_shows_both_transcripts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = _run(
        capsys,
        "score",
        "--engine",
        "stub:fault=recurrent",
        "--limit",
        "48",
        "--arms",
        "off,off-again,hit",
    )
    assert code == 1
    assert "suspect" in out and "the questions that lost are of group recurrent" in out
    lost = out.index("lost in arm hit: question")
    assert lost < out.index("\n  cold: ", lost) < out.index("\n  hit: ", lost)
    assert "answers lost: 16 in arm hit; all of them are in report.json" in out


def test_the_report_and_the_frames_hold_every_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = _run(
        capsys, "score", "--engine", "stub:fault=full", "--limit", "48", "--json", "--out", "kept"
    )
    whole = json.loads(out)
    assert (code, whole["format"], whole["verdict"], whole["exit_code"]) == (
        1,
        "cachewitness.score",
        "fail",
        1,
    )
    assert {entry["arm"] for entry in whole["changed"]} == {"hit", "replay"} and len(
        whole["changed"]
    ) == 32
    entry = whole["changed"][0]
    assert (
        entry["cold"].strip().endswith(entry["target"].split()[-1])
        and entry["other"] == entry["cold"] + "9"
    )
    (folder,) = (tmp_path / "kept").iterdir()
    assert json.loads((folder / "report.json").read_text()) == whole
    assert "(exit code 1)" in (folder / "report.html").read_text()
    frame = pandas.read_parquet(folder / "answers.parquet")
    assert len(frame) == 5 * 48 * 2 and len(pandas.read_csv(folder / "answers.csv")) == len(frame)
    hit = frame[(frame.arm == "hit") & (frame["filter"] == "strict-match")]
    assert hit.correct.sum() == 32 and set(hit.group[~hit.correct]) == {"full"}
    assert {
        "prompt_hash",
        "seed",
        "salt",
        "restored_window",
        "version_lm_eval",
        "version_engine",
    } <= set(frame.columns)


def test_a_weak_model_is_nothing_checked(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(
        capsys,
        "score",
        "--engine",
        "stub:fault=weak",
        "--limit",
        "48",
        "--arms",
        "off,off-again,hit",
    )
    assert code == 5 and "too weak to judge by" in out


def test_a_worker_that_is_as_wrong_cold_as_cached_is_no_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It loses nothing by its cache; but a model that knows the problems answers more, which a
    server's floor asks for.
    """
    asked = [
        "score",
        "--engine",
        "stub:fault=recurrent always",
        "--limit",
        "48",
        "--arms",
        "off,off-again,hit",
    ]
    code, out, _ = _run(capsys, *asked, "--floor", "90")
    assert code == 5 and "too weak to judge by: at most 32 of 48" in out and "less than 90%" in out
    assert _run(capsys, *asked)[0] == 0
    assert (PROBLEMS.floor(server=True), PROBLEMS.floor(server=False)) == (0.9, 0.1)
    assert tasks.Task(name="gsm8k", source="", docs=PROBLEMS.docs).floor(server=True) == 0.1


def test_an_engine_that_dies_is_unknown_and_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachewitness.parity.scores.asking.BATCH", 8)
    argv = ("score", "--engine", "stub:dies=20", "--limit", "48", "--arms", "off,off-again,hit")
    code, _, err = _run(capsys, *argv)
    assert code == 2 and err.count("\n") == 1
    assert "question 20: the stub has died; what was answered is kept in .cachewitness" in err
    for expected in (2, 2):
        code, out, _ = _run(capsys, *argv)
        assert code == expected and "answers are kept from a run that was cut short" in out


USAGE: dict[str, tuple[tuple[str, ...], str]] = {
    "an engine that answers nothing": (
        ("--engine", "reference"),
        "answers no prompts; those that do: stub",
    ),
    "no such engine": (("--engine", "stubb"), "did you mean 'stub'?"),
    "no such arm": (("--arms", "off,hitt"), "did you mean 'hit'?"),
    "arms that compare nothing": (("--arms", "off,off-again"), "compares nothing"),
    "no CUDA": (("--device", "cuda"), "has no CUDA device"),
    "gsm8k from nowhere": (("--task", "gsm8k"), "--gsm8k FILE"),
    "gsm8k's file for another task": (("--task", "problems", "--gsm8k", "x"), "--task gsm8k"),
    "a file that is not there": (("--gsm8k", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
    "a model without a server": (("--model", "x"), "give --base-url"),
    "no margin": (("--margin", "0"), "--margin"),
    "no server": (("--base-url", "http://127.0.0.1:9"), "--base-url"),
    "no URL": (("--base-url", "127.0.0.1"), "--base-url"),
}


@pytest.mark.parametrize(("argv", "message"), USAGE.values(), ids=USAGE.keys())
def test_a_mistake_of_the_users_is_one_line_and_exit_code_4(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = () if {"--engine", "--base-url"} & set(argv) else ("--engine", "stub")
    code, _, err = _run(capsys, "score", *engine, *argv)
    assert code == 4 and err.startswith("cachewitness: ") and err.count("\n") == 1
    assert message in err


def test_without_lm_eval_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    found: Any = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: None if name == "lm_eval" else found(name, *rest),
    )
    code, out, err = _run(capsys, *QUICK)
    assert (code, out) == (4, "") and "install cachewitness[score]" in err


@pytest.mark.parametrize(
    ("argv", "expected"), [((), 0), (("--tokens", "strict"), 0), (("--tokens", "report"), 2)]
)
def test_tokens_decide_as_the_engine_declares_or_as_was_asked_for(
    argv: tuple[str, ...], expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its score alone an engine has shown too little with 48 questions, though no token
    differs.
    """
    code, out, _ = _run(capsys, *QUICK, *argv)
    assert code == expected and ("questions would decide" in out) == (expected == 2)


def test_an_engine_that_declares_nothing_is_judged_by_its_score_unless_the_user_declares_for_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = EngineKind(
        name="stub", summary="", levels=(), open=REFERENCE.open, prompts=Prompts(_open)
    )
    only(monkeypatch, silent)
    assert [_run(capsys, *QUICK, *argv)[0] for argv in ((), ("--bit-exact",))] == [2, 0]


def test_a_declaration_that_is_not_to_be_used_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = _run(capsys, *QUICK, "--bit-exact", "--tokens", "report")
    assert code == 4 and err.count("\n") == 1 and "leave one out" in err
