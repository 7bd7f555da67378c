"""Keys that are owed: what a request computed and that ended as intended can be hit.

The reuse floor goes by the engine's own keys, so a block that never gets one is owed to nobody.
Here block tables and content say what there is to key: when a request that ended lets go of a page
with a whole block of attention that it committed, the page has a key, or another page has that key.
An engine may declare what it keys nothing of (`Unkeyed`). Of a group that retention thins out to an
interval that is owed which is read by whoever resumes at a multiple of the interval.

A window's block that a request leaves behind while it runs, and a state that the next one follows,
are gone before anybody knows how it ends. Where the engine says that it gives such pages back
(`frees_behind`), and for states where its chunks stop (`checkpoint_alignment`), they are noted when
they go and owed when the request has ended as intended, unless a key of theirs was there by then.

What becomes of the second of two such pages when the key of the first ends is judged by
`content-floor`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import lcm

from cachewitness.core.attention_span import first_needed
from cachewitness.core.checkers.finding import INSIDE_BLOCK, Finding
from cachewitness.core.checkers.lookup import thinned_out
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.events import (
    Aborted,
    Counts,
    Finished,
    Group,
    Header,
    Preempted,
    Release,
    ResetDone,
    StepBegin,
    Unpublish,
    Version,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING, PageRecord
from cachewitness.core.ledger.requests import RequestRecord

SETTLED_STEPS = 2
"""So many steps it takes at most until a token that one of them samples can be keyed."""


@dataclass(slots=True, eq=False)
class Block:
    """A block of `length` tokens that `r` let go of: the end of the prefix `node` of a group, which
    was written to a page in a step. `cause` is why it may have no key.
    """

    group: int
    node: int
    length: int
    page: int
    r: str
    step: int
    cause: str


class KeysOwed(Checker):
    """Whole blocks of a request that ended as intended have keys when it lets go of them."""

    name = "keys"
    summary = (
        "a whole block that a request committed has a key, in its page or in another, when the"
        " request ends as intended, unless the engine declares that it keys no such blocks"
    )
    anomalies = ("key-owed",)
    lacks = "a request that ended with a whole block"

    def __init__(self) -> None:
        super().__init__()
        self._let_go: list[Block] = []
        """What requests let go in the operation at hand that have not been reported to be finished.
        """
        self._behind: dict[str, list[Block]] = {}
        """By request that runs: what it let go that had no key by the end of the operation."""
        self._had: set[tuple[int, int, int]] = set()
        """What had a key that ended in the operation at hand, as (group, prefix, page): a page that
        is let go, and taken by another at once, may be told so."""
        self._finished: set[str] = set()
        self._older: set[str] = set()
        """Requests that were live when the cache was reset or got new weights: what they computed
        before has no key any more."""

    def not_applicable(self, header: Header) -> str:
        if reason := super().not_applicable(header):
            return reason
        if not header.rules.caching:
            return "prefix caching is off"
        if header.rules.captures is not None:
            return "prefixes are captured, not keyed: `captures` judges that"
        if header.rules.late_keys:
            return "a key may begin steps behind its request's end (`late_keys`)"
        return ""

    def handlers(self) -> dict[type, Handler]:
        return {
            Unpublish: self.on_unpublish,
            Release: self.on_release,
            Finished: self.on_finish,
            Aborted: self.on_lost,
            Preempted: self.on_lost,
            Counts: self.on_counts,
            StepBegin: self.on_counts,
            ResetDone: self.on_reset,
            Version: self.on_reset,
        }

    def on_unpublish(self, ledger: Ledger, event: Unpublish) -> Found:
        """Note what has a key until now."""
        record = ledger.record(event.group, event.page)
        for key in record.keys if record else ():
            if key.ended_by(event):
                self._had.add((event.group, key.node, event.page))
        return None

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Note the whole blocks that a request lets go of."""
        request = ledger.requests.get(event.holder)
        if request is None or event.holder in self._older or not kept_every(ledger, event.group):
            return None
        if request.ran_steps == 0:
            return None  # It has what a hit gave it, and keys what it loaded when it goes on.
        group = ledger.groups[event.group]
        records = ledger.records[event.pool].usable
        for page in event.pages:
            record = records.get(page)
            if record is None or _is_unkeyed(ledger, record, request):
                continue
            if not _kept_state(ledger, group, record, request) and not (
                whole_block(record, group, request) and _can_be_hit(ledger, group, record, request)
            ):
                continue
            place = group.id, record.node, page
            if record.node in ledger.keys.published[group.id] or place in self._had:
                self.opportunities += 1
                continue
            cause = resumed_inside(ledger, request)
            block = Block(group.id, record.node, record.stop, page, request.r, record.step, cause)
            # Whether a request finished or was aborted may be reported behind its releases, and
            # only what a finished one computed is owed.
            if event.holder in self._finished:
                self._expect(block, event.seq)
            else:
                self._let_go.append(block)
        return None

    def on_finish(self, ledger: Ledger, event: Finished) -> Found:
        """Expect keys of what the request let go in this operation, before it was reported to be
        finished.
        """
        if not event.by_engine:
            self._finished.add(event.r)
            for block in [*self._behind.get(event.r, ()), *self._let_go]:
                if block.r == event.r:
                    self._expect(block, event.seq)
        self._behind.pop(event.r, None)
        self._let_go.clear()
        return None

    def on_lost(self, ledger: Ledger, event: Aborted | Preempted) -> Found:
        """Owe nothing of what a request let go that was aborted, or lost its pages."""
        self._behind.pop(event.r, None)
        self._let_go = [block for block in self._let_go if block.r != event.r]
        return None

    def _expect(self, block: Block, seq: int) -> None:
        """Expect that a block has a key when the operation is over: it may be published last."""
        self.opportunities += 1
        self.deferred.append(lambda ledger: _owed(ledger, block, seq))

    def on_counts(self, ledger: Ledger, event: Counts | StepBegin) -> Found:
        """Note what requests that run let go without a key in the operation that is over."""
        for block in self._let_go:
            request = ledger.requests.get(block.r)
            running = request is not None and request.live and request.computed > 0
            if running and ledger.header.rules.frees_behind and _owed(ledger, block, -1):
                self._behind.setdefault(block.r, []).append(block)
        self._let_go.clear()
        self._had.clear()
        return None

    def on_reset(self, ledger: Ledger, event: ResetDone | Version) -> Found:
        """Owe nothing of what was computed before the device's keys ended."""
        if isinstance(event, Version) or (event.ok and event.tier == "local"):
            self._let_go.clear()
            self._behind.clear()
            self._older = set(ledger.requests.live)
        return None

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget requests that are over."""
        self._finished &= ledger.requests.keys()
        self._older &= ledger.requests.keys()
        self._behind = {
            r: [block for block in blocks if block.node not in gone]
            for r, blocks in self._behind.items()
        }


def whole_block(record: PageRecord, group: Group, request: RequestRecord) -> bool:
    """Whether a page holds a whole block of attention of a request's tokens, and nothing of it
    follows from an earlier fault.
    """
    size = group.block_size
    stop = record.stop
    whole = (
        record.node != NOTHING
        and not record.state
        and stop % size == 0
        and record.start <= stop - size
    )
    sound = whole and not record.tainted and not record.older and record.group == group.id
    return sound and stop < len(request.nodes) and request.nodes[stop] == record.node


def _kept_state(ledger: Ledger, group: Group, record: PageRecord, request: RequestRecord) -> bool:
    """Whether a page holds a state of a request at the end of a block, at a boundary at which the
    engine says that it stops for one, and which the request had passed.

    Inside a block the state at the end of a prompt alone is kept; other rules judge that.
    """
    unit = ledger.header.rules.checkpoint_alignment
    stop = record.stop
    if group.kind != "recurrent" or not record.state or not unit:
        return False
    if stop % lcm(group.block_size, kept_every(ledger, group.id)):
        return False
    sound = record.node != NOTHING and not record.tainted and record.group == group.id
    settled = settled_tokens(ledger, request)
    return sound and 0 < stop <= settled and request.node_of(stop) == record.node


def resumed_inside(ledger: Ledger, request: RequestRecord) -> str:
    """Return the cause of what is not kept of a request that was resumed inside a block of
    attention; nothing if it was not.
    """
    inside = any(
        group.kind != "recurrent" and request.resume % group.block_size for group in ledger.local
    )
    return INSIDE_BLOCK if inside else ""


def settled_tokens(ledger: Ledger, request: RequestRecord) -> int:
    """Return how many tokens a request computed that were known when a step behind theirs was
    scheduled: of its answer, but for the last steps.

    What a step samples, or drafts and accepts, can be keyed or stored by a later one alone, and by
    the next but one if that is scheduled before.
    """
    last = SETTLED_STEPS * (1 + ledger.header.rules.drafts)
    return max(request.computed - last, min(request.computed, request.prompt_tokens))


def _can_be_hit(ledger: Ledger, group: Group, record: PageRecord, request: RequestRecord) -> bool:
    """Whether who resumes at the next boundary behind a block that is kept, and that the request
    committed too, reads any of it.
    """
    unit = lcm(ledger.header.rules.alignment, kept_every(ledger, group.id))
    boundary = -(-record.stop // unit) * unit
    settled = settled_tokens(ledger, request)
    return boundary <= settled and first_needed(group, boundary) < record.stop


def kept_every(ledger: Ledger, group: int) -> int:
    """Return how many tokens apart the boundaries are that retention, as the engine declares it,
    keeps of a group wherever they lie; 1 if it keeps all, 0 if it keeps those alone that are
    reachable.
    """
    interval = ledger.header.rules.retention.interval
    return interval if interval is not None and thinned_out(ledger, group) else 1


def _is_unkeyed(ledger: Ledger, record: PageRecord, request: RequestRecord) -> bool:
    """Whether the engine declares that it keys no block that lies there in a request."""
    unkeyed = ledger.header.rules.unkeyed
    if record.stop == request.prompt_tokens:
        return unkeyed.last
    return unkeyed.answers and record.stop > request.prompt_tokens


def _owed(ledger: Ledger, block: Block, seq: int) -> Finding | None:
    """Find a block that has no key, and had none that ended with something that ends all."""
    if block.node in ledger.keys.published[block.group]:
        return None
    ended = ledger.keys.ended[block.group].get(block.node)
    if ended is not None and ended.step >= block.step:
        unkeyed = ledger.header.rules.unkeyed
        for_room = ended.reason in ("evict", "replace")
        # That its own key was taken from a page that somebody holds is judged by others.
        if unkeyed.duplicates or not for_room or ended.page == block.page:
            return None
    first = count(block.length, "token")
    many = f" of group {block.group}" if len(ledger.groups) > 1 else ""
    sentence = (
        f"Let {block.r} compute its first {first}, whose last block{many} is whole and lies in page"
        f" {block.page}, and end as intended. However no page has a key for them: a contradiction."
    )
    line = f"{named(block.r)} ended; page {block.page} with its first {first} has no key"
    return Finding(
        anomaly="key-owed", r=block.r, sentence=sentence, line=line, seq=seq, cause=block.cause
    )
