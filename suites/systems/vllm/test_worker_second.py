"""vLLM's second model runner follows its scheduler: rows, states, copies and tokens are those that
it was told, and each fault planted into it is found.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.vllm_hunt import hunt
from cachewitness.core.driving import drive
from cachewitness.core.events import Settled
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.vllm.faults import IN_SECOND_RUNNER
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

SECOND = f"vllm:source={SOURCE},runner=second"
LEAST = 30
BUDGET = 60.0
CONFIGURATIONS = [
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 0, "async_depth": 1}),
    Configuration(layouts.load("full-mamba"), {"retention_interval": 0, "hash_block_size": 4}),
    Configuration(layouts.load("full"), {"async_depth": 1, "sessions": True}),
    Configuration(layouts.load("full-swa"), {"retention_interval": None, "async_depth": 1}),
]


class Compared:
    """The second runner beside one who writes down what it is told."""

    def __init__(self, worker: Any) -> None:
        from cachewitness.systems.vllm.worker_tables import WorkerTables

        self.worker = worker
        self.remembered = WorkerTables()
        self.copied = 0
        self.shared: list[int] = []
        """For each row that was compared: in how many columns both have a page."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def update(self, output: Any) -> dict[str, int]:
        """Tell both; they start everybody at the same position and make the same copies."""
        starts: dict[str, int] = self.worker.update(output)
        assert self.remembered.update(output) == starts
        assert sorted(map(repr, self.remembered.copies)) == sorted(map(repr, self.worker.copies))
        self.copied += len(self.worker.copies)
        return starts

    def rows(self, r: str, held: list[list[int]], null: int) -> list[list[int]]:
        """Return a request's rows. As far as a step reads them they are those that were told, but
        for columns that a window has left, which the runner masks before they are given back.
        """
        rows: list[list[int]] = self.worker.rows(r, held, null)
        known = self.remembered.rows(r, held, null)
        for row, expected in zip(rows, known, strict=True):
            assert len(row) <= len(expected)
            assert all(page in (null, other) for page, other in zip(row, expected, strict=False))
            self.shared.append(sum(page != null for page in row))
        return rows


@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name
)
def test_the_second_runner_has_the_rows_and_makes_the_copies_that_it_was_told(
    configuration: Configuration,
) -> None:
    shared = copied = 0
    for seed in range(3):
        trace = random_trace(configuration.shape("scheduler"), seed, withdraw=False)
        engine: Any = parse(SECOND).open(trace.header)
        assert type(engine.adapter.worker).__name__ == "SecondWorker"
        both = engine.adapter.worker = Compared(engine.adapter.worker)
        assert drive(trace, engine).findings == []
        shared, copied = shared + sum(both.shared), copied + both.copied
    assert shared > 200
    assert (copied > 0) == ("hash_block_size" in configuration.options)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_with_drafts_a_step_is_taken_in_when_it_runs_and_its_states_are_moved(depth: int) -> None:
    """Then it is known how many drafts of the step before stood."""
    options = {"retention_interval": None, "num_speculative_tokens": 3, "async_depth": depth}
    shape = Configuration(layouts.load("full-mamba"), options).shape("scheduler")
    before = after = 0
    for seed in range(3):
        trace = random_trace(shape, seed, withdraw=False)
        engine: Any = parse(SECOND).open(trace.header)
        assert engine.adapter.worker.late
        events = [event for op in trace.ops for event in engine.apply(op)]
        settled = [event for event in events if isinstance(event, Settled)]
        before += sum(len(event.before) for event in settled)
        after += sum(len(event.after) for event in settled)
        assert drive(trace, parse(SECOND).open(trace.header)).findings == []
    assert before > 10
    assert after > 10


@pytest.mark.parametrize("connector", ["simple", "offloading"])
def test_with_drafts_it_runs_behind_a_connector(connector: str) -> None:
    """Whose memory has no rows in it."""
    options = {"retention_interval": None, "num_speculative_tokens": 3, "tier_pages": 96}
    shape = Configuration(layouts.load("full-mamba"), options).shape("scheduler")
    loaded = 0
    for seed in range(3):
        trace = random_trace(shape, seed, withdraw=False)
        result = drive(trace, parse(f"{SECOND},connector={connector}").open(trace.header))
        assert result.findings == []
        loaded += result.activity.loaded_tokens
    assert loaded > 0


def test_the_runner_is_the_one_that_is_asked_for_or_that_vllm_chooses() -> None:
    """Release 0.33 chooses the second wherever it can."""
    shape = Configuration(layouts.load("full"), {}).shape("scheduler")
    header = random_trace(shape, 0, withdraw=False).header
    found = []
    for runner in ("first", "second", "own"):
        engine: Any = parse(f"vllm:source={SOURCE},runner={runner}").open(header)
        found.append(type(engine.adapter.worker).__name__)
    assert found == ["RealWorker", "SecondWorker", "SecondWorker"]


def test_there_are_enough_faults() -> None:
    assert len(IN_SECOND_RUNNER) >= LEAST


@pytest.mark.parametrize("mutant", IN_SECOND_RUNNER.values(), ids=lambda mutant: mutant.name)
def test_a_fault_in_the_second_runner_is_killed_as_named_and_the_trace_is_clean_without_it(
    mutant: Mutant,
) -> None:
    assert hunt(mutant, SOURCE, BUDGET).trace, f"{mutant.name} survived"


@pytest.mark.parametrize("depth", [0, 2])
def test_engines_that_are_there_together_do_not_reach_into_each_other(depth: int) -> None:
    """The first is opened before the second, and asked behind it."""
    options = {"retention_interval": None, "async_depth": depth}
    shape = Configuration(layouts.load("full-mamba"), options).shape("scheduler")
    trace = random_trace(shape, 1, withdraw=False)
    engines = [parse(SECOND).open(trace.header) for _ in range(2)]
    assert [drive(trace, engine).findings for engine in engines] == [[], []]
