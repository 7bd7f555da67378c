"""The ghost ledger: what every physical page truly holds.

The record belongs to the page (pool, page), never to a group, because groups alias one pool. It is kept from the worker's
writes alone; the engine's claims (keys, hits, counts) are remembered beside it and never believed. A page that nobody holds
and no key names is poisoned. What a step writes after reading something invalid is tainted, so that one fault is reported
once and not again by everything that follows from it.

The ledger knows no policy: no retention mask, no look-up, no block hash.
"""

from __future__ import annotations

from collections import Counter

from harness.history.events import (
    Aborted,
    Accept,
    Copy,
    Drop,
    Event,
    Finished,
    Group,
    Header,
    Hit,
    Preempted,
    Publish,
    Read,
    ResetDone,
    StepBegin,
    StepEnd,
    Submitted,
    Take,
    Unpublish,
    Version,
    Write,
    Zero,
)
from harness.ledger.records import NOTHING, Key, KeyState, PageRecord, Span, write_tokens
from harness.ledger.trie import Trie
from harness.trace.format import Media

UNKNOWN = -2
"""The node of a key that claims more tokens than its request has: nothing ever backs it."""


class RequestRecord:
    """What is known of a request: `nodes[i]` is its prefix of i tokens, `computed` how many of them have been run.

    `drafted` is where the last run ended, drafts included.
    """

    __slots__ = (
        "computed",
        "drafted",
        "hit",
        "identity",
        "live",
        "media",
        "nodes",
        "prompt_tokens",
        "r",
        "ran_steps",
        "states",
        "tainted",
        "tokens",
    )

    def __init__(self, event: Submitted) -> None:
        self.r, self.tokens, self.media = event.r, list(event.tokens), event.media
        self.identity = (0, event.salt, event.adapter, 0)
        """Weights, salt, adapter and the adapter's version, as of the first token."""
        self.nodes: list[int] = []
        self.prompt_tokens = len(event.tokens)
        self.live = True
        self.restart()

    def restart(self) -> None:
        """Forget what was computed: the request lost its pages."""
        self.computed = self.drafted = self.ran_steps = 0
        self.hit: Hit | None = None
        self.tainted = False
        self.states: dict[int, set[int]] = {}

    @property
    def resume(self) -> int:
        """The position at which the request started to compute."""
        return self.hit.resume if self.hit else 0


class Ledger:
    """Holds the truth about pages, and the engine's claims beside it. Feed it every event, in order, with `apply`."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.groups: list[Group] = header.groups
        self.local: list[Group] = header.local_groups()
        self.stored: list[list[int]] = [[other.id for other in header.groups if other.of == g.id] for g in header.groups]
        """Per group: the groups of other tiers that keep copies of its pages."""
        self.records: dict[int, list[PageRecord]] = {p.id: [PageRecord() for _ in range(p.pages)] for p in header.pools}
        self.null: dict[int, frozenset[int]] = {p.id: frozenset(p.null) for p in header.pools}
        self._usable: dict[int, dict[int, PageRecord]] = {
            pool: {page: record for page, record in enumerate(records) if page not in self.null[pool]}
            for pool, records in self.records.items()
        }
        self.trie = Trie()
        self.requests: dict[str, RequestRecord] = {}
        self.keys: list[dict[int, dict[int, Key]]] = [{} for _ in header.groups]
        """Per group: node -> page -> key, of everything published."""
        self.ended: list[dict[int, str]] = [{} for _ in header.groups]
        """Per group: node -> why its last key was unpublished."""
        self.held: dict[int, int] = {p.id: 0 for p in header.pools}
        self.idle_keyed: dict[int, int] = {p.id: 0 for p in header.pools}
        """Pages that nobody holds and a key keeps."""
        self.weights = 0
        self.adapters: dict[str, int] = {}
        self.open_steps: dict[int, StepBegin] = {}
        self.last_step_ended = 0
        self._orphans: set[tuple[int, str]] = set()
        self.guesses: dict[tuple[int, str], list[int]] = {}
        self.copying: dict[int, list[PageRecord]] = {}
        self.filling: Counter[tuple[int, int]] = Counter()
        """(pool, page) -> how many copies under way fill the page."""
        self._pending: dict[int, list[Key]] = {}
        self._written: dict[str, list[PageRecord]] = {}
        self._any_taint = False
        self._invalid: tuple[Read, list[int]] | None = None
        self._unbacked: tuple[StepEnd, list[Key]] | None = None
        self.holdings: dict[str, int] = {}
        """Per holder: how many pages it holds, counted with multiplicity."""
        self._apply = {
            Take: self._take,
            Drop: self._drop,
            Write: self._write,
            Read: self._read,
            Copy: self._copy,
            Zero: self._zero,
            Publish: self._publish,
            Unpublish: self._unpublish,
            Hit: self._hit,
            Submitted: self._submit,
            Accept: self._accept,
            StepBegin: self._step_begin,
            StepEnd: self._step_end,
            Preempted: self._preempt,
            Aborted: self._end,
            Finished: self._end,
            ResetDone: self._reset,
            Version: self._version,
        }

    def apply(self, event: Event) -> None:
        """Move the ledger past one event."""
        handler = self._apply.get(type(event))
        if handler is not None:
            handler(event)  # type: ignore[operator]

    # --- questions --------------------------------------------------------------------------------------------------------

    def nodes(self, event: Read | Write) -> list[int]:
        """Return the prefixes that the run of an event spells: those of its request, and beyond them a branch for its drafts.

        A run may go past the tokens known without drafts if its request ended meanwhile; what it computes is like nothing else.
        """
        nodes = self.requests[event.r].nodes
        if self.guesses:
            nodes = self.guesses.get((event.step, event.r), nodes)
        return nodes if event.stop < len(nodes) else self._guess(event, nodes)

    def _guess(self, event: Read | Write, nodes: list[int]) -> list[int]:
        begun = self.open_steps.get(event.step)
        run = next((run for run in begun.runs if run.r == event.r), None) if begun else None
        symbols = list(run.drafts) if run and run.known < len(nodes) else []
        known = run.known if run and symbols else len(nodes) - 1
        symbols += [self.trie.marked(("unknown", event.step, event.r))] * (event.stop - known - len(symbols))
        guessed = nodes[: known + 1] + self.trie.extend(nodes[known], symbols)
        self.guesses[event.step, event.r] = guessed
        return guessed

    def record(self, group: int, page: int) -> PageRecord | None:
        """Return the record of a page of a group; None for a null page or a column that does not exist."""
        return self._usable[self.groups[group].pool].get(page)

    def covers(self, record: PageRecord, node: int, start: int, stop: int) -> bool:
        """Whether the page holds attention content of tokens [start, stop) of exactly the prefix `node` (`stop` or longer)."""
        if record.state or record.node == NOTHING:
            return False
        ancestor = self.trie.ancestor
        if not record.older:
            within = record.start <= start and stop <= record.stop
            return within and ancestor(record.node, stop) == ancestor(node, stop)
        missing = start
        for span in sorted([*record.older, Span(record.start, record.stop, record.node)], key=lambda s: s.start):
            upto = min(span.stop, stop)
            if span.start <= missing < upto and ancestor(span.node, upto) == ancestor(node, upto):
                missing = upto
        return missing >= stop

    def destroyed(self, record: PageRecord, event: Write, start: int, stop: int) -> list[Span]:
        """Return the content of the page that the write of tokens [start, stop) ends; what it repeats is not ended."""
        if record.node == NOTHING:
            return []
        group, nodes, ancestor = self.groups[event.group], self.nodes(event), self.trie.ancestor
        spans = [*record.older, Span(record.start, record.stop, record.node)]
        if record.group != event.group:
            return spans
        if group.kind == "recurrent":
            return [] if record.stop == event.stop and record.node == nodes[event.stop] else spans
        lost = []
        for span in spans:
            shift = (start // group.block_size - span.start // group.block_size) * group.block_size
            low, high = max(span.start, start - shift), min(span.stop, stop - shift)
            if low < high and (shift or ancestor(span.node, high) != nodes[high]):
                lost.append(Span(low, high, ancestor(span.node, high)))
        return lost

    def holds_state(self, record: PageRecord, node: int, length: int) -> bool:
        """Whether the page holds a recurrent state, taken after exactly the prefix `node` of `length` tokens."""
        return record.state and record.node == node and record.stop == length

    def backs(self, key: Key) -> bool:
        """Whether the content of the key's page is what the key claims."""
        record = self.record(key.group, key.page)
        if record is None or key.node == UNKNOWN:
            return False
        group = self.groups[key.group]
        if record.group != key.group and group in self.local:
            return False
        if group.kind == "recurrent":
            return self.holds_state(record, key.node, key.length)
        start = (key.length - 1) // group.block_size * group.block_size
        return self.covers(record, key.node, start, key.length)

    def invalid_columns(self, read: Read) -> list[int]:
        """Return the indices into `read.pages` whose content is not what the read needs, or that r does not hold.

        Judged against the ledger as it stands before the read; the answer is remembered for the read at hand.
        """
        if self._invalid is not None and self._invalid[0] is read:
            return self._invalid[1]
        if self._orphans and self.orphaned(read.step, read.r):
            return []
        group, request = self.groups[read.group], self.requests[read.r]
        bad = self._invalid_state(read, request) if group.kind == "recurrent" else self._invalid_blocks(read, request, group)
        self._invalid = (read, bad)
        return bad

    def orphaned(self, step: int, r: str) -> bool:
        """Whether r ended, or lost its pages, while the step was in flight: it still runs, over pages that it gave back.

        Nobody waits for its tokens, and whoever has those pages next writes them in a later step, be it r itself come back; so
        what it reads is not judged.
        """
        return (step, r) in self._orphans

    def pending(self, step: int) -> list[Key]:
        """Return the keys that become committed, or vanish, when the step ends."""
        return self._pending.get(step, [])

    def late(self, event: Publish) -> bool:
        """Whether the step that wrote the content is over already, so that the key is committed at once."""
        return event.step <= self.last_step_ended and event.step not in self.open_steps

    def stopped(self, event: Hit) -> list[Key]:
        """Return the keys under the hit's pages that were withdrawn, reset or outdated, where no usable key backs the hit."""
        nodes, found = self.requests[event.r].nodes, []
        for group, pages in enumerate(event.pages):
            for page in pages:
                record = self.record(group, page)
                keys = record.keys if record is not None else []
                if not any(k.usable and k.length < len(nodes) and nodes[k.length] == k.node for k in keys):
                    found += [k for k in keys if k.state in ("withdrawn", "reset", "outdated") and k.group == group]
        return found

    def hollow(self, event: Publish) -> bool:
        """Whether a late publication has no content behind it; asked before it is applied."""
        nodes = self.requests[event.r].nodes
        node = nodes[event.length] if event.length < len(nodes) else UNKNOWN
        return self.late(event) and not self.backs(Key(event, node, "pending"))

    def unbacked(self, event: StepEnd) -> list[Key]:
        """Return the keys that the end of this step commits although their content is not there; asked before the end."""
        if self._unbacked is not None and self._unbacked[0] is event:
            return self._unbacked[1]
        gone = event.withdrawn
        bad = [key for key in self.pending(event.step) if key.r not in gone and not self.backs(key)]
        self._unbacked = (event, bad)
        return bad

    # --- physical ---------------------------------------------------------------------------------------------------------

    def _take(self, event: Take) -> None:
        records, holder = self.records[event.pool], event.holder
        self.holdings[holder] = self.holdings.get(holder, 0) + len(event.pages)
        for page in event.pages:
            record = records[page]
            if not record.holders:
                self.held[event.pool] += 1
                if record.keys:
                    self.idle_keyed[event.pool] -= 1
            record.holders[holder] = record.holders.get(holder, 0) + 1
            record.held_for[holder] = event.group

    def _drop(self, event: Drop) -> None:
        records, holder = self.records[event.pool], event.holder
        for page in event.pages:
            record = records[page]
            count = record.holders.get(holder, 0)
            if count:
                self.holdings[holder] -= 1
            if count > 1:
                record.holders[holder] = count - 1
            elif count == 1:
                del record.holders[holder], record.held_for[holder]
                if not record.holders:
                    self.held[event.pool] -= 1
                    if record.keys:
                        self.idle_keyed[event.pool] += 1
                    else:
                        record.poison()

    def _write(self, event: Write) -> None:
        group, request = self.groups[event.group], self.requests[event.r]
        record_of, nodes = self._usable[group.pool].get, self.nodes(event)
        written = self._written.setdefault(event.r, [])
        if group.kind == "recurrent":
            record = record_of(event.pages[0])
            if not self.orphaned(event.step, event.r) and event.stop < len(request.nodes):
                request.states.setdefault(event.group, set()).add(event.stop)
            if record is not None:
                self._write_state(record, event, nodes[event.stop])
                written.append(record)
            return
        size, start = group.block_size, event.start
        for page in event.pages:
            stop = min(event.stop, (start // size + 1) * size)
            record = record_of(page)
            if record is not None:
                if record.group != event.group:
                    record.poison()
                    record.group = event.group
                write_tokens(self.trie, record, nodes, start, stop, size)
                record.writer, record.step, record.tainted = event.r, event.step, record.tainted or request.tainted
                written.append(record)
            start = stop

    def _write_state(self, record: PageRecord, event: Write, node: int) -> None:
        record.poison()
        record.state, record.node, record.start, record.stop, record.group = True, node, event.stop, event.stop, event.group
        record.writer, record.step, record.tainted = event.r, event.step, self.requests[event.r].tainted

    def _read(self, event: Read) -> None:
        if not self.invalid_columns(event) and not (self._any_taint and self._reads_taint(event)):
            return
        self._any_taint = self.requests[event.r].tainted = True
        for record in self._written.get(event.r, ()):
            record.tainted = True

    def _reads_taint(self, event: Read) -> bool:
        records = self.records[event.pool]
        return any(records[page].tainted for page in event.pages)

    def _copy(self, event: Copy) -> None:
        """Copy pages. Of an asynchronous copy nothing has arrived that failed, or that was not there from its begin to its end.

        Until it ends, the pages that it fills hold nothing. Tokens added behind those that were there at the begin do no harm.
        """
        images = [PageRecord() for _ in event.moves]
        for move, image in zip(event.moves, images, strict=True):
            image.copy_content(self.records[move.src_pool][move.src])
        targets = [(move.dst_pool, move.dst) for move in event.moves]
        if event.phase == "begin":
            self.copying[event.id] = images
            self.filling.update(targets)
            for pool, page in targets:
                self.records[pool][page].poison()
            return
        begun = self.copying.pop(event.id, images)
        if begun is not images:
            self.filling -= Counter(targets)
        for move, image, before in zip(event.moves, images, begun, strict=True):
            if event.phase == "fail":
                before.poison()
            elif not image.same_content(before):
                self._keep_what_stayed(before, image)
            self.records[move.dst_pool][move.dst].copy_content(before)

    def _keep_what_stayed(self, before: PageRecord, now: PageRecord) -> None:
        """Leave of a page, as it was before, the runs that it still has now."""
        spans = [] if before.state or before.node == NOTHING else [*before.older, Span(before.start, before.stop, before.node)]
        stayed = [span for span in spans if before.group == now.group and self.covers(now, span.node, span.start, span.stop)]
        if not stayed:
            before.poison()
            return
        *before.older, newest = stayed
        before.start, before.stop, before.node = newest.start, newest.stop, newest.node

    def _zero(self, event: Zero) -> None:
        for page in event.pages:
            record = self.records[event.pool][page]
            record.poison()
            record.zeroed = True

    # --- claims -----------------------------------------------------------------------------------------------------------

    def _publish(self, event: Publish) -> None:
        nodes = self.requests[event.r].nodes
        node = nodes[event.length] if event.length < len(nodes) else UNKNOWN
        key = Key(event, node, "pending")
        if not self.late(event):
            self._pending.setdefault(event.step, []).append(key)
        else:
            key.state = "committed" if self.backs(key) else "hollow"
        self.keys[event.group].setdefault(node, {})[event.page] = key
        pool = self.groups[event.group].pool
        for page in (event.page, *event.companions):
            if page not in self.null[pool]:
                record = self.records[pool][page]
                if not record.keys and not record.holders:
                    self.idle_keyed[pool] += 1
                record.keys.append(key)

    def _unpublish(self, event: Unpublish) -> None:
        pool = self.groups[event.group].pool
        if event.page in self.null[pool]:
            return
        for key in list(self.records[pool][event.page].keys):
            named = key.group == event.group and key.page == event.page
            if named and event.length in (0, key.length):
                self._forget(key, event.reason)

    def _forget(self, key: Key, reason: str) -> None:
        pages = self.keys[key.group].get(key.node, {})
        if pages.get(key.page) is key:
            del pages[key.page]
            if not pages:
                del self.keys[key.group][key.node]
                self.ended[key.group][key.node] = reason
        pending = self._pending.get(key.step)
        if pending and key in pending:
            pending.remove(key)
        pool = self.groups[key.group].pool
        for page in (key.page, *key.companions):
            record = self.records[pool][page]
            record.keys.remove(key)
            if not record.keys and not record.holders:
                self.idle_keyed[pool] -= 1
                record.poison()

    def _hit(self, event: Hit) -> None:
        request = self.requests[event.r]
        request.restart()
        request.hit = event
        request.computed = event.resume
        request.tainted = bool(self.stopped(event))

    # --- life -------------------------------------------------------------------------------------------------------------

    def _submit(self, event: Submitted) -> None:
        request = self.requests[event.r] = RequestRecord(event)
        request.identity = self._identity(request)
        self._spell(request, 0)

    def _identity(self, request: RequestRecord) -> tuple[int, str, str, int]:
        """Return what the request's next token is computed with."""
        _, salt, adapter, _ = request.identity
        return (self.weights, salt, adapter, self.adapters.get(adapter, 0))

    def _spell(self, request: RequestRecord, start: int) -> None:
        """Spell the request's prefixes again from `start` on, under the adapter and weights of now."""
        if start == 0:
            request.nodes = [self.trie.root(request.identity)]
        symbols = self._symbols(request, start)
        del request.nodes[start + 1 :]
        request.nodes += self.trie.extend(request.nodes[start], symbols)

    def _symbols(self, request: RequestRecord, start: int) -> list[int]:
        symbols = request.tokens[start:]
        now = self._identity(request)
        mixed = now != request.identity
        if not mixed and not request.media:
            return symbols
        for index, token in enumerate(symbols):
            item = _media_at(request.media, start + index)
            if mixed or item:
                symbols[index] = self.trie.marked((token, item, now if mixed else 0))
        return symbols

    def _accept(self, event: Accept) -> None:
        request = self.requests[event.r]
        old = event.upto - len(event.tokens)
        request.tokens[old:] = event.tokens
        self._spell(request, old)
        if request.drafted > request.computed:
            request.computed = min(event.upto - 1, request.drafted)

    def _step_begin(self, event: StepBegin) -> None:
        self.open_steps[event.step] = event

    def _step_end(self, event: StepEnd) -> None:
        begun = self.open_steps.pop(event.step, None)
        gone = set(event.withdrawn)
        for run in begun.runs if begun else ():
            if run.r not in gone and not self.orphaned(event.step, run.r):
                request = self.requests[run.r]
                request.computed, request.drafted = run.known, run.stop
                request.ran_steps += 1
        hollow = self.unbacked(event)
        for key in self._pending.pop(event.step, ()):
            key.state = "withdrawn" if key.r in gone else "committed"
        for key in hollow:
            key.state = "hollow"
        if self._orphans:
            self._orphans = {(step, r) for step, r in self._orphans if step != event.step}
        if self.guesses:
            self.guesses = {(step, r): nodes for (step, r), nodes in self.guesses.items() if step != event.step}
        self.last_step_ended = max(self.last_step_ended, event.step)
        self._written.clear()

    def _orphan(self, r: str) -> None:
        for step, begun in self.open_steps.items():
            if any(run.r == r for run in begun.runs):
                self._orphans.add((step, r))

    def _preempt(self, event: Preempted) -> None:
        self._orphan(event.r)
        request = self.requests[event.r]
        request.restart()
        self._renew(request)

    def _end(self, event: Aborted | Finished) -> None:
        self._orphan(event.r)
        self.requests[event.r].live = False

    def _reset(self, event: ResetDone) -> None:
        if not event.ok:
            return
        tiers = {pool.id: pool.tier for pool in self.header.pools}
        for group, keys in zip(self.groups, self.keys, strict=True):
            if tiers[group.pool] == event.tier:
                _mark(keys, "reset")

    def _version(self, event: Version) -> None:
        if event.adapter:
            self.adapters[event.adapter] = event.weights
        else:
            self.weights = event.weights
        for keys in self.keys:
            for pages in keys.values():
                for key in pages.values():
                    if not event.adapter or self.requests[key.r].identity[2] == event.adapter:
                        key.state = "outdated"
        for request in self.requests.values():
            if request.live:
                self._renew(request)

    def _renew(self, request: RequestRecord) -> None:
        """Spell what the request has yet to compute under the weights and the adapter of now."""
        if self._identity(request) != request.identity:
            if request.computed == 0:
                request.identity = self._identity(request)
            self._spell(request, request.computed)

    # --- reads ------------------------------------------------------------------------------------------------------------

    def _invalid_state(self, read: Read, request: RequestRecord) -> list[int]:
        record = self.record(read.group, read.pages[0])
        if record is None or request.r not in record.holders:
            return [0]
        return [] if record.group == read.group and self.holds_state(record, self.nodes(read)[read.stop], read.stop) else [0]

    def _invalid_blocks(self, read: Read, request: RequestRecord, group: Group) -> list[int]:
        record_of, nodes, r, size, stop = self._usable[group.pool].get, self.nodes(read), request.r, group.block_size, read.stop
        owner, bad = group.id, []
        start, end = read.start, read.start - read.start % size + size
        for index, page in enumerate(read.pages):
            if end > stop:
                end = stop
            record = record_of(page)
            right = (
                record is not None
                and record.node == nodes[end]
                and record.start <= start
                and record.group == owner
                and r in record.holders
            )
            if not right and self._wrong_block(record, group, read, start, end):
                bad.append(index)
            start, end = end, end + size
        return bad

    def _wrong_block(self, record: PageRecord | None, group: Group, read: Read, start: int, stop: int) -> bool:
        """Look again at a page whose newest run is not just what tokens [start, stop) need."""
        if record is None or read.r not in record.holders:
            return True
        return record.group != group.id or not self.covers(record, self.nodes(read)[stop], start, stop)


def _mark(keys: dict[int, dict[int, Key]], state: KeyState) -> None:
    for pages in keys.values():
        for key in pages.values():
            key.state = state


def _media_at(media: list[Media], position: int) -> str:
    for item in media:
        if item.at <= position < item.at + item.length:
            return item.hash
    return ""
