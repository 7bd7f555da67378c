"""Turns what a cache shows of itself into events, by comparing it with what it was.

A cache is believed in nothing, and it needs no hooks: after each call its block tables, keys,
reference counts and pools are compared with what they were before, and the difference becomes
`unpublish`, `release`, `acquire`, `publish` and `counts`, in that order. One class serves every adapter;
what it asks of one is in `cache_state`.

A column that changed its page is dropped and taken again, because a page that went through the free
queue inside one call looks exactly like that. A key that changed its length is unpublished and
published again.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from cachewitness.core.events import Acquire, Event, Grow, Hit, Release, UnpublishReason
from cachewitness.core.intake import BadEvents
from cachewitness.engines.cache_state import ABSENT, CacheState, DirtyCacheState, Tables
from cachewitness.engines.page_accounts import Call, DirtyAccounts, WholeAccounts

Further = Callable[[], list[Event]]


class BlockTableDiff:
    """Compares what a cache shows and gathers `events`, stamped with `step`.

    `pools` is the pool of each group, `null` are the pages of each pool that nobody owns. `sizes`
    are the pages of each pool, where they are known: then what a cache of an adapter shows is
    checked against them, and `settle` raises BadEvents in words of the adapter's calls.
    """

    def __init__(
        self,
        state: CacheState | DirtyCacheState,
        pools: Sequence[int],
        null: Mapping[int, Iterable[int]],
        sizes: Mapping[int, int] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.step = 0
        self._state = state
        self._pools = pools
        self._sizes = dict(sizes or {})
        self._null = {pool: {ABSENT, *nobodys} for pool, nobodys in null.items()}
        self._no_tables: Tables = [[] for _ in pools]
        self._tables: dict[str, Tables] = {}
        self._scratch: dict[str, Tables] = {}
        self._accounts: WholeAccounts | DirtyAccounts
        self._dirty: DirtyCacheState | None = None
        if isinstance(state, DirtyCacheState):
            self._dirty = state
            self._accounts = DirtyAccounts(state, pools[0], self._null[pools[0]])
        else:
            self._accounts = WholeAccounts(state, pools, self._sizes)

    # --- what an adapter says ---------------------------------------------------------------------

    def hit(
        self, r: str, length: int, pages: Tables, *, resume: int | None = None, tier: str = "local"
    ) -> None:
        """Report a look-up: r was told that `length` tokens are cached and starts at `resume`
        (`length` if left out).

        `pages` by group and column; groups of another tier say from which of their pages each
        column was fetched.
        """
        pages = pages + [[] for _ in self._pools[len(pages) :]]
        start = length if resume is None else resume
        self.events.append(
            Hit(step=self.step, r=r, reported=length, resume=start, pages=pages, tier=tier)
        )

    def grow(self, pool: int, pages: int) -> None:
        """Report that so many pages were added to a pool."""
        if pool in self._sizes:
            self._sizes[pool] += pages
        self.events.append(Grow(step=self.step, pool=pool, pages=pages))

    def hold(self, group: int, pages: Iterable[int], holder: str) -> None:
        """Report that something other than a request (`copy:N`, `capture:N`) holds these pages
        of a group now.
        """
        if held := list(pages):
            self.events.append(
                Acquire(
                    step=self.step, pool=self._pools[group], group=group, pages=held, holder=holder
                )
            )

    def release(self, group: int, pages: Iterable[int], holder: str) -> None:
        """Report that it holds them no more."""
        if held := list(pages):
            self.events.append(
                Release(
                    step=self.step, pool=self._pools[group], group=group, pages=held, holder=holder
                )
            )

    def settle(
        self,
        holders: Iterable[str] = (),
        *,
        served: str = "",
        reason: UnpublishReason = "evict",
        further: Further | None = None,
    ) -> None:
        """Report how the cache changed in the call that has just returned.

        `holders` are the requests whose tables may have changed; `served` is whom keys are
        published for. A key that ended did so for `reason`; if that is eviction although its page
        stays held, it was replaced. `further` is asked, once the tables were compared, for what
        else took or gave back pages in this call.
        """
        call = (self.step, served, reason)
        dirty = self._dirty
        self._accounts.compare_keys(call, self._tables.values())
        drops: list[Event] = []
        come: list[tuple[str, int, list[int]]] = []
        touched: list[tuple[int, int]] = []
        for r in holders:
            self._compare_tables(r, drops, come, touched)
            if dirty is not None and dirty.scratching:
                self._compare_scratch(r, dirty.scratch(r), drops, come)
        # What a page that goes stood for is asked before a page that comes, perhaps the same one,
        # stands for anything.
        moves = drops
        for r, group, pages in come:
            taken = pages if dirty is None else dirty.tied(pages)
            moves.append(
                Acquire(step=self.step, pool=self._pools[group], group=group, pages=taken, holder=r)
            )
        if further is not None:
            others = further()
            moves += others
            touched += [
                (event.pool, page)
                for event in others
                if isinstance(event, Acquire | Release)
                for page in event.pages
            ]
        self.events += self._accounts.around(call, moves, touched)

    def account(self, moves: list[Event], *, served: str = "") -> None:
        """Report what took or gave back pages beside all tables, and how keys and counts changed
        with that.
        """
        call: Call = (self.step, served, "evict")
        self._accounts.compare_keys(call, self._tables.values())
        self.events += self._accounts.around(call, moves, [])

    def forget(self, r: str) -> None:
        """Forget a request that has ended and given everything back."""
        rows = zip(self._pools, self._tables.get(r, []), strict=False)
        if all(page in self._null[pool] for pool, row in rows for page in row):
            self._tables.pop(r, None)
            self._scratch.pop(r, None)

    def tables(self, r: str) -> Tables:
        """Return the tables of a request as of the last `settle` that named it, a row for every
        group. Not to be changed.
        """
        return self._tables.get(r, self._no_tables)

    def scratch(self, r: str) -> Tables:
        """Return the pages of a request beside its tables in the same way."""
        return self._scratch.get(r, self._no_tables)

    # --- differences ------------------------------------------------------------------------------

    def _compare_tables(
        self,
        r: str,
        drops: list[Event],
        come: list[tuple[str, int, list[int]]],
        touched: list[tuple[int, int]],
    ) -> None:
        """Add what a request gave back to `drops`, what it got, by group, to `come`, and the
        pages of both to `touched`.
        """
        before = self._tables.get(r, self._no_tables)
        dirty = self._dirty
        after = self._state.tables(r)
        if after is before:
            return
        if dirty is None:
            self._check_rows(r, after)
            after = [*map(list, after), *self._no_tables[len(after) :]]
        self._tables[r] = after
        for group, (pool, old, new) in enumerate(zip(self._pools, before, after, strict=True)):
            if old is new or old == new:
                continue
            gone, got = _difference(old, new, self._null[pool])
            self._check_pages(r, group, pool, got)
            touched += [(pool, page) for page in gone + got]
            if gone:
                pages = gone if dirty is None else dirty.untied(gone)
                drops.append(Release(step=self.step, pool=pool, group=group, pages=pages, holder=r))
            if got:
                come.append((r, group, got))

    def _check_rows(self, r: str, tables: Tables) -> None:
        if len(tables) > len(self._pools):
            raise BadEvents(
                f"tables({r!r}) has {len(tables)} rows; the header declares {len(self._pools)}"
                " groups, and a row is the pages of one group, in their order"
            )

    def _check_pages(self, r: str, group: int, pool: int, pages: list[int]) -> None:
        size = self._sizes.get(pool)
        wrong = [page for page in pages if size is not None and not 0 <= page < size]
        if wrong:
            raise BadEvents(
                f"tables({r!r}) has page {wrong[0]} for group {group}; pool {pool} has pages 0 to"
                f" {(size or 0) - 1}, and {ABSENT} stands for a column that is not there"
            )

    def _compare_scratch(
        self, r: str, after: Tables, drops: list[Event], come: list[tuple[str, int, list[int]]]
    ) -> None:
        """Do the same with the pages beside the tables."""
        before = self.scratch(r)
        for group, (old, new) in enumerate(zip(before, after, strict=True)):
            if new != old:
                if old:
                    drops.append(
                        Release(
                            step=self.step,
                            pool=self._pools[group],
                            group=group,
                            pages=old,
                            holder=r,
                        )
                    )
                if new:
                    come.append((r, group, new))
        self._scratch[r] = after


def _difference(old: list[int], new: list[int], null: set[int]) -> tuple[list[int], list[int]]:
    """Return (pages given back, pages taken); a page that only changed its column is in both."""
    count = len(old)
    if new[:count] == old:
        return [], [page for page in new[count:] if page not in null]
    pairs = [(a, b) for a, b in zip_longest(old, new, fillvalue=ABSENT) if a != b]
    return [a for a, _ in pairs if a not in null], [b for _, b in pairs if b not in null]
