"""Names what is wrong with a read whose content is not what the request needs.

The ledger decides whether a read is wrong; this module names the reason. It tests, in this order,
whether the page is missing, whether the request does not hold it, whether its key should not have
been hit, and whose content it holds instead.
"""

from __future__ import annotations

from cachewitness.core.attention_span import has_window
from cachewitness.core.checkers.difference import difference
from cachewitness.core.checkers.finding import (
    BEYOND_ANSWER,
    EARLY_COPY,
    FAILED_LOAD,
    KEPT_HASH,
    OPEN_CHUNK,
    ROUNDED_UP,
    Finding,
)
from cachewitness.core.checkers.wording import all_named, count, named, with_detail
from cachewitness.core.events import Group, Read
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.reads import span_of
from cachewitness.core.ledger.records import NOTHING, UNKNOWN, Content, Key, PageRecord
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.core.worker import NO_COLUMN


def diagnose(ledger: Ledger, read: Read) -> Finding | None:
    """Return the finding for the first invalid column of a read; None if the read is right or
    follows from an earlier fault.
    """
    invalid = ledger.before(read).invalid
    if not invalid or ledger.requests[read.r].tainted:
        return None
    case = _Case(ledger, read, invalid[0])
    return Finding(
        anomaly=case.anomaly(),
        r=read.r,
        sentence=case.sentence(),
        line=case.line(),
        cause=case.cause(),
    )


class _Case:
    """One invalid column of one read."""

    def __init__(self, ledger: Ledger, read: Read, index: int) -> None:
        self.ledger = ledger
        self.read = read
        self.group: Group = ledger.groups[read.group]
        self.request: RequestRecord = ledger.requests[read.r]
        self.nodes = ledger.requests.prefixes_of_run(read)
        self.outlived = (read.step, read.r) in ledger.requests.ended_in_flight
        self.page = read.pages[index]
        self.record: PageRecord | None = ledger.record(read.group, self.page)
        self.start, self.stop = span_of(self.group, read, index)

    @property
    def restored(self) -> bool:
        """Whether the content was to come from the hit rather than from the request's own
        computation.
        """
        if self.group.kind == "recurrent":
            return self.stop == self.request.resume and self.request.ran_steps == 0
        return self.start < self.request.resume

    def anomaly(self) -> str:
        if self.record is None:
            return self._missing()
        if not self._holds(self.record):
            return "use-after-free"
        key = self._key()
        if key is not None and self.restored:
            if key.state == "withdrawn" or (
                key.state == "pending" and key.step == self.read.step and key.r != self.request.r
            ):
                return "uncommitted-hit"
            if key.state == "unbacked":
                return "fabricated-snapshot" if self.group.kind == "recurrent" else "partial-commit"
        return self._foreign()

    def cause(self) -> str:
        """Return what is behind it, where that can be seen; else nothing."""
        record = self.record
        if record is None:
            return FAILED_LOAD if self._computes_again() else ""
        if record.early or record.stale:
            return EARLY_COPY if record.early else record.stale
        if self.restored and is_rounded_up(self.ledger, self.group, record, self.request):
            return ROUNDED_UP
        if (key := self._key()) is not None and (cause := key.cause(record)):
            return cause
        if keeps_hash(self.ledger, record, self.request):
            return KEPT_HASH
        if self._advanced_beyond_answer(record):
            return BEYOND_ANSWER
        return OPEN_CHUNK if self._begun_inside(record) else ""

    def _computes_again(self) -> bool:
        """Whether the request computes a window in front of where a hit had it resume, since a load
        of that hit has failed.
        """
        return (
            self.group.kind == "sliding"
            and self.request.load_failed
            and self.read.start + self.group.window - 1 < self.request.resume
        )

    def _advanced_beyond_answer(self, record: PageRecord) -> bool:
        """Whether a session goes on from its state where the last token of its answer was, and the
        state has seen that token.
        """
        dropped = self.request.dropped.get(self.stop, UNKNOWN)
        return (
            record.state
            and record.group == self.group.id
            and record.stop > self.stop
            and UNKNOWN != dropped == self.ledger.trie.ancestor(record.node, self.stop + 1)
        )

    def _begun_inside(self, record: PageRecord) -> bool:
        """Whether the request was resumed inside a chunk from another tier's hit, and the page has
        what it computed from there on, and nothing of the chunk in front of that.
        """
        request = self.request
        hit = request.hit
        if self.group.kind != "chunked" or hit is None or hit.tier == "local":
            return False
        opened = hit.resume // self.group.chunk * self.group.chunk
        return (
            opened <= self.start < hit.resume == record.start
            and record.writer == request.r
            and record.node != NOTHING
            and record.group == self.group.id
        )

    def _holds(self, record: PageRecord) -> bool:
        """Whether the page is the request's; one whose step outlives it may have given it back."""
        return self.outlived or self.request.r in record.holders

    def _missing(self) -> str:
        """Return what a column without a page is called; where no group has a window, nothing is
        released behind one.
        """
        windows = any(map(has_window, self.ledger.groups))
        released = "premature-release" if windows else "use-after-free"
        if not self.restored:
            return released
        hit = self.request.hit
        table = hit.pages[self.group.id] if hit else []
        null = {*self.ledger.records[self.group.pool].null, NO_COLUMN}
        if self.group.kind == "recurrent":
            column = (self.stop - 1) // self.group.block_size
        else:
            column = self.start // self.group.block_size
        if column < len(table) and table[column] not in null:
            return released
        first = self.read.start // self.group.block_size
        some = any(page not in null for page in table[first:]) and has_window(self.group)
        return "window-hole" if some else "group-misalignment"

    def _key(self) -> Key | None:
        """Return the longest key by which the request could have hit what it read of the page."""
        assert self.record is not None
        named = [k for k in self.record.keys if k.length <= self.stop]
        return max(
            (k for k in named if self.nodes[k.length] == k.node),
            key=lambda k: k.length,
            default=None,
        )

    def _foreign(self) -> str:
        record = self.record
        nodes = self.nodes
        assert record is not None
        if record.node == NOTHING or record.group != self.group.id:
            return "stale-hit"
        if self.group.kind == "recurrent" and record.state:
            taken = min(record.stop, self.stop)
            if self.ledger.trie.ancestor(record.node, taken) == nodes[taken]:
                return "state-position-skew"
        return "cross-identity-hit" if self._has_same_tokens(record) else "stale-hit"

    def _has_same_tokens(self, record: PageRecord) -> bool:
        """Whether the page holds what was read but for its identity, be it in several runs: the
        beginning of a page may have been copied.
        """
        missing = self.start
        for span in sorted(record.spans(), key=lambda span: span.start):
            upto = min(span.stop, self.stop)
            if span.start <= missing <= upto and self._same_tokens(span.node, upto):
                if upto == self.stop:
                    return True
                missing = upto
        return False

    def _same_tokens(self, node: int, length: int) -> bool:
        """Whether the first tokens of a prefix are those of the request."""
        trie = self.ledger.trie
        return trie.same_tokens(trie.ancestor(node, length), self.nodes[length])

    def sentence(self) -> str:
        r = self.request.r
        read = self.read
        origin = f"resumed at {self.request.resume}" if self.request.resume else "started cold"
        want = (
            f"its state after {count(self.stop, 'token')}"
            if self.group.kind == "recurrent"
            else f"its tokens [{self.start}, {self.stop})"
        )
        over = (
            f" {r} ended, or was preempted, while that step was in flight; it was carried out all"
            f" the same, and whoever comes later can hit what {r} wrote in it."
            if self.outlived
            else ""
        )
        return (
            f"Let {r}, which {origin}, run in step {read.step}.{over} The ledger says that"
            f" {self._place()} {self._content()}; however {r} read it as"
            f" {want}{self._difference()}: a contradiction."
        )

    def line(self) -> str:
        """Say in one line what was read, and what is there."""
        state = self.group.kind == "recurrent"
        want = (
            f"the state after {count(self.stop, 'token')}"
            if state
            else f"tokens [{self.start},{self.stop})"
        )
        name = named(self.request.r)
        if self.page < 0:
            return f"{name} read {want}; its block table of group {self.group.id} has no page there"
        read = f"{name} read page {self.page} as {want}"
        record = self.record
        if record is None:
            return f"{read}; the page is the null block"
        if not self._holds(record):
            return f"{read}; {all_named(record.holders)} holds the page"
        other = f" for group {record.group}" if record.group not in (NOTHING, self.group.id) else ""
        there = short_content(record)
        if state:
            there = there.replace("the state", "that")
        line = f"{read}; the page holds {there}{other}"
        return with_detail(line, self._difference().removeprefix(", whose "))

    def _difference(self) -> str:
        """Name the first token, or the part of the identity, that the page does not have."""
        record = self.record
        if record is None or record.group != self.group.id or not self._holds(record):
            return ""
        detail = difference(
            self.ledger.trie, record, self.nodes, self.start, self.stop, self.request.r
        )
        return f", whose {detail}" if detail else ""

    def _place(self) -> str:
        if self.page < 0:
            return f"{self.request.r}'s table of group {self.group.id} ({self.group.kind})"
        return f"page {self.page} of group {self.group.id} ({self.group.kind})"

    def _content(self) -> str:
        record = self.record
        if self.page < 0:
            return "has no page there"
        if record is None:
            return "is the null block, where nothing is ever stored"
        if not self._holds(record):
            owner = ", ".join(record.holders) or "nobody"
            return f"is held by {owner}, not by {self.request.r}"
        other = (
            f", for group {record.group}"
            if record.node != NOTHING and record.group != self.group.id
            else ""
        )
        return f"holds {content_of(record)}{other}"


def keeps_hash(ledger: Ledger, record: PageRecord, request: RequestRecord) -> bool:
    """Whether a page has the key of a block that the last token of a session's answer completed:
    the session went on without that token. Either the request has it, or the session is the
    request.
    """
    for key in record.keys:
        named = ledger.requests[key.r]
        for session, other in ((named, request), (request, named)):
            dropped = session.dropped.get(key.length - 1, UNKNOWN)
            if UNKNOWN != dropped == other.node_of(key.length) != session.node_of(key.length):
                return True
    return False


def is_rounded_up(ledger: Ledger, group: Group, record: Content, request: RequestRecord) -> bool:
    """Whether a request was given, with another tier's hit, a state of the end of its block where
    the hit ends inside it: with a block of a group of full attention. If nobody kept that state,
    what was given is nothing.
    """
    hit = request.hit
    if group.kind != "recurrent" or hit is None or hit.tier == "local":
        return False
    full = [other for other in ledger.local if other.kind == "full"]
    inside = hit.resume % group.block_size
    end = hit.resume - inside + group.block_size
    return (
        inside > 0
        and (record.stop == end if record.state else record.node == NOTHING)
        and (not full or any(hit.resume % other.block_size == 0 for other in full))
    )


def short_content(record: Content) -> str:
    """Say in a few words what a page holds."""
    if record.zeroed:
        return "zeros"
    if record.node == NOTHING:
        return "nothing"
    what = (
        f"the state after {count(record.stop, 'token')}"
        if record.state
        else f"[{record.start},{record.stop})"
    )
    return f"{what} of {record.writer}"


def content_of(record: Content) -> str:
    """Say in words what a page holds."""
    if record.zeroed:
        return "zeros"
    if record.node == NOTHING:
        return "nothing: it was not written since it was last free"
    what = (
        f"the state after {count(record.stop, 'token')}"
        if record.state
        else f"tokens [{record.start}, {record.stop})"
    )
    return f"{what} of {record.writer}, written in step {record.step}"
