"""Where vLLM sees a prefix part under EAGLE, and keeps what a sibling resumes from: that is no
dense retention.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from cachewitness.core.driving import drive
from cachewitness.core.events import Hit, Publish
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import parse
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

LAYOUT = Layout(
    "swa-mamba",
    [GroupSpec("sliding", 16, window=32), GroupSpec("recurrent", 16)],
    story="",
    source="",
)
"""Without full attention the window comes first in a look-up, and bounds it."""


def in_turn(r: str, prompt: str, steps: int) -> list[Op]:
    return [Submit(r, prompt), *[Step()] * steps, Finish(r)]


def test_a_window_parts_where_the_block_beyond_it_is_there_too() -> None:
    """The window of 96 is left without the block beyond it; at 16 that block is there, so vLLM
    parts there.
    """
    ops = [
        *in_turn("a", "doc:128", 2),
        *in_turn("b", "doc:32", 3),
        *in_turn("c", "doc:192", 1),
        Submit("d", "doc:113"),
        Step(),
    ]
    header = TraceHeader("t", LAYOUT, 13, level="scheduler", options={"use_eagle": True})
    result = drive(Trace(header, ops), parse(f"vllm:source={SOURCE}").open(header))
    hits = [(event.r, event.resume) for event in result.history.events if isinstance(event, Hit)]
    kept = [
        (event.group, event.length)
        for event in result.history.events
        if isinstance(event, Publish) and event.r == "d"
    ]
    assert (hits[2:], kept) == (
        [("c", 112), ("d", 0)],
        [(0, 16), (1, 16)],
    ), "d ends its chunk at 16 and keeps that"
    assert result.findings == []
