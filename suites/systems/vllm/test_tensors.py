"""VLLM's own scheduler over real tensors: what its tables name is computed, and compared with a run
that shares nothing.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Compare
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Level, Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

CLEAN: list[tuple[str, dict[str, Any]]] = [
    ("full", {"async_depth": 1}),
    ("full", {"num_speculative_tokens": 3}),
    ("full-swa", {"retention_interval": 0}),
    ("full-mamba", {"retention_interval": 0, "hash_block_size": 4}),
    ("full-swa-mamba", {"retention_interval": 64, "async_depth": 1}),
]
FAULTY: list[tuple[str, str, dict[str, Any]]] = [
    ("vllm-row-without-its-hit", "full", {}),
    ("vllm-window-released-early", "full-swa", {"retention_interval": 0}),
    ("vllm-copies-never-told", "full-mamba", {"retention_interval": 0, "hash_block_size": 4}),
    ("vllm-worker-state-not-copied", "full-mamba", {"retention_interval": 0}),
    ("vllm-worker-row-left-behind", "full-swa", {"retention_interval": 0}),
    ("vllm-worker-forgets-what-was-generated", "full", {"async_depth": 1}),
]


def computed(layout: str, options: dict[str, Any], fault: str = "") -> tuple[Result, list[Compare]]:
    """Return what came of a random trace, and the comparisons of logits."""
    trace = random_trace(
        Configuration(layouts.load(layout), options).shape("scheduler"), 0, withdraw=False
    )
    result = drive(trace, opened(trace.header, fault))
    return result, [event for event in result.history.events if isinstance(event, Compare)]


def opened(header: TraceHeader, fault: str = "", **more: str) -> Any:
    options = {"tensors": "float64", **({"mutant": fault} if fault else {}), **more}
    return parse(
        f"vllm:source={SOURCE}," + ",".join(f"{name}={value}" for name, value in options.items())
    ).open(header)


@pytest.mark.parametrize(("layout", "options"), CLEAN)
def test_logits_over_the_tables_of_vllm_are_those_of_a_cold_run(
    layout: str, options: dict[str, Any]
) -> None:
    result, compared = computed(layout, options)
    assert result.findings == []
    assert sum(event.stop - event.start for event in compared) > 100 and not any(
        event.beyond for event in compared
    )
    assert result.activity.hit_tokens > 0


@pytest.mark.parametrize(
    ("fault", "layout", "options"), FAULTY, ids=[fault for fault, _, _ in FAULTY]
)
def test_a_wrong_table_shows_in_the_logits(
    fault: str, layout: str, options: dict[str, Any]
) -> None:
    """And the ledger, which sees no number, says why: nothing is wrong on the device that it
    does not know.
    """
    result, compared = computed(layout, options, fault)
    assert any(event.beyond for event in compared)
    assert result.findings and not any(finding.checker == "tensors" for finding in result.findings)


def test_a_fault_in_what_builds_the_scheduler_is_computed_too() -> None:
    header = TraceHeader("t", layouts.load("full"), 20, level="scheduler")
    engine = opened(header)
    engine.rebuild()
    result = drive(Trace(header, [Submit("a", "s:20"), Step(), Step(), Finish("a")]), engine)
    assert result.findings == [] and any(
        isinstance(event, Compare) for event in result.history.events
    )


@pytest.mark.parametrize(
    ("layout", "level", "options", "more", "message"),
    [
        ("full", "manager", {}, {}, "run it at scheduler level"),
        ("full", "scheduler", {}, {"tensors": "float7"}, "'float7' is unknown"),
        ("full", "scheduler", {"tier_pages": 8}, {"connector": "simple"}, "behind a connector"),
        (
            "full",
            "scheduler",
            {"num_speculative_tokens": 2, "async_depth": 1},
            {},
            "without steps in flight",
        ),
        ("full-mamba", "scheduler", {"num_speculative_tokens": 2}, {}, "over attention alone"),
        (
            "full-mamba",
            "scheduler",
            {"prefill_checkpoints": 1},
            {},
            "saves no states within a chunk",
        ),
        ("full", "scheduler", {"rswa_window": 8}, {}, "reads whole answers"),
    ],
)
def test_what_is_not_computed_is_refused_in_one_line(
    layout: str, level: Level, options: dict[str, Any], more: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(TraceHeader("t", layouts.load(layout), 40, level=level, options=options), **more)
