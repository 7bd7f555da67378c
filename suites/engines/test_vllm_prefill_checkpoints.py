"""States that the worker saves within a chunk: prefill checkpoints, on a real vLLM, and what routers are told of them.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from harness._util.data import fixtures
from harness._util.errors import UsageError
from harness.engines.real_vllm.prefill_checkpoints import net
from harness.engines.registry import parse
from harness.history.events import Hit, Run, StepBegin
from harness.run.execute import drive
from harness.trace import layouts
from harness.trace.format import Op, Step, Submit, Trace, TraceHeader, load
from harness.verdict.result import Result
from suites.support.real_vllm import REAL, SOURCE

FINDING = fixtures() / "findings" / "prefill-checkpoint-behind-a-hit-inside-a-block.jsonl"


class BlockStored(SimpleNamespace):
    """Named as vLLM's event is."""


class BlockRemoved(SimpleNamespace):
    """Named as vLLM's event is."""


class AllBlocksCleared(SimpleNamespace):
    """Named as vLLM's event is."""


def stored(*hashes: str) -> BlockStored:
    return BlockStored(group_idx=1, block_hashes=[*hashes], extra_keys=[(name,) for name in hashes])


def removed(*hashes: str) -> BlockRemoved:
    return BlockRemoved(group_idx=1, block_hashes=[*hashes])


def test_what_a_batch_tells_and_takes_back_is_left_out() -> None:
    assert net([stored("a", "b"), removed("b"), stored("c")]) == [stored("a"), stored("c")]
    assert net([stored("a"), removed("a", "z")]) == [removed("z")]


def test_what_a_batch_takes_back_before_it_tells_it_stays() -> None:
    for events in ([removed("a"), stored("a")], [stored("a"), AllBlocksCleared(), removed("a")], [stored("a"), stored("a")]):
        assert net(events) == events
    other = BlockRemoved(group_idx=0, block_hashes=["a"])
    assert net([stored("a"), other]) == [stored("a"), other]


def tell(ops: list[Op], layout: str = "full-mamba", **options: Any) -> Result:
    header = TraceHeader("t", layouts.load(layout), 40, height="scheduler", options={"retention_interval": 0, **options})
    return drive(Trace(header, ops), parse(f"vllm:source={SOURCE}").open(header))


def runs(result: Result) -> list[Run]:
    return [run for event in result.history.events if isinstance(event, StepBegin) for run in event.runs]


ONE = pytest.param(1, marks=REAL)


@pytest.mark.parametrize("alignment", [ONE, pytest.param(32, marks=REAL)])
def test_a_prompt_needs_one_chunk_and_is_hit_all_the_same(alignment: int) -> None:
    """Of 40 tokens the first 32 may be hit: their state is saved on the way, if the layers can where the chunk begins."""
    ops: list[Op] = [Submit("a", "doc:40"), *[Step()] * 2, Submit("b", "doc:40"), Step()]
    cut, whole = tell(ops), tell(ops, prefill_checkpoints=alignment)
    assert [(run.start, run.stop, run.checkpoints) for run in runs(cut)][:2] == [(0, 32, []), (32, 40, [])]
    first = runs(whole)[0]
    assert (first.start, first.stop) == (0, 40) and [(group, length) for group, _, length in first.checkpoints] == [(1, 32)]
    assert [event.resume for event in whole.history.events if isinstance(event, Hit)] == [0, 32]
    assert cut.findings == whole.findings == []


@pytest.mark.parametrize("alignment", [pytest.param(5, marks=REAL)])
def test_a_state_that_the_layers_cannot_save_is_the_end_of_a_chunk(alignment: int) -> None:
    result = tell([Submit("a", "doc:40"), Step(), Step()], prefill_checkpoints=alignment)
    assert [(run.start, run.stop) for run in runs(result)] == [(0, 32), (32, 40)] and result.findings == []


@pytest.mark.parametrize("alignment", [ONE])
def test_layers_that_keep_no_states_save_none(alignment: int) -> None:
    with pytest.raises(UsageError, match="the layout has no recurrent group"):
        tell([Submit("a", "doc:40")], layout="full", prefill_checkpoints=alignment)


@pytest.mark.parametrize("alignment", [ONE])
def test_a_block_that_was_hit_in_part_is_keyed_whole_and_a_later_request_goes_on_there(alignment: int) -> None:
    """What was found in vLLM 0.33.0. Where the worker saves no states within a chunk the same trace passes."""
    trace = load(FINDING)
    result = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
    assert {finding.anomaly for finding in result.findings} == {"fabricated-snapshot"}
    assert [event.resume for event in result.history.events if isinstance(event, Hit)] == [0, 12, 16]
    plain = {name: value for name, value in trace.header.options.items() if name != "prefill_checkpoints"}
    header = msgspec.structs.replace(trace.header, options=plain)
    assert drive(Trace(header, trace.ops), parse(f"vllm:source={SOURCE}").open(header)).findings == []
