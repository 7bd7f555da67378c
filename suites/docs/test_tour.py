"""The guided tour quotes code that stands in the files that it names, and events that a run of
its trace gives.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from cachewitness._util.data import fixtures
from cachewitness.cli import invoke
from cachewitness.core import trace_format as traces
from cachewitness.core.events import Counts, Event, StepBegin
from cachewitness.core.worker import Worker
from cachewitness.engines import registry
from cachewitness.workloads import notation

ROOT = fixtures().parent
PAGE = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
HEADER = "pool 0: 12 pages, null 0\ngroup 0: full block 16\ngroup 1: recurrent block 16\n"


def blocks(language: str) -> list[list[str]]:
    """Return the quoted blocks of a language, as lines."""
    return [
        found.splitlines()
        for found in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    ]


QUOTED = blocks("python")


@pytest.mark.parametrize(
    "lines", QUOTED, ids=[f"{lines[0][2:]}-{index}" for index, lines in enumerate(QUOTED)]
)
def test_quoted_lines_stand_in_the_file_that_is_named_in_this_order(lines: list[str]) -> None:
    left = (ROOT / lines[0].removeprefix("# ")).read_text(encoding="utf-8").splitlines()
    for line in lines[1:]:
        assert line in left, (
            f"{lines[0]} has no such line, or none behind those quoted before: {line}"
        )
        left = left[left.index(line) + 1 :]


def test_the_tour_visits_what_every_request_passes() -> None:
    """From the request to the pool, every file of the core path is quoted."""
    files = {Path(lines[0].removeprefix("# ")).stem for lines in QUOTED}
    core = {
        "request",
        "scheduler",
        "kv_cache_manager",
        "coordinator",
        "hybrid_coordinator",
        "single_type_manager",
        "mamba",
    }
    assert core | {"keyed_blocks", "block_pool", "retention", "align_split"} == files


def plain(event: Event) -> Event:
    """Return an event without what the notation does not say: its number, what a step was asked,
    the step it belongs to.
    """
    if isinstance(event, StepBegin):
        return msgspec.structs.replace(event, seq=0, asked=[])
    return msgspec.structs.replace(event, seq=0, step=0)


def test_the_events_of_the_tour_are_those_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace of the page passes every checker and gives the quoted events and no others, the
    counts of pages apart.
    """
    file = tmp_path / "tour.jsonl"
    (trace,) = blocks("json")
    file.write_text("\n".join(trace) + "\n", encoding="utf-8")
    assert invoke(["replay", str(file)]) == 0
    assert "pass" in capsys.readouterr().out
    loaded = traces.load(file)
    engine = registry.parse("reference").open(loaded.header)
    worker = Worker(engine.describe())
    happened = [
        event
        for op in loaded.ops
        for event in worker.extend(engine.apply(op))
        if not isinstance(event, Counts)
    ]
    parsed = notation.parse(
        HEADER + "\n".join(line for block in blocks("events") for line in block)
    )
    assert [plain(event) for event in happened] == [plain(event) for event in parsed.events]
