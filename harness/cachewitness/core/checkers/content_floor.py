"""The second reuse floor: what still lies in a page can be hit, whatever became of its key.

The first floor (`reuse`) is computed from the engine's own keys, so an engine that publishes none,
or forgets at once, owes nothing by it. This one is computed from content: a page that was let go
holds what it held until somebody is given it or writes it. What lies there so, and could have been
hit, was dropped without need.

Two kinds of content count, and both only where full blocks are concerned. What a request that
finished had computed of its prompt, in whole blocks that leave a token to compute: any cache keeps
that, though another page may have the key as long as that one lives (`Unkeyed`: or lived). And what
had a key that ended although a page was free: of pools that declare how keys end, checker
`eviction` judges that instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cachewitness.core.attention_span import first_needed
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.key_floor import whole_block
from cachewitness.core.checkers.lookup import Lookup, has_usable_key, thinned_out
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.room import goes_with_its_step, spare_pages
from cachewitness.core.checkers.wording import count, named, page_list
from cachewitness.core.events import (
    Acquire,
    Counts,
    Finished,
    Group,
    Header,
    Hit,
    Release,
    ResetDone,
    StepBegin,
    Unpublish,
    Version,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING, Key, PageRecord
from cachewitness.core.ledger.requests import RequestRecord


@dataclass(slots=True, eq=False)
class Lying:
    """What lies in a page that was let go: the end of the prefix `node`, of a group. `taker` was
    given the page since.

    `operation` is the one in which it was let go and, once there is a taker, that in which the page
    was given away. Of what is `beside` another page had the key by then.
    """

    group: int
    node: int
    length: int
    pool: int
    page: int
    r: str
    operation: int
    keyed: bool = False
    taker: str = ""
    beside: bool = False


class ContentFloor(Checker):
    """A request resumes no earlier than what lies in pages that nobody was given since allows."""

    name = "content-floor"
    summary = (
        "a request resumes no earlier than allowed by what finished requests computed of their"
        " prompts, and by what lost its key without need, as long as it lies in pages that nobody"
        " was given since"
    )
    anomalies = ("forgotten-prefix",)

    def __init__(self) -> None:
        super().__init__()
        self._lying: dict[tuple[int, int], Lying] = {}
        """By group and prefix."""
        self._in_page: dict[tuple[int, int], list[Lying]] = {}
        """The same by pool and page."""
        self._taken: list[Lying] = []
        """What lay in pages that were given to somebody in the operation at hand."""
        self._let_go: list[Lying] = []
        """What requests let go in the operation at hand that have not been reported to be finished.
        """
        self._ended: list[tuple[Key, PageRecord]] = []
        """Keys that ended in the operation at hand, for want of room as it seems."""
        self._stripped: dict[tuple[int, int], int] = {}
        """By group and prefix: the page whose key ended although somebody held it, unless that of
        another page did later."""
        self._free: dict[int, int] = {}
        """By pool: how many pages the engine called free last. What it keeps without a key is not
        free to it."""
        self._given: dict[int, int] = {}
        """By pool that does not declare how keys end: how many pages somebody was given for himself
        since then."""
        self._finished: set[str] = set()
        self._older: set[str] = set()
        """Requests that were live when the cache was reset or got new weights: what they computed
        before is forgotten."""

    def not_applicable(self, header: Header) -> str:
        return super().not_applicable(header) or (
            "" if header.rules.caching else "prefix caching is off"
        )

    def handlers(self) -> dict[type, Handler]:
        return {
            Hit: self.on_hit,
            Release: self.on_release,
            Acquire: self.on_acquire,
            Finished: self.on_finish,
            Unpublish: self.on_unpublish,
            Counts: self.on_counts,
            StepBegin: self.on_counts,
            ResetDone: self.on_reset,
            Version: self.on_version,
        }

    # --- what is let go ---------------------------------------------------------------------------

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Note what pages without a key hold when their last holder lets go of them."""
        request = ledger.requests.get(event.holder)
        if request is None or event.holder in self._older or thinned_out(ledger, event.group):
            return None
        group = ledger.groups[event.group]
        records = ledger.records[event.pool].usable
        for page in event.pages:
            record = records.get(page)
            # With a key it is the first floor's to judge; with another holder it is not let go.
            if record is None or record.keys or record.holders != {event.holder: 1}:
                continue
            if not _whole_block_of_prompt(record, group, request):
                continue
            beside = has_usable_key(ledger, event.group, record.node, device_alone=True)
            excused = (
                ledger.header.rules.unkeyed.duplicates
                if beside
                else self._lost_its_key(ledger, event.group, page, record)
            )
            self._stripped.pop((event.group, record.node), None)
            if excused:
                continue
            operation = ledger.holdings.operation
            lying = Lying(
                event.group, record.node, record.stop, event.pool, page, event.holder, operation
            )
            lying.beside = beside
            # Whether a request finished or was aborted may be reported behind its releases, and
            # only what a finished one computed is owed.
            if event.holder in self._finished:
                self._keep(lying)
            else:
                self._let_go.append(lying)
        return None

    def _lost_its_key(self, ledger: Ledger, group: int, page: int, record: PageRecord) -> bool:
        """Whether what a page holds was keyed elsewhere since it was written, and the key ended.

        That the key was taken from the page itself while somebody held it is no excuse.
        """
        ended = ledger.keys.ended[group].get(record.node)
        return (
            ended is not None
            and ended.step >= record.step
            and self._stripped.get((group, record.node)) != page
        )

    def on_finish(self, ledger: Ledger, event: Finished) -> Found:
        """Keep what the request let go in this operation, before it was reported to be finished."""
        self._finished.add(event.r)
        for lying in self._let_go:
            if lying.r == event.r and lying.operation == ledger.holdings.operation:
                self._keep(lying)
        self._let_go.clear()
        return None

    def on_unpublish(self, ledger: Ledger, event: Unpublish) -> Found:
        """Note keys that end for want of room; what had a key that ended is owed no more, unless
        there was room.
        """
        record = ledger.record(event.group, event.page)
        pool = ledger.groups[event.group].pool
        for key in record.keys if record is not None else ():
            if (
                key.group != event.group
                or key.page != event.page
                or event.length not in (0, key.length)
            ):
                continue
            # First, whatever ended it: a reset or new weights make the engine owe nothing. But
            # what lies beside a page that had to make room can be hit now.
            lying = self._lying.get((key.group, key.node))
            if lying is None or not lying.beside or not _for_room(event, record):
                self._forget((key.group, key.node))
            # A pending key names content that is not written, so nothing is lost with it.
            wanted = key.state == "committed" and _for_room(event, record)
            self._note_stripped(
                key,
                held=wanted
                and event.reason != "retention"
                and record is not None
                and bool(record.holders),
            )
            declared = ledger.pools[pool].eviction is not None
            # Of a pool that declares how keys end, `eviction` judges this; two findings of one
            # fault would be counted twice.
            if (
                wanted
                and not declared
                and record is not None
                and not record.holders
                and not thinned_out(ledger, key.group)
            ):
                self._ended.append((key, record))
        return None

    def _note_stripped(self, key: Key, *, held: bool) -> None:
        if held:
            self._stripped[key.group, key.node] = key.page
        else:
            self._stripped.pop((key.group, key.node), None)

    def on_counts(self, ledger: Ledger, event: Counts | StepBegin) -> Found:
        """Keep what lost its key in the operation that is over while a page was free all the
        while.
        """
        ended, self._ended = self._ended, []
        self._let_go.clear()
        for key, record in ended:
            pool = ledger.groups[key.group].pool
            untouched = not record.holders and not record.keys and record.node == NOTHING
            # An engine may keep pages without a key out of use, so a page is free only if the
            # ledger and the engine's own count agree.
            spare = self._unclaimed(pool) and spare_pages(ledger, pool)
            keyed = has_usable_key(ledger, key.group, key.node, device_alone=True)
            if untouched and not keyed and spare:
                operation = ledger.holdings.operation
                self._keep(
                    Lying(
                        key.group,
                        key.node,
                        key.length,
                        pool,
                        key.page,
                        key.r,
                        operation,
                        keyed=True,
                    )
                )
        if isinstance(event, Counts):
            self._free[event.pool] = event.free
            self._given[event.pool] = 0
        return None

    def _unclaimed(self, pool: int) -> bool:
        """Whether some page that the engine called free was given to nobody since; so too if it
        never counts.
        """
        return pool not in self._free or self._free[pool] > self._given.get(pool, 0)

    # --- what is lost -----------------------------------------------------------------------------

    def on_acquire(self, ledger: Ledger, event: Acquire) -> Found:
        """Who is given a page may write over what lies there."""
        if ledger.pools[event.pool].eviction is None:
            records = ledger.records[event.pool]
            self._given[event.pool] = self._given.get(event.pool, 0) + sum(
                not records[page].holders for page in event.pages
            )
        if not self._in_page:
            return None
        operation = ledger.holdings.operation
        for page in event.pages:
            for lying in self._in_page.pop((event.pool, page), ()):
                self._lying.pop((lying.group, lying.node), None)
                lying.taker = event.holder
                lying.operation = operation
                self._taken.append(lying)
        return None

    def on_reset(self, ledger: Ledger, event: ResetDone) -> Found:
        """Forget what a tier was asked to forget."""
        if event.ok:
            pools = {pool.id for pool in ledger.header.pools if pool.tier == event.tier}
            self._start_anew(
                ledger, [lying for lying in self._lying.values() if lying.pool in pools]
            )
        return None

    def on_version(self, ledger: Ledger, event: Version) -> Found:
        """Forget everything: keys of every tier end with new weights."""
        self._start_anew(ledger, list(self._lying.values()))
        return None

    def _start_anew(self, ledger: Ledger, gone: Iterable[Lying]) -> None:
        for lying in gone:
            self._forget((lying.group, lying.node))
        self._taken.clear()
        self._let_go.clear()
        self._older = set(ledger.requests.live)

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Owe nothing at prefixes that stand for others now; forget requests that are over."""
        for place in [place for place in self._lying if place[1] in gone]:
            self._forget(place)
        self._stripped = {
            place: page for place, page in self._stripped.items() if place[1] not in gone
        }
        self._taken.clear()
        self._finished &= ledger.requests.keys()
        self._older &= ledger.requests.keys()

    def _keep(self, lying: Lying) -> None:
        self._forget((lying.group, lying.node))
        self._lying[lying.group, lying.node] = lying
        self._in_page.setdefault((lying.pool, lying.page), []).append(lying)

    def _forget(self, place: tuple[int, int]) -> None:
        lying = self._lying.pop(place, None)
        if lying is not None:
            self._in_page[lying.pool, lying.page].remove(lying)
            if not self._in_page[lying.pool, lying.page]:
                del self._in_page[lying.pool, lying.page]

    # --- look-ups ---------------------------------------------------------------------------------

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Compare where the request resumes with the longest prefix that lies somewhere or has
        keys.
        """
        there = self._left_by(ledger, event.r) if self._lying or self._taken else {}
        if not any(_untouched(ledger, lying) for lying in there.values()):
            self.opportunities += event.resume > 0
            return None
        lookup = ContentLookup(ledger, ledger.requests[event.r], there)
        floor = lookup.longest_common()
        self.opportunities += floor > 0
        needed = [
            lying
            for lying in lookup.found.values()
            if lying.length <= floor + ledger.header.rules.eagle_drop_tokens
        ]
        if event.resume >= floor or not needed:
            return None
        finding = _forgotten(ledger, event, floor, needed)
        # The engine may have given a page to somebody else in this very operation, and report that
        # after the look-up.
        self.deferred.append(
            lambda _: finding if all(lying.taker in ("", event.r) for lying in needed) else None
        )
        return None

    def _left_by(self, ledger: Ledger, r: str) -> dict[tuple[int, int], Lying]:
        """Return what was left lying, or was given to the request itself in this operation, as
        its look-up may come later.
        """
        operation = ledger.holdings.operation
        self._taken = [lying for lying in self._taken if lying.operation == operation]
        there = {(lying.group, lying.node): lying for lying in self._taken if lying.taker == r}
        there.update(self._lying)
        return there


class ContentLookup(Lookup):
    """A look-up for which what lies somewhere is as good as what has a key; `found` is what it
    came upon so.
    """

    def __init__(
        self, ledger: Ledger, request: RequestRecord, there: dict[tuple[int, int], Lying]
    ) -> None:
        self._ledger = ledger
        self._there = there
        self.found = dict[tuple[int, int], Lying]()
        super().__init__(
            ledger, request, last_block=True, device_alone=ledger.header.rules.tier is not None
        )

    def _has_usable_key(self, group: Group, node: int) -> bool:
        if super()._has_usable_key(group, node):
            return True
        lying = self._there.get((group.id, node))
        if lying is None or not _untouched(self._ledger, lying):
            return False
        self.found[group.id, node] = lying
        return True


def _untouched(ledger: Ledger, lying: Lying) -> bool:
    """Whether nobody has written the page since it was left lying."""
    return ledger.records[lying.pool][lying.page].node == NOTHING


def _for_room(event: Unpublish, record: PageRecord | None) -> bool:
    """Whether a key ended for the sake of others, as it seems: not with a reset, new weights, or
    a step that does not run.
    """
    ended = event.reason in ("evict", "replace", "retention", "withdraw")
    return ended and record is not None and not goes_with_its_step(event, record)


def _whole_block_of_prompt(record: PageRecord, group: Group, request: RequestRecord) -> bool:
    """Whether a page holds a whole block of attention of a request's prompt, behind which a
    token is left to compute.
    """
    stop = record.stop
    return (
        stop < request.prompt_tokens
        and first_needed(group, stop) < stop  # a window of one token reads nothing cached
        and whole_block(record, group, request)
    )


def _forgotten(ledger: Ledger, event: Hit, floor: int, needed: list[Lying]) -> Finding:
    first = needed[0]
    many = len(ledger.groups) > 1
    pages = ", ".join(
        str(page) for page in sorted({lying.page for lying in needed if lying.pool == first.pool})
    )
    was = (
        "lost its key, which ended although a page was free"
        if first.keyed
        else f"was computed by {first.r}, which finished"
        f"{', beside a page whose key has ended' * first.beside}"
    )
    where = f"page{'s' if ',' in pages else ''} {pages}{f' of pool {first.pool}' if many else ''}"
    sentence = (
        f"Let {event.r} be admitted in step {event.step}. What it needs to resume at {floor} {was},"
        f" and lies in {where} still: nobody was given that since. However it resumes at"
        f" {event.resume} and computes {count(floor - event.resume, 'token')} again: a"
        " contradiction."
    )
    lying = {lying.page for lying in needed if lying.pool == first.pool}
    line = (
        f"{named(event.r)} resumed at {event.resume}; {page_list(lying)} still"
        f" hold{'s' if len(lying) == 1 else ''} what it needs to resume at {floor}"
    )
    return Finding(
        anomaly="forgotten-prefix", r=event.r, sentence=sentence, line=line, seq=event.seq
    )
