"""Two reports compared: what is new, what is mended, and that nothing is a pass where the second
run checked less.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from cachewitness.cli import invoke, schemas
from cachewitness.report import comparison
from cachewitness.report.jsonreport import Document

NARROW = ("--layout", "full-swa", "--option", "retention_interval=0")
LIMITS = ("--max-failures", "1", "--shrink-attempts", "0", "--quiet")
SUITES = ("--suite", "invariants", "--suite", "random")
ENDLESS = ("random",)
Whole = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a clean run and of one with a fault."""
    folder = tmp_path_factory.mktemp("compared")
    engines = {"clean": "reference", "faulty": "reference:mutant=window-freed-early"}
    for name, engine in engines.items():
        where = ("--report", str(folder / name))
        invoke(["run", "--engine", engine, *NARROW, *SUITES, *LIMITS, *where])
    return {name: folder / name for name in engines}


def read(folder: Path) -> Whole:
    whole: Whole = json.loads((folder / "report.json").read_bytes())
    return whole


def compared(a: Whole, b: Whole) -> comparison.Document:
    made = [msgspec.convert(whole, Document) for whole in (a, b)]
    return comparison.compare(made[0], made[1], ("a", "b"), ENDLESS)


def suite(whole: Whole, name: str) -> Any:
    return next(one for one in whole["suites"] if one["name"] == name)


def failing(whole: Whole, name: str, one: Whole) -> Whole:
    """Return a report in which one more trace of a suite fails."""
    made = deepcopy(whole)
    suite(made, name)["failures"].append(one)
    return made


def test_new_and_mended_failures(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By folder or by file, for people and for programs; the code is 1 for new failures alone."""
    clean = str(runs["clean"])
    faulty = str(runs["faulty"] / "report.json")
    capsys.readouterr()
    assert invoke(["compare", clean, faulty]) == 1
    out = capsys.readouterr().out
    count = len(compared(read(runs["clean"]), read(runs["faulty"])).new)
    assert f"verdict: FAIL (exit code 1): {count} new failures" in out
    assert f"new in B: {count}\n  premature-release  invariants:" in out
    assert f"… and {count - 10} more" in out
    assert invoke(["compare", faulty, clean]) == 0
    out = capsys.readouterr().out
    assert f"mended in B: {count}" in out and "B lacks no suite" in out
    assert invoke(["compare", faulty, faulty, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    Draft202012Validator(schemas.KINDS["comparison"]()).validate(whole)
    assert (whole["remaining"], whole["new"], whole["mended"]) == (count, [], [])
    total = whole["total"]["a"]
    assert total["hit_tokens"] > 0 and total["hit_rate"] == total["hits"] / total["lookups"]


def cut_suite(whole: Whole) -> None:
    whole["suites"] = [one for one in whole["suites"] if one["name"] != "random"]


def cut_configuration(whole: Whole) -> None:
    whole["configurations"] = ["full[retention_interval=0]", *whole["configurations"]]


def cut_traces(whole: Whole) -> None:
    suite(whole, "invariants")["traces"] += 1


def cut_hits(whole: Whole) -> None:
    suite(whole, "random")["activity"]["hits"] = 0


def cut_rule(whole: Whole) -> None:
    rule = next(one for one in whole["checkers"] if one["opportunities"])
    rule.update(opportunities=0, not_applicable="no group has it")


def cut_short(whole: Whole) -> None:
    whole.update(interrupted=True, exit_code=130)


def cut_choice(whole: Whole) -> None:
    whole["only"] = ["--last-failed"]


def cut_need(whole: Whole) -> None:
    whole["not_run"].append({"what": "random: withdraw in traces", "why": "it cannot", "count": 3})


LESS: dict[str, tuple[Callable[[Whole], None], bool, str]] = {
    "suite": (cut_suite, False, "suite random ran"),
    "configuration": (cut_configuration, True, "configuration full[retention_interval=0] is not"),
    "traces": (cut_traces, True, "suite invariants ran"),
    "hits": (cut_hits, False, "suite random had"),
    "rule": (cut_rule, False, "never in B (no group has it)"),
    "interrupted": (cut_short, False, "B was stopped before its end"),
    "only": (cut_choice, False, "B ran only the traces of --last-failed"),
    "not run": (cut_need, False, "not run in B: random: withdraw in traces: it cannot"),
}


@pytest.mark.parametrize("what", LESS)
def test_nothing_is_a_pass_where_b_checked_less(what: str, runs: dict[str, Path]) -> None:
    """And everything is, where it is A that checked less."""
    change, of_a, sentence = LESS[what]
    a = read(runs["clean"])
    b = deepcopy(a)
    change(a if of_a else b)
    found = compared(a, b)
    assert found.exit_code == 5 and any(sentence in line for line in found.less), found.less
    assert found.reasons[0] == "no new failure in what B checked"
    assert compared(b, a).exit_code == 0


@pytest.mark.parametrize("change", [cut_suite, cut_short, cut_choice], ids=lambda one: one.__name__)
def test_what_b_did_not_run_is_not_mended(
    change: Callable[[Whole], None], runs: dict[str, Path]
) -> None:
    b = read(runs["clean"])
    change(b)
    found = compared(read(runs["faulty"]), b)
    assert not [one for one in found.mended if one.id.startswith("random:")]
    assert [one for one in found.gone if one.id.startswith("random:")]


def test_another_random_trace_that_fails_alike_is_no_news_if_other_traces_ran(
    runs: dict[str, Path],
) -> None:
    """With the same traces in both it is, and so is another anomaly or configuration."""
    plain = read(runs["clean"])
    failure = suite(read(runs["faulty"]), "random")["failures"][0]
    a = failing(plain, "random", failure)
    other = failure | {"id": failure["id"].replace(failure["id"].split("@")[0], "random:random-99")}
    same_traces = failing(plain, "random", other)
    assert compared(a, same_traces).exit_code == 1
    more_traces = deepcopy(same_traces)
    suite(more_traces, "random")["traces"] += 50
    found = compared(a, more_traces)
    assert found.exit_code == 0 and [one.id for one in found.again] == [other["id"]]
    for odd in (other | {"anomaly": "leak"}, other | {"id": f"{other['id']}x"}):
        more = failing(plain, "random", odd)
        suite(more, "random")["traces"] += 50
        assert compared(a, more).exit_code == 1


def test_a_failure_that_a_list_expects_is_named_and_fails_nothing(runs: dict[str, Path]) -> None:
    plain = read(runs["clean"])
    failure = suite(read(runs["faulty"]), "invariants")["failures"][0]
    listed = failing(plain, "invariants", failure | {"expected": "our issue 17"})
    found = compared(plain, listed)
    assert found.exit_code == 0 and [one.why for one in found.excused] == ["our issue 17"]
    unlisted = failing(plain, "invariants", failure)
    assert compared(listed, unlisted).remaining == 1


def test_what_kept_b_from_being_judged_is_unknown(runs: dict[str, Path]) -> None:
    a = read(runs["clean"])
    b = deepcopy(a)
    suite(b, "random")["crashed"] = ["leak: KeyError"]
    assert compared(a, b).exit_code == 2 and compared(b, b).exit_code == 0


def test_reports_with_nothing_in_common_are_no_pass(runs: dict[str, Path]) -> None:
    a = read(runs["clean"])
    for change in ({"policy": "openvino"}, {"suites": []}, {"configurations": ["else"]}):
        found = compared(a, a | change)
        assert found.exit_code == 5 and found.reasons[0].startswith("nothing comparable: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "truncated"),
        (b"{}", "is no report; this release reads cachewitness.report 2"),
        (b'{"format":"cachewitness.report","version":1}', "is cachewitness.report 1"),
        (b'{"format":"cachewitness.report","version":2}', "missing required field"),
        (None, "cannot be read"),
    ],
)
def test_a_report_that_cannot_be_read_is_a_mistake_of_one_line(
    content: bytes | None,
    message: str,
    tmp_path: Path,
    runs: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    capsys.readouterr()
    assert invoke(["compare", str(runs["clean"]), str(tmp_path)]) == 4
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_what_is_left_open_in_b_is_no_pass(runs: dict[str, Path]) -> None:
    """As a checker that crashed is none."""
    clean = read(runs["clean"])
    b = deepcopy(clean)
    suite(b, "random")["open"] = ["answers: rounding alone could hide it"]
    assert compared(clean, b).exit_code == 2
    assert compared(b, b).exit_code == 0


def test_an_end_that_no_line_explains_is_no_pass(runs: dict[str, Path]) -> None:
    """Such as a loss beside an earlier report, which is no failure of a trace."""
    clean = read(runs["clean"])
    made = compared(clean, clean | {"exit_code": 1, "verdict": "fail"})
    assert (made.exit_code, made.reasons) == (
        1,
        ["B ends with exit code 1, A with 0; see B's report"],
    )
    assert compared(clean | {"exit_code": 1, "verdict": "fail"}, clean).exit_code == 0
