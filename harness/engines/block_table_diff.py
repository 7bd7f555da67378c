"""Turns what a policy's books say into events.

A policy is believed in nothing, and it needs no hooks: after each call its books (whose tables hold which pages, which keys
name which pages, what the pools count) are compared with what they were before, and the difference becomes `unpublish`,
`drop`, `take`, `publish` and `counts`, in that order. One witness serves every reference policy whose adapter can show its
`Books`; managers of vLLM's shape have one of their own (`observe.py`).

A column that changed its page is dropped and taken again. A key that changed its length is unpublished and published again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, Protocol

from harness.history.events import Counts, Drop, Event, Group, Header, Hit, Publish, Take, Unpublish, UnpublishReason

ABSENT = -1
"""The page of a column that is not there: never allocated, or given back."""

Tables = list[list[int]]
"""Pages by group and column."""
KeyId = tuple[int, int, Hashable]
"""A group, a page of its pool, and whatever the policy calls the key."""


class Claim(NamedTuple):
    """What a key says: the page holds what ends the first `length` tokens of `r`; empty: of the request that was served.

    `companions` are further pages that the same key occupies.
    """

    length: int
    r: str = ""
    companions: tuple[int, ...] = ()


class Count(NamedTuple):
    """A pool's own books: pages free, held by somebody, kept for their key alone."""

    free: int
    held: int
    cached: int


class CacheState(Protocol):
    """What a policy shows of itself. Nothing it returns is changed, neither here nor by the policy afterwards."""

    def tables(self, r: str) -> Tables:
        """Return the pages that a request holds, by group and column, ABSENT where there is none; [] if it is not known."""

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return every key that can be hit now; empty for a policy without keys."""

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool that keeps some, by the pool's id."""

    def references(self, pool: int, page: int) -> int | None:
        """Return how often the policy says that a page is held; None if it does not count."""


class Witness:
    """Compares books and gathers `events`, stamped with `step`."""

    def __init__(self, header: Header, books: CacheState) -> None:
        self.events: list[Event] = []
        self.step = 0
        self._books, self._groups = books, header.groups
        self._null = {pool.id: {ABSENT, *pool.null} for pool in header.pools}
        self._tables: dict[str, Tables] = {}
        self._keys: Mapping[KeyId, Claim] = books.keys()
        self._counts: dict[int, Count] = dict(books.counts())

    # --- what an adapter says ------------------------------------------------------------------------------------------

    def hit(self, r: str, length: int, pages: Tables, *, resume: int | None = None, tier: str = "local") -> None:
        """Report a look-up: r was told that `length` tokens are cached and starts at `resume` (`length` if left out).

        `pages` by group and column; groups of another tier say from which of their pages each column was fetched.
        """
        pages = pages + [[] for _ in self._groups[len(pages) :]]
        start = length if resume is None else resume
        self.events.append(Hit(step=self.step, r=r, reported=length, resume=start, pages=pages, tier=tier))

    def hold(self, group: int, pages: Iterable[int], holder: str) -> None:
        """Report that something other than a request (`copy:N`, `capture:N`) holds these pages of a group now."""
        self._moved(Take, self._groups[group], list(pages), holder)

    def release(self, group: int, pages: Iterable[int], holder: str) -> None:
        """Report that it holds them no more."""
        self._moved(Drop, self._groups[group], list(pages), holder)

    def settle(self, holders: Iterable[str] = (), *, served: str = "", reason: UnpublishReason = "evict") -> None:
        """Report how the books changed in the call that has just returned.

        `holders` are the requests whose tables may have changed; `served` is whom keys are published for. A key that ended
        did so for `reason`; if that is eviction although its page stays held, it was replaced.
        """
        lost, won = self._compare_keys(served)
        held = self._held(lost) if reason == "evict" else set()
        moves, touched = self._compare_tables(dict.fromkeys(holders))
        for (group, page, _), claim in lost.items():
            why: UnpublishReason = "replace" if (self._groups[group].pool, page) in held else reason
            self.events.append(Unpublish(step=self.step, group=group, page=page, length=claim.length, reason=why))
        self.events += moves
        self.events += won
        self._count(touched)

    def forget(self, r: str) -> None:
        """Forget a request that has ended and given everything back."""
        rows = zip(self._groups, self._tables.get(r, []), strict=False)
        if all(page in self._null[group.pool] for group, row in rows for page in row):
            self._tables.pop(r, None)

    def tables(self, r: str) -> Tables:
        """Return the tables of a request as of the last `settle` that named it, a row for every group of the header."""
        known = self._tables.get(r, [])
        return known + [[] for _ in self._groups[len(known) :]]

    # --- differences ---------------------------------------------------------------------------------------------------

    def _compare_keys(self, served: str) -> tuple[dict[KeyId, Claim], list[Publish]]:
        now = self._books.keys()
        if now is self._keys or now == self._keys:
            return {}, []
        lost = {key: claim for key, claim in self._keys.items() if now.get(key) != claim}
        won = [
            Publish(
                step=self.step,
                group=group,
                page=page,
                r=claim.r or served,
                length=claim.length,
                companions=list(claim.companions),
            )
            for (group, page, name), claim in now.items()
            if self._keys.get((group, page, name)) != claim
        ]
        self._keys = now
        return lost, sorted(won, key=lambda event: (event.group, event.length, event.page))

    def _compare_tables(self, holders: Iterable[str]) -> tuple[list[Event], set[tuple[int, int]]]:
        drops: list[Event] = []
        takes: list[Event] = []
        touched: set[tuple[int, int]] = set()
        for r in holders:
            before, after = self._tables.get(r, []), [list(row) for row in self._books.tables(r)]
            self._tables[r] = after
            for index, group in enumerate(self._groups):
                old = before[index] if index < len(before) else []
                new = after[index] if index < len(after) else []
                if old != new:
                    gone, come = _difference(old, new, self._null[group.pool])
                    if gone:
                        drops.append(Drop(step=self.step, pool=group.pool, group=group.id, pages=gone, holder=r))
                    if come:
                        takes.append(Take(step=self.step, pool=group.pool, group=group.id, pages=come, holder=r))
                    touched.update((group.pool, page) for page in gone + come)
        return drops + takes, touched

    def _count(self, touched: set[tuple[int, int]]) -> None:
        now = self._books.counts()
        for pool, count in now.items():
            refs = self._references(pool, touched)
            if count != self._counts.get(pool) or refs:
                self.events.append(Counts(step=self.step, pool=pool, refs=refs, **count._asdict()))
        self._counts = dict(now)

    def _references(self, pool: int, touched: set[tuple[int, int]]) -> list[tuple[int, int]]:
        counted = [(page, self._books.references(pool, page)) for place, page in sorted(touched) if place == pool]
        return [(page, count) for page, count in counted if count is not None]

    def _moved(self, kind: type[Take] | type[Drop], group: Group, pages: list[int], holder: str) -> None:
        if pages:
            self.events.append(kind(step=self.step, pool=group.pool, group=group.id, pages=pages, holder=holder))

    def _held(self, keys: Iterable[KeyId]) -> set[tuple[int, int]]:
        """Return those of the keys' pages, with their pools, that were in somebody's table before this call."""
        asked = {(self._groups[group].pool, page) for group, page, _ in keys}
        if not asked:
            return asked
        tables = self._tables.values()
        return {
            place
            for rows in tables
            for group, row in zip(self._groups, rows, strict=False)
            for page in row
            if (place := (group.pool, page)) in asked
        }


def _difference(old: list[int], new: list[int], null: set[int]) -> tuple[list[int], list[int]]:
    """Return (pages given back, pages taken); a page that only changed its column is in both."""
    if new[: len(old)] == old:
        return [], [page for page in new[len(old) :] if page not in null]
    columns = max(len(old), len(new))
    padded = zip(old + [ABSENT] * (columns - len(old)), new + [ABSENT] * (columns - len(new)), strict=True)
    pairs = [(a, b) for a, b in padded if a != b]
    return [a for a, _ in pairs if a not in null], [b for _, b in pairs if b not in null]
