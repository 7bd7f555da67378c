"""The record of one physical page: what it holds, who holds it, which keys name it.

A page belongs to no group, because groups alias one pool; what is in it belongs to the group whose
layers wrote it. A record is made when its page is first asked for, so memory follows the pages that
are used and not the pool that was declared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cachewitness.core.events import Header, Pool, Unpublish

NOTHING = -1
"""The node of a page without content."""

UNKNOWN = -2
"""The node of a key that claims more tokens than its request has: no content ever matches it."""

GIVEN_BACK = "given-back"
"""The cause of wrong content that lies in another tier, or was loaded from there: it was stored for
a request that had freed the source block before, while it went on, and others wrote there."""
OFFERED_AGAIN = "offered-again"
"""The same, where that tier was reset since the request had given the page back."""
NOT_RUN = "not-run"
"""The cause of a key without content: the step that was to write it ran, and its request in it did
not."""
RUN_PAST = "run-past"
"""The cause of a state that is short of its key: a chunk began with it inside the key's block, ran
past the key and saved a later state on its way."""

KeyState = Literal["pending", "committed", "unbacked", "withdrawn", "reset", "outdated"]
"""unbacked: committed although its content was not there when its step ended."""


@dataclass(slots=True)
class Span:
    """A run of content in a page: tokens [start, stop) of the prefix `node`; for a state, start
    == stop.
    """

    start: int
    stop: int
    node: int


@dataclass(slots=True, eq=False)
class Key:
    """A published prefix: `page` of `group` can be hit as the prefix `node` of `length` tokens.

    `unrun`: its request did not run in the step that was to write it. `passed_from` is where that
    request's chunk of that step began, if it ran past the key and saved a later state; else −1.
    """

    group: int
    page: int
    r: str
    length: int
    step: int
    extra_pages: list[int]
    node: int
    state: KeyState
    unrun: bool = False
    passed_from: int = -1

    def cause(self, content: Content) -> str:
        """Return why a page does not hold what the key names, as far as the run of its step tells;
        else nothing.
        """
        if self.unrun:
            return NOT_RUN
        return RUN_PAST if content.state and content.stop == self.passed_from else ""

    @property
    def usable(self) -> bool:
        """Whether a hit on it is allowed: pending in a step that may yet run, or committed over
        content.
        """
        return self.state == "committed" or self.state == "pending"

    def ended_by(self, event: Unpublish) -> bool:
        """Whether an event says that this key ends."""
        named = self.group == event.group and self.page == event.page
        return named and event.length in (0, self.length)


class ForeignTo(NamedTuple):
    """A request of whose prefix a page holds nothing in a group, and the cause of what another tier
    has of the page for it all the same. `length` is that of the key which is wrong; 0 stands for
    any, where the request freed the page while it went on. `freed` is that of the key of what it
    held then; 0 if it never did.
    """

    r: str
    group: int
    cause: str
    length: int = 0
    freed: int = 0


@dataclass(slots=True, eq=False)
class Content:
    """What a page holds. `node`, `start`, `stop` describe the newest run; `older` the rest, if runs
    disagree.

    `group` is the group whose layers wrote it: to another one it is noise. `state` tells a
    recurrent state from attention content, `zeroed` marks explicit zeros, `writer` and `step` say
    who wrote last, and when. `early` marks what was copied from a page that had a key for what the
    same step was yet to write there.
    """

    node: int = NOTHING
    start: int = 0
    stop: int = 0
    group: int = NOTHING
    older: tuple[Span, ...] = ()
    state: bool = False
    tainted: bool = False
    zeroed: bool = False
    writer: str = ""
    step: int = 0
    early: bool = False
    stale: str = ""
    foreign: tuple[ForeignTo, ...] = ()

    def poison(self) -> None:
        """Forget the content."""
        self.node = self.group = NOTHING
        self.start = self.stop = 0
        self.older = ()
        self.state = self.tainted = self.zeroed = self.early = False
        self.stale = ""
        self.foreign = ()

    def spans(self) -> list[Span]:
        """Return every run, the newest last."""
        return [*self.older, Span(self.start, self.stop, self.node)]

    def copy_content(self, other: Content) -> None:
        """Take over the content of another page."""
        self.node = other.node
        self.start = other.start
        self.stop = other.stop
        self.group = other.group
        self.older = other.older
        self.state = other.state
        self.tainted = other.tainted
        self.zeroed = other.zeroed
        self.writer = other.writer
        self.step = other.step
        self.early = other.early
        self.stale = other.stale
        self.foreign = other.foreign

    def same_content(self, other: Content) -> bool:
        """Whether two pages hold the same, as far as the newest run tells."""
        return (self.node, self.start, self.stop, self.group) == (
            other.node,
            other.start,
            other.stop,
            other.group,
        )


@dataclass(slots=True, eq=False)
class Verified:
    """What was right when a request read it for a group: tokens [start, stop) of the prefix `node`,
    which end with a block.

    `pages` were read then, by column from that of `start` on; there may be more of them than hold
    these tokens.
    """

    start: int
    stop: int
    node: int
    pages: list[int]


@dataclass(slots=True, eq=False)
class PageRecord(Content):
    """One physical page. `holders` says how often each holder took it, `held_for` for which group,
    `keys` what names it.

    The others are the numbers of operations, −1 if there was none: `taken` when it was last taken
    by a first holder, `restored` if a key named it then or it was fetched from another tier,
    `released` when it was last given up by the last holder (`released_by`, in the step
    `released_in`), or lost its last key
    while nobody held it, `keyed` when it was last keyed, `asked_for` when the device last keyed the
    prefix that it keeps a copy of, or a request ended that begins with it: that may count as a use.
    `used_in` is the step in which it was taken or keyed last. `left` is what lies there still since
    nobody had a claim to it any more, until it is written again; a copy that is fenced may read it.
    `tenants` counts how often it was taken with nothing in it.
    """

    holders: dict[str, int] = field(default_factory=dict)
    held_for: dict[str, int] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    taken: int = -1
    restored: int = -1
    released: int = -1
    released_by: str = ""
    released_in: int = 0
    keyed: int = -1
    asked_for: int = -1
    used_in: int = 0
    left: Content | None = None
    tenants: int = 0

    def leave(self) -> None:
        """Forget the content as far as requests are concerned."""
        if self.node != NOTHING:
            self.left = Content()
            self.left.copy_content(self)
        self.poison()

    def written_by(self, r: str, group: int) -> Content:
        """Return what a run of a request writes to: what it left there, if it has given the page
        back under that run, no key names it and nobody has written there since; else the page.
        """
        left = self.left
        if left is None or self.keys or r in self.holders or self.readable is not left:
            return self
        return left if (left.writer, left.group) == (r, group) else self

    @property
    def readable(self) -> Content:
        """What a copy reads there: the content, or what was left there and not overwritten."""
        return (
            self.left
            if self.node == NOTHING and not self.zeroed and self.left is not None
            else self
        )


class PoolRecords(dict[int, PageRecord]):
    """The records of a pool by page; `records[page]` makes one for a page that was not touched
    before.

    Raises IndexError for a page that the pool does not have.
    """

    __slots__ = ("_grown", "capacity", "grows", "null", "pages", "usable", "verified")

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pages = pool.pages
        self.null = frozenset(pool.null)
        self.capacity = pool.pages - len(self.null)
        """How many pages can hold something: all but the null pages."""
        self.usable: dict[int, PageRecord] = {}
        """The records without those of null pages."""
        self.verified: dict[tuple[str, int], Verified] = {}
        """Per request and group: what need not be looked at again when it is read, as nothing of it
        changed since (`reads`)."""
        self.grows = pool.grows
        self._grown: tuple[int, int] = (-1, pool.pages)
        """The operation in which the pool grew last, and how many pages it had before."""

    def grow(self, pages: int, operation: int) -> None:
        """Add `pages` pages, which hold nothing, in an operation."""
        if self._grown[0] != operation:
            self._grown = operation, self.pages
        self.pages += pages
        self.capacity += pages

    def pages_before(self, operation: int) -> int:
        """Return how many pages the pool had when its latest operation began."""
        return self._grown[1] if self._grown[0] == operation else self.pages

    def changes(self, record: PageRecord) -> None:
        """Let whoever holds a page look at it again, since what it holds is about to change. To
        be said before it does.
        """
        for holder in record.holders if self.verified else ():
            self.parts(record, holder)

    def parts(self, record: PageRecord, holder: str) -> None:
        """Let a holder of a page look at it again, since it is about to hold it no more. To be
        said before it does.
        """
        verified = self.verified.get((holder, record.group))
        if verified is not None and (record.older or record.start < verified.stop):
            del self.verified[holder, record.group]

    def __missing__(self, page: int) -> PageRecord:
        if not 0 <= page < self.pages:
            raise IndexError(f"page {page} of a pool of {self.pages} pages")
        record = self[page] = PageRecord()
        if page not in self.null:
            self.usable[page] = record
        return record

    def find(self, page: int) -> PageRecord | None:
        """Return the record of a page that can hold something; None for a null page or one that
        does not exist.
        """
        record = self.usable.get(page)
        if record is None and 0 <= page < self.pages and page not in self.null:
            record = self[page]
        return record


def records_of(header: Header) -> dict[int, PoolRecords]:
    """Return the records of each pool, none of them made yet."""
    return {pool.id: PoolRecords(pool) for pool in header.pools}
