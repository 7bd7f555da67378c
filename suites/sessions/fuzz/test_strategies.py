"""Strategies for users: what they draw is accepted, and prompts share their beginnings."""

from __future__ import annotations

import hypothesis
from hypothesis import HealthCheck, find, given, settings

from cachewitness import strategies
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import Layout, Trace
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts

FEW = settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@FEW
@given(strategies.traces(layouts=[layouts.load("full")], operations=15))
def test_traces_run_on_the_reference_and_nothing_is_wrong(trace: Trace) -> None:
    assert trace.header.layout.name == "full"
    assert drive(trace, parse("reference").open(trace.header)).findings == []


@FEW
@given(strategies.layouts())
def test_layouts_have_groups(layout: Layout) -> None:
    assert layout.groups


def shared(prompts: list[list[int]]) -> int:
    """Return the longest common beginning of two prompts that differ."""
    longest = 0
    for place, one in enumerate(prompts):
        for other in prompts[:place]:
            common = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            longest = max(longest, common if one != other else 0)
    return longest


def test_prompts_share_whole_blocks_and_shrink() -> None:
    """To two prompts, of which one has a block of the other."""
    found = find(
        strategies.prompts(block_size=4),
        lambda prompts: shared(prompts) >= 4,
        settings=hypothesis.settings(FEW, max_examples=500),
    )
    assert len(found) == 2 and max(map(len, found)) <= 8


@FEW
@given(strategies.prompts(block_size=8, count_max=3, blocks_max=2))
def test_prompts_stay_within_what_was_asked(prompts: list[list[int]]) -> None:
    assert 1 <= len(prompts) <= 3
    assert all(1 <= len(prompt) <= 16 for prompt in prompts)
