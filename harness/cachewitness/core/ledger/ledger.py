"""The ghost ledger: what every physical page truly holds.

It is kept from the worker's writes alone; the engine's claims (keys, hits) are remembered beside it
and never believed. Its parts can be read one by one: what pages hold (`contents`), who holds them
(`holdings`), what was published (`keys`), what is known of requests (`requests`). This file hands
each event to the parts that it concerns.

The ledger knows no policy: no retention mask, no look-up, no block hash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Copy,
    Counts,
    Event,
    Extended,
    Finished,
    Group,
    Grow,
    Header,
    Hit,
    Paused,
    Preempted,
    Publish,
    Read,
    Release,
    ResetDone,
    Settled,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
    Version,
    Write,
    Zero,
)
from cachewitness.core.ledger.before import (
    IN_ITS_STEP,
    NO_KEYS,
    SOUND_HIT,
    SOUND_READ,
    BeforeHit,
    BeforePublish,
    BeforeRead,
    BeforeStepEnd,
    BeforeWrite,
    View,
)
from cachewitness.core.ledger.contents import Contents
from cachewitness.core.ledger.given_back import GivenBack
from cachewitness.core.ledger.holdings import Holdings
from cachewitness.core.ledger.keys import Keys
from cachewitness.core.ledger.reads import invalid_columns, surely_invalid_columns
from cachewitness.core.ledger.records import KeyState, PageRecord, records_of
from cachewitness.core.ledger.requests import Requests

_INVALIDATED = ("withdrawn", "reset", "outdated")


class Ledger:
    """Holds the truth about pages, and the engine's claims beside it. Feed it every event, in
    order, with `apply`.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.groups: list[Group] = header.groups
        self.pools = {pool.id: pool for pool in header.pools}
        self.local: list[Group] = header.local_groups()
        self.stored: list[list[int]] = [
            [other.id for other in header.groups if other.source_group == g.id]
            for g in header.groups
        ]
        """Per group: the groups of other tiers that keep copies of its pages."""
        self.offload_groups: list[int] = [
            group.id for group in header.groups if group not in self.local
        ]
        """The groups in pools of other tiers."""
        unseen = [
            pool.id
            for pool in header.pools
            if pool.eviction and pool.eviction.order in ("lru-used", "lru-leaves")
        ]
        self._counting_uses = [group.id for group in header.groups if group.pool in unseen]
        """The groups of whose pages the engine counts uses that no event shows."""
        self.records = records_of(header)
        """Per pool: the records of its pages; those of pages that nobody touched are not there."""
        self.requests = Requests()
        self.trie = self.requests.trie
        self.open_steps = self.requests.open_steps
        self.holdings = Holdings(
            self.records, fenced=header.rules.tier is not None and header.rules.tier.fenced
        )
        self.keys = Keys(header.groups, self.records, self.holdings)
        self.contents = Contents(header, self.records, self.trie)
        self.given_back = (
            GivenBack(header, self.records, self.requests) if self.offload_groups else None
        )
        """Which pages live requests gave back, where there is another tier."""
        self._pool_of = [self.records[group.pool] for group in header.groups]
        self._asked_again: list[PageRecord] = []
        """Copies in another tier of what the device has keyed for the step to come."""
        self.applied: Event | None = None
        """The event that was applied last, for whoever applies events by `moves` to keep."""
        self._asked: Event | None = None
        self._asked_after: Event | None = None
        """The event whose view was worked out last, and the one that had been applied last by then.
        """
        self._view: View = SOUND_READ
        self._ask: dict[type, Callable[[Any], View]] = {
            Read: self._before_read,
            Write: self._before_write,
            Publish: self._before_publish,
            Hit: self._before_hit,
            StepEnd: self._before_step_end,
        }
        self.moves: dict[type, Callable[[Any], None]] = {
            Acquire: self.holdings.take,
            Release: self.holdings.drop if self.given_back is None else self._drop,
            Grow: self.holdings.grow,
            Write: self._write,
            Read: self._read,
            Copy: self._copy,
            Zero: self.contents.zero,
            Publish: self._publish,
            Unpublish: self.keys.unpublish,
            Hit: self._hit,
            Submitted: self.requests.submit,
            Accept: self.requests.accept,
            Paused: lambda event: self.requests.pause(event.r),
            Extended: self.requests.extend,
            Counts: self._counts,
            StepBegin: self._step_begin,
            Settled: self.requests.settle,
            StepEnd: self._step_end,
            Preempted: self._preempt,
            Aborted: self._end,
            Finished: self._end,
            ResetDone: self._reset,
            Version: self._version,
        }
        """By kind of event: what moves the ledger past one; events of other kinds do not move it.
        """

    def record(self, group: int, page: int) -> PageRecord | None:
        """Return the record of a page of a group; None for a null page or a column that does not
        exist.
        """
        return self._pool_of[group].find(page)

    def apply(self, event: Event) -> None:
        """Move the ledger past one event."""
        handler = self.moves.get(type(event))
        if handler is not None:
            handler(event)
        self.applied = event

    # --- before an event --------------------------------------------------------------------------

    @overload
    def before(self, event: Read) -> BeforeRead: ...
    @overload
    def before(self, event: Write) -> BeforeWrite: ...
    @overload
    def before(self, event: Publish) -> BeforePublish: ...
    @overload
    def before(self, event: Hit) -> BeforeHit: ...
    @overload
    def before(self, event: StepEnd) -> BeforeStepEnd: ...

    def before(self, event: Any) -> Any:
        """Return what can be known of an event only before it is applied; it is worked out once.

        Raises RuntimeError if the ledger has just been moved past the event.
        """
        applied = self.applied
        if self._asked is event and self._asked_after is applied:
            return self._view
        if applied is event:
            raise RuntimeError(f"the ledger is already past this {type(event).__name__}")
        self._view = view = self._ask[type(event)](event)
        self._asked = event
        self._asked_after = applied
        return view

    def _before_read(self, read: Read) -> BeforeRead:
        requests = self.requests
        group = read.group
        if requests.ended_in_flight and (read.step, read.r) in requests.ended_in_flight:
            return self._before_lost_read(read)
        nodes = requests[read.r].nodes
        if requests.draft_prefixes or read.stop >= len(nodes):
            nodes = requests.prefixes_of_run(read)
        invalid = invalid_columns(
            read, self.groups[group], nodes, self._pool_of[group], self.contents
        )
        return BeforeRead(invalid) if invalid else SOUND_READ

    def _before_lost_read(self, read: Read) -> BeforeRead:
        """Look at what a run reads that its request did not outlive, if a key stays of what it
        or a later run then writes. A session goes on with other tokens than such a run has.
        """
        key = self.keys.awaiting(read.r, read.step)
        if key is None:
            return SOUND_READ
        group = read.group
        length = min(read.stop, key.length)
        node = self.trie.ancestor(key.node, length)
        own = self.requests.draft_prefixes.get((read.step, read.r))
        known = min(length, len(own) - 1) if own else 0
        if own and self.trie.ancestor(node, known) != own[known]:
            return SOUND_READ
        since = self.requests.ended_in_flight[read.step, read.r]
        records = self._pool_of[group]
        contents = self.contents
        invalid = surely_invalid_columns(
            read, self.groups[group], node, length, records, contents, since
        )
        return BeforeRead(invalid) if invalid else SOUND_READ

    def _before_write(self, event: Write) -> BeforeWrite:
        return BeforeWrite(event, self.requests.prefixes_of_run(event), self.contents)

    def _before_publish(self, event: Publish) -> BeforePublish:
        if event.step > self.requests.last_step_ended or event.step in self.open_steps:
            return IN_ITS_STEP
        node = self.requests[event.r].node_of(event.length)
        matches = self.contents.content_matches(
            self.groups[event.group], event.page, node, event.length
        )
        return BeforePublish(late=True, unbacked=not matches)

    def _before_hit(self, event: Hit) -> BeforeHit:
        nodes = self.requests[event.r].nodes
        invalidated = []
        for group, pages in enumerate(event.pages):
            for page in pages:
                record = self._pool_of[group].usable.get(page)
                keys = record.keys if record is not None else ()
                if not any(
                    key.usable and key.length < len(nodes) and nodes[key.length] == key.node
                    for key in keys
                ):
                    invalidated += [
                        key for key in keys if key.state in _INVALIDATED and key.group == group
                    ]
        return BeforeHit(invalidated) if invalidated else SOUND_HIT

    def _before_step_end(self, event: StepEnd) -> BeforeStepEnd:
        pending = self.keys.pending(event.step)
        if not pending:
            return NO_KEYS
        missing = [key for key in pending if not self.contents.matches(key)]
        unbacked = [key for key in missing if key.r not in event.withdrawn]
        return BeforeStepEnd(
            pending, unbacked, [key for key in missing if key.r in event.withdrawn]
        )

    # --- pages ------------------------------------------------------------------------------------

    def _write(self, event: Write) -> None:
        requests = self.requests
        request = self.requests[event.r]
        nodes = request.nodes
        tainted = request.tainted
        if requests.draft_prefixes or event.stop >= len(nodes):
            nodes = requests.prefixes_of_run(event)
        if self.groups[event.group].kind == "recurrent":
            requests.note_state(event)
            self.contents.write_state(event, nodes[event.stop], tainted)
        else:
            self.contents.write_tokens(event, nodes, tainted)

    def _read(self, event: Read) -> None:
        contents = self.contents
        if self.before(event).invalid or (contents.any_taint and contents.reads_taint(event)):
            if (event.step, event.r) not in self.requests.ended_in_flight:
                self.requests[event.r].tainted = True
            contents.taint_written(event.r)

    def _copy(self, event: Copy) -> None:
        self.contents.copy(event, self.given_back.mark if self.given_back is not None else None)
        for move in event.moves if event.phase == "fail" else ():
            for r in self.records[move.dst_pool][move.dst].holders:
                if (request := self.requests.live.get(r)) is not None:
                    request.load_failed = True

    def _drop(self, event: Release) -> None:
        request = self.requests.live.get(event.holder)
        if request is not None and request.computed and self.given_back is not None:
            self.given_back.release(event)
        self.holdings.drop(event)

    # --- claims -----------------------------------------------------------------------------------

    def _publish(self, event: Publish) -> None:
        before = self.before(event)
        state: KeyState = (
            "pending" if not before.late else "unbacked" if before.unbacked else "committed"
        )
        node = self.requests[event.r].node_of(event.length)
        self.keys.publish(event, node, state)
        for other in self.stored[event.group]:
            self._asked_again += self._pages_of(other, node)

    def _pages_of(self, group: int, node: int) -> list[PageRecord]:
        """Return the pages of a group that are keyed as a prefix."""
        pages = self.keys.published[group].get(node, ())
        return [record for page in pages if (record := self.record(group, page)) is not None]

    def _hit(self, event: Hit) -> None:
        if event.tier != "local":
            fetched = [
                (group, page) for group in self.offload_groups for page in event.pages[group]
            ]
            for record in filter(None, [self.record(*place) for place in fetched]):
                record.restored = self.holdings.operation
        self.requests.resume_at(event, tainted=bool(self.before(event).invalidated))

    # --- life -------------------------------------------------------------------------------------

    def _counts(self, event: Counts) -> None:
        self.holdings.operation += 1

    def _step_begin(self, event: StepBegin) -> None:
        self.holdings.operation += 1
        self.requests.begin_step(event)
        self.keys.begin_step(event)
        if self.given_back is not None:
            self.given_back.begin_step()
        if event.copies:
            self.holdings.begin_step(event)
        for record in self._asked_again:
            record.asked_for = self.holdings.operation
        self._asked_again.clear()

    def _step_end(self, event: StepEnd) -> None:
        before = self.before(event)
        begun = self.open_steps.get(event.step)
        if begun is not None and begun.copies:
            self.holdings.end_step(begun)
        self.requests.end_step(event)
        self.keys.end_step(event.step, before.withdrawn, before.unbacked)
        self.contents.end_step()

    def _preempt(self, event: Preempted) -> None:
        self.requests.preempt(event.r)
        if self.given_back is not None:
            self.given_back.forget(event.r)

    def _end(self, event: Aborted | Finished) -> None:
        self.requests.end(event.r)
        if self.given_back is not None:
            self.given_back.end(event.r)
        for group in self._counting_uses:
            published = self.keys.published[group]
            for node in self.requests[event.r].nodes if published else ():
                for record in self._pages_of(group, node):
                    record.asked_for = self.holdings.operation

    def _reset(self, event: ResetDone) -> None:
        if event.ok:
            pools = {pool.id for pool in self.header.pools if pool.tier == event.tier}
            self.keys.reset(pools)
            self.holdings.reset(pools)
            if self.given_back is not None:
                self.given_back.reset(pools)

    def _version(self, event: Version) -> None:
        requests = self.requests
        adapter = event.adapter
        self.keys.outdate(lambda key: not adapter or requests[key.r].identity[2] == adapter)
        self.requests.load_version(event)
