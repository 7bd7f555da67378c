"""Turns the calls made on a cache manager of vLLM's shape into events.

The manager is believed in nothing: after each call its block tables, reference counts and block hashes are compared
with what they were before, and the difference becomes `take`, `drop`, `publish`, `unpublish` and `counts`. So a manager
needs no hooks, and one observer serves the reference policy and every release of vLLM.

Within a call the events come in this order: `hit` (the look-up came first), `unpublish`, `publish` of what is given back in the
same call, `drop`, `take`, `publish`, `counts`. A block that changes columns is dropped and taken again, because a page that
went through the free queue inside one call looks exactly like that.

`counts` uses the pool's own books: `free` is the length of the free queue less the cached blocks in it, so a block that
is queued twice, or lost, shows as free + held + cached differing from the size of the pool.

A pool that says itself which blocks changed (`drain_dirty`) is asked; to any other one listens (`observe_touched`).

Sources of the interface: vLLM 0.33.0, `v1/core/kv_cache_manager.py`, `v1/core/block_pool.py`,
`v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

from harness.engines.observe_pins import POOL, ObservedPool, Pins
from harness.engines.observe_tier import ObservedTier
from harness.engines.observe_touched import DirtyBlocks
from harness.history.events import Counts, Drop, Event, Hit, Publish, Take, Unpublish, UnpublishReason

_NO_BLOCKS: list[Any] = []


def group_in_last_bytes(key: Any) -> int:
    """Return the cache group of a block key: its last four bytes (vLLM 0.33.0, `kv_cache_utils.py`, `get_group_id`)."""
    return int.from_bytes(key[-4:], "big")


class ObservedManager:
    """A cache manager with a witness. It has the manager's interface; events go to `events`, stamped with `step`."""

    def __init__(self, manager: Any, group_of: Callable[[Any], int] = group_in_last_bytes) -> None:
        self.manager = manager
        self.events: list[Event] = []
        self.step = 0
        self._group_of = group_of
        self._pool = manager.block_pool
        self._blocks = self._pool.blocks
        self._null = self._pool.null_block.block_id
        self._managers = manager.coordinator.single_type_managers
        self._no_tables: list[list[int]] = [[] for _ in self._managers]
        self._tables: dict[str, list[list[int]]] = {}
        self._columns: dict[str, list[list[Any]]] = {}
        """The blocks in a request's tables, as objects."""
        self._scratch: dict[str, list[list[int]]] = {}
        self._looked_up: dict[str, tuple[int, Any]] = {}
        self._drain_dirty = getattr(self._pool, "drain_dirty", None)
        self._refs: list[int] = [block.ref_cnt for block in self._blocks]
        self._keys: list[Any] = [block.block_hash for block in self._blocks]
        self._touched = DirtyBlocks(self._pool, self._refs, self._keys)
        self._lengths: dict[int, dict[Any, int]] = {}
        self._several: set[int] = set()
        self._tied: dict[int, list[int]] = {}
        self._held = self._cached = 0
        self._has_companions = hasattr(self._pool.null_block, "companions")
        self._can_copy = hasattr(manager, "take_kv_cache_block_copies")
        self._copies_expected = getattr(manager.coordinator, "enable_partial_hash_hits", self._can_copy)
        self._scratch_blocks = [getattr(single, "speculative_blocks", {}) for single in self._managers]
        self._drafts = any(getattr(single, "num_speculative_blocks", 0) for single in self._managers)
        self._copies_expected |= self._drafts
        self._copies: list[Any] = []
        self._retained: list[Any] = []
        self._tier = ObservedTier(getattr(manager, "tier", None), group_of, len(self._managers))
        self._pins = Pins()
        self.block_pool = ObservedPool(self._pool, self._released)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    # --- calls -------------------------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Look the request up; the answer becomes a `hit` when the request is next given pages."""
        answer: tuple[Any, ...] = self.manager.get_computed_blocks(request, *args, **kwargs)
        self._looked_up[request.request_id] = (answer[1], answer[0])
        return answer

    def allocate_slots(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Give the request pages for its new tokens, or None if there are none to give."""
        blocks = self.manager.allocate_slots(request, num_new_tokens, *args, **kwargs)
        r = request.request_id
        if blocks is not None and r in self._looked_up:
            self._hit(r, *self._looked_up.pop(r))
        self._settle([r], request, "evict")
        return blocks

    def report_hit(self, request: Any) -> None:
        """Report what the look-up found although no pages are asked for: it leaves nothing to compute."""
        r = request.request_id
        self._hit(r, *self._looked_up.pop(r))

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Key the request's blocks up to so many tokens."""
        self.manager.cache_blocks(request, num_computed_tokens)
        self._settle([request.request_id], request, "evict")

    def free(self, request: Any) -> None:
        """Give back everything that the request holds."""
        self.manager.free(request)
        self._let_go([request.request_id], "evict")

    def withdraw(self, request: Any) -> list[str]:
        """Take the request back out of a step that has not begun; return all who have to go with it, it first.

        A manager that knows no withdrawal frees the request, as vLLM's scheduler does.
        """
        if hasattr(self.manager, "withdraw"):
            gone: list[str] = self.manager.withdraw(request)
        else:
            self.manager.free(request)
            gone = [request.request_id]
        self._let_go(gone, "withdraw")
        return gone

    def store_to_tier(self) -> list[Any]:
        """Store what was keyed in the second tier; return the copies that the step has to make when it has run."""
        stores: list[Any] = self.manager.store_to_tier()
        pins, step = self._pins, self.step
        takes = [pins.take(b.block_id, self._group_of(place.block_hash), pins.next_copy(), step) for place, b in stores]
        self._account(None, "evict", takes)
        self.events += self._tier.changes(self.step, "evict")
        return stores

    def begin_loads(self, request: Any) -> list[Any]:
        """Begin to load what the request has hit in a slow tier; return the transfers."""
        return self._begun(self.manager.begin_loads(request))

    def begin_stores(self) -> list[Any]:
        """Begin to store what was keyed in a slow tier; return the transfers."""
        return self._begun(self.manager.begin_stores())

    def end_transfer(self, transfer: Any) -> None:
        """Let a transfer be over: what it filled is keyed, and what it held is not any more."""
        self.manager.end_transfer(transfer)
        self._released([transfer.block], transfer.waiting)
        self.events += self._tier.changes(self.step, "evict", [self._tier.let_go(transfer, self.step)])

    def reset_tier(self, reason: UnpublishReason = "reset") -> None:
        """Forget every key of the second tier."""
        self.manager.reset_tier()
        self.events += self._tier.changes(self.step, reason)

    def reset_prefix_cache(self, reason: UnpublishReason = "reset") -> bool:
        """Forget every key, if nobody holds a block."""
        done = bool(self.manager.reset_prefix_cache())
        self._settle([], None, reason)
        return done

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """Return the copies that the next step has to make, and the blocks to free when they are made."""
        self.events += self._collect_copies(self._no_tables, self._no_tables)
        copies, retained = self._copies, self._retained
        self._copies, self._retained = [], []
        return copies, retained

    def tables(self, r: str) -> list[list[int]]:
        """Return the request's pages per group by column, as of its last call. Not to be changed."""
        return self._tables.get(r, self._no_tables)

    def scratch(self, r: str) -> list[list[int]]:
        """Return the request's pages per group for the states after drafts. Not to be changed."""
        return self._scratch.get(r, self._no_tables)

    # --- differences -------------------------------------------------------------------------------------------------

    def _hit(self, r: str, length: int, found: Any) -> None:
        pages = [[block.block_id for block in column] for column in found.blocks]
        tier = "local"
        if self._tier:
            places = [[self._tier.place(block) for block in column] for column in found.blocks]
            pages = [self._fetched(r, group, pages[group], columns) for group, columns in enumerate(places)] + places
            tier = "cpu" if any(place >= 0 for columns in places for place in columns) else tier
        self.events.append(Hit(step=self.step, r=r, reported=length, resume=length, pages=pages, tier=tier))

    def _fetched(self, r: str, group: int, pages: list[int], places: list[int]) -> list[int]:
        """Return the columns of a hit with the blocks that what the tier had was fetched into."""
        table = self._managers[group].req_to_blocks[r]
        return [
            table[column].block_id if place >= 0 else page
            for column, (page, place) in enumerate(zip(pages, places, strict=True))
        ]

    def _let_go(self, gone: list[str], reason: UnpublishReason) -> None:
        self._settle(gone, None, reason)
        for r in gone:
            self._looked_up.pop(r, None)
            if not any(self._tables.get(r, ())):
                self._tables.pop(r, None)
                self._columns.pop(r, None)
                self._scratch.pop(r, None)

    def _settle(self, holders: list[str], request: Any, reason: UnpublishReason) -> None:
        """Report how tables, then blocks, changed in the call that has just returned; `request` is whom it served."""
        drops: list[Event] = []
        come: list[tuple[str, int, list[int]]] = []
        for r in holders:
            self._compare_tables(r, drops, come)
        # What was tied to a page that goes is asked before a page that comes, perhaps the same one, is tied anew.
        moves = drops
        for r, group, pages in come:
            moves.append(Take(step=self.step, pool=POOL, group=group, pages=self._tie_companions(pages), holder=r))
        if self._copies_expected and request is not None:
            moves += self._collect_copies(self._tables[request.request_id], self.scratch(request.request_id))
        self._account(request, reason, moves)

    def _compare_tables(self, r: str, drops: list[Event], come: list[tuple[str, int, list[int]]]) -> None:
        """Add what the request gave back to `drops`, and what it got, by group, to `come`."""
        null = self._null
        columns = self._columns.get(r)
        if columns is None:
            columns = self._columns[r] = [[] for _ in self._managers]
        tables = before = self._tables.get(r, self._no_tables)
        for group, manager in enumerate(self._managers):
            blocks = manager.req_to_blocks.get(r) or _NO_BLOCKS
            if blocks != columns[group]:  # the same objects in the same places, mostly: no need to ask for their ids
                columns[group] = [*blocks]
                old, new = before[group], [block.block_id for block in blocks]
                if tables is before:
                    tables = [*before]
                tables[group] = new
                gone, got = _difference(old, new, null)
                self._touched.note(gone + got)
                if gone:
                    pages = self._with_tied(gone) if self._tied else gone
                    drops.append(Drop(step=self.step, pool=POOL, group=group, pages=pages, holder=r))
                if got:
                    come.append((r, group, got))
        self._tables[r] = tables
        if self._drafts:
            self._compare_scratch(r, drops, come)

    def _compare_scratch(self, r: str, drops: list[Event], come: list[tuple[str, int, list[int]]]) -> None:
        """Do the same with the pages beside the tables, which are got and given back all together."""
        before = self._scratch.get(r, self._no_tables)
        after = [[block.block_id for block in blocks.get(r, ())] for blocks in self._scratch_blocks]
        for group, (old, new) in enumerate(zip(before, after, strict=True)):
            if new != old:
                if old:
                    drops.append(Drop(step=self.step, pool=POOL, group=group, pages=old, holder=r))
                if new:
                    come.append((r, group, new))
        self._scratch[r] = after

    def _with_tied(self, pages: list[int]) -> list[int]:
        return pages + [tied for page in pages for tied in self._tied.get(page, ())]

    def _tie_companions(self, pages: list[int]) -> list[int]:
        """Return the pages and those tied to them: a snapshot of several pages is in a table by its first page alone."""
        if not self._has_companions:
            return pages
        tied: list[int] = []
        for page in pages:
            companions = self._blocks[page].companions
            if companions:
                self._tied[page] = [block.block_id for block in companions]
                tied += self._tied[page]
            elif self._tied:
                self._tied.pop(page, None)
        return pages + tied if tied else pages

    def _collect_copies(self, tables: list[list[int]], scratch: list[list[int]]) -> list[Event]:
        """Note new copies. The manager keeps an extra reference to both ends; the copy itself is their holder here."""
        if not self._can_copy:
            return []
        copies, retained = self.manager.take_kv_cache_block_copies()
        if not (copies or retained):
            return []
        takes: list[Event] = []
        holding = [{*table, *aside} for table, aside in zip(tables, scratch, strict=True)]
        for index, copy in enumerate(copies):
            holder = self._pins.next_copy()
            ends = (copy.src_block_id, copy.dst_block_id)
            self._touched.note(ends)
            group = next((g for g, places in enumerate(holding) if not places.isdisjoint(ends)), 0)
            for block in retained[2 * index : 2 * index + 2]:
                takes.append(self._pins.take(block.block_id, group, holder, self.step))
        self._copies += copies
        self._retained += retained
        return takes

    def _begun(self, transfers: list[Any]) -> list[Any]:
        blocks: list[Event] = []
        places: list[Event] = []
        for transfer in transfers:
            holder, group = self._pins.next_copy(), self._group_of(transfer.key)
            blocks.append(self._pins.take(transfer.block.block_id, group, holder, self.step))
            places.append(self._tier.hold(transfer, holder, self.step))
        self._account(None, "evict", blocks)
        self.events += self._tier.changes(self.step, "evict", places)
        return transfers

    def _released(self, blocks: list[Any], request: Any = None) -> None:
        """Report that blocks kept for copies were given back to the pool; `request` is for whom they were keyed."""
        self._account(request, "evict", self._pins.drop((block.block_id for block in blocks), self.step))

    def _changed(self) -> Iterable[int]:
        if self._drain_dirty is not None:
            return sorted(self._drain_dirty())
        changed = self._touched.changed()
        further = getattr(self._pool, "cached_block_hashes_by_block", ())
        return sorted({*changed, *further, *self._several}) if further or self._several else changed

    def _account(self, request: Any, reason: UnpublishReason, moves: list[Event]) -> None:
        """Report the blocks whose references or keys changed, around the takes and drops of the same call."""
        refs: list[tuple[int, int]] = []
        published: list[Publish] = []
        taken: set[int] | None = None
        counted = False
        further = getattr(self._pool, "cached_block_hashes_by_block", ())
        for page in self._changed():
            block = self._blocks[page]
            ref, key = block.ref_cnt, block.block_hash
            was, had = self._refs[page], self._keys[page]
            if key != had or page in further or page in self._several:
                why = reason
                if reason == "evict" and was > 0:
                    if taken is None:
                        taken = _taken_by(request, moves)
                    why = "evict" if page in taken else "replace"
                published += self._rekey(page, block, request, why)
            if page == self._null or (ref == was and (key is None) == (had is None)):
                continue
            counted = True
            self._held += (ref > 0) - (was > 0)
            self._cached += (ref <= 0 and key is not None) - (was <= 0 and had is not None)
            if ref != was:
                self._refs[page] = ref
                refs.append((page, ref))
        self.events += self._around(moves, published) if published else moves
        if counted:
            free = self._pool.get_num_free_blocks() - self._cached
            self.events.append(Counts(step=self.step, pool=POOL, free=free, held=self._held, cached=self._cached, refs=refs))

    def _around(self, moves: list[Event], published: list[Publish]) -> list[Event]:
        """Return the moves, in front of them what was keyed and then left (blocks that drafts filled), behind them the rest."""
        left: list[Event] = []
        kept: list[Event] = []
        for event in sorted(published, key=_by_group_and_length):
            nobodys = event.page != self._null and self._refs[event.page] <= 0
            (left if nobodys else kept).append(event)
        return [*left, *moves, *kept]

    def _rekey(self, page: int, block: Any, request: Any, reason: UnpublishReason) -> list[Publish]:
        """Report the keys that a block lost, and return what it gained."""
        old = self._lengths.pop(page, {})
        new: dict[Any, int] = {}
        if block.block_hash is not None and getattr(block, "primary", None) is None:
            new[block.block_hash] = block.block_hash_num_tokens
        for key in getattr(self._pool, "cached_block_hashes_by_block", {}).get(page, ()):
            new[key] = old[key] if key in old else _length_in(request, key, self._pool.hash_block_size)
        for key, length in old.items():
            if new.get(key) != length:
                group = self._group_of(key)
                self.events.append(Unpublish(step=self.step, group=group, page=page, length=length, reason=reason))
        self._keys[page] = block.block_hash
        if new:
            self._lengths[page] = new
        (self._several.add if len(new) > 1 else self._several.discard)(page)
        tied = [companion.block_id for companion in block.companions] if self._has_companions else []
        published = []
        for key, length in new.items():
            if old.get(key) != length:
                group, r = self._group_of(key), request.request_id
                published.append(Publish(step=self.step, group=group, page=page, r=r, length=length, companions=tied))
        return published


def _difference(old: list[int], new: list[int], null: int) -> tuple[list[int], list[int]]:
    """Return (pages given back, pages taken), column by column, without the null block."""
    count = len(old)
    if new[:count] == old:
        return [], [page for page in new[count:] if page != null]
    pairs = [(a, b) for a, b in zip_longest(old, new, fillvalue=null) if a != b]
    return [a for a, _ in pairs if a != null], [b for _, b in pairs if b != null]


def _taken_by(request: Any, moves: list[Event]) -> set[int]:
    """Return the pages that the request itself took: what it held before and took again went through the free queue."""
    r = request.request_id if request is not None else ""
    return {page for move in moves if isinstance(move, Take) and move.holder == r for page in move.pages}


def _by_group_and_length(event: Publish) -> tuple[int, int]:
    return event.group, event.length


def _length_in(request: Any, key: Any, hash_block_size: int) -> int:
    """Return how many tokens a further key of a block covers: the place of its hash in the request's chain."""
    for index, block_hash in enumerate(request.block_hashes):
        if key.startswith(block_hash):
            return (index + 1) * hash_block_size
    raise RuntimeError(f"request {request.request_id}: a block carries a key that is not of its hash chain")
