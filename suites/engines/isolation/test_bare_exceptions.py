"""An engine in the harness's own process that raises what no `except Exception` catches: a finding
of that trace, and the command goes on. The user's Ctrl-C ends it all the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import EngineBroken
from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import GroupSpec, Layout, Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from suites.support.foreign_engine import mortal  # noqa: F401

HOW = {
    "sys-exit": "SystemExit: 0",
    "own-exit": "Gone: gone",
    "own-interrupt": "Stop: stopped",
    "generator-exit": "GeneratorExit",
}
"""What is raised, and how a finding calls it."""
HERE = ("--isolate", "no", "--layout", "full")
TRACE = Trace(
    TraceHeader(name="short", layout=Layout("full", [GroupSpec("full", 16)]), pages=9),
    [Submit("a", "x:20"), Step([("a", 20)])],
)

pytestmark = pytest.mark.usefixtures("mortal")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("at", ["step", "close"])
def test_a_trace_ends_with_a_finding(how: str, at: str) -> None:
    """Also without a deadline, as a program drives an engine."""
    result = drive(TRACE, parse(f"mortal:how={how},at={at}").open(TRACE.header))
    (finding,) = result.findings
    assert finding.anomaly == "engine-crashed"
    assert f"raised {HOW[how]} (mortal_engine.py:" in finding.sentence


def test_the_users_interruption_passes() -> None:
    """It is no engine's, whatever the engine does meanwhile."""
    with pytest.raises(KeyboardInterrupt):
        drive(TRACE, parse("mortal:how=ctrl-c,at=step").open(TRACE.header))


@pytest.mark.parametrize("how", ["own-exit", "own-interrupt"])
def test_a_run_goes_on_and_its_trace_replays(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every trace with a reset has the finding, the others have none, and the verdict is a
    failure.
    """
    engine = ("--engine", f"mortal:how={how},at=reset", *HERE)
    assert invoke(["run", *engine, "--suite", "invariants", "--shrink-attempts", "0"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert f"raised {HOW[how]} (mortal_engine.py:" in out
    assert "(engine-crashed in " in out and "not finished" not in out
    trace = next((tmp_path / ".cachewitness" / "failures").glob("*.trace.jsonl"))
    assert invoke(["replay", str(trace), *engine[:4]]) == 1
    assert "engine-crashed" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["own-exit", "raise"])
def test_a_run_ends_with_a_finding_where_the_engine_is_let_go(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not where a run asks an engine in front of its traces how long a prompt may be."""
    engine = ("--engine", f"mortal:how={how},at=close", *HERE)
    assert invoke(["run", *engine, "--suite", "invariants", "--fail-fast"]) == 1
    assert "Let go of the engine" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["own-exit", "raise"])
def test_an_engine_that_does_not_say_what_it_is_is_one_line(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ("--engine", f"mortal:how={how},at=describe", *HERE)
    assert invoke(["run", *engine, "--suite", "invariants"]) == 4
    assert "does not say what it is for trace" in capsys.readouterr().err


def test_a_fuzz_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A campaign ends with the finding, made small."""
    engine = ("--engine", "mortal:how=own-exit,at=submit", *HERE)
    assert invoke(["fuzz", *engine, "--operations", "200"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "engine-crashed" in out and "raised Gone: gone" in out


def test_ctrl_c_ends_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Within an operation of the engine, with the exit code of an interruption."""
    engine = ("--engine", "mortal:how=ctrl-c,at=preempt", *HERE)
    assert invoke(["run", *engine, "--suite", "invariants"]) == 130
    assert "interrupted" in "".join(capsys.readouterr())


def test_an_engine_that_leaves_while_it_is_built_is_broken() -> None:
    """As if it had raised any other exception there."""
    with pytest.raises(EngineBroken, match=r"it raised Gone: gone \(mortal_engine.py:"):
        parse("mortal:how=own-exit,at=open").open(TRACE.header)
