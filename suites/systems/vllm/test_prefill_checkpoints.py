"""States that the worker saves within a chunk: prefill checkpoints, on a real vLLM, and what
routers are told of them.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit, Run, StepBegin
from cachewitness.core.ledger.records import RUN_PAST
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Op, Step, Submit, Trace, TraceHeader, load
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.prefill_checkpoints import (
    MODULE,
    PrefillCheckpoints,
    net,
    with_checkpoints,
)
from cachewitness.workloads import layouts
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
    for events in (
        [removed("a"), stored("a")],
        [stored("a"), AllBlocksCleared(), removed("a")],
        [stored("a"), stored("a")],
    ):
        assert net(events) == events
    other = BlockRemoved(group_idx=0, block_hashes=["a"])
    assert net([stored("a"), other]) == [stored("a"), other]
    of_a_connector = BlockRemoved(group_idx=1, block_hashes=["a"], medium="CPU")
    assert net([stored("a"), of_a_connector]) == [stored("a"), of_a_connector]


@dataclasses.dataclass(frozen=True)
class MambaSpec:
    """As far as it says where states are saved."""

    block_size: int = 16
    num_prefill_checkpoint_blocks: int = 0
    prefill_checkpoint_alignment: int = 1


@dataclasses.dataclass(frozen=True)
class Groups:
    """A KVCacheConfig, or one of its groups."""

    kv_cache_groups: list[Any] = dataclasses.field(default_factory=list)
    kv_cache_spec: Any = None


def test_a_release_whose_worker_says_it_on_the_device_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fields of `MambaSpec` are there in vLLM 0.30.0, and the module is not."""
    source: Any = SimpleNamespace(version="0.30.0", interface=SimpleNamespace(MambaSpec=MambaSpec))
    config = Groups([Groups(kv_cache_spec=MambaSpec())])
    monkeypatch.setitem(sys.modules, f"vllm.{MODULE}", None)  # so it is not found
    with pytest.raises(
        UsageError,
        match=r"'prefill_checkpoints': vLLM 0.30.0 has no vllm.model_executor.*run 0.31 or later",
    ):
        with_checkpoints(source, config, 1)
    monkeypatch.setitem(sys.modules, f"vllm.{MODULE}", SimpleNamespace())
    assert with_checkpoints(source, config, 8).kv_cache_groups[0].kv_cache_spec == MambaSpec(
        16, 1, 8
    )


def of_031(
    seq_lens: list[int],
    query_lens: list[int],
    hash_block_size: int,
    mamba_block_size: int,
    checkpoint_alignment: int,
    drop_eagle_block: bool,
) -> tuple[list[int], list[int]]:
    """Take what vLLM 0.31.0's function takes: a hit ends where a hash block does."""
    return of_032(
        seq_lens,
        query_lens,
        0,
        mamba_block_size,
        checkpoint_alignment,
        drop_eagle_block,
        hash_block_size,
    )


def of_032(
    seq_lens: list[int],
    query_lens: list[int],
    hash_block_size: int,
    mamba_block_size: int,
    checkpoint_alignment: int,
    drop_eagle_block: bool,
    cache_hit_alignment_tokens: int,
) -> tuple[list[int], list[int]]:
    """Take what the function takes since 0.32: what a hit is a multiple of is given."""
    position = (seq_lens[0] - 1) // cache_hit_alignment_tokens * cache_hit_alignment_tokens
    return [position - seq_lens[0] + query_lens[0]], [-(-seq_lens[0] // mamba_block_size) - 2]


@pytest.mark.parametrize(("compute", "length"), [(of_031, 36), (of_032, 32)])
def test_where_a_state_is_saved_is_asked_as_the_release_asks_it(
    monkeypatch: pytest.MonkeyPatch, compute: Callable[..., Any], length: int
) -> None:
    monkeypatch.setitem(
        sys.modules, f"vllm.{MODULE}", SimpleNamespace(compute_mamba_prefill_checkpoints=compute)
    )
    config = SimpleNamespace(
        speculative_config=None,
        num_hash_lookahead_tokens=0,
        cache_config=SimpleNamespace(prefix_match_unit=4),
    )
    groups = Groups([Groups(kv_cache_spec=MambaSpec(num_prefill_checkpoint_blocks=1))])
    saved = PrefillCheckpoints(config, groups, (4, 16)).of((16, 40), [[5, 6, 7]], null=0)
    assert list(saved) == [(0, 6, length)]


def tell(ops: list[Op], layout: str = "full-mamba", **options: Any) -> Result:
    header = TraceHeader(
        "t",
        layouts.load(layout),
        40,
        level="scheduler",
        options={"retention_interval": 0, **options},
    )
    return drive(Trace(header, ops), parse(f"vllm:source={SOURCE}").open(header))


def runs(result: Result) -> list[Run]:
    return [
        run for event in result.history.events if isinstance(event, StepBegin) for run in event.runs
    ]


ONE = pytest.param(1, marks=REAL)


@pytest.mark.parametrize("alignment", [ONE, pytest.param(32, marks=REAL)])
def test_a_prompt_needs_one_chunk_and_is_hit_all_the_same(alignment: int) -> None:
    """Of 40 tokens the first 32 may be hit: their state is saved on the way, if the layers can
    where the chunk begins.
    """
    ops: list[Op] = [Submit("a", "doc:40"), *[Step()] * 2, Submit("b", "doc:40"), Step()]
    cut = tell(ops)
    whole = tell(ops, prefill_checkpoints=alignment)
    assert [(run.start, run.stop, run.checkpoints) for run in runs(cut)][:2] == [
        (0, 32, []),
        (32, 40, []),
    ]
    first = runs(whole)[0]
    assert (first.start, first.stop) == (0, 40) and [
        (group, length) for group, _, length in first.checkpoints
    ] == [(1, 32)]
    assert [event.resume for event in whole.history.events if isinstance(event, Hit)] == [0, 32]
    assert cut.findings == whole.findings == []


@pytest.mark.parametrize("alignment", [pytest.param(5, marks=REAL)])
def test_a_state_that_the_layers_cannot_save_is_the_end_of_a_chunk(alignment: int) -> None:
    result = tell([Submit("a", "doc:40"), Step(), Step()], prefill_checkpoints=alignment)
    assert [(run.start, run.stop) for run in runs(result)] == [
        (0, 32),
        (32, 40),
    ] and result.findings == []


@pytest.mark.parametrize("alignment", [ONE])
def test_layers_that_keep_no_states_save_none(alignment: int) -> None:
    with pytest.raises(UsageError, match="the layout has no recurrent group"):
        tell([Submit("a", "doc:40")], layout="full", prefill_checkpoints=alignment)


@pytest.mark.parametrize("alignment", [ONE])
def test_a_block_that_was_hit_in_part_is_keyed_whole_and_a_later_request_goes_on_there(
    alignment: int,
) -> None:
    """What was found in vLLM 0.33.0. Where the worker saves no states within a chunk the same
    trace passes.
    """
    trace = load(FINDING)
    result = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
    assert {finding.anomaly for finding in result.findings} == {"fabricated-snapshot"}
    assert [event.resume for event in result.history.events if isinstance(event, Hit)] == [
        0,
        12,
        16,
    ]
    plain = {
        name: value for name, value in trace.header.options.items() if name != "prefill_checkpoints"
    }
    header = msgspec.structs.replace(trace.header, options=plain)
    assert (
        drive(Trace(header, trace.ops), parse(f"vllm:source={SOURCE}").open(header)).findings == []
    )


@pytest.mark.parametrize(
    "connector",
    [pytest.param(name, marks=REAL) for name in ("offloading", "simple")],
)
def test_a_connector_that_stores_that_block_keys_the_same_state(connector: str) -> None:
    """The store begins behind the runs of its step: it has no cause of its own."""
    trace = load(FINDING)
    engine = parse(f"vllm:source={SOURCE},connector={connector}").open(trace.header)
    result = drive(trace, engine)
    assert any("of group 3" in finding.sentence for finding in result.findings)
    assert {(finding.anomaly, finding.cause) for finding in result.findings} == {
        ("fabricated-snapshot", RUN_PAST)
    }
