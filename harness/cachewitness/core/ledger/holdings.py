"""Who holds which page, and for which group; how many pages are held, and which are idle: kept for
a key alone.

Time is counted in operations of the engine, which no event begins: one ends where the engine counts
its pages, and where a step begins. A page that nobody holds and no key names is poisoned: whoever
gets it next must write it before it reads it. If a step in flight copies from it, that is when the
step has ended: who has the page next writes it in a later one. Where copies are fenced
(`TierRules`), what lies there is kept for them until it is overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachewitness.core.events import Acquire, Grow, Release, StepBegin
from cachewitness.core.ledger.records import Key, PageRecord, PoolRecords


class Holdings:
    """Counts holders and keys of pages. A holder may hold a page several times."""

    def __init__(self, records: dict[int, PoolRecords], *, fenced: bool = False) -> None:
        self._records = records
        self._fenced = fenced
        self.held: dict[int, int] = dict.fromkeys(records, 0)
        """Per pool: how many pages somebody holds."""
        self.idle: dict[int, dict[int, PageRecord]] = {pool: {} for pool in records}
        """Per pool: the pages that nobody holds and a key keeps, in the order in which they came to
        be so."""
        self.operation = 0
        """The number of the operation under way."""
        self.pages_of: dict[str, int] = {}
        """Per holder: how many pages it holds, counted with multiplicity."""
        self.reuses = 0
        """How often the page was handed out again that was so most often."""
        self._copied_from: dict[tuple[int, int], int] = {}
        """(pool, page) -> the latest of the steps in flight that copy from the page."""
        self.left: set[tuple[int, int, int]] = set()
        """(step, pool, page) of pages that were given up while that step was the latest to copy
        from them."""

    def grow(self, event: Grow) -> None:
        """Add pages to a pool in the operation under way."""
        self._records[event.pool].grow(event.pages, self.operation)

    def take(self, event: Acquire) -> None:
        """Give pages to a holder."""
        records = self._records[event.pool]
        holder = event.holder
        idle = self.idle[event.pool]
        operation = self.operation
        group = event.group
        step = event.step
        self.pages_of[holder] = self.pages_of.get(holder, 0) + len(event.pages)
        for page in event.pages:
            record = records[page]
            record.used_in = step
            if not record.holders:
                self.held[event.pool] += 1
                record.taken = operation
                if record.keys:
                    record.restored = operation
                    del idle[page]
                else:
                    record.tenants += 1
                    if record.tenants > self.reuses + 1:
                        self.reuses += 1
            record.holders[holder] = record.holders.get(holder, 0) + 1
            record.held_for[holder] = group

    def drop(self, event: Release) -> None:
        """Take pages from a holder, each once; what it does not hold stays as it is."""
        records = self._records[event.pool]
        holder = event.holder
        verified = records.verified
        for page in event.pages:
            record = records[page]
            count = record.holders.get(holder, 0)
            if count:
                self.pages_of[holder] -= 1
            if count > 1:
                record.holders[holder] = count - 1
            elif count == 1:
                if verified:
                    records.parts(record, holder)
                del record.holders[holder], record.held_for[holder]
                if not record.holders:
                    record.released_by = holder
                    record.released_in = event.step
                    self._released(event.pool, page, record)

    def _released(self, pool: int, page: int, record: PageRecord) -> None:
        """Count a page whose last holder is gone."""
        self.held[pool] -= 1
        record.released = self.operation
        if record.keys:
            self.idle[pool][page] = record
        if all(key.state == "reset" for key in record.keys):
            self._leave(pool, page, record)

    def _leave(self, pool: int, page: int, record: PageRecord) -> None:
        """Poison a page that nobody holds and no living key names, now or when the steps have
        ended that copy from it.
        """
        if (step := self._copied_from.get((pool, page))) is not None:
            self.left.add((step, pool, page))
        elif self._fenced:
            record.leave()
        else:
            record.poison()

    def begin_step(self, event: StepBegin) -> None:
        """Note from which pages a step copies when it runs."""
        self._copied_from.update(
            dict.fromkeys(((move.src_pool, move.src) for move in event.copies), event.step)
        )

    def end_step(self, event: StepBegin) -> None:
        """Poison what was given up while a step that has ended was the latest to copy from it.

        A step that begins later and copies from the page copies what the next holder writes there.
        """
        for move in event.copies:
            if self._copied_from.get((move.src_pool, move.src)) == event.step:
                del self._copied_from[move.src_pool, move.src]
        for step, pool, page in [entry for entry in self.left if entry[0] <= event.step]:
            self.left.remove((step, pool, page))
            record = self._records[pool][page]
            self._records[pool].changes(record)
            record.poison()

    def reset(self, pools: Iterable[int]) -> None:
        """Poison the pages that only a key kept: the reset has ended it, and a key published
        later does not bring them back.
        """
        for pool in pools:
            for page, record in self.idle[pool].items():
                self._leave(pool, page, record)

    def add_key(self, key: Key, pool: int, page: int) -> None:
        """Let a key name a page."""
        record = self._records[pool][page]
        if not record.keys and not record.holders:
            self.idle[pool][page] = record
        record.keyed = self.operation
        record.used_in = max(record.used_in, key.step)
        record.keys.append(key)

    def remove_key(self, key: Key, pool: int, page: int) -> None:
        """Let a key name a page no more."""
        record = self._records[pool][page]
        record.keys.remove(key)
        if not record.keys and not record.holders:
            del self.idle[pool][page]
            record.released = self.operation
            self._leave(pool, page, record)
