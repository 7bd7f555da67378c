"""`OffloadingConnector`: chunks in the CPU's memory, each a block of one group, under keys and an order of eviction of its own.

Everything is vLLM's but the copies: the connector's scheduler and `CPUOffloadingManager`, and the connector's worker with its
deferred stores and its fences. `CPUOffloadingWorker`, which would copy on streams of the device, is replaced.

A store is told of with one step and asked for at the beginning of the next. It does not hold its blocks: who gets one of them
anew has the store flushed before the step runs. So its copy begins here when it is told of, and may last until then.

Sources: vLLM 0.33.0, `distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, `worker.py`;
`v1/kv_offload/cpu/manager.py`, `spec.py`; `v1/kv_offload/base.py`, `OffloadingWorker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from harness.engines.cache_state import Claim, KeyId
from harness.engines.real_vllm.connectors.copies import Job
from harness.engines.real_vllm.connectors.kinds import CopiesOf
from harness.engines.real_vllm.connectors.tier import Books, KeyNames
from harness.engines.real_vllm.source import Source

CHUNK_BYTES = 4096
"""What vLLM rounds a chunk up to, in bytes (`v1/kv_offload/cpu/shared_offload_region.py`)."""


class CopyWorker:
    """What vLLM's worker has for `CPUOffloadingWorker`: it keeps the copies in mind."""

    def __init__(self, source: Source, copies: CopiesOf) -> None:
        self._copies = copies
        self._result = source.part("v1.kv_offload.base", "TransferResult")
        self.jobs: dict[int, Job] = {}
        """By vLLM's number of a job."""

    def tell(self, job_id: int, src: Any, dst: Any) -> None:
        """Begin the copies of a store that the device will be asked for."""
        self.jobs[job_id] = self._copies.begin(src.block_ids, dst.block_ids, stores=True, asked=False)
        groups = chain.from_iterable(repeat(group, count) for group, count in enumerate(src.group_sizes))
        self._copies.fill_for(dst.block_ids, groups)

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Ask for a store that was told of."""
        self.jobs[job_id].begun = True
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, *, expedited: bool = False) -> bool:
        """Ask for a load."""
        self.jobs[job_id] = self._copies.begin(src_spec.block_ids, dst_spec.block_ids, stores=False)
        return True

    def wait(self, job_ids: Iterable[int]) -> None:
        """Wait until jobs are over."""
        self._copies.wait([self.jobs[job_id] for job_id in job_ids if job_id in self.jobs])

    def get_finished(self) -> list[Any]:
        """Return the jobs that are over and were not returned yet."""
        over = [job_id for job_id, job in self.jobs.items() if job.over]
        for job_id in over:
            del self.jobs[job_id]
        return [self._result(job_id=job_id, success=True) for job_id in over]

    def shutdown(self) -> None:
        """Nothing runs beside the harness."""


class Offloading:
    """The connector, both sides."""

    fenced = True
    null: Sequence[int] = ()

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        self._source, self._connector_worker, self._names = source, worker.connector_worker, names
        self._manager = connector.connector_scheduler.manager
        self._group_of = source.part("v1.kv_offload.base", "get_offload_group_idx")
        self._hash_of = source.part("v1.kv_offload.base", "get_offload_block_hash")

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take what stands in for the device's copies; this connector does not touch the device's block pool."""
        self._worker = self._connector_worker.worker = CopyWorker(self._source, copies)

    def tell(self, meta: Any) -> None:
        """Begin the stores that the worker will ask for."""
        for job_id, job in meta.store_jobs.items():
            self._worker.tell(job_id, job.src_spec, job.dst_spec)

    def books(self) -> Books:
        """Return what the manager shows of its chunks: a key can be hit when its store has ended."""
        keys: dict[KeyId, Claim] = {}
        held: dict[int, int] = {}
        for key, chunk in self._manager._policy.chunks.items():
            if chunk.ref_cnt:
                held[chunk.chunk_id] = abs(chunk.ref_cnt)
            if chunk.is_ready:
                keys[self._group_of(key), chunk.chunk_id, key] = self._names.claim(self._hash_of(key))
        return Books(keys, held, self._manager._get_num_free_chunks() + _kept(self._manager))


def _kept(manager: Any) -> int:
    """Return how many chunks are kept for their key alone."""
    count: int = manager._num_evictable_cache_chunks
    return count
