"""An exhaustive search of an engine that dies, hangs or cannot be built ends with a finding or
one line.
"""

from __future__ import annotations

import json

import pytest

from cachewitness.cli import invoke
from suites.support.foreign_engine import mortal  # noqa: F401
from suites.support.sampled import chosen

pytestmark = pytest.mark.usefixtures("mortal")


def searched(how: str, at: str, *more: str) -> int:
    limits = (
        "--isolate",
        "yes",
        "--deadline",
        "0.5" if how == "hang" else "2",
        "--bound",
        "requests=1,pages=4",
        "--jobs",
        "1",
    )
    return invoke(["fuzz", "--exhaustive", "--engine", f"mortal:how={how},at={at}", *limits, *more])


ENDS = [
    ("exit-1", "submit", "engine-crashed"),
    ("hang", "close", "hung"),
    ("raise", "close", "engine-crashed"),
    ("killed", "preempt", "engine-crashed"),
    ("exit-1", "close", "engine-crashed"),
]


@pytest.mark.parametrize(("how", "at", "anomaly"), chosen(ENDS, ENDS[0], ENDS[2]))
def test_a_death_ends_the_search(
    how: str, at: str, anomaly: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails, and the stored trace is the shortest one in which the engine dies."""
    code = searched(how, at, "--json")
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert code == found["exit_code"] == 1
    assert found["failure"]["anomaly"] == anomaly
    assert found["failure"]["operations"] <= 3
    assert "Traceback" not in out.err


@pytest.mark.parametrize(
    ("how", "at", "message"),
    [
        (
            "exit-1",
            "open",
            "cannot be built for trace 'exhaustive': it ended its process with exit code 1",
        ),
        ("raise", "open", "cannot be built for trace 'exhaustive': it raised IndexError"),
        ("garbage", "step", "of its answers is none of the protocol"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    how: str, at: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine that cannot be built, or whose answers cannot be read, is an error of use in one
    line.
    """
    assert searched(how, at) == 4
    out = capsys.readouterr()
    assert out.out == ""
    (line,) = out.err.splitlines()
    assert message in line
