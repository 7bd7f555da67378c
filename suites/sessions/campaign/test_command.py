"""`cachewitness campaign`: what it refuses, what it tells, and real processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_FAIL, EXIT_UNKNOWN
from cachewitness.sessions.campaign import driver as drivers
from cachewitness.sessions.campaign.driver import CampaignProgress
from cachewitness.sessions.campaign.metrics import exporter, text
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.campaign.totals import Totals
from cachewitness.sessions.campaign.unit import check_same
from suites.support.campaigns import FAULTY, InTurn, Remembered, came_to, driven, planned, settings
from suites.support.checkout import PYTHONPATH
from suites.support.foreign_engine import mortal  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[3]
TINY = f'name = "tiny"\nstreams = ["main"]\n[[engines]]\nengine = "{FAULTY}"\nlayouts = ["full"]\n'
BUDGET = "[budget]\ntraces = 10\nper_unit = 1\nshrink = 1\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "Object missing required field `name`"),
        ("name = 3", "Expected `str`, got `int` - at `$.name`"),
        ('name = "a"\nengines = []', "engines is empty; name at least one - at `$.engines`"),
        ('name = "a"\nspeed = 3\n[[engines]]\nengine = "reference"', "unknown field `speed`"),
        (
            'name = "a"\nseeds = [0, 0]\n[[engines]]\nengine = "reference"',
            "seeds names something twice - at `$.seeds`",
        ),
        (
            'name = "a"\nseeds = [-1]\n[[engines]]\nengine = "reference"',
            "a seed is at least 0 - at `$.seeds`",
        ),
        (
            'name = "a"\n[[engines]]\nengine = "reference"',
            "reference has no unit of work under vllm",
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "references"',
            "did you mean 'reference'? - at `$.engines[0]`",
        ),
        (
            'name = "a"\nsuites = ["randm"]\n[[engines]]\nengine = "reference"',
            "did you mean 'random'? - at `$.engines[0]`",
        ),
        (
            'name = "a"\nstreams = ["canary"]\n[[engines]]\nengine = "reference"',
            "the stream 'canary' is the self-test's",
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\n[budget]\ntraces = 0',
            "budget.traces is 0; it is at least 1 - at `$.budget`",
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\n[budget]\nlease = 30',
            "budget.lease: a unit is no longer leased: it is carried out again as soon as its",
        ),
        (
            (
                'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\n[budget]\n'
                "deadline = nan"
            ),
            "budget.deadline is nan; it is at least 1 - at `$.budget`",
        ),
        (
            (
                'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\n[budget]\nattempts'
                " = 99999999999999999999"
            ),
            "budget.attempts is 99999999999999999999; it is at most 1,000,000,000 - at `$.budget`",
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\npolicies = ["vlm"]',
            "no policy is called 'vlm'",
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\nisolate = "maybe"',
            'isolate is "yes" or "no"',
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\npolicies = []',
            "policies is empty; name at least one",
        ),
        (
            'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "reference"\nstreams = []',
            "no unit of work under vllm",
        ),
        (
            'name = "a"\nstreams = ["m"]\n'
            + '[[engines]]\nengine = "reference"\n' * 2
            + 'isolate = "yes"',
            (
                "reference under vllm is named twice, and both would be told as one; give it a"
                " `label` - at `$.engines[1]`"
            ),
        ),
        ("name = ", "Invalid value"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(text)
    assert invoke(["campaign", str(file)]) == 4
    error = capsys.readouterr().err
    assert line in error and str(file) in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--database", "postgresql://nobody:hidden@127.0.0.1:1/none"], "cannot be reached"),
        (["--traces", "/proc/nowhere"], "cannot be written"),
        (["--metrics", "/proc/nowhere/metrics"], "cannot be written"),
        (["--metrics", "99999"], "port 99999 cannot be served"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line(
    options: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A database, a store, metrics: exit code 4, and no password in the line."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        TINY.replace(FAULTY, "reference") + BUDGET
    )  # a finding would be told whatever the store does
    if "postgresql" in options[1]:
        pytest.importorskip(
            "psycopg", reason="needs the extra `cluster`: pip install 'cachewitness[cluster]'"
        )
    assert invoke(["campaign", "c.toml", "--workers", "1", *options]) == 4
    error = capsys.readouterr().err
    assert line in error and "hidden" not in error


def test_an_engine_that_runs_alone_takes_one_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text('name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "toy"\n')
    assert invoke(["campaign", str(file), "--workers", "2"]) == 4
    assert "toy, whose traces are run one after another: it computes" in capsys.readouterr().err


def test_a_machine_with_another_package_or_engine_does_nothing(tmp_path: Path) -> None:
    """Else a result would count for something that it is not of."""
    unit = planned(TINY, tmp_path).units[1]
    check_same(unit)
    other = msgspec.structs.replace(unit, package="0.0.0+0")  # type: ignore[type-var]
    with pytest.raises(
        Exception, match=r"this machine has cachewitness .*; the campaign was planned with 0.0.0"
    ):
        check_same(other)
    engine = msgspec.structs.replace(unit.engine, made_of="other")
    with pytest.raises(Exception, match="is another one here than where the campaign was planned"):
        check_same(msgspec.structs.replace(unit, engine=engine))  # type: ignore[type-var]


def test_the_key_of_a_unit_follows_the_files_that_its_engine_names(tmp_path: Path) -> None:
    """A program that was changed is another engine, so its units are done again; a label stands
    for the rest.
    """
    program = tmp_path / "driver.py"
    program.write_text((ROOT / "docs/samples/jsonl_engine.py").read_text())
    named = (
        f'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "jsonl:command=\'{sys.executable}\''
        f' {program}"\n'
    )
    keys = [
        planned(text, tmp_path).entries[1][0]
        for text in (named, named, named + 'label = "build 7"\n')
    ]
    program.write_text(program.read_text() + "# changed\n")
    keys.append(planned(named, tmp_path).entries[1][0])
    assert keys[0] == keys[1] and len({*keys}) == 3


@pytest.mark.usefixtures("mortal")
def test_an_engine_that_dies_is_a_finding_and_one_that_cannot_be_built_is_unknown(
    tmp_path: Path,
) -> None:
    """In a process of its own, which it ends with exit code 0: the first is a verdict, the
    second none; neither is a pass.
    """
    outcomes = {}
    for at in ("step", "open"):
        made = planned(
            TINY.replace(FAULTY, f"mortal:how=exit-0,at={at}") + "[budget]\ntraces = 1\n", tmp_path
        )
        outcomes[at] = perform(made.units[1], opened(str(tmp_path / "traces")))
        totals = Totals(made)
        totals.add(made.units[1], outcomes[at])
        (subject,) = totals.subjects.values()
        assert subject.exit_code == {"step": EXIT_FAIL, "open": EXIT_UNKNOWN}[at]
    assert [met.finding.anomaly for met in outcomes["step"].met] == ["engine-crashed"]
    assert "cannot be built" in outcomes["open"].wrong and not outcomes["open"].suites


def test_metrics_in_a_file_and_on_a_port(tmp_path: Path) -> None:
    """Names, types and values as Prometheus reads them; a name with a quote in it is escaped."""
    progress = CampaignProgress(units=9, done=4, findings=2, classes={("a",)}, left=None)
    metrics = text(progress, 'x"y')
    assert (
        "# TYPE cachewitness_campaign_units"
        ' gauge\ncachewitness_campaign_units{campaign="x\\"y"} 9\n' in metrics
    )
    assert (
        "# TYPE cachewitness_campaign_findings_total counter\n" in metrics
        and "seconds_left" not in metrics
    )
    with exporter(str(tmp_path / "metrics"), "a") as tell:
        tell(progress)
        assert (tmp_path / "metrics").read_text() == text(progress, "a")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with exporter(str(port), "a") as tell:
        tell(progress)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.read().decode() == text(progress, "a")


def _started(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "cachewitness.cli",
        "campaign",
        "c.toml",
        "--json",
        *options,
    ]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (
                (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit()
                else []
            )
        except OSError:
            continue
        if fields and int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_kill_9_of_a_worker_and_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command goes on where it stopped, and comes to what a campaign without any
    process comes to.
    """
    (tmp_path / "c.toml").write_text(TINY + BUDGET)
    state = tmp_path / ".cachewitness" / "campaigns" / "state.sqlite"

    def done() -> int:
        try:
            with closing(sqlite3.connect(state)) as database:
                return int(database.execute("SELECT count(*) FROM results").fetchone()[0])
        except sqlite3.Error:
            return 0

    first = _started(tmp_path, "--workers", "2")
    _wait(lambda: done() >= 1)
    worker, *_ = _children(first.pid)
    os.kill(worker, signal.SIGKILL)
    assert first.stderr is not None
    assert any(
        "was ended by signal 9; the unit is carried out again" in line for line in first.stderr
    )
    _wait(lambda: done() >= 3)
    workers = _children(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=60)
    _wait(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and _alive(pid) for pid in workers))
    second = _started(tmp_path, "--workers", "1")
    out, _ = second.communicate(timeout=120)
    summary = json.loads(out)
    monkeypatch.setattr(drivers, "POLL", 0.0)
    whole = driven(
        planned(TINY + BUDGET, tmp_path), settings(tmp_path / "whole"), InTurn(Remembered())
    )
    assert second.returncode == summary["exit_code"] == whole.totals.exit_code == 1
    assert summary["digest"] == came_to(whole)[0] and summary["done_before"] >= 3
    assert [one["signature"] for one in summary["findings"]] == list(whole.totals.distinct)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
