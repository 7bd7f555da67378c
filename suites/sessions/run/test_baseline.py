"""`run --baseline`: what was restored on the same traces before is restored again, or the run
fails.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.report.baseline import Baseline, load
from cachewitness.report.reuse import ReuseRow
from cachewitness.sessions.run import last_failed
from cachewitness.sessions.run.suites import Suite

RUN = ["run", "--layout", "full", "--suite", "invariants"]
LESS = ["--engine", "reference:mutant=lookup-one-unit-short", "--shrink-attempts", "1"]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a right engine."""
    folder = tmp_path_factory.mktemp("earlier")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Suite, "large_traces", lambda *_, **__: iter(()))  # as in each test
        assert invoke([*RUN, "--quiet", "--report", str(folder)]) == 0
    return folder / "report.json"


def test_the_same_engine_restores_as_much(
    earlier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([*RUN, "--baseline", str(earlier)]) == 0
    output = capsys.readouterr().out
    assert "on the same traces of 1 configuration of suites" in output


def test_what_failed_last_runs_first_and_is_compared_all_the_same(
    earlier: Path, tmp_path: Path
) -> None:
    asked = [*RUN, "--quiet", "--report", str(tmp_path)]
    assert invoke([*asked, *LESS, "--max-failures", "1"]) == 1
    assert last_failed.load(tmp_path / "failures")
    assert invoke(asked) == 0
    assert load(tmp_path / "report.json", 0.0).rows == load(earlier, 0.0).rows


def test_an_engine_that_restores_less_fails_by_how_much_and_where(
    earlier: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Though every finding is expected."""
    listed = tmp_path / "expected.txt"
    listed.write_text("*:* lost-hit # as it is\n")
    asked = [*RUN, *LESS, "--expected", str(listed)]
    assert invoke([*asked, "--baseline", str(earlier), "--json"]) == 1
    made = json.loads(capsys.readouterr().out)
    (loss,) = made["baseline"]["losses"]
    assert made["verdict"] == "fail"
    assert loss.startswith("invariants@full: ") and "at most 0.0% may be lost" in loss
    assert invoke([*asked, "--baseline", str(earlier), "--loss", "99"]) == 0
    assert "nothing else found" in capsys.readouterr().out
    assert invoke([*asked, "--baseline", str(earlier)]) == 1
    assert "less is restored than in the baseline, on 1 config" in capsys.readouterr().out


def test_other_traces_are_not_compared_and_nothing_compared_is_no_pass(
    earlier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["run", "--layout", "full", "--suite", "random", "--baseline", str(earlier)]
    assert invoke(asked) == 5
    assert "no trace was run again of which it says" in capsys.readouterr().out


def test_a_loss_is_a_share_of_what_was_restored_before_on_equal_traces(tmp_path: Path) -> None:
    def row(tokens: int, digest: str = "d") -> ReuseRow:
        return ReuseRow(configuration="c", traces=2, lookups=9, tokens=tokens, digest=digest)

    baseline = Baseline(tmp_path, 0.1, {("s", "c"): row(100)})
    assert [len(baseline.compare([("s", [row(n)])]).losses) for n in (89, 90, 200)] == [1, 0, 0]
    other = baseline.compare([("s", [row(1, "e")])])
    assert (other.compared, other.others, other.losses) == (0, 1, [])
    assert baseline.compare([]).others == 1


def test_the_report_has_a_row_for_each_configuration_whose_digest_is_of_its_traces(
    earlier: Path,
) -> None:
    rows = load(earlier, 0.0).rows
    assert list(rows) == [("invariants", "full")]
    assert rows["invariants", "full"].traces > 10 and rows["invariants", "full"].tokens > 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[]", "Expected `object`"),
        ("{", "truncated"),
        ('{"suites": []}', "is no report"),
        ('{"format": "cachewitness.report", "version": 1, "suites": []}', "report 1; this release"),
    ],
)
def test_what_is_no_report_is_refused_in_a_line(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    assert invoke([*RUN, "--baseline", str(path)]) == 4
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_report_of_which_no_configuration_restored_anything_is_refused(
    earlier: Path, tmp_path: Path
) -> None:
    whole = json.loads(earlier.read_text())
    for suite in whole["suites"]:
        suite["reuse"] = []
    path = tmp_path / "report.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(UsageError, match="does not say what was restored"):
        load(path, 0.0)


def test_a_loss_without_a_baseline_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*RUN, "--loss", "3"]) == 4
    assert "--loss: there is no --baseline" in capsys.readouterr().err
