"""`SimpleCPUOffloadConnector`: a block pool in the CPU's memory, with the same groups and keys as
the device's.

Everything is vLLM's: the connector of the scheduler, and the connector of the worker with its order
of calls and its event counters. Of the worker the device is replaced: `DmaCopyBackend`, which would
copy, and the CUDA stream that it waits for.

Sources: vLLM 0.33.0, `v1/simple_kv_offload/manager.py`, `worker.py`, `copy_backend.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.engines.cache_state import Claim, KeyId
from cachewitness.systems.vllm.connectors.copies import Job
from cachewitness.systems.vllm.connectors.kinds import CopiesOf, VllmSide
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames
from cachewitness.systems.vllm.source import Source


class CopyBackend:
    """What vLLM's worker has for `DmaCopyBackend`: it keeps the copies in mind."""

    def __init__(self, copies: CopiesOf) -> None:
        self._copies = copies

    def launch_copy(
        self,
        src_blocks: list[int],
        dst_blocks: list[int],
        is_store: bool,
        event_idx: int,
        events_list: list[tuple[int, Any]],
        wait_event: Any = None,
    ) -> None:
        """Begin to copy blocks, and leave an event that says when that is over."""
        job = self._copies.begin(src_blocks, dst_blocks, stores=is_store)
        events_list.append((event_idx, _Event(self._copies, job)))


class _Event:
    """The event of a stream behind a copy."""

    def __init__(self, copies: CopiesOf, job: Job) -> None:
        self._copies = copies
        self._job = job

    def query(self) -> bool:
        """Whether the copy is over."""
        return self._job.over

    def synchronize(self) -> None:
        """Wait until it is."""
        self._copies.wait([self._job])


class SimpleOffload(VllmSide):
    """The connector, both sides."""

    fenced = False
    unordered = drops = True
    whole_chunks = True
    """It looks the rest of a prompt up as if that were one, so chunks must begin where those of the
    prompt do."""
    forward = None

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        if connector.scheduler_manager is None:
            raise UsageError(
                "--engine: vLLM's SimpleCPUOffloadConnector does nothing where enable_caching is"
                " false"
            )
        self._connector = connector
        self._handler = worker.worker_handler
        self._names = names
        self._scheduler = connector.scheduler_manager
        self.reports = hasattr(self._scheduler, "kv_event_medium")
        """A fork of an older release tells routers nothing."""
        self._looks_ahead = self._scheduler._target_free if self._scheduler._lazy_mode else 0
        """How many blocks, of those that are evicted next, are stored in time; 0 where it is not
        lazy."""
        self._pool = self._scheduler.cpu_block_pool
        self._group_of = source.utils.get_group_id
        self._hash_of = source.utils.get_block_hash
        self.null: Sequence[int] = [self._pool.null_block.block_id]

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""
        self._connector.bind_gpu_block_pool(pool)
        self._handler._backend = CopyBackend(copies)
        _without_streams(importlib.import_module(type(self._handler).__module__))

    def hold_back(self, *, held: bool) -> None:
        """Have a lazy scheduler look for nothing to store; an eager one stores what requests
        have computed.
        """
        if self._looks_ahead:
            self._scheduler._target_free = 0 if held else self._looks_ahead

    def tell(self, meta: Any) -> None:
        """Do nothing: its copies begin when the worker asks for them."""

    def books(self) -> Books:
        """Return what the block pool of the CPU shows of itself."""
        keys: dict[KeyId, Claim] = {}
        held: dict[int, int] = {}
        further = self._pool.cached_block_hashes_by_block
        for block in self._pool.blocks:
            if block.is_null:
                continue
            if block.ref_cnt > 0:
                held[block.block_id] = block.ref_cnt
            for key in (
                []
                if block.block_hash is None
                else [block.block_hash, *further.get(block.block_id, ())]
            ):
                if self._is_found(key, block):
                    keys[self._group_of(key), block.block_id, key] = self._names.claim(
                        self._hash_of(key)
                    )
        return Books(keys, held, self._pool.get_num_free_blocks())

    def _is_found(self, key: Any, block: Any) -> bool:
        """Return whether a look-up for a key may find a block: a fork of this connector names
        blocks when their stores begin.
        """
        return bool(self._pool.cached_block_hash_to_block.contain(key, block.block_id))


def _without_streams(module: Any) -> None:
    """Let vLLM's worker wait for the stream that computes where there is none: our copies begin
    when the runs have ended.
    """
    if isinstance(module.torch, SimpleNamespace):
        return
    cuda = SimpleNamespace(current_stream=lambda: None)
    module.torch = SimpleNamespace(
        Event=lambda: SimpleNamespace(record=lambda stream: None), cuda=cuda
    )
