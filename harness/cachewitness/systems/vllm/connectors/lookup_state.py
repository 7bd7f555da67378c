"""What vLLM's scheduler and its connector do with the device's blocks, beside what the cache
manager does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Acquire, Release
from cachewitness.engines.cache_state import Tables
from cachewitness.engines.observe_pins import POOL, ObservedPool
from cachewitness.systems.vllm.clock import Clock
from cachewitness.systems.vllm.scheduler import RealScheduler, ReportingManager


class ConnectorsPool(ObservedPool):
    """The device's block pool as a connector has it: what it touches is held until it is freed."""

    def __init__(self, manager: ConnectedManager, pool: Any) -> None:
        super().__init__(pool, manager.observed.released)
        self._manager = manager

    def touch(self, blocks: Any) -> None:
        """Hold blocks for copies."""
        held = [*blocks]
        self._pool.touch(held)
        self._manager.observed.hold(held, self._manager.group_of)

    def given_anew(self, note: Callable[[int], None]) -> None:
        """Have each block noted that is given to somebody anew: what it held is of no account."""
        give = self._pool.get_new_blocks

        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            blocks = give(*args, **kwargs)
            for block in blocks:
                note(block.block_id)
            return blocks

        self._pool.get_new_blocks = get_new_blocks

    def who_has(self, pages: Iterable[int]) -> set[str]:
        """Return the requests that have some of these blocks in their tables."""
        return self._manager.who_has(pages)

    def tables(self, r: str) -> Tables:
        """Return the blocks of a request, by group."""
        return self._manager.observed.tables(r)


class ConnectedManager(ReportingManager):
    """The observed manager as vLLM's scheduler calls it where a connector loads and stores."""

    def __init__(self, adapter: RealScheduler, clock: Clock) -> None:
        super().__init__(adapter, clock)
        self.observed = adapter.manager
        self.pool = ConnectorsPool(self, adapter.manager.manager.block_pool)
        self.allocate_slots = clock.outside(self._allocate_slots)
        self.remove_skipped_blocks = clock.outside(self.observed.remove_skipped_blocks)
        self.pop_blocks_for_free = clock.outside(self._pop_blocks_for_free)
        self._waiting: dict[str, tuple[int, int]] = {}
        """Who was given blocks that the connector loads: the place of the event that tells it, and
        how long the hit is."""
        self._lingering: dict[str, str] = {}
        """Who has ended and keeps its blocks, and what they are held by."""
        self._count = 0

    def take_hits(self) -> dict[str, tuple[int, int]]:
        """Return who was given blocks to load into since this was last asked, in the order of their
        look-ups.

        Of each the place of the event that tells it among those of this operation, and its hit in
        tokens.
        """
        hits, self._waiting = self._waiting, {}
        return hits

    def blocks_of(self, r: str, length: int) -> Tables:
        """Return the blocks of a request that its first `length` tokens lie in, by group."""
        sizes = [single.block_size for single in self.observed.coordinator.single_type_managers]
        return [
            row[: -(-length // size)]
            for row, size in zip(self.observed.tables(r), sizes, strict=False)
        ]

    def who_has(self, pages: Iterable[int]) -> set[str]:
        """Return the requests that have some of these blocks in their tables."""
        wanted = {*pages}
        tables = (
            [single.req_to_blocks for single in self.observed.coordinator.single_type_managers]
            if wanted
            else []
        )
        return {
            r
            for table in tables
            for r, blocks in table.items()
            if not wanted.isdisjoint(b.block_id for b in blocks)
        }

    def group_of(self, page: int) -> int:
        """Return the group that a block is used for: that of its key, or of whoever has it in a
        table.
        """
        key = self.observed.block_pool.blocks[page].block_hash
        if key is not None:
            return self.observed.group_of(key)
        for group, single in enumerate(self.observed.coordinator.single_type_managers):
            if any(
                block.block_id == page
                for blocks in single.req_to_blocks.values()
                for block in blocks
            ):
                return group
        return 0

    def _allocate_slots(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Give a request blocks; if some are to be loaded, the hit is reported when the step
        says from where.

        Raises EngineFailure if it is to begin in front of its first token: vLLM's worker has
        nothing there.
        """
        loaded = kwargs.get("num_external_computed_tokens", 0)
        r = request.request_id
        start = request.num_computed_tokens + kwargs.get("num_new_computed_tokens", 0) + loaded
        if start < 0:
            raise EngineFailure("engine-crashed", f"schedules {r} from token {start} on")
        if loaded:
            self.observed.report_no_hit(r)
        place = len(self.observed.events)
        blocks = self.observed.allocate_slots(request, num_new_tokens, *args, **kwargs)
        if loaded and blocks is not None:
            self._waiting[r] = place, kwargs.get("num_new_computed_tokens", 0) + loaded
        return blocks

    def _pop_blocks_for_free(self, request: Any) -> Any:
        """Take a request's blocks away from it; they are given back to the pool when the steps
        in flight have ended.
        """
        r = request.request_id
        self._adapter.report(r)
        if not request.is_finished():
            self._adapter.engine.preempted(r)
        blocks = self.observed.manager.pop_blocks_for_free(request)
        self.observed.let_go_later(r, blocks, self.group_of)
        return blocks

    def _free(self, request: Any) -> None:
        """Free a request's blocks; those of one that had ended were held by a copy."""
        before = len(self.observed.events)
        super()._free(request)
        holder = self._lingering.pop(request.request_id, "")
        for event in self.observed.events[before:] if holder else ():
            if isinstance(event, Release) and event.holder == request.request_id:
                event.holder = holder

    def let_linger(self, live: Container[str], known: Iterable[str]) -> None:
        """Report that requests which have ended keep their blocks for a copy. `known` are those
        of vLLM's scheduler.
        """
        for r in [r for r in known if r not in live and r not in self._lingering]:
            self._count += 1
            self._lingering[r] = f"store:{self._count}"
            null = self.observed.block_pool.null_block.block_id
            step = self.observed.step
            for group, row in enumerate(self.observed.tables(r)):
                if pages := [page for page in row if page != null]:
                    self.observed.events += [
                        Acquire(
                            step=step,
                            pool=POOL,
                            group=group,
                            pages=pages,
                            holder=self._lingering[r],
                        ),
                        Release(step=step, pool=POOL, group=group, pages=pages, holder=r),
                    ]
