"""Who is at fault if an operation raises: the engine, which is a finding, or our own adapter,
which is exit code 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import GroupSpec, Layout, Step, Submit, Trace, TraceHeader
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.isolation.messages import Apply, Open, Raised
from cachewitness.engines.isolation.serve import _Server as Server
from cachewitness.engines.registry import parse
from cachewitness_reference.vllm.block_pool import BlockPool

TRACE = Trace(
    TraceHeader(name="short", layout=Layout("full", [GroupSpec("full", 16)]), pages=9),
    [Submit("a", "x:20"), Step([("a", 20)])],
)


@pytest.fixture
def broken_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the comparison of block tables look for the null pages of a pool that it does not
    know.
    """
    prepare = BlockTableDiff.__init__

    def without_pools(self: BlockTableDiff, *given: Any) -> None:
        prepare(self, *given)
        self._null = {}

    monkeypatch.setattr(BlockTableDiff, "__init__", without_pools)


@pytest.mark.usefixtures("broken_observer")
def test_our_own_observer_is_no_death_of_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run ends with 3 and names the file and the line of ours."""
    monkeypatch.chdir(tmp_path)
    assert invoke(["run", "--seconds", "1"]) == 3
    captured = capsys.readouterr()
    assert (
        "no verdict on the engine" in captured.err
        and "block_table_diff.py:" in captured.err
        and "in the harness" in captured.err
    )
    assert "engine-crashed" not in captured.out


@pytest.mark.usefixtures("broken_observer")
def test_so_in_a_process_of_the_engine() -> None:
    """The child says whose mistake it was."""
    server = Server(None)  # type: ignore[arg-type]
    server._answer(Open("reference", TRACE.header))
    server._answer(Apply(TRACE.ops[0]))
    answer = server._answer(Apply(TRACE.ops[1]))
    assert isinstance(answer, Raised) and answer.ours and "block_table_diff.py:" in answer.error


def test_the_engine_that_raised_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the file, the line and the layer; Python's own functions below it are
    not to blame.
    """
    monkeypatch.setattr(BlockPool, "get_new_blocks", lambda pool, count: json.loads("{"))
    (finding,) = drive(TRACE, parse("reference").open(TRACE.header)).findings
    assert finding.anomaly == "engine-crashed"
    assert "JSONDecodeError" in finding.sentence and "(test_failure.py:" in finding.sentence
    assert "in the engine)" in finding.sentence


@pytest.mark.usefixtures("broken_observer")
def test_with_a_planted_fault_nothing_is_our_own() -> None:
    """A faulty engine may do what no adapter expects: it is the engine that is judged."""
    engine = parse("reference:mutant=tail-published-early").open(TRACE.header)
    (finding,) = drive(TRACE, engine).findings
    assert finding.anomaly == "engine-crashed" and "in the harness)" in finding.sentence
