"""`OffloadingConnector`: chunks in the CPU's memory, of a group's blocks, under keys and an order
of eviction of its own.

Everything is vLLM's but the copies: the connector's scheduler and `CPUOffloadingManager`, and the
connector's worker with its deferred stores and its fences. `CPUOffloadingWorker`, which would copy
on streams of the device, is replaced.

A store is told of with one step and asked for at the beginning of the next. It does not hold its
blocks: who gets one of them anew has the store flushed before the step runs. So its copy begins
here when it is told of, and may last until then.

A chunk of n blocks has n pages here, one behind the other; of a chunk that is stored in part only
the pages that were filled have a key. A load that its request does not wait for in another step
(`sync`) is waited for before the runs of this one, on a stream of its own.

Sources: vLLM 0.33.0, `distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`,
`worker.py`; `v1/kv_offload/cpu/manager.py`, `spec.py`; `v1/kv_offload/cpu/gpu_worker.py`,
`SingleDirectionOffloadingHandler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.engines.cache_state import Claim, KeyId
from cachewitness.systems.vllm.connectors.copies import Job
from cachewitness.systems.vllm.connectors.kinds import CopiesOf, VllmSide
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames
from cachewitness.systems.vllm.connectors.tiers import KEPT, Tiers
from cachewitness.systems.vllm.source import Source

CHUNK_BYTES = 4096
"""What vLLM rounds a chunk up to, in bytes (`v1/kv_offload/cpu/shared_offload_region.py`)."""


class CopyWorker:
    """What vLLM's worker has for `CPUOffloadingWorker`: it keeps the copies in mind."""

    def __init__(
        self, source: Source, copies: CopiesOf, blocks: int, tiers: Tiers | None = None
    ) -> None:
        self._copies = copies
        self._blocks = blocks
        self._tiers = tiers
        self._kept: dict[int, tuple[list[int], list[int]]] = {}
        """By vLLM's number of a store: its pages, and those that keep what it puts there."""
        self._filling = set[int]()
        self._result = source.part("v1.kv_offload.base", "TransferResult")
        self.jobs: dict[int, Job] = {}
        """By vLLM's number of a job."""
        self.filled: set[int] = set()
        """Pages that the last store of their chunk has filled, or is about to."""

    def tell(self, job_id: int, src: Any, dst: Any) -> None:
        """Begin the copies of a store that the device will be asked for."""
        pages = self._pages(src, dst.block_ids)
        for chunk in dst.block_ids:
            self.filled.difference_update(self.pages_of(int(chunk)))
        self.filled.update(pages)
        groups = [
            *chain.from_iterable(
                repeat(group, count) for group, count in enumerate(src.group_sizes)
            )
        ]
        blocks = [int(block) for block in src.block_ids]
        if self._tiers is not None:
            self._kept[job_id] = pages, self._tiers.kept_at(pages)
            blocks, groups = blocks * 2, groups * 2
            pages = [*pages, *self._kept[job_id][1]]
        self.jobs[job_id] = self._copies.begin(blocks, pages, stores=True, asked=False)
        self._copies.fill_for(pages, groups)

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Ask for a store that was told of."""
        self.jobs[job_id].begun = True
        return True

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, *, expedited: bool = False
    ) -> bool:
        """Ask for a load."""
        pages = self._pages(dst_spec, src_spec.block_ids)
        self.jobs[job_id] = self._copies.begin(pages, dst_spec.block_ids, stores=False)
        self.jobs[job_id].expedited = expedited
        return True

    def note_what_tiers_fill(self, chunks: Iterable[Any]) -> None:
        """Take note of the chunks that a tier has begun to fill: what lies there is looked at
        anew, even if it is what lay there before.
        """
        storing = {page for pages, _ in self._kept.values() for page in pages}
        filling = {
            page
            for chunk in chunks
            if chunk.ref_cnt < 0
            for page in self.pages_of(chunk.chunk_id)
            if page not in storing
        }
        if self._tiers is not None:
            self._tiers.look_again(filling - self._filling)
        self._filling = filling
        self.filled |= filling

    def filled_by_a_tier(self, pages: Sequence[int], group: int) -> None:
        """Note for which group a chunk's pages are filled from behind."""
        self._copies.fill_for(pages, [group] * len(pages))

    def pages_of(self, chunk: int) -> range:
        """Return the pages of a chunk."""
        return range(chunk * self._blocks, (chunk + 1) * self._blocks)

    def _pages(self, blocks: Any, chunks: Iterable[int]) -> list[int]:
        """Return the pages in these chunks that belong to the device's `blocks`, which are given
        group by group.

        The first block of a group may lie inside its first chunk (`block_indices`); the others
        follow it without a gap. Raises EngineFailure if there are not as many chunks as the blocks
        lie in: vLLM's worker asserts that.
        """
        left = [int(chunk) for chunk in chunks]
        pages = list[int]()
        for count, first in zip(blocks.group_sizes, blocks.block_indices, strict=True):
            skipped = first % self._blocks if count else 0
            span = -(-(skipped + count) // self._blocks)
            mine, left = left[:span], left[span:]
            pages += [page for chunk in mine for page in self.pages_of(chunk)][
                skipped : skipped + count
            ]
        if left or len(pages) != sum(blocks.group_sizes):
            message = (
                f"told its worker of {sum(blocks.group_sizes)} blocks, and of chunks that they do"
                " not lie in"
            )
            raise EngineFailure("engine-crashed", message)
        return pages

    def wait(self, job_ids: Iterable[int]) -> None:
        """Wait until jobs are over."""
        self._copies.wait([self.jobs[job_id] for job_id in job_ids if job_id in self.jobs])

    def get_finished(self) -> list[Any]:
        """Return the jobs that are over and were not returned yet."""
        over = [job_id for job_id, job in self.jobs.items() if job.over]
        for job_id in over:
            del self.jobs[job_id]
            if self._tiers is not None and job_id in self._kept:
                self._tiers.stored(*self._kept.pop(job_id))
        if self._tiers is not None:
            self._copies.came(self._tiers.advance())
        return [self._result(job_id=job_id, success=True) for job_id in over]

    def shutdown(self) -> None:
        """Nothing runs beside the harness."""


class Offloading(VllmSide):
    """The connector, both sides."""

    fenced = True
    describes: bool = True
    reports: bool = True
    unordered = False
    forward = None
    null: Sequence[int] = ()

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        self._source = source
        self._connector_worker = worker.connector_worker
        self._names = names
        whole = connector.connector_scheduler.manager
        self._whole = whole
        self._tiers: Tiers | None = None
        self._manager = getattr(whole, "primary_tier", whole)
        if whole is not self._manager:
            # Of what a tier has brought back vLLM tells the name alone.
            self.describes = self.reports = False
        if not hasattr(self._manager, "_policy"):
            raise UsageError(
                f"--engine vllm: the spec's manager, {type(whole).__name__}, has no chunks that can"
                " be observed as those of vLLM's CPUOffloadingManager are"
            )
        config = connector.connector_scheduler.config
        self._blocks = config.blocks_per_chunk
        self._sizes = [group.tokens_per_block for group in config.kv_group_configs]
        self._group_of = source.part("v1.kv_offload.base", "get_offload_group_idx")
        self._hash_of = source.part("v1.kv_offload.base", "get_offload_block_hash")

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take what stands in for the device's copies; this connector does not touch the
        device's block pool.
        """
        if self._whole is not self._manager:
            self._tiers = Tiers(self._source, self._whole, self._blocks, copies.delay)
            self.kept = KEPT
            # By design tiers keep what they have when the weights change, under the same keys.
            self.lacks = ("update_weights",)
            self.waits = 8 * (1 + copies.delay)
        self._worker = self._connector_worker.worker = CopyWorker(
            self._source, copies, self._blocks, self._tiers
        )

    def hold_back(self, *, held: bool) -> None:
        """Do nothing: it stores what requests have computed."""

    def tell(self, meta: Any) -> None:
        """Begin the stores that the worker will ask for."""
        for job_id, job in meta.store_jobs.items():
            self._worker.tell(job_id, job.src_spec, job.dst_spec)
        if self._tiers is not None:
            self._worker.note_what_tiers_fill(self._manager._policy.chunks.values())

    def close(self) -> None:
        """Let go of tiers."""
        if self._tiers is not None:
            self._tiers.close()

    def books(self) -> Books:
        """Return what the manager shows of its chunks: a key can be hit when its store has
        ended.
        """
        keys: dict[KeyId, Claim] = {}
        held: dict[int, int] = {}
        for key, chunk in self._manager._policy.chunks.items():
            pages = self._worker.pages_of(chunk.chunk_id)
            if chunk.ref_cnt:
                held.update(dict.fromkeys(pages, abs(chunk.ref_cnt)))
                if self._tiers is not None and chunk.ref_cnt < 0:
                    # It may be a tier that fills it, whose copies name no block of the device.
                    self._worker.filled_by_a_tier(pages, self._group_of(key))
            if chunk.is_ready:
                keys.update(self._named(key, pages))
        free = self._manager._get_num_free_chunks() + _chunks_kept(self._manager)
        return Books(keys, held, free * self._blocks + self.kept)

    def _named(self, key: Any, pages: range) -> Iterator[tuple[KeyId, Claim]]:
        """Return the keys of a chunk's pages that were filled: each names the prefix that ends
        with its block.
        """
        group = self._group_of(key)
        (length, r, _) = self._names.claim(self._hash_of(key))
        for left, page in enumerate(reversed(pages)):
            if page in self._worker.filled:
                yield (group, page, key), Claim(length - left * self._sizes[group], r)


def _chunks_kept(manager: Any) -> int:
    """Return how many chunks are kept for their key alone."""
    count: int = manager._num_evictable_cache_chunks
    return count
