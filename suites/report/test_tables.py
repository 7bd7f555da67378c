"""Kills, failures and timings as tables that pandas reads; their ids are the same in every run
with one seed.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cachewitness._util import frame
from cachewitness.cli import invoke
from cachewitness.report import rows as judged
from cachewitness.sessions.mutants import rows as kills
from cachewitness.sessions.mutants.matrix import Matrix, Row

FAULT = "hit-is-maximum-over-groups"
COMMANDS = {
    "run": (
        "run",
        "--engine",
        f"reference:mutant={FAULT}",
        "--layout",
        "full-mamba",
        "--suite",
        "invariants",
        "--jobs",
        "1",
        "--fail-fast",
    ),
    "mutants": (
        "mutants",
        "--mutant",
        FAULT,
        "--budget",
        "5",
        "--tensor-seconds",
        "0",
        "--jobs",
        "1",
        "--seeds",
        "2",
    ),
}
COLUMNS = {"run": judged.COLUMNS, "mutants": kills.COLUMNS}
TIMES = {"seconds"}
"""What differs from run to run."""


def table(name: str, path: Path, *more: str) -> list[dict[str, str]]:
    assert invoke([*COMMANDS[name], *more, "--table", str(path)]) == (1 if name == "run" else 0)
    return [*csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("name", COMMANDS)
def test_two_runs_with_one_seed_have_the_same_ids(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same of everything but times; every row has an id of its own."""
    tables = []
    for number in range(2):  # each in a folder of its own, where nothing failed before
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        tables.append(table(name, tmp_path / f"{number}.csv"))
    first, again = tables
    assert len(first) > 1 and len({row["id"] for row in first}) == len(first)
    assert [*first[0]] == [*COLUMNS[name]]
    plain = [
        [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
        for rows in (first, again)
    ]
    assert plain[0] == plain[1]
    assert all(float(row["seconds"]) >= 0 for row in first if row["seconds"])


def test_a_row_for_each_seed_and_none_that_survives_has_a_time() -> None:
    row = Row(
        mutant="m", group="A", policy="p", anomaly="a", checker="c", killed=False, seconds=3.0, operations=9, traces=2,  # noqa: E501
        other_seeds=[1.5, None],
    )  # fmt: skip
    found = kills.rows(Matrix(rows=[row]))
    assert [(one["id"], one["killed"], one["seconds"]) for one in found] == [
        ("m#0", False, None),
        ("m#1", True, 1.5),
        ("m#2", False, None),
    ]


def test_a_failure_has_the_fingerprint_of_code_scanning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    monkeypatch.chdir(tmp_path)
    found = table("run", tmp_path / "t.csv", "--report", "out")
    (run,) = json.loads((tmp_path / "out" / "report.sarif").read_text())["runs"]
    prints = [next(iter(result["partialFingerprints"].values())) for result in run["results"]]
    assert [row["fingerprint"] for row in found if row["kind"] == "failure"] == prints
    assert [row["id"] for row in found if row["kind"] == "suite"] == ["invariants"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_that_cannot_be_written_is_refused_before_anything_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, problem in (
        ("t.xls", "neither a .csv nor a .parquet"),
        ("none/t.csv", "is no folder"),
    ):
        assert invoke([*COMMANDS[name], "--table", str(tmp_path / path)]) == 4
        out, err = capsys.readouterr()
        assert out == "" and problem in err


@pytest.mark.parametrize("missing", ["pandas", "pyarrow"])
def test_parquet_without_what_writes_it_is_refused_before_anything_runs(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = ModuleType("pandas")
    for name, module in {"pandas": there, "pyarrow": None, "fastparquet": None}.items():
        monkeypatch.setitem(sys.modules, name, None if name == missing else module)
    assert invoke(["mutants", "--table", str(tmp_path / "t.parquet")]) == 4
    assert (
        f"t.parquet needs {missing}: pip install 'cachewitness[tables]'; or name a .csv"
        in capsys.readouterr().err
    )


def test_parquet_keeps_types(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    path.write_bytes(
        frame.content(
            [{"id": "a", "n": 1, "x": 0.5}, {"id": "b", "n": 2, "x": None}], ("id", "n", "x"), path
        )
    )
    back = pandas.read_parquet(path)
    assert [*back["n"]] == [1, 2] and back["x"].isna().tolist() == [False, True]


def test_what_csv_needs_quoted_is(tmp_path: Path) -> None:
    rows = [{"id": 'a,"b"\n', "n": 1}, {"id": "c"}]
    text = frame.content(rows, ("id", "n"), tmp_path / "t.csv").decode()
    assert [*csv.DictReader(io.StringIO(text, newline=""))] == [
        {"id": 'a,"b"\n', "n": "1"},
        {"id": "c", "n": ""},
    ]
