"""States that vLLM keeps where no hit can end: with EAGLE, beside windows, and with hashes finer
than blocks.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness._util.data import fixtures
from cachewitness.core.driving import drive
from cachewitness.core.events import Copy, Publish
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Op, Step, Trace, load
from cachewitness.engines.registry import parse
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

FINDING = fixtures() / "findings" / "eagle-state-where-no-hit-ends.jsonl"


def tell(ops: list[Op] | None = None, **options: Any) -> Result:
    """Run the trace, or other operations; an option that is None is left out."""
    trace = load(FINDING)
    together = {
        name: value
        for name, value in {**trace.header.options, **options}.items()
        if value is not None
    }
    header = replace(trace.header, options=together)
    return drive(Trace(header, ops or trace.ops), parse(f"vllm:source={SOURCE}").open(header))


def kept_off_grid(result: Result) -> list[int]:
    """Return the lengths of the states that are keyed off the grid of hits."""
    published = [
        event for event in result.history.events if isinstance(event, Publish) and event.group == 2
    ]
    return [
        event.length for event in published if event.length % result.history.header.rules.alignment
    ]


def test_a_state_inside_a_block_is_kept_and_the_next_step_copies_it() -> None:
    """What vLLM does is found; a release that mends it fails here."""
    result = tell([*load(FINDING).ops, Step()])
    assert {(finding.anomaly, finding.cause) for finding in result.findings} == {
        ("over-dense-retention", "off-grid")
    }
    assert kept_off_grid(result) == [
        28,
        28,
    ], "keyed, and keyed once more in the block that it is copied to"
    assert any(isinstance(event, Copy) for event in result.history.events)


@pytest.mark.parametrize(
    ("budget", "options"),
    [
        (16, {}),
        (12, {"use_eagle": None}),
        (12, {"hash_block_size": None}),
        (12, {"eagle_groups": [0]}),
    ],
    ids=[
        "a chunk that ends at a block",
        "no EAGLE",
        "hashes of whole blocks",
        "the drafter's group alone gives tokens back",
    ],
)
def test_it_takes_all_of_these(budget: int, options: dict[str, Any]) -> None:
    submit, *_ = load(FINDING).ops
    result = tell([submit, Step(budget=16), Step(budget=budget), *[Step()] * 3], **options)
    assert result.findings == [] and kept_off_grid(result) == []
