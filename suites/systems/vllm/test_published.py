"""Connectors and tiers that others publish for vLLM: as released nothing is found but what is
listed, each of the faults in their own code is found, and changes that are lawful pass.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import Hit
from cachewitness.core.result import Result
from cachewitness.core.trace_format import (
    Finish,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import parse
from cachewitness.engines.source_patch import Patches
from cachewitness.workloads import layouts
from suites.support.checkout import ROOT
from suites.support.real_vllm import REAL, SOURCE

PUBLISHED = os.environ.get("CACHEWITNESS_PUBLISHED", "")
pytestmark = [
    *REAL,
    pytest.mark.skipif(
        not PUBLISHED,
        reason=(
            "CACHEWITNESS_PUBLISHED does not name a folder with the packages of"
            " ci/plug_ins/published.txt; ci/stage_vllm.sh has one"
        ),
    ),
]


class Adapter(NamedTuple):
    """A published package: what names it to the engine, and the layout and the number of pages of
    its memory (0: as many as it takes) with which its faults show.
    """

    package: str
    options: str
    layout: str = "full"
    tier_pages: int = 0


TIERS = json.dumps(
    [
        {
            "type": "lifeboat_cache.integrations.vllm_tier:LifeboatTier",
            "lifeboat_config": {"dashboard": {"enabled": False}},
        }
    ]
)
LAKE = json.dumps({"openlake_nodes": ["here"], "openlake_min_external_lookup_tokens": 0})
MARCONI = json.dumps({"eviction_policy": "marconi", "eviction_decay": 0.01})
ADAPTERS = {
    "lifeboat": Adapter(
        "lifeboat_cache",
        "connector=offloading,spec=TieringOffloadingSpec,prepare=lifeboat_home:prepare,"
        f"secondary_tiers={TIERS}",
        layout="full-swa-mamba",
        tier_pages=7,
    ),
    "kvblockd": Adapter(
        "vllm_kvblockd",
        "connector=vllm_kvblockd.connector:KvblockdConnector,prepare=kvblockd_in_memory:prepare",
    ),
    "openlake": Adapter(
        "openlake_client",
        "connector=openlake_client.openlake_connector:OpenLakeConnector,"
        f"prepare=openlake_in_memory:mended,connector_config={LAKE}",
        layout="full-swa-mamba",
    ),
    "marconi": Adapter(
        "vllm_marconi_offload",
        "connector=vllm_marconi_offload.connector:SimpleCPUOffloadConnector,"
        f"prepare=marconi_sizes:prepare,connector_config={MARCONI}",
        tier_pages=30,
    ),
}


class Change(NamedTuple):
    """A piece of a published function, by module, class and name, and what stands there instead;
    what it is found as, if it is a fault.
    """

    adapter: str
    place: tuple[str, str, str]
    old: str
    new: str
    anomaly: str = ""


TIER = ("integrations.vllm_tier", "LifeboatTier")
STORE = ("integrations.lifeboat_store", "LifeboatStore")
FILES = ("storage.filesystem", "FilesystemTier")
CONNECTOR = ("connector", "KvblockdConnector")
LOADER = ("slab_loader", "SlabLoader")
QUEUE = ("store_queue", "StoreQueue")
MANAGER = ("manager", "SimpleCPUOffloadScheduler")
WORKER = ("worker", "SimpleCPUOffloadWorker")
LAKE_SCHEDULER = ("openlake_adapter", "OpenLakeScheduler")
SENDING = ("openlake_adapter", "KVCacheSendingThread")
RECEIVING = ("openlake_adapter", "KVCacheRecvingThread")

FAULTS = {
    "lifeboat: a key for all groups": Change(
        "lifeboat",
        (*TIER, "_ck"),
        "object_group_id=get_offload_group_idx(key)",
        "object_group_id=0",
        "stale-hit",
    ),
    "lifeboat: a key for all hashes": Change(
        "lifeboat",
        (*TIER, "_ck"),
        "chunk_hash=get_offload_block_hash(key)",
        'chunk_hash=b"all"',
        "stale-hit",
    ),
    "lifeboat: the first chunk for all": Change(
        "lifeboat", (*TIER, "_slot"), "int(chunk_id)", "0", "stale-hit"
    ),
    "lifeboat: written in the reverse order": Change(
        "lifeboat",
        (*TIER, "_do_store"),
        "zip(keys, job.chunk_ids)",
        "zip(reversed(keys), job.chunk_ids)",
        "stale-hit",
    ),
    "lifeboat: read in the reverse order": Change(
        "lifeboat",
        (*TIER, "_do_load"),
        "zip(keys, job.chunk_ids)",
        "zip(reversed(keys), job.chunk_ids)",
        "stale-hit",
    ),
    "lifeboat: one of each stripe is read": Change(
        "lifeboat", (*TIER, "_do_load"), "pairs[i:i + step]", "pairs[i:i + step - 1]", "stale-hit"
    ),
    "lifeboat: not read": Change(
        "lifeboat",
        (*TIER, "_load_stripe"),
        "if not self.store.load_into(self._ck(key), slot, now=now):",
        "if False:",
        "stale-hit",
    ),
    "lifeboat: read into the slot behind": Change(
        "lifeboat",
        (*TIER, "_load_stripe"),
        "slot = self._slot(cid)",
        "slot = self._slot((int(cid) + 1) % 7)",
        "stale-hit",
    ),
    "lifeboat: said to be there, and never read": Change(
        "lifeboat",
        (*TIER, "submit_load"),
        "self._run(self._do_load, job_metadata, list(job_metadata.keys))",
        "self._done.append(JobResult(job_id=job_metadata.job_id, success=True,"
        " successful_keys=[*job_metadata.keys]))",
        "stale-hit",
    ),
    "lifeboat: zeros are written": Change(
        "lifeboat",
        (*STORE, "_wrap"),
        "return content_hash(blob, parallel=False) + blob",
        "return content_hash(bytes(len(blob)), parallel=False) + bytes(len(blob))",
        "stale-hit",
    ),
    "kvblockd: a key without its salt": Change(
        "kvblockd",
        ("config", "", "chain_seed"),
        '_lps(cache_salt or "")',
        '_lps("")',
        "cross-identity-hit",
    ),
    "kvblockd: a key without its adapter": Change(
        "kvblockd",
        ("config", "", "chain_seed"),
        '_lps(lora_name or "")',
        '_lps("")',
        "cross-identity-hit",
    ),
    "kvblockd: a key without its images": Change(
        "kvblockd",
        ("config", "", "chain_seed"),
        "for mm_id in mm_ids or []:",
        "for mm_id in []:",
        "cross-identity-hit",
    ),
    "kvblockd: a key of a block's own tokens": Change(
        "kvblockd",
        ("config", "", "block_chain_keys"),
        "blake3(_CHAIN_DOMAIN + prev + tok)",
        "blake3(_CHAIN_DOMAIN + tok)",
        "stale-hit",
    ),
    "kvblockd: a block is stored that is not whole": Change(
        "kvblockd",
        (*CONNECTOR, "_build_new_req_meta"),
        "store_end = done // self._block_size",
        "store_end = -(-done // self._block_size)",
        "partial-commit",
    ),
    "kvblockd: loads begin with the first block": Change(
        "kvblockd",
        (*CONNECTOR, "update_state_after_alloc"),
        "self._need_load_blocks[rid] = (start, end - start)",
        "self._need_load_blocks[rid] = (0, end - start)",
        "stale-hit",
    ),
    "kvblockd: what is loaded is put into the first blocks": Change(
        "kvblockd",
        (*LOADER, "_load_perblock"),
        "bid = req.block_ids[blk] if",
        "bid = req.block_ids[j] if",
        "stale-hit",
    ),
    "kvblockd: the worker is not told of loads": Change(
        "kvblockd",
        (*CONNECTOR, "_build_new_req_meta"),
        "self._need_load_blocks.get(rid, (0, 0))",
        "(0, 0)",
        "stale-hit",
    ),
    "kvblockd: who comes back loads nothing": Change(
        "kvblockd",
        (*CONNECTOR, "_build_cached_req_meta"),
        "if rid in resumed and rid in self._need_load_blocks:",
        "if False:",
        "stale-hit",
    ),
    "kvblockd: who comes back has the blocks of before": Change(
        "kvblockd",
        (*CONNECTOR, "_build_cached_req_meta"),
        "self._blocks[rid] = list(blocks_i[0])",
        "self._blocks[rid] += blocks_i[0]",
        "stale-hit",
    ),
    "kvblockd: the first block is stored for all": Change(
        "kvblockd",
        (*QUEUE, "_stage_one"),
        "self._c._build_block_blob(req.block_ids[j], names,",
        "self._c._build_block_blob(req.block_ids[start], names,",
        "stale-hit",
    ),
    "kvblockd: keys of the first blocks": Change(
        "kvblockd",
        (*LOADER, "_load_one"),
        "self._c._chain_keys(req.req_id, seed, req.token_ids)[start:end]",
        "self._c._chain_keys(req.req_id, seed, req.token_ids)[: end - start]",
        "stale-hit",
    ),
    "kvblockd: the block in front is stored": Change(
        "kvblockd",
        (*QUEUE, "_build_block_blob"),
        "self._c._layer_kv[name][bid]",
        "self._c._layer_kv[name][bid - 1]",
        "stale-hit",
    ),
    "openlake: a key for all groups": Change(
        "openlake",
        ("openlake_adapter", "GroupKeys", "key_for"),
        "self.g_idx & 0xFFFF",
        "0 & 0xFFFF",
        "stale-hit",
    ),
    "openlake: a key for all hashes": Change(
        "openlake",
        ("openlake_adapter", "GroupKeys", "key_for"),
        'bytes(h).ljust(32, b"\\x00")[:32]',
        "bytes(32)",
        "stale-hit",
    ),
    "openlake: addresses of the block in front": Change(
        "openlake",
        (*SENDING, "_handle_request"),
        "self.layout.addrs_for(block_id)",
        "self.layout.addrs_for(block_id - 1)",
        "stale-hit",
    ),
    "openlake: loads into the block behind": Change(
        "openlake",
        (*RECEIVING, "_handle_request"),
        "self.layout.addrs_for(block_id)",
        "self.layout.addrs_for(block_id + 1)",
        "stale-hit",
    ),
    "openlake: blocks in the reverse order": Change(
        "openlake",
        (*RECEIVING, "_handle_request"),
        "for block_id, _ in entries:",
        "for block_id, _ in reversed(entries):",
        "stale-hit",
    ),
    "openlake: loads all but the last": Change(
        "openlake",
        (*RECEIVING, "_handle_request"),
        "rotation = self.tp_rank % len(entries)",
        "entries = entries[:-1]; rotation = 0",
        "stale-hit",
    ),
    "openlake: said to be there, and never loaded": Change(
        "openlake",
        (*RECEIVING, "_handle_request"),
        "res = self.client.get_batch(batch_keys, batch_addrs, batch_sizes)",
        "res = [0 for _ in batch_keys]",
        "stale-hit",
    ),
    "openlake: nobody is told that a load is over": Change(
        "openlake",
        ("openlake_adapter", "KVTransferThread", "set_finished_request"),
        "self.finished_requests.add(req_id)",
        "pass",
        "no-progress",
    ),
    "openlake: loads begin a block too late": Change(
        "openlake",
        (*RECEIVING, "_handle_request"),
        "loaded_start = load.local_tokens // lcm * lcm",
        "loaded_start = load.local_tokens // lcm * lcm + lcm",
        "stale-hit",
    ),
    "openlake: a key in front of what it names": Change(
        "openlake",
        ("openlake_adapter", "GroupKeys", "process_tokens"),
        "bytes(chunks[chunk_id])",
        "bytes(chunks[max(chunk_id - 1, 0)])",
        "engine-crashed",
    ),
    "openlake: blocks of one group for all": Change(
        "openlake",
        (*SENDING, "_handle_request"),
        "req_meta.block_ids[group.g_idx][chunk_idx]",
        "req_meta.block_ids[0][chunk_idx]",
        "stale-hit",
    ),
    "marconi: loads into the first blocks": Change(
        "marconi",
        (*MANAGER, "update_state_after_alloc"),
        "gpu_ext_start = n_computed_g - n_ext_g",
        "gpu_ext_start = 0",
        "stale-hit",
    ),
    "marconi: loads what the first blocks hold": Change(
        "marconi",
        (*MANAGER, "update_state_after_alloc"),
        "hashes_to_load = request.block_hashes[skipped : skipped + num_blocks_to_load]",
        "hashes_to_load = request.block_hashes[: num_blocks_to_load]",
        "stale-hit",
    ),
    "marconi: the device's blocks of a load are not held": Change(
        "marconi",
        (*MANAGER, "update_state_after_alloc"),
        "[self._gpu_block_pool.blocks[bid] for bid in gpu_block_ids]",
        "[]",
        "double-free",
    ),
    "marconi: the CPU's blocks of a load are not held": Change(
        "marconi",
        (*MANAGER, "update_state_after_alloc"),
        "self.cpu_block_pool.touch([cpu_blk])",
        "pass",
        "engine-crashed",
    ),
    "marconi: the device's blocks of a store are not held": Change(
        "marconi",
        (*MANAGER, "_prepare_eager_store_specs"),
        "[gpu_block_pool.blocks[bid] for bid in gpu_block_ids]",
        "[]",
        "double-free",
    ),
    "marconi: the blocks of a store are never given back": Change(
        "marconi",
        (*MANAGER, "_process_store_completion"),
        "self.cpu_block_pool.free_blocks(cpu_blocks)",
        "pass",
        "leak",
    ),
    "marconi: keys when a store begins": Change(
        "marconi",
        (*MANAGER, "_prepare_eager_store_specs"),
        "cpu_blk._block_hash = bhash",
        "cpu_blk._block_hash = bhash;"
        " cpu_block_pool.cached_block_hash_to_block.insert(bhash, cpu_blk)",
        "partial-commit",
    ),
    "marconi: hashes of other blocks": Change(
        "marconi",
        (*MANAGER, "_prepare_eager_store_specs"),
        "zip(cpu_blocks_alloc, block_hashes_to_store):",
        "zip(reversed(cpu_blocks_alloc), block_hashes_to_store):",
        "stale-hit",
    ),
    "marconi: a load's blocks are never given back": Change(
        "marconi",
        (*MANAGER, "update_connector_output"),
        "self._cleanup_load_request(req_id)",
        "pass",
        "leak",
    ),
    "marconi: a load is over when it is asked for": Change(
        "marconi",
        (*WORKER, "_poll_stream_events"),
        "if not event.query():",
        "if False:",
        "stale-hit",
    ),
    "marconi: blocks in the reverse order": Change(
        "marconi",
        (*WORKER, "get_finished"),
        "metadata.load_gpu_blocks,\n                    is_store=False,",
        "metadata.load_gpu_blocks[::-1],\n                    is_store=False,",
        "stale-hit",
    ),
    "marconi: nobody is told that a load is over": Change(
        "marconi",
        (*WORKER, "get_finished"),
        "finished_recving.update(req_ids)",
        "pass",
        "no-progress",
    ),
}

LAWFUL = {
    "lifeboat: a file for all keys, of which the last is found alone": Change(
        "lifeboat", (*FILES, "_path"), "n = _safe_name(key)", 'n = _safe_name("all")'
    ),
    "lifeboat: blocks are read one after the other": Change(
        "lifeboat",
        (*TIER, "_do_load"),
        "n = min(self._read_workers, len(pairs))",
        "n = 1",
    ),
    "lifeboat: what is stored is never found": Change(
        "lifeboat",
        (*TIER, "lookup"),
        "if found else LookupResult.MISS",
        "if 0 else LookupResult.MISS",
    ),
    "lifeboat: other names": Change(
        "lifeboat",
        (*TIER, "_ck"),
        "chunk_hash=get_offload_block_hash(key)",
        "chunk_hash=get_offload_block_hash(key)[::-1]",
    ),
    "openlake: a block less is found": Change(
        "openlake",
        (*LAKE_SCHEDULER, "get_num_new_matched_tokens"),
        "token_len = request.num_tokens // self._sched_bs * self._sched_bs",
        "token_len = (request.num_tokens // self._sched_bs - 1) * self._sched_bs",
    ),
    "openlake: what the device has is loaded again": Change(
        "openlake",
        (*RECEIVING, "_handle_request"),
        "loaded_start = load.local_tokens // lcm * lcm",
        "loaded_start = 0",
    ),
    "marconi: the highest score goes first": Change(
        "marconi",
        ("manager", "MarconiEvictionPolicy", "score"),
        "base = self._reuse_factor(bhash) / (depth + 1.0)",
        "base = -self._reuse_factor(bhash) / (depth + 1.0)",
    ),
    "marconi: nothing is admitted": Change(
        "marconi",
        ("manager", "MarconiAdmissionTracker", "should_admit"),
        "if self.threshold <= 1: self.admitted += 1 return True",
        "return False",
    ),
    "marconi: what a store takes is bounded by keys alone": Change(
        "marconi",
        (*MANAGER, "_prepare_eager_store_specs"),
        "ready_blocks_g = aligned_tokens // g_block_size",
        "ready_blocks_g = len(group_gpu_ids)",
    ),
    "kvblockd: what the device has is loaded again": Change(
        "kvblockd",
        (*CONNECTOR, "update_state_after_alloc"),
        "start = local // self._block_size\n",
        "start = 0\n",
    ),
    "kvblockd: a block less is found": Change(
        "kvblockd",
        (*CONNECTOR, "_lookup_sync"),
        "min(n_consec * self._block_size, aligned)",
        "min(max(n_consec - 1, 0) * self._block_size, aligned)",
    ),
    "kvblockd: what later chunks compute is not stored": Change(
        "kvblockd",
        (*CONNECTOR, "_build_cached_req_meta"),
        "self._blocks[rid].extend(blocks_i[0])",
        "self._blocks[rid].extend([])",
    ),
    "kvblockd: other names": Change(
        "kvblockd",
        ("config", "", "block_chain_keys"),
        "blake3(_CHAIN_DOMAIN + prev + tok)",
        "blake3(_CHAIN_DOMAIN + tok + prev)",
    ),
}
"""Changes that serve every request what it asks for."""


GONE = Reset(running=True, tier="local")


def ask(r: str, prompt: str, **identity: Any) -> list[Op]:
    """Return a request that ends when its prompt is computed and stored."""
    return [Submit(r, prompt, **identity), *[Step()] * 12, Finish(r), *[Step()] * 4]


def asked() -> list[Op]:
    """Prompts are stored and asked for again: by others, behind a hit of the device, with other
    identities, and behind another first block.
    """
    image = [Media(at=0, length=4, hash="h1")]
    return [
        *ask("a1", "a:70"),
        *ask("c1", "c:70"),
        GONE,
        *ask("a2", "a:70"),
        GONE,
        *ask("a3", "a:35"),
        *ask("a4", "a:70"),
        GONE,
        *ask("s", "a:70", salt="s"),
        *ask("l", "a:70", adapter="l"),
        *ask("i", "a:70", media=image),
        GONE,
        *ask("s2", "a:70", salt="s"),
        *ask("b1", "b:16 a[16]:54"),
        GONE,
        *ask("b2", "b:16 a[16]:54"),
        GONE,
        *ask("c2", "c:70"),
    ]


def resumed() -> list[Op]:
    """Somebody is preempted who has other blocks when it comes back."""
    return [
        *ask("p1", "p:70"),
        GONE,
        Submit("q", "q:70"),
        *[Step()] * 6,
        Submit("p", "p:70"),
        *[Step()] * 8,
        Preempt("p"),
        GONE,
        *[Step()] * 14,
        Finish("p"),
        *[Step()] * 4,
        GONE,
        *ask("p2", "p:70"),
    ]


def run(
    adapter: str, change: Change | None = None, ops: Sequence[Op] = (), options: str = ""
) -> Result:
    """Run the traces, or others, with the adapter as published or changed."""
    one = ADAPTERS[adapter]
    header = TraceHeader(
        "t",
        layouts.load(one.layout),
        60,
        level="scheduler",
        options={"max_num_batched_tokens": 40, "tier_pages": one.tier_pages},
    )
    spec = parse(f"vllm:source={SOURCE},{options or one.options}")
    patches = Patches(one.package)
    if change is not None:
        spec.open(header).close()  # what is changed is imported with vLLM in its place alone
        patches.text(*change.place, change.old, change.new)
    try:
        engine = spec.open(header)
        return drive(Trace(header, [*ops] or asked() + resumed()), engine)
    finally:
        patches.undo()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the packages on the path, and what stands in for what they lack here."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    before = [*sys.path]
    sys.path[:0] = [str(ROOT / "ci" / "plug_ins"), PUBLISHED]
    yield
    sys.path[:] = before


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_as_released_nothing_is_found_and_its_memory_is_hit(adapter: str) -> None:
    result = run(adapter)
    hits = [event for event in result.history.events if isinstance(event, Hit)]
    assert result.findings == []
    assert {hit.r for hit in hits if hit.tier == "cpu"} >= {"a2", "a4", "b2", "c2"}


@pytest.mark.parametrize(
    ("ops", "anomaly"),
    [
        ([Submit("q", "q:70"), *[Step()] * 4, Preempt("q"), *[Step()] * 6], "engine-crashed"),
        ([Submit("q", "q:70"), *[Step()] * 4, GONE, *[Step()] * 12], "no-progress"),
        ([*ask("s", "a:100"), GONE, *ask("t", "a:30")], "stale-hit"),
    ],
)
def test_what_openlake_does_as_released(ops: list[Op], anomaly: str) -> None:
    """It forgets who was preempted when they have come back already: it raises, or tells its worker
    of no load. It stores the null block as the state that a long chunk has passed.
    """
    released = ADAPTERS["openlake"].options.replace(":mended", ":prepare")
    result = run("openlake", ops=ops, options=released)
    assert anomaly in {finding.anomaly for finding in result.findings}
    assert run("openlake", ops=ops).findings == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    found = {finding.anomaly for finding in run(fault.adapter, fault).findings}
    assert fault.anomaly in found


@pytest.mark.parametrize("name", LAWFUL)
def test_what_is_lawful_passes(name: str) -> None:
    assert run(LAWFUL[name].adapter, LAWFUL[name]).findings == []
