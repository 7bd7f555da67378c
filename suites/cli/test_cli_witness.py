"""What a failure leaves: a witness to read, files to keep, and a command that shows it again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cachewitness.cli import invoke
from cachewitness.core import stored as history
from cachewitness.core import trace_format as trace

FAULTY = "reference:mutant=hit-is-maximum-over-groups"
FAILING = (
    "run",
    "--engine",
    FAULTY,
    "--suite",
    "invariants",
    "--layout",
    "full-swa-mamba",
    "--retention-interval",
    "0",
)
ID = "invariants:exact-replay@full-swa-mamba[retention_interval=0]"
PATTERN, ANOMALY = "invariants:*@full-swa-mamba[retention_interval=0]", "group-misalignment"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_witness_names_the_anomaly_marks_the_operation_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The printed command, run as it stands, exits 1 with the same witness sentence."""
    code, out, _ = _run(capsys, *FAILING)
    assert code == 1 and "verdict: FAIL (exit code 1)" in out
    first = out[out.index("FAIL  ") :].split("\nFAIL  ")[0]
    assert (
        "group-misalignment" in first
        and "what it implies:" in first
        and "layout part-of-full-swa-mamba (full 16 + recurrent 16)" in first
    )
    (marked,) = [line for line in first.splitlines() if line.startswith("> ")]
    assert "step" in marked
    sentence = first[first.index("Let ") : first.index("replay: ")].strip()
    assert sentence.startswith("Let ") and sentence.endswith("contradiction.")
    command = next(line for line in out.splitlines() if line.startswith("replay: ")).removeprefix(
        "replay: "
    )
    words = shlex.split(command)
    assert words[0] == "cachewitness"
    code, again, _ = _run(capsys, *words[1:])
    assert code == 1 and sentence in again and marked in again


def test_a_report_folder_holds_all_that_is_needed_later(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and JUnit parse and agree; every stored history is judged to fail like the run that
    wrote it.
    """
    code, out, _ = _run(capsys, *FAILING, "--report", "out", "--json")
    whole = json.loads(out)
    assert code == 1 and json.loads(Path("out/report.json").read_text()) == whole
    failures = whole["suites"][0]["failures"]
    cases = ElementTree.parse("out/junit.xml").getroot().findall(".//testcase")
    failed = {
        case.get("name"): case.find("failure") for case in cases if case.find("failure") is not None
    }
    assert set(failed) == {failure["id"] for failure in failures}
    assert "replay: cachewitness replay" in (failed[ID].text or "")  # type: ignore[union-attr]
    entry = failures[0]
    assert entry["operations"] < entry["operations_before_shrinking"]
    stored = entry["stored"]
    assert len(trace.load(Path(stored["trace"])).ops) == entry["operations"]
    assert len(trace.load(Path(stored["whole_trace"])).ops) == entry["operations_before_shrinking"]
    code, out, _ = _run(capsys, "check", stored["history"])
    assert code == 1 and entry["anomaly"] in out and "\n> " in out
    assert not list(Path().rglob("*.part"))


def test_expected_failures_do_not_fail_a_run_and_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("known.txt").write_text(f"# known\n\n{PATTERN}  {ANOMALY}  # as the seeded fault has it\n")
    code, out, _ = _run(capsys, *FAILING, "--expected", "known.txt")
    assert code == 0
    verdict = out.rpartition("verdict: ")[2]
    assert (
        f"listed as {ANOMALY} (as the seeded fault has it)" in verdict
        and "expected finding" in verdict
    )


def test_an_entry_excuses_no_other_anomaly(capsys: pytest.CaptureFixture[str]) -> None:
    """The same pattern with another anomaly leaves the run red."""
    Path("known.txt").write_text(f"{PATTERN}  leak  # something else\n")
    code, out, _ = _run(capsys, *FAILING, "--expected", "known.txt")
    assert code == 1 and f"FAIL  {ANOMALY}" in out


def test_an_entry_excuses_nothing_after_its_day(capsys: pytest.CaptureFixture[str]) -> None:
    Path("known.txt").write_text(
        f"{PATTERN}  {ANOMALY}  until=2020-02-29  # to be mended in March\n"
    )
    code, out, _ = _run(capsys, *FAILING, "--expected", "known.txt")
    assert (
        code == 1
        and f"whose day is over, which excuse nothing:\n  {PATTERN} {ANOMALY} until=2020-02-29"
        in out
    )


@pytest.mark.parametrize(("mark", "flag"), [("strict", ()), ("", ("--strict-expected",))])
def test_a_stale_entry_fails_where_it_is_asked_to(
    mark: str, flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """One under which everything passed: by its own word, or by the command's."""
    Path("known.txt").write_text(f"{PATTERN}  {ANOMALY}  {mark}  # mended since\n")
    code, out, _ = _run(capsys, *FAILING[:1], *FAILING[3:], "--expected", "known.txt", *flag)
    assert (
        code == 4
        and f"expected {PATTERN} {ANOMALY}, and nothing failed so" in out.rpartition("verdict: ")[2]
    )


def test_an_entry_that_fits_nothing_fails_under_strict_expected_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("known.txt").write_text("nothing:like@this  leak  strict  # of another suite\n")
    clean = (*FAILING[:1], *FAILING[3:], "--expected", "known.txt")
    assert _run(capsys, *clean)[0] == 0
    code, out, _ = _run(capsys, *clean, "--strict-expected")
    assert code == 4 and "and nothing fits it" in out


def test_an_expected_failure_that_passes_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """So is a pattern that fits nothing; neither fails the run."""
    Path("known.txt").write_text(
        f"{ID}  {ANOMALY}  # mended since\nnothing:like@this  leak  # stale\n"
    )
    code, out, _ = _run(capsys, *FAILING[:1], *FAILING[3:], "--expected", "known.txt")
    assert code == 0
    assert f"expected to fail, but passed:\n  {ID} {ANOMALY}" in out
    assert "fit no trace of this run:\n  nothing:like@this leak" in out


def test_a_recorded_history_is_judged_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """By the name of its file and the engine that it was recorded from; another anomaly excuses
    nothing.
    """
    _run(capsys, *FAILING, "--report", "out", "--quiet")
    (file,) = Path("out/failures").glob("invariants_exact-replay*.history.jsonl")
    Path("known.txt").write_text(f"check:{file.name}@reference*  {ANOMALY}  # our issue 17\n")
    code, out, _ = _run(capsys, "check", str(file), "--expected", "known.txt")
    assert (
        code == 0
        and f"1 expected finding, listed as {ANOMALY} (our issue 17)" in out
        and "FAIL" not in out
    )
    Path("known.txt").write_text(
        "check:*  leak  # our issue 17\ncheck:*  no-progress  # our issue 18\n"
    )
    code, out, _ = _run(capsys, "check", str(file), "--expected", "known.txt", "--strict-expected")
    assert code == 1 and f"FAIL  {ANOMALY}" in out


BAD_LINES = {
    "no reason": ("random:*  leak\n", "1: 'random:*' has no reason"),
    "no anomaly": ("random:*  # why\n", "1: 'random:*' names no anomaly; write PATTERN ANOMALY"),
    "two patterns": ("# one\nrandom:a random:b  # why\n", "2: 'random:b' is no anomaly; "),
    "an anomaly that is not": (
        "random:*  stale-hits  # why\n",
        "1: 'stale-hits' is no anomaly; did you mean 'stale-hit'?",
    ),
    "twice": ("a:b  leak  # why\na:b  leak strict  # why\n", "2: 'a:b leak' is listed twice"),
    "no id": ("everything  leak  # why\n", "1: 'everything' is no id"),
    "no day": ("a:b  leak  until=soon  # why\n", "1: until=soon: 'soon' is no day"),
    "no mark": (
        "a:b  leak  forever  # why\n",
        "1: 'forever' is none of `says=\"TEXT\"`, `until=YYYY-MM-DD` and `strict`",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_of_expected_failures_is_named(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("known.txt").write_text(text)
    code, _, err = _run(capsys, *FAILING, "--expected", "known.txt")
    assert (
        code == 4 and err.startswith(f"cachewitness: known.txt:{message}") and err.count("\n") == 1
    )


def test_replay_shrinks_and_records_when_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    """The shrunk trace lies beside the original and still fails; the recorded history is judged
    alike.
    """
    _run(capsys, *FAILING, "--report", "out", "--quiet")
    (whole,) = Path("out/failures").glob("invariants_exact-replay*.whole.jsonl")
    code, out, _ = _run(
        capsys, "replay", str(whole), "--engine", FAULTY, "--shrink", "--history", "happened.jsonl"
    )
    shrunk = whole.with_name(whole.name.replace(".jsonl", ".shrunk.jsonl"))
    assert code == 1 and len(trace.load(shrunk).ops) < len(trace.load(whole).ops)
    assert str(shrunk) in out
    assert _run(capsys, "check", "happened.jsonl", "--quiet")[0] == 1


def test_the_trace_of_a_fault_passes_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    _run(capsys, *FAILING, "--report", "out", "--quiet")
    (path,) = Path("out/failures").glob("invariants_exact-replay*.whole.jsonl")
    code, out, _ = _run(capsys, "replay", str(path))
    assert code == 0 and "no contradiction in this trace" in out


def test_annotations_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = _run(capsys, *FAILING, "--github", "--quiet")
    lines = err.splitlines()
    assert lines and all(line.startswith("::error title=") for line in lines)
    assert (
        "group-misalignment in invariants%3Aexact-replay" in lines[0]
        and "%0Acachewitness replay" in lines[0]
    )


HEADER = '{"name":"t","layout":{"name":"l","groups":[{"kind":"full","block_size":16}]},"pages":9,"needs":[]}\n'  # noqa: E501
BAD_TRACES = {
    "not JSON": (HEADER + "submit\n", ":2: JSON is malformed"),
    "no such operation": (HEADER + '{"op":"jump"}\n', ":2: Invalid value 'jump'"),
    "a missing field": (
        HEADER + '{"op":"submit","r":"a"}\n',
        ":2: Object missing required field `prompt`",
    ),
    "a bad prompt": (HEADER + '\n{"op":"submit","r":"a","prompt":"x"}\n', ":3: $.prompt"),
    "a prompt of nothing": (
        HEADER + '{"op":"submit","r":"a","prompt":"x:0"}\n',
        ":2: no tokens - at `$.prompt`",
    ),
    "a step of nothing": (
        HEADER + '\n{"op":"step","run":[["a",0]]}\n',
        ":3: less than one token - at `$.run`",
    ),
    "a place before the first": (HEADER + '{"op":"step","fail":[2,-1]}\n', ":2: -1 - at `$.fail`"),
    "no pool": (HEADER.replace(":9", ":0"), ":1: 0 - at `$.pages`"),
    "no block": (HEADER.replace(":16", ":0"), ":1: block_size 0"),
    "another version": (
        HEADER.replace('"needs"', '"version":9,"needs"'),
        ":1: format 'cachewitness.trace' version 9",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_TRACES.values(), ids=BAD_TRACES.keys())
def test_a_malformed_trace_is_one_line_with_its_place(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.jsonl").write_text(text)
    code, out, err = _run(capsys, "replay", "bad.jsonl")
    assert (code, out) == (4, "")
    assert err.startswith(f"cachewitness: bad.jsonl{message}") and err.count("\n") == 1


def test_a_trace_that_needs_more_than_the_engine_has_is_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("needy.jsonl").write_text(HEADER.replace("[]}", '["wings"]}'))
    code, out, err = _run(capsys, "replay", "needy.jsonl")
    assert (code, out) == (5, "") and "cannot wings" in err


MACHINE = (
    '{"e":"header","engine":"mine","level":"manager","pools":[{"id":0,"pages":4,"null":[0]}],'
    '"groups":[{"id":0,"kind":"full","block_size":4}]}\n'
)
SUBMIT = '{"e":"submit","r":"a","tokens":[1,2,3,4]}\n'
BAD_HISTORIES = {
    "an unknown request": (
        '{"e":"finish","r":"b"}\n',
        ":3: request 'b' was never submitted - at `$.r`",
    ),
    "an unknown holder": (
        '{"e":"acquire","pool":0,"group":0,"pages":[1],"holder":"b"}\n',
        ":3: request 'b'",
    ),
    "an unknown page": (
        '{"e":"acquire","pool":0,"group":0,"pages":[4],"holder":"a"}\n',
        ":3: page 4 does not exist",
    ),
    "an unknown group": (
        '{"e":"publish","group":1,"page":1,"r":"a","length":4}\n',
        ":3: group 1 does not exist",
    ),
    "an unknown pool": (
        '{"e":"counts","pool":7,"free":1,"held":1,"cached":1}\n',
        ":3: pool 7 does not exist",
    ),
    "too many tables": (
        '{"e":"hit","r":"a","reported":0,"resume":0,"pages":[[],[]]}\n',
        ":3: 2 tables - at `$.pages`",
    ),
    "tokens that are not there": (
        '{"e":"read","pool":0,"group":0,"pages":[1,2],"r":"a","start":0,"stop":8}\n',
        ":3: tokens [0, 8) - at `$.start`",
    ),
    "a column too few": (
        '{"e":"write","pool":0,"group":0,"pages":[],"r":"a","start":0,"stop":4}\n',
        ":3: 0 pages",
    ),
    "tokens accepted from nowhere": (
        '{"e":"accept","r":"a","upto":9,"tokens":[5]}\n',
        ":3: 9 - at `$.upto`",
    ),
    "a request twice": (SUBMIT, ":3: request 'a' is submitted twice"),
    "a copy twice": (
        '{"e":"step_begin","begun":[[1,[1,2]],[1,[1,3]]],"step":1}\n',
        ":3: copy 1 has begun already - at `$.begun`",
    ),
    "the end of no copy": (
        '{"e":"step_begin","ended":[1],"step":1}\n',
        ":3: copy 1 is not under way - at `$.ended`",
    ),
    "no such event": ('\n{"e":"jump"}\n', ":4: Invalid value 'jump'"),
}


@pytest.mark.parametrize(("line", "message"), BAD_HISTORIES.values(), ids=BAD_HISTORIES.keys())
def test_a_history_that_refers_to_nothing_is_one_line_with_its_place(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.jsonl").write_text(MACHINE + SUBMIT + line)
    code, out, err = _run(capsys, "check", "bad.jsonl")
    assert (code, out) == (4, "")
    assert err.startswith(f"cachewitness: bad.jsonl{message}") and err.count("\n") == 1


def test_a_header_whose_groups_have_no_pool_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.jsonl").write_text(MACHINE.replace('"block_size":4', '"block_size":4,"pool":3'))
    code, _, err = _run(capsys, "check", "bad.jsonl")
    assert code == 4 and "bad.jsonl:1: pool 3 does not exist" in err


def test_a_history_in_which_nothing_happened_checks_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("idle.jsonl").write_text(MACHINE)
    assert history.load(Path("idle.jsonl")).events == []
    code, out, _ = _run(capsys, "check", "idle.jsonl")
    assert code == 5 and "nothing checked" in out


def test_several_traces_are_replayed_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """One that cannot be read keeps no other from it, and what is about one trace is refused."""
    faults = Path(__file__).resolve().parents[2] / "fixtures" / "traces" / "mutants"
    failing = faults / "image-left-out.jsonl"
    engine = ["--engine", "reference:mutant=image-left-out"]
    assert invoke(["replay", str(failing), "nothing.jsonl", str(failing), *engine]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("FAIL  cross-identity-hit") == 2
    assert (
        captured.out.endswith("3 traces: 2 FAIL, 1 does not fit\n")
        and "nothing.jsonl" in captured.err
    )
    assert invoke(["replay", str(failing), str(failing), "--json", *engine]) == 4
    assert "--json: is about one trace" in capsys.readouterr().err
