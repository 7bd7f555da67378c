"""vLLM's own model runner follows its scheduler: it keeps the rows that it was told, and makes the
copies.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

from cachewitness.core.driving import drive
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.worker import RealWorker
from cachewitness.systems.vllm.worker_tables import WorkerTables
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

CONFIGURATIONS = [
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 0}),
    Configuration(layouts.load("full-mamba"), {"retention_interval": 0, "hash_block_size": 4}),
    Configuration(layouts.load("full"), {"num_speculative_tokens": 3}),
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": None, "async_depth": 1}),
]


class Compared(WorkerTables):
    """Two workers side by side: vLLM's, and what one remembers who writes down what it is told."""

    def __init__(self, real: RealWorker) -> None:
        super().__init__()
        self.real = real
        self.compared = 0
        self.copied = 0

    def update(self, output: Any) -> dict[str, int]:
        """Tell both; they start everybody at the same position and make the same copies."""
        remembered = super().update(output)
        starts = self.real.update(output)
        assert remembered == starts
        assert sorted(map(repr, self.copies)) == sorted(map(repr, self.real.copies))
        self.copied += len(self.copies)
        return starts

    def rows(self, r: str, held: list[list[int]], null: int) -> list[list[int]]:
        """Return a request's rows, in which both agree."""
        rows = self.real.rows(r, held, null)
        assert super().rows(r, held, null) == rows  # running states too lie where they belong
        self.compared += 1
        return rows


@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name
)
def test_the_model_runner_has_the_rows_and_makes_the_copies_that_it_was_told(
    configuration: Configuration,
) -> None:
    compared = copied = 0
    for seed in range(3):
        trace = random_trace(configuration.shape("scheduler"), seed, withdraw=False)
        engine = parse(f"vllm:source={SOURCE}").open(trace.header)
        adapter: Any = engine.adapter  # type: ignore[attr-defined]
        assert isinstance(adapter.worker, RealWorker)
        both = adapter.worker = Compared(adapter.worker)
        assert drive(trace, engine).findings == []
        compared, copied = compared + both.compared, copied + both.copied
    assert compared > 100
    assert (copied > 0) == ("hash_block_size" in configuration.options)


def test_two_stages_are_followed_by_the_second_runner_since_vllm_takes_no_other() -> None:
    trace = random_trace(
        Configuration(layouts.load("full"), {"async_depth": 2}).shape("scheduler"),
        0,
        withdraw=False,
    )
    engine: Any = parse(f"vllm:source={SOURCE}").open(trace.header)
    assert type(engine.adapter.worker).__name__ == "SecondWorker"


@pytest.mark.parametrize("depth", [0, 1])
def test_a_row_is_as_long_as_vllm_makes_it_and_a_longer_table_is_its_failure(depth: int) -> None:
    """Two blocks of a prompt and the states of three drafts go into a row of 64 tokens because
    vLLM's spec leaves room for drafts; without that they do not.
    """
    options = {"max_model_len": 64, "num_speculative_tokens": 3, "async_depth": depth}
    configuration = Configuration(
        layouts.load("full-mamba"), {"retention_interval": None, **options}
    )
    trace = random_trace(configuration.shape("scheduler"), 0, withdraw=False)
    clean = f"vllm:source={SOURCE}"
    assert drive(trace, parse(clean).open(trace.header)).findings == []
    faulty = parse(f"{clean},mutant=vllm-worker-row-without-drafts").open(trace.header)
    assert [finding.anomaly for finding in drive(trace, faulty).findings] == ["engine-crashed"]


def test_the_model_runners_of_earlier_traces_are_let_go() -> None:
    """A run opens thousands of engines. A failure of another test may keep one of its own."""
    before = living()
    for seed in range(4):
        trace = random_trace(CONFIGURATIONS[0].shape("scheduler"), seed, withdraw=False)
        drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
    assert len(living()) <= len(before) + 1


def living() -> set[int]:
    """Return the model runners that there are, by their ids."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if type(one).__name__ == "GPUModelRunner"}
