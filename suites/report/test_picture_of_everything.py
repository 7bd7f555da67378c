"""Of all policies at both levels: a clean history shows no cell as wrong, and every read that
fails is shown where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from cachewitness._util.data import fixtures
from cachewitness.core import validate
from cachewitness.core.driving import attempt, drive
from cachewitness.core.events import Read
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse
from cachewitness.report.html import cells, frames
from cachewitness.report.html.frames import Frame
from cachewitness.workloads.generate import random_trace
from suites.support.sampled import ALL

FAULTS = sorted((fixtures() / "traces" / "mutants").glob("*.jsonl"))
OF_TENSORS = {mutant.name for mutant in all_mutants().values() if mutant.engines == ("toy",)}
"""Faults of what a step computes, which the reference does not."""
EVERY = 4
"""One configuration, and one seeded fault, in so many is looked at."""


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing folded or left out."""
    monkeypatch.setattr(frames, "FRAMES_MAX", 1 << 30)
    monkeypatch.setattr(cells, "COLUMNS_MAX", 1 << 30)


def run(trace: Trace, engine: str = "reference") -> Result:
    return attempt(lambda: drive(trace, parse(engine).open(trace.header)))[0]


def shown(frame: Frame, looks: str) -> list[cells.Cell]:
    return [
        cell
        for lane in frame.lanes
        for row in lane.rows
        for cell in row.cells
        if cell.looks == looks
    ]


def drawn(policy: str) -> Iterator[Trace]:
    kind = policies.get(policy)
    for level in kind.levels:
        fitting = [one for one in kind.configurations() if one.runs_at(level)]
        for seed, configuration in enumerate(fitting[:: EVERY if ALL else 2 * EVERY]):
            yield random_trace(configuration.shape(level), seed, withdraw=seed % 4 == 0)


@pytest.mark.parametrize(
    "policy", ["vllm", "openvino_genai", "lmcache", "furiosa", "tensorrt_edge"]
)
def test_a_clean_history_shows_no_cell_as_wrong(policy: str) -> None:
    """Though pages are claimed before they are filled, steps are in flight, and tables of those
    who wait grow old.
    """
    right = 0
    for trace in drawn(policy):
        result = run(trace)
        assert result.findings == []
        for frame in frames.film(result.history.header, result.history.events).frames:
            assert (
                not shown(frame, "wrong") and not shown(frame, "tainted") and not frame.failing
            ), (trace.header, frame.title)
            right += len(shown(frame, "right"))
    assert right > 100


def test_a_read_that_fails_is_marked_where_it_is() -> None:
    """In its block table, and in the pool: no page that was read beside it is marked."""
    reads, in_a_pool = 0, 0
    for path in islice(FAULTS, 0, None, EVERY):
        trace = validate.load_trace(path)
        if path.stem in OF_TENSORS:
            continue
        result = run(trace, f"reference:mutant={path.stem}")
        finding = result.findings[0]
        events = result.history.events
        film = frames.film(result.history.header, events, finding)
        (failing,) = [frame for frame in film.frames if frame.failing]
        if isinstance(events[finding.seq], Read):
            reads += 1
            (lane,) = [lane for lane in failing.lanes if lane.r == finding.r]
            marked = {cell.page for row in lane.rows for cell in row.cells if cell.marked}
            assert marked & {cell.page for cell in shown(failing, "wrong")}, path.stem
            pages = {one.page for pool in failing.pools for one in pool if one.marked}
            assert pages <= marked, path.stem
            in_a_pool += bool(pages)
    assert reads > 5 and in_a_pool > 2
