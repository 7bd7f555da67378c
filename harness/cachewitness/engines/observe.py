"""The calls made on a cache manager of vLLM's shape, and what the manager shows of itself after
each.

The manager is believed in nothing: after each call its block tables, reference counts and block
hashes are compared with what they were before (`block_table_diff`). So a manager needs no hooks,
and one observer serves the reference policy and every release of vLLM.

Within a call the events come in this order: `hit` (the look-up came first), `unpublish`, `publish`
of what is given back in the same call, `release`, `acquire`, `publish`, `counts`.

`counts` uses the pool's own books: `free` is the length of the free queue less the cached blocks in
it, so a block that is queued twice, or lost, shows as free + held + cached differing from the size
of the pool.

A pool that says itself which blocks changed (`drain_dirty`) is asked; to any other one listens
(`dirty_blocks`).

Sources of the interface: vLLM 0.33.0, `v1/core/kv_cache_manager.py`, `v1/core/block_pool.py`,
`v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from cachewitness.core.events import Event, Move, Rules, UnpublishReason
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import Claim, PageState, Tables
from cachewitness.engines.dirty_blocks import DirtyBlocks
from cachewitness.engines.key_events import KeyEventReader
from cachewitness.engines.observe_pins import POOL, ObservedPool, Pins
from cachewitness.engines.observe_tier import TIER, ObservedTier
from cachewitness.engines.several_pools import SeveralPoolsState, pools_of, scratching, shared

_NO_BLOCKS: list[Any] = []


def group_in_last_bytes(key: Any) -> int:
    """Return the cache group of a block key: its last four bytes (vLLM 0.33.0,
    `kv_cache_utils.py`, `get_group_id`).
    """
    return int.from_bytes(key[-4:], "big")


class BlockPoolState:
    """What a manager of vLLM's shape shows of itself. `served` is the request of the call under
    way.

    `aside` groups of a second tier come behind the manager's own; no request has a table there.
    """

    def __init__(self, manager: Any, group_of: Callable[[Any], int], aside: int) -> None:
        self.group_of = group_of
        self.served: Any = None
        self._pool = manager.block_pool
        self._blocks = self._pool.blocks
        self._managers = manager.coordinator.single_type_managers
        self._aside: Tables = [[] for _ in range(aside)]
        self._columns: dict[str, list[list[Any]]] = {}
        """The blocks in a request's tables, as objects."""
        self._rows: dict[str, Tables] = {}
        self._drain_dirty = getattr(self._pool, "drain_dirty", None)
        self.dirty_blocks = DirtyBlocks(self._pool)
        self._several: set[int] = set()
        self._extra_pages: dict[int, list[int]] = {}
        self._has_extra_pages = hasattr(self._pool.null_block, "extra_pages")
        self._scratch_blocks = [
            getattr(single, "speculative_blocks", {}) for single in self._managers
        ]
        self.scratching = scratching(self._managers)

    def tables(self, r: str) -> Tables:
        """Return the ids of the blocks that a request holds, by group and column."""
        columns = self._columns.get(r)
        if columns is None:
            columns = self._columns[r] = [[] for _ in self._managers]
            self._rows[r] = [[] for _ in self._managers] + self._aside
        rows = before = self._rows[r]
        for group, manager in enumerate(self._managers):
            blocks = manager.req_to_blocks.get(r) or _NO_BLOCKS
            if (
                blocks != columns[group]
            ):  # the same objects in the same places, mostly: no need to ask for their ids
                columns[group] = [*blocks]
                if rows is before:
                    rows = self._rows[r] = [*before]
                rows[group] = [block.block_id for block in blocks]
        return rows

    def scratch(self, r: str) -> Tables:
        """Return by group the blocks for states after drafts."""
        return [
            [block.block_id for block in blocks.get(r, ())] for blocks in self._scratch_blocks
        ] + self._aside

    def note(self, pages: Iterable[int]) -> None:
        """Note blocks that change past the pool's methods."""
        self.dirty_blocks.note(pages)

    def forget(self, r: str) -> None:
        """Forget a request that holds nothing any more."""
        self._columns.pop(r, None)
        self._rows.pop(r, None)

    def untied(self, pages: list[int]) -> list[int]:
        """Return blocks and the extra pages that they had."""
        return (
            pages + [tied for page in pages for tied in self._extra_pages.get(page, ())]
            if self._extra_pages
            else pages
        )

    def tied(self, pages: list[int]) -> list[int]:
        """Return blocks and their extra_pages: a snapshot of several blocks is in a table by its
        first block alone.
        """
        if not self._has_extra_pages:
            return pages
        tied: list[int] = []
        for page in pages:
            if extra_pages := self._blocks[page].extra_pages:
                self._extra_pages[page] = [block.block_id for block in extra_pages]
                tied += self._extra_pages[page]
            elif self._extra_pages:
                self._extra_pages.pop(page, None)
        return pages + tied if tied else pages

    def look(self, moved: Iterable[tuple[int, int]] | None) -> list[PageState]:
        """Return the blocks that may have changed, and those whose keys may be others although
        their first is the same: they have several, or are parts of snapshots.
        """
        blocks = self._blocks
        pages = self._changed(moved)
        if not pages:
            return []
        if several := self._may_have_others(pages):
            return [
                (page, (block := blocks[page]).ref_cnt, block.block_hash, page in several)
                for page in pages
            ]
        return [(page, (block := blocks[page]).ref_cnt, block.block_hash, False) for page in pages]

    def _may_have_others(self, pages: Collection[int]) -> set[int]:
        """Return which of these blocks may have other keys although their first is the same."""
        if self._has_extra_pages:
            return {*pages}
        further = self.dirty_blocks.further
        if not further and not self._several:
            return set()
        return {page for page in pages if page in further or page in self._several}

    def _changed(self, moved: Iterable[tuple[int, int]] | None) -> Sequence[int]:
        if moved is None:
            return range(len(self._blocks))
        if self._drain_dirty is not None:
            return sorted(self._drain_dirty())
        pages = {page for _, page in moved}
        self.dirty_blocks.note(pages)
        changed = self.dirty_blocks.changed()
        # The second block of a snapshot shows its key. It may become the first of another one
        # with that key, and has then one of its own, though nothing of it looks changed.
        return sorted(pages.union(changed)) if self._has_extra_pages else changed

    def each_group(self, events: list[Event]) -> list[Event]:
        """Return key events as they are: a key is of one group."""
        return events

    def fullest(self) -> int:
        """Return the only pool."""
        return POOL

    def num_free(self) -> int:
        """Return the length of the free queue."""
        count: int = self._pool.get_num_free_blocks()
        return count

    def keys_of(self, page: int, known: Mapping[Hashable, Claim]) -> Mapping[Hashable, Claim]:
        """Return the keys of a block; a companion has none of its own."""
        block = self._blocks[page]
        key = block.block_hash
        extra_pages = (
            tuple(companion.block_id for companion in block.extra_pages)
            if self._has_extra_pages
            else ()
        )
        keys: dict[Hashable, Claim] = {}
        if key is not None and getattr(block, "primary", None) is None:
            keys[key] = Claim(block.block_hash_num_tokens, "", extra_pages)
        for other in self.dirty_blocks.further.get(page, ()):
            length = known[other].length if other in known else self._length_of(other)
            keys[other] = Claim(length, "", extra_pages)
        (self._several.add if len(keys) > 1 else self._several.discard)(page)
        return keys

    def _length_of(self, key: Any) -> int:
        """Return how many tokens a further key of a block covers: the place of its hash in the
        request's chain.
        """
        for index, block_hash in enumerate(self.served.block_hashes):
            if key.startswith(block_hash):
                return (index + 1) * int(self._pool.hash_block_size)
        raise RuntimeError(
            f"request {self.served.request_id}: a block carries a key that is not of its hash chain"
        )


class ObservedManager:
    """A cache manager whose calls become events. It has the manager's interface.

    `tiered`: there is a second tier, with a group for each of the manager's; by default, if the
    manager has one of its own. `published`: somebody else publishes the manager's key events, and
    has them read (`tell`).
    """

    shown_by: type[BlockPoolState] = BlockPoolState
    """What shows the blocks of a manager with one pool."""
    further: Sequence[str] = ()
    """Methods that a scheduler calls beside those of vLLM's manager."""

    def __init__(
        self,
        manager: Any,
        group_of: Callable[[Any], int] = group_in_last_bytes,
        *,
        tiered: bool | None = None,
        published: bool = False,
    ) -> None:
        self.manager = manager
        self._group_of = group_of
        self._pool = manager.block_pool
        self._managers = manager.coordinator.single_type_managers
        tier = getattr(manager, "tier", None)
        self.tiered = tier is not None if tiered is None else tiered
        aside = len(self._managers) if self.tiered else 0
        own = pools_of(self._managers)
        self.pools = [*own, *[TIER] * aside]
        """The pool of each group."""
        self._no_tables: Tables = [[] for _ in self.pools]
        self._looked_up: dict[str, tuple[int, Any]] = {}
        self.state: BlockPoolState | SeveralPoolsState
        if shared(self._managers, self._pool):
            self.state = self.shown_by(manager, group_of, aside)
            null = {POOL: [self._pool.null_block.block_id]}
        else:
            self.state = SeveralPoolsState(self._managers, own, group_of)
            null = self.state.null()
        self.diff = BlockTableDiff(self.state, self.pools, null)
        self._can_copy = hasattr(manager, "take_kv_cache_block_copies")
        partial_hits = getattr(manager.coordinator, "enable_partial_hash_hits", self._can_copy)
        self.copies_expected = partial_hits or self.state.scratching
        self._copies: list[Any] = []
        self._retained: list[Any] = []
        self._tier = ObservedTier(tier, group_of, len(self._managers))
        self._pins = Pins(self.pools)
        zeroed = (
            pool
            for pool, single in zip(self.pools, self._managers, strict=False)
            if getattr(single, "records_new_block_ids", False)
        )
        self.zeroed_pool = next(zeroed, POOL)
        """The pool of the blocks that are to be zeroed."""
        self._key_events = KeyEventReader()
        self._tells = getattr(self._pool, "enable_kv_cache_events", False) and not published
        self.block_pool = ObservedPool(self._pool, self.released)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def declared(self, rules: Rules) -> Rules:
        """Return what the manager declares of itself where it differs from vLLM's, whose `rules`
        are given.
        """
        return rules

    @property
    def observed(self) -> type:
        """The class of the manager."""
        kind: type = self.manager.__class__
        return kind

    @property
    def events(self) -> list[Event]:
        """What happened in the operation under way."""
        return self.diff.events

    @events.setter
    def events(self, events: list[Event]) -> None:
        self.diff.events = events

    @property
    def step(self) -> int:
        """The step that events are stamped with."""
        return self.diff.step

    @step.setter
    def step(self, step: int) -> None:
        self.diff.step = step

    # --- calls ------------------------------------------------------------------------------------

    def new_step_starts(self) -> None:
        """Let a step begin; nothing of the cache changes by that."""
        self.manager.new_step_starts()

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks that were handed out since the last call."""
        taken: list[int] = self.manager.take_new_block_ids()
        return taken

    def get_computed_blocks(self, request: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Look the request up; the answer becomes a `hit` when the request is next given pages."""
        answer: tuple[Any, ...] = self.manager.get_computed_blocks(request, *args, **kwargs)
        self._looked_up[request.request_id] = (answer[1], answer[0])
        return answer

    def get_computed_blocks_for_connector(
        self, request: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Look the request up where a connector may bring what some groups lack; see
        `get_computed_blocks`.
        """
        answer: tuple[Any, ...] = self.manager.get_computed_blocks_for_connector(
            request, *args, **kwargs
        )
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

    def report_no_hit(self, r: str) -> None:
        """Leave the last look-up of a request unreported: somebody else says what it hit."""
        self._looked_up.pop(r, None)

    def report_hit(self, request: Any) -> None:
        """Report what the look-up found although no pages are asked for: it leaves nothing to
        compute.
        """
        r = request.request_id
        self._hit(r, *self._looked_up.pop(r))

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Key the request's blocks up to so many tokens."""
        self.manager.cache_blocks(request, num_computed_tokens)
        self._settle([request.request_id], request, "evict")

    def remove_skipped_blocks(self, request_id: str, *args: Any, **kwargs: Any) -> None:
        """Give back what a request does not read any more."""
        self.manager.remove_skipped_blocks(request_id, *args, **kwargs)
        self._settle([request_id], None, "evict")

    def free(self, request: Any) -> None:
        """Give back everything that the request holds."""
        self.manager.free(request)
        self._let_go([request.request_id], "evict")

    def withdraw(self, request: Any) -> list[str]:
        """Take the request back out of a step that has not begun; return all who have to go with
        it, it first.

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
        """Store what was keyed in the second tier; return the copies that the step has to make
        when it has run.
        """
        stores: list[Any] = self.manager.store_to_tier()
        pins = self._pins
        step = self.diff.step
        takes = [
            pins.take(b, self._group_of(place.block_hash), pins.next_copy(), step)
            for place, b in stores
        ]
        self._account(None, takes)
        self.diff.events += self._tier.changes(self.diff.step, "evict")
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
        self.released([transfer.block], transfer.waiting)
        self.diff.events += self._tier.changes(
            self.diff.step, "evict", [self._tier.let_go(transfer, self.diff.step)]
        )

    def hold(self, blocks: Iterable[Any], group_for: Callable[[int], int]) -> None:
        """Report that blocks are held for copies that somebody else makes; `group_for` says for
        which group each is.
        """
        pinned = [*blocks]
        self.state.note(block.block_id for block in pinned)
        takes = [
            self._pins.take(
                block, group_for(block.block_id), self._pins.next_copy(), self.diff.step
            )
            for block in pinned
        ]
        self._account(None, takes)

    def let_go_later(self, r: str, blocks: Sequence[Any], group_for: Callable[[int], int]) -> None:
        """Report that a request gave blocks up which are not free yet: a copy holds each until
        the pool gets it back.
        """
        held = [block for block in blocks if not block.is_null]
        for block in held:
            self.events.append(
                self._pins.take(block, group_for(block.block_id), self._pins.next_copy(), self.step)
            )
        self._let_go([r], "evict")

    def reset_tier(self, reason: UnpublishReason = "reset") -> None:
        """Forget every key of the second tier."""
        self.manager.reset_tier()
        self.diff.events += self._tier.changes(self.diff.step, reason)

    def reset_prefix_cache(self, reason: UnpublishReason = "reset") -> bool:
        """Forget every key, if nobody holds a block."""
        done = bool(self.manager.reset_prefix_cache())
        self._settle([], None, reason)
        return done

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """Return the copies that the next step has to make, and the blocks to free when they are
        made.
        """
        self.diff.events += self._collect_copies(self._no_tables, self._no_tables)
        copies = self._copies
        retained = self._retained
        self._copies = []
        self._retained = []
        return copies, retained

    def copies_told(self, output: Any) -> list[Move]:
        """Return the copies that a scheduler's output asks of the worker beside vLLM's own."""
        return []

    def group_of(self, key: Any) -> int:
        """Return the group of a key."""
        return self._group_of(key)

    def tell(self, events: Iterable[Any]) -> None:
        """Report what routers are told of keys."""
        self.diff.events += self.state.each_group(self._key_events.read(events, self.diff.step))

    def tables(self, r: str) -> list[list[int]]:
        """Return the request's pages per group by column, as of its last call. Not to be
        changed.
        """
        return self.diff.tables(r)

    def scratch(self, r: str) -> list[list[int]]:
        """Return the request's pages per group for the states after drafts. Not to be changed."""
        return self.diff.scratch(r)

    # --- differences ------------------------------------------------------------------------------

    def _hit(self, r: str, length: int, found: Any) -> None:
        pages = [[block.block_id for block in column] for column in found.blocks]
        tier = "local"
        if self._tier:
            places = [[self._tier.place(block) for block in column] for column in found.blocks]
            pages = [
                self._fetched(r, group, pages[group], columns)
                for group, columns in enumerate(places)
            ] + places
            tier = "cpu" if any(place >= 0 for columns in places for place in columns) else tier
        self.diff.hit(r, length, pages, tier=tier)

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
            if not any(self.diff.tables(r)):
                self.diff.forget(r)
                self.state.forget(r)

    def _settle(self, holders: list[str], request: Any, reason: UnpublishReason) -> None:
        """Report how tables, then blocks, changed in the call that has just returned; `request`
        is whom it served.
        """
        self.state.served = request
        if request is None:
            self.diff.settle(holders, reason=reason)
        else:
            further = self._new_copies if self.copies_expected else None
            self.diff.settle(holders, served=request.request_id, reason=reason, further=further)
        self._report_key_events()

    def _account(self, request: Any, moves: list[Event]) -> None:
        """Report what copies took or gave back, and the blocks that changed with that; `request`
        is for whom they are keyed.
        """
        self.state.served = request
        self.diff.account(moves, served="" if request is None else request.request_id)
        self._report_key_events()

    def _report_key_events(self) -> None:
        """Report the manager's key events, unless somebody else publishes them."""
        if self._tells:
            self.tell(self.manager.take_events())

    def _new_copies(self) -> list[Event]:
        r = self.state.served.request_id
        return self._collect_copies(self.diff.tables(r), self.diff.scratch(r))

    def _collect_copies(self, tables: list[list[int]], scratch: list[list[int]]) -> list[Event]:
        """Note new copies. The manager keeps an extra reference to both ends; the copy itself is
        their holder here.
        """
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
            self.state.note(ends)
            group = next((g for g, places in enumerate(holding) if not places.isdisjoint(ends)), 0)
            for block in retained[2 * index : 2 * index + 2]:
                takes.append(self._pins.take(block, group, holder, self.diff.step))
        self._copies += copies
        self._retained += retained
        return takes

    def _begun(self, transfers: list[Any]) -> list[Any]:
        blocks: list[Event] = []
        places: list[Event] = []
        for transfer in transfers:
            holder = self._pins.next_copy()
            group = self._group_of(transfer.key)
            blocks.append(self._pins.take(transfer.block, group, holder, self.diff.step))
            places.append(self._tier.hold(transfer, holder, self.diff.step))
        self._account(None, blocks)
        self.diff.events += self._tier.changes(self.diff.step, "evict", places)
        return transfers

    def released(self, blocks: list[Any], request: Any = None) -> None:
        """Report that blocks kept for copies were given back to the pool; `request` is for whom
        they were keyed.
        """
        self.state.note(block.block_id for block in blocks)
        self._account(request, self._pins.drop(blocks, self.diff.step))
