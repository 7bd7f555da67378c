"""vLLM's reference, made to take the blocks that another engine took: the other side of the differential.

Any free block may be handed out, and whichever cached block the engine evicts may be evicted. So before each operation the
reference's free queue is put into the order in which the engine took its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.engines.manager_height import ManagerHeight
from harness.history.events import Counts, Event, Hit, Publish, Take
from harness.policies.vllm.engine import assemble, configure
from harness.policies.vllm.reporting_pool import observable_manager
from harness.trace.format import Op, Trace
from reference_impl.vllm.spec import RELEASES


class Follower:
    """The reference, made to take the blocks that the engine took."""

    def __init__(self, trace: Trace, engine_version: str) -> None:
        release = ".".join(engine_version.split(".")[:2])
        self._config = configure(trace.header, release if release in RELEASES else "")
        manager = observable_manager(self._config)
        self._wanted: list[int] = []
        self._companions: dict[int, list[int]] = {}
        self._own_choice = manager.block_pool.get_new_blocks
        self._queue = manager.block_pool.free_block_queue
        manager.block_pool.get_new_blocks = self._get_new_blocks  # type: ignore[method-assign]
        self._engine: ManagerHeight = assemble(trace.header, self._config, manager, "reference")

    def follow(self, op: Op, theirs: list[Event]) -> list[Event]:
        """Carry the operation out with the engine's choices, which its events tell, and return the reference's own events.

        Raises AssertionError or ValueError if the engine's choices are none that the reference can take.
        """
        self._wanted = list(_fresh_pages(theirs, self._companions))
        self._companions |= {e.page: e.companions for e in theirs if isinstance(e, Publish)}
        return self._engine.apply(op)

    def _get_new_blocks(self, num_blocks: int) -> Any:
        wanted, self._wanted = self._wanted[:num_blocks], self._wanted[num_blocks:]
        for page in reversed(wanted):
            if page in self._queue:
                self._queue.move_to_end(page, last=False)  # type: ignore[arg-type]
        return self._own_choice(num_blocks)


def _fresh_pages(events: list[Event], companions: dict[int, list[int]]) -> Iterator[int]:
    """Yield the pages that were newly allocated, in the order in which the reference asks for them.

    That is call by call, group by group, and within a group the target of a copy before further columns. A call ends with
    `counts` unless it left the counts alone, so a `hit` and another holder tell of a new one too. What was hit is not new; of
    a copy, which holds its source and then its target, only a target outside the tables is left to name. `companions` are
    the further pages of published snapshots.
    """
    shared: set[int] = set()
    batch: dict[int, list[int]] = {}
    holder, source_seen = "", False
    for event in events:
        taker = event.holder if isinstance(event, Take) and not event.holder.startswith("copy:") else ""
        if isinstance(event, Counts | Hit) or taker not in ("", holder):
            yield from _in_group_order(batch)
            batch, holder, shared = {}, "", set()
            if isinstance(event, Hit):
                hit = [page for column in event.pages for page in column]
                holder, shared = event.r, {member for page in hit for member in (page, *companions.get(page, ()))}
        if not isinstance(event, Take):
            continue
        fresh = batch.setdefault(event.group, [])
        if taker:
            holder = taker
            fresh.extend(page for page in event.pages if page not in shared)
            continue
        if source_seen and event.pages[0] not in fresh:
            fresh.insert(0, event.pages[0])
        source_seen = not source_seen
    yield from _in_group_order(batch)


def _in_group_order(batch: dict[int, list[int]]) -> Iterator[int]:
    for _, pages in sorted(batch.items()):
        yield from pages
