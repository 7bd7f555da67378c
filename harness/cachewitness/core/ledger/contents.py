"""What every page holds, kept from the worker's writes, copies and zeros alone.

A token lies in its page at its position modulo the block size, so a ring overwrites what left its
window, and a page that stands for two blocks at once destroys one of them. What a step writes after
reading something invalid is tainted, so that one fault is reported once and not again by everything
that follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cachewitness.core.events import Copy, Group, Header, Read, Write, Zero
from cachewitness.core.ledger.records import (
    NOTHING,
    UNKNOWN,
    Content,
    ForeignTo,
    Key,
    PageRecord,
    PoolRecords,
    Span,
)
from cachewitness.core.ledger.trie import Trie


class Contents:
    """What pages hold, as runs of known prefixes and as recurrent states."""

    def __init__(self, header: Header, records: dict[int, PoolRecords], trie: Trie) -> None:
        self._groups = header.groups
        self._records = records
        self._trie = trie
        self._places = [(group.block_size, records[group.pool]) for group in header.groups]
        """Per group: the size of its blocks, in tokens, and the records of its pool."""
        self._local = frozenset(group.id for group in header.local_groups())
        self.copying: dict[int, list[Content]] = {}
        """Per copy under way: what its sources held when it began."""
        self.filling: Counter[tuple[int, int]] = Counter()
        """(pool, page) -> how many copies under way fill the page."""
        self._written: dict[str, list[Content]] = {}
        """Per request: the pages that it wrote since a step ended last."""
        self.any_taint = False
        """Whether anything was ever tainted."""

    # --- questions --------------------------------------------------------------------------------

    def covers(self, content: Content, node: int, start: int, stop: int) -> bool:
        """Whether a page holds attention content of tokens [start, stop) of exactly the prefix
        `node` (`stop` or longer).
        """
        if content.state or content.node == NOTHING:
            return False
        ancestor = self._trie.ancestor
        if not content.older:
            within = content.start <= start and stop <= content.stop
            return within and ancestor(content.node, stop) == ancestor(node, stop)
        missing = start
        for span in sorted(content.spans(), key=lambda span: span.start):
            upto = min(span.stop, stop)
            if span.start <= missing < upto and ancestor(span.node, upto) == ancestor(node, upto):
                missing = upto
        return missing >= stop

    def holds_state(self, content: Content, node: int, length: int) -> bool:
        """Whether a page holds a recurrent state, taken after exactly the prefix `node` of
        `length` tokens.
        """
        return content.state and content.node == node and content.stop == length

    def content_matches(self, group: Group, page: int, node: int, length: int) -> bool:
        """Whether a page holds what a key of the group for the prefix `node` of `length` tokens
        claims.
        """
        record = self._records[group.pool].find(page)
        if record is None or node == UNKNOWN:
            return False
        if record.group != group.id and group.id in self._local:
            return False
        if group.kind == "recurrent":
            return self.holds_state(record, node, length)
        start = (length - 1) // group.block_size * group.block_size
        return self.covers(record, node, start, length)

    def matches(self, key: Key) -> bool:
        """Whether the page of a key holds what the key claims."""
        return self.content_matches(self._groups[key.group], key.page, key.node, key.length)

    def destroyed(
        self, content: Content, event: Write, nodes: list[int], start: int, stop: int
    ) -> list[Span]:
        """Return what of a page's content the write of tokens [start, stop) ends; what it repeats
        is not ended.

        `nodes` are the prefixes of the run that writes.
        """
        if content.node == NOTHING:
            return []
        group = self._groups[event.group]
        ancestor = self._trie.ancestor
        spans = content.spans()
        if content.group != event.group:
            return spans
        if group.kind == "recurrent":
            return [] if content.stop == event.stop and content.node == nodes[event.stop] else spans
        lost = []
        for span in spans:
            shift = (start // group.block_size - span.start // group.block_size) * group.block_size
            low = max(span.start, start - shift)
            high = min(span.stop, stop - shift)
            if low < high and (shift or ancestor(span.node, high) != nodes[high]):
                lost.append(Span(low, high, ancestor(span.node, high)))
        return lost

    # --- writes -----------------------------------------------------------------------------------

    def write_state(self, event: Write, node: int, tainted: bool) -> None:
        """Write the recurrent state after the prefix `node` into the one page of a write."""
        records = self._places[event.group][1]
        stop = event.stop
        record = records.find(event.pages[0])
        if record is not None:
            records.changes(record)
            record.poison()
            record.state = True
            record.node = node
            record.start = stop
            record.stop = stop
            record.group = event.group
            record.writer = event.r
            record.step = event.step
            record.tainted = tainted
            self._written.setdefault(event.r, []).append(record)

    def write_tokens(self, event: Write, nodes: list[int], tainted: bool) -> None:
        """Write the attention content of a run into the pages of one group. `nodes` are the
        prefixes of the run.
        """
        group = event.group
        r = event.r
        step = event.step
        start = event.start
        last = event.stop
        size, records = self._places[group]
        written = self._written.setdefault(r, [])
        stop = start - start % size + size
        touched = records.usable.get
        for page in event.pages:
            if stop > last:
                stop = last
            record = touched(page) or records.find(page)
            if record is not None:
                if records.verified and not _adds(record, group, nodes, start, stop, size):
                    records.changes(record)
                there = record if record.left is None else record.written_by(r, group)
                if there.group != group:
                    early = there.early
                    there.poison()
                    there.group = group
                    there.early = early
                self._lay(there, nodes, start, stop, size)
                there.writer, there.step, there.tainted = r, step, there.tainted or tainted
                written.append(there)
            start, stop = stop, stop + size

    def _lay(self, record: Content, nodes: list[int], start: int, stop: int, size: int) -> None:
        """Lay a run, tokens [start, stop) of the prefix that `nodes` spells, into a page of
        `size` tokens of attention.
        """
        node = record.node
        if start % size == 0:
            record.early = False
            record.stale = ""
        if node == NOTHING:
            record.start = start
            record.stop = stop
            record.node = nodes[stop]
            record.zeroed = False
        elif record.older or record.start // size != start // size:
            self._overwrite(record, nodes, start, stop, size)
        elif start <= record.start and stop >= record.stop:
            record.start = start
            record.stop = stop
            record.node = nodes[stop]
            record.tainted = False
        elif record.start <= start <= record.stop and (
            (node if start == record.stop else self._trie.ancestor(node, start)) == nodes[start]
        ):
            if stop >= record.stop:
                record.stop = stop
                record.node = nodes[stop]
            elif self._trie.ancestor(node, stop) != nodes[stop]:
                self._overwrite(record, nodes, start, stop, size)
        else:
            self._overwrite(record, nodes, start, stop, size)

    def _overwrite(
        self, record: Content, nodes: list[int], start: int, stop: int, size: int
    ) -> None:
        """Lay a run over other content; what is left of that content on either side stays, joined
        to the run where it fits.

        A token lies in the page at its position modulo `size`, so a run of another column destroys
        what lies at its places.
        """
        low = start
        high = stop
        node = nodes[stop]
        ancestor = self._trie.ancestor
        rest = []
        for span in record.spans():
            shift = (start // size - span.start // size) * size
            first = start - shift
            last = stop - shift
            if span.start < first:
                upto = min(span.stop, first)
                before = ancestor(span.node, upto)
                if upto == start and before == nodes[start]:
                    low = span.start
                else:
                    rest.append(Span(span.start, upto, before))
            if span.stop > last:
                if shift == 0 and span.start <= stop and ancestor(span.node, stop) == nodes[stop]:
                    high = span.stop
                    node = span.node
                else:
                    rest.append(Span(max(span.start, last), span.stop, span.node))
        record.older = tuple(rest)
        record.start = low
        record.stop = high
        record.node = node

    # --- taint ------------------------------------------------------------------------------------

    def reads_taint(self, event: Read) -> bool:
        """Whether a read sees content that follows from an earlier fault."""
        touched = self._records[event.pool].get
        return any(record.tainted for record in map(touched, event.pages) if record is not None)

    def taint_written(self, r: str) -> None:
        """Mark what a request has written in the step at hand: it read something invalid."""
        self.any_taint = True
        for record in self._written.get(r, ()):
            record.tainted = True

    def end_step(self) -> None:
        """Forget who wrote what: a later fault does not concern it."""
        self._written.clear()

    # --- copies and zeros -------------------------------------------------------------------------

    def copy(self, event: Copy, mark: Callable[[Copy, list[Content]], None] | None) -> None:
        """Copy pages; `mark` adds to what they carry. Of an asynchronous copy nothing has arrived
        that failed, or that was not there from its begin to its end.

        Until it ends, the pages that it fills hold nothing. Tokens added behind those that were
        there at the begin do no harm.
        """
        images = [Content() for _ in event.moves]
        for move, image in zip(event.moves, images, strict=True):
            source = self._records[move.src_pool][move.src]
            image.copy_content(source.readable)
            if move.tokens:
                self._join(image, self._records[move.dst_pool][move.dst], move.tokens)
            for key in source.keys:
                if self._is_to_come(key, event.step):
                    image.early = True
                elif (cause := key.cause(source)) and not self.matches(key):
                    image.foreign += (ForeignTo(key.r, key.group, cause, key.length),)
        if mark is not None:
            mark(event, images)
        targets = [(move.dst_pool, move.dst) for move in event.moves]
        if event.phase == "begin":
            self.copying[event.id] = images
            self.filling.update(targets)
            for pool, page in targets:
                record = self._records[pool][page]
                self._records[pool].changes(record)
                record.poison()
                record.left = None
            return
        begun = self.copying.pop(event.id, images)
        if begun is not images:
            self.filling -= Counter(targets)
        for move, image, before in zip(event.moves, images, begun, strict=True):
            if event.phase == "fail":
                before.poison()
            elif not image.same_content(before):
                self._keep_what_stayed(before, image)
            target = self._records[move.dst_pool][move.dst]
            self._records[move.dst_pool].changes(target)
            target.copy_content(before)

    def _join(self, image: Content, target: Content, tokens: int) -> None:
        """Leave of what a copy carries the first so many tokens of the page, and put behind them
        what lies there in the target.
        """
        if image.state or image.group == NOTHING:
            return
        size = self._groups[image.group].block_size
        behind = target.spans() if target.group == image.group and not target.state else []
        kept: list[Span] = []
        for part, first, last in ((behind, tokens, size), (image.spans(), 0, tokens)):
            for span in part:
                base = span.start // size * size
                start = max(span.start, base + first)
                stop = min(span.stop, base + last)
                if span.node != NOTHING and start < stop:
                    kept.append(Span(start, stop, self._trie.ancestor(span.node, stop)))
        if not kept:
            image.poison()
            return
        *older, newest = kept
        image.older = tuple(older)
        image.start = newest.start
        image.stop = newest.stop
        image.node = newest.node

    def _is_to_come(self, key: Key, step: int) -> bool:
        """Whether a key names what a run of a step is yet to write: a store that begins behind the
        runs copies what they have written, and what is in another tier is copied there.
        """
        return (
            key.state == "pending"
            and key.step == step
            and key.group in self._local
            and key.r not in self._written
            and not key.unrun
            and not self.matches(key)
        )

    def _keep_what_stayed(self, before: Content, now: Content) -> None:
        """Leave of a page, as it was before, the runs that it still has now."""
        spans = [] if before.state or before.node == NOTHING else before.spans()
        stayed = [
            span
            for span in spans
            if before.group == now.group and self.covers(now, span.node, span.start, span.stop)
        ]
        if not stayed:
            stale = before.stale
            foreign = before.foreign
            before.poison()
            before.stale = stale
            before.foreign = foreign
            return
        *older, newest = stayed
        before.older = tuple(older)
        before.start = newest.start
        before.stop = newest.stop
        before.node = newest.node

    def zero(self, event: Zero) -> None:
        """Fill pages with zeros, which are no content."""
        for page in event.pages:
            record = self._records[event.pool][page]
            self._records[event.pool].changes(record)
            record.poison()
            record.zeroed = True


def _adds(
    record: PageRecord, group: int, nodes: list[int], start: int, stop: int, size: int
) -> bool:
    """Whether a write of tokens [start, stop) of the prefix that `nodes` spells leaves all that
    a page holds as it is.
    """
    if record.node == NOTHING:
        return True
    same_place = (
        record.group == group and not record.older and record.start // size == start // size
    )
    return same_place and start <= record.stop <= stop and nodes[record.stop] == record.node
