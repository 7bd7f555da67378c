"""Reference sliding window attention on a real vLLM: the prompt is read whole, and of an answer its
last tokens.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Read, Release
from cachewitness.core.result import Result
from cachewitness.core.trace_format import (
    Extend,
    Finish,
    Layout,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.configurations import ALONE, further_configurations
from cachewitness.workloads import layouts
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

WINDOW = 8
FAULTS = ("vllm-rswa-block-of-the-window-freed", "vllm-rswa-block-of-the-prompt-freed")
FULL = layouts.load("full")


def tell(
    ops: list[Op], mutant: str = "", layout: Layout = FULL, window: int = WINDOW, **options: Any
) -> Result:
    header = TraceHeader(
        "t", layout, 40, level="scheduler", options={"rswa_window": window, **options}
    )
    return drive(
        Trace(header, ops),
        parse(f"vllm:source={SOURCE}{mutant and f',mutant={mutant}'}").open(header),
    )


def answer(tokens: int) -> list[Op]:
    """Return a request of 20 tokens and an answer of so many."""
    return [Submit("a", "s:20"), *[Step()] * tokens, Finish("a")]


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_between_the_prompt_and_the_window_are_given_back_and_not_read(
    caching: bool,
) -> None:
    """Blocks have 16 tokens: the third is passed when the window begins at 48, the fourth at 64."""
    result = tell(answer(60), enable_caching=caching)
    assert result.findings == []
    given_back = {
        event.step: event.pages for event in result.history.events if isinstance(event, Release)
    }
    third, fourth, _ = given_back
    assert (fourth - third, [len(pages) for pages in given_back.values()]) == (16, [1, 1, 3])
    reads = [event for event in result.history.events if isinstance(event, Read)]
    last = [
        (event.start, event.stop)
        for event in reads
        if event.step == max(read.step for read in reads)
    ]
    assert last == [(0, 20), (79 - WINDOW, 79)]


def test_only_groups_whose_layers_have_the_window_are_said_to_have_it() -> None:
    options = {"rswa_window": WINDOW}
    header = TraceHeader(
        "t", layouts.load("full-swa-mamba"), 40, level="scheduler", options=options
    )
    described = parse(f"vllm:source={SOURCE}").open(header).describe()
    assert [group.answer_window for group in described.groups] == [WINDOW, 0, 0]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_block_that_is_given_back_early_is_found(fault: str) -> None:
    assert tell(answer(60), window=24).findings == []
    assert [finding.anomaly for finding in tell(answer(60), fault, window=24).findings] == [
        "premature-release"
    ]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("tokens", "found"), [(58, ["premature-release"]), (5, [])])
def test_a_session_reads_the_part_of_its_answer_that_was_given_back(
    tokens: int, found: list[str], caching: bool
) -> None:
    """What vLLM does is found; a release that mends it fails here. An answer within its window
    is kept whole.
    """
    ops: list[Op] = [
        Submit("a", "s:20", session=True, generate=tokens),
        *[Step()] * 60,
        Extend("a", "u:20", 4),
    ]
    result = tell([*ops, *[Step()] * 5, Finish("a")], enable_caching=caching)
    assert [finding.anomaly for finding in result.findings] == found


def test_it_takes_full_attention_that_has_such_a_window() -> None:
    with pytest.raises(
        UsageError, match="'rswa_window': the layout has no full attention; leave the option out"
    ):
        tell(answer(2), layout=Layout("mamba", ALONE))


def test_the_suites_run_it_with_and_without_prefix_caching() -> None:
    ours = [one for one in further_configurations() if one.options.get("rswa_window")]
    assert {one.options.get("enable_caching", True) for one in ours} == {True, False}
