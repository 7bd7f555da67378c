"""Tiers behind the CPU's memory of vLLM's `OffloadingConnector` (`TieringOffloadingSpec`), under
the ledger: what comes back from `fs` and is lawful passes, and faults in vLLM's own code of tiers
are found. Options that name what cannot be used are one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Copy, Hit
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Op, Reset, Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.engines.source_edits import Edit, edited
from cachewitness.engines.source_patch import ACTIVE
from cachewitness.systems.vllm.connectors.tiers import Jobs, tiers_named, with_tiers
from cachewitness.workloads import layouts
from suites.support.real_vllm import REAL, SOURCE

MANAGER = "v1.kv_offload.tiering.manager"
FILES = "v1.kv_offload.tiering.fs.manager"
IO = "v1.kv_offload.tiering.fs.io"
MAPPER = "v1.kv_offload.file_mapper"
OWNER, TIER = "TieringOffloadingManager", "FileSystemTierManager"
OFFSETS = "[int(cid) * self._block_size for cid in job_metadata.chunk_ids]"
PATHS = "[self.file_mapper.get_file_name(key) for key in keys]"

FAULTS = {
    "a file for all groups": (MAPPER, "FileMapper", "get_file_name", "_g{group_idx}", "_g0"),
    "a file for all hashes that begin alike": (
        *(MAPPER, "FileMapper", "get_file_name"),
        "/{subfolder1}/{subfolder2}_g{group_idx}/{hash_hex}.bin",
        "/_g{group_idx}/{hash_hex[:0]}.bin",
    ),
    "read into the first chunk": (
        *(FILES, TIER, "submit_load", OFFSETS),
        "[0 * int(cid) for cid in job_metadata.chunk_ids]",
    ),
    "written from the first chunk": (
        *(FILES, TIER, "submit_store", OFFSETS),
        "[0 * int(cid) for cid in job_metadata.chunk_ids]",
    ),
    "read in the reverse order": (
        *(FILES, TIER, "submit_load", OFFSETS),
        "[int(cid) * self._block_size for cid in reversed(job_metadata.chunk_ids)]",
    ),
    "written in the reverse order": (
        *(FILES, TIER, "submit_store", PATHS),
        "[self.file_mapper.get_file_name(key) for key in reversed(keys)]",
    ),
    "not read": (IO, "", "_load_block", "os.readv(fd, [view_slice])", "block_size"),
    "read by half": (
        *(IO, "", "_load_block", "os.readv(fd, [view_slice])"),
        "2 * os.readv(fd, [view_slice[: block_size // 2]])",
    ),
    "keys and chunks in other orders": (
        *(MANAGER, OWNER, "_initiate_promotion"),
        "entry.keys.extend(primary_write_result.keys_to_store)",
        "entry.keys[:0] = primary_write_result.keys_to_store",
    ),
    "the first file for all": (
        *(IO, "", "batch_load_block", "enumerate(zip(paths, offsets))"),
        "enumerate(zip(paths[:1] * len(paths), offsets))",
    ),
    "the first chunk of a job for all": (
        *(IO, "", "batch_store_block", "for path, offset in zip(paths, offsets):"),
        "for path, offset in zip(paths, offsets[:1] * len(offsets)):",
    ),
    "there before it is read": (
        *(MANAGER, OWNER, "_flush_pending_promotions", "tier.submit_load(job_metadata)"),
        "tier.submit_load(job_metadata);"
        " self.primary_tier.complete_write(entry.keys, entry.req_context, True)",
    ),
}


def asked_again(delay: int = 1) -> list[Op]:
    """Store more prompts than the memory holds, and ask for each again."""
    ops: list[Op] = []
    for prompt in ("a", "b", "c"):
        ops += [Submit(f"{prompt}1", f"{prompt}:70"), *[Step()] * 2, Finish(f"{prompt}1")]
        ops += [Step()] * (3 + 2 * delay)
    ops.append(Reset(running=True, tier="local"))
    for prompt in ("a", "b", "c"):
        ops += [Submit(f"{prompt}2", f"{prompt}:70"), *[Step()] * (8 + 6 * delay)]
        ops += [Finish(f"{prompt}2"), *[Step()] * (2 + 2 * delay)]
    return ops


def run(
    options: str = "connector=offloading-tiers",
    layout: str = "full-swa",
    *,
    delay: int = 1,
    plant: Any = None,
) -> Result:
    header = TraceHeader(
        "t",
        layouts.load(layout),
        80,
        level="scheduler",
        options={"max_num_batched_tokens": 128, "tier_pages": 7, "tier_delay": delay},
    )
    spec = parse(f"vllm:source={SOURCE},{options}")
    engine = spec.open(header)
    if plant is not None:
        plant.plant(engine)
    return drive(Trace(header, asked_again(delay)), engine)


def test_jobs_end_in_so_many_steps_and_one_that_raises_has_failed() -> None:
    """And whoever waits for them has them at once."""
    carried = list[int]()
    jobs = Jobs(2)
    jobs.enqueue_store(1, 1, [lambda: carried.append(1)])
    jobs.enqueue_load(2, 1, [lambda: carried.append(1 // 0)])
    jobs.advance()
    assert (carried, jobs.get_finished()) == ([], [])
    jobs.advance()
    assert carried == [1]
    assert [done[:2] for done in jobs.get_finished()] == [(1, True), (2, False)]
    jobs.enqueue_store(3, 1, [lambda: carried.append(3)])
    jobs.wait_idle()
    assert carried == [1, 3]


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"kind": "fs"}]', '[{"type": 1}]'])
def test_tiers_that_are_no_list_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no JSON list of objects with a `type`"):
        tiers_named(text)


def test_a_tier_of_another_package_is_named_as_vllm_names_it() -> None:
    named = with_tiers({"secondary_tiers": [{"type": "pathlib:Path", "room": 1}]})
    assert named["secondary_tiers"] == [{"type": "Path", "module_path": Path.__module__, "room": 1}]
    with pytest.raises(UsageError, match="nowhere_at_all cannot be imported"):
        with_tiers({"secondary_tiers": [{"type": "nowhere_at_all:Tier"}]})


class TestOnVllm:
    """On the real vLLM (`ci/stage_vllm.sh`)."""

    pytestmark = REAL

    @pytest.mark.parametrize("layout", ["full", "full-swa", "full-mamba"])
    @pytest.mark.parametrize("delay", [1, 3])
    def test_what_comes_back_from_files_passes_and_is_hit(self, layout: str, delay: int) -> None:
        result = run(layout=layout, delay=delay)
        came = [
            event
            for event in result.history.events
            if isinstance(event, Copy) and all(m.src_pool == m.dst_pool == 1 for m in event.moves)
        ]
        hits = [event for event in result.history.events if isinstance(event, Hit)]
        assert result.findings == []
        assert came
        assert [(hit.r, hit.tier, hit.resume) for hit in hits if hit.r == "a2"] == [
            ("a2", "cpu", 64)
        ]

    def test_folders_are_gone_when_the_engine_is(self) -> None:
        before = {*Path(gettempdir()).glob("cachewitness-*")}
        run()
        assert {*Path(gettempdir()).glob("cachewitness-*")} <= before

    @pytest.mark.parametrize("name", FAULTS)
    def test_a_fault_in_vllm_s_code_of_tiers_is_found(self, name: str) -> None:
        fault = edited(
            Edit(*FAULTS[name]),
            level="scheduler",
            group="K",
            name=name,
            what=name,
            anomaly="",
            checker="",
        )
        try:
            found = {
                finding.anomaly
                for delay in (1, 3)
                for finding in run(delay=delay, plant=fault).findings
            }
        finally:
            ACTIVE.undo()
        assert {"stale-hit", "partial-commit"} <= found

    def test_a_spec_and_tiers_are_named_by_options(self) -> None:
        tiers = json.dumps([{"type": "fs"}, {"type": "fs"}])
        options = f"connector=offloading,spec=TieringOffloadingSpec,secondary_tiers={tiers}"
        assert run(options).findings == []

    def test_a_tier_that_moves_no_bytes_is_found(self) -> None:
        """VLLM's `example` is one: it keeps keys alone."""
        result = run('connector=offloading,secondary_tiers=[{"type": "example"}]')
        assert {"stale-hit", "partial-commit"} <= {one.anomaly for one in result.findings}

    @pytest.mark.parametrize(
        ("options", "line"),
        [
            ("spec=TieringOffloadingSpec", "spec is for a connector, and the options name none"),
            (
                "connector=simple,spec=TieringOffloadingSpec",
                "takes no offloading spec and no tiers",
            ),
            ('connector=multi,secondary_tiers=[{"type": "fs"}]', "takes no offloading spec"),
            ("connector=offloading,spec=Other", "vLLM has no such offloading spec; known are CPU"),
            ("connector=offloading,spec=pathlib:Path", "does not derive from vLLM's CPUOffloading"),
            ("connector=offloading,spec=nowhere_at_all:X", "nowhere_at_all cannot be imported"),
        ],
    )
    def test_what_does_not_fit_is_one_line(self, options: str, line: str) -> None:
        with pytest.raises(UsageError) as refused:
            run(options)
        assert line in str(refused.value)
        assert "\n" not in str(refused.value)
