"""Eviction: a key ends for want of room only if there is none, and who goes first is as the engine
declares.

What an engine declares of each pool is `Pool.eviction`. What it did is judged when the operation is
over, because the events of one operation have an order of their own: the keys that ended come
first, the pages that were taken for them later.
"""

from __future__ import annotations

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.room import Shortage, any_free, goes_with_its_step, spare_pages
from cachewitness.core.checkers.victims import Ended, last_use, spared_instead, waiting_for
from cachewitness.core.checkers.wording import named
from cachewitness.core.events import (
    Acquire,
    Copy,
    Counts,
    Eviction,
    Header,
    Pool,
    Preempted,
    StepBegin,
    Unpublish,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import Key, PageRecord


class EvictionOrder(Checker):
    """No key ends while a page without a key is free, and then that of the declared victim."""

    name = "eviction"
    summary = (
        "a key ends for want of room only while no page without a key is free, and the victim is a"
        " page that nobody holds and that the declared order puts first"
    )
    anomalies = ("needless-eviction", "wrong-victim")

    def __init__(self) -> None:
        super().__init__()
        self._ended: list[Ended] = []
        self._failed: set[tuple[int, int]] = set()
        """(pool, page) from which a copy failed in the step at hand: an engine need not ask there
        again."""
        self._shortage: Shortage | None = None
        """None where no pool says what is asked beyond what is taken (`asks`)."""

    def not_applicable(self, header: Header) -> str:
        if reason := super().not_applicable(header):
            return reason
        if not header.rules.caching:
            return "prefix caching is off"
        declared = [pool.eviction for pool in header.pools if pool.eviction is not None]
        self._shortage = Shortage() if any(one.asks for one in declared) else None
        if declared:
            return ""
        return "the engine does not declare how keys end for want of room (`eviction` of a pool)"

    def handlers(self) -> dict[type, Handler]:
        shortage = self._shortage
        handlers: dict[type, Handler] = {
            Unpublish: self.on_unpublish,
            Copy: self.on_copy,
            Counts: self.on_counts,
            StepBegin: self.on_step_begin,
        }
        if shortage:
            handlers |= {Acquire: shortage.take, Preempted: shortage.preempt}
        return handlers

    def on_unpublish(self, ledger: Ledger, event: Unpublish) -> Found:
        """Note keys that end for the sake of others, and how their pages stand before that."""
        if self._shortage:
            self._shortage.begins(ledger)
        if event.reason in ("evict", "replace", "withdraw") or (
            event.reason == "retention" and not _pruned(ledger, event)
        ):
            # The record is read now: when the operation is over it says who got the page, not who
            # had it.
            record = ledger.record(event.group, event.page)
            for key in record.keys if record is not None else ():
                assert record is not None
                if _ends(event, key, record):
                    self._ended.append(
                        Ended.of(key, ledger.groups[event.group].pool, record, event.step)
                    )
        return None

    def on_copy(self, ledger: Ledger, event: Copy) -> Found:
        """Note from where a copy failed."""
        if event.phase == "fail":
            self._failed.update((move.src_pool, move.src) for move in event.moves)
        return None

    def on_counts(self, ledger: Ledger, event: Counts) -> Found:
        """Judge the operation that is over; if it kept pages for their keys, that was an
        opportunity.
        """
        if event.cached:
            self.opportunities += 1
        return self._judge_operation(ledger) if self._ended else None

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Judge the operation that is over; of copies that failed nothing is to be excused any
        more.
        """
        self._failed.clear()
        if self._shortage:
            self._shortage.run(ledger, len(event.runs))
        return self._judge_operation(ledger) if self._ended else None

    def at_rest(self, ledger: Ledger) -> Found:
        """Judge the last operation."""
        # The run may go on after this, and the next event judges the same keys: they stay noted.
        ended = self._ended
        found = self._judge_operation(ledger)
        self._ended = ended
        return found

    def _judge_operation(self, ledger: Ledger) -> list[Finding]:
        ended, self._ended = [one for one in self._ended if not self._excused(ledger, one)], []
        found = []
        behind: set[int] | None = None
        for pool in ledger.header.pools:
            gone = [one for one in ended if one.pool == pool.id]
            if not gone or pool.eviction is None:
                continue
            if pool.eviction.together:
                # Only the key that was chosen is this pool's decision. One whose prefix ended in
                # another pool too, or continues a prefix that ended, went along with it.
                elsewhere = {one.key.node for one in ended if one.pool != pool.id}
                behind = (
                    _behind_others(ledger, {one.key.node for one in ended})
                    if behind is None
                    else behind
                )
                gone = [
                    one
                    for one in gone
                    if one.key.node not in elsewhere and one.key.node not in behind
                ]
            if gone and (finding := self._judge(ledger, pool, pool.eviction, gone)):
                found.append(finding)
        return found

    def _excused(self, ledger: Ledger, one: Ended) -> bool:
        """Whether the page cannot be read, or has a key that goes on from the one that ended: it
        was added to, or rekeyed.
        """
        ended = one.key
        ancestor = ledger.trie.ancestor
        # A page that a copy failed to read may hold anything: its key may end, room or no room.
        if self._failed and (one.pool, ended.page) in self._failed:
            return True
        return bool(one.record.keys) and any(
            ancestor(key.node, ended.length) == ended.node
            for key in one.record.keys
            if key.node >= 0
        )

    def _judge(
        self, ledger: Ledger, pool: Pool, eviction: Eviction, ended: list[Ended]
    ) -> Finding | None:
        self.opportunities += 1
        # First, because nothing that an engine declares excuses a victim that is in use.
        for one in ended:
            if come := _given_to_others(one):
                return _victim_is_held(one, come)
        lost = self._without_expired(ledger, eviction, ended)
        # The order binds only what nobody held when the operation began: another page was no
        # candidate, however long ago it was used.
        idle = [one for one in lost if not one.holders]
        # A page that was held all the while gave nobody room, so its key did not end for room.
        lost = [one for one in lost if not one.holders or not one.record.holders]
        # Before the order: while a page is free there is to be no victim, whoever goes first.
        room = lost and any_free(ledger, pool.id)
        if room and (finding := self._needless_eviction(ledger, pool, eviction, lost)):
            return finding
        if eviction.order == "random" and idle and ledger.holdings.idle[pool.id]:
            self.excused["order random"] += len(idle)
        pair = spared_instead(ledger, pool.id, eviction, idle)
        return None if pair is None else _wrong(ledger, eviction, *pair)

    def _without_expired(
        self, ledger: Ledger, eviction: Eviction, ended: list[Ended]
    ) -> list[Ended]:
        """Return the keys that are lost, without those that the declared time to live ended."""
        # A prefix that another page still has can be hit as before: its key moved, nothing is lost.
        lost = [one for one in ended if one.key.node not in ledger.keys.published[one.key.group]]
        expired = [one for one in lost if _expired(one, eviction)]
        if not expired:
            return lost
        self.excused[f"ttl {eviction.ttl}"] += len(expired)
        return [one for one in lost if one not in expired]

    def _needless_eviction(
        self, ledger: Ledger, pool: Pool, eviction: Eviction, lost: list[Ended]
    ) -> Finding | None:
        """Judge keys that ended while a page of the pool was free when the operation was over."""
        # `spare` was free all the while. A page that became free within the operation proves
        # nothing: the key may have ended before it did.
        spare = spare_pages(ledger, pool.id)
        capacity = ledger.records[pool.id].capacity
        used = capacity - len(spare)
        if spare and eviction.free_first and used < eviction.watermark * capacity:
            return _needless(ledger, eviction, lost[0], spare[0], used)
        asks = self._shortage if eviction.asks else None
        if spare and asks and not asks.short(ledger):
            return _nobody_short(ledger, lost[0], spare[0])
        if spare:
            self.excused[
                f"watermark {eviction.watermark}" if eviction.free_first else "free_first false"
            ] += len(lost)
        # Below a watermark, or with the keys of another pool, a key may end before anybody asks for
        # its page.
        unused = [one for one in lost if _nobody_got(ledger, one)]
        if unused and eviction.watermark == 1 and not eviction.together:
            return _for_nobody(ledger, unused[0])
        one_queue = not eviction.free_first and eviction.order == "lru"
        if spare and one_queue and eviction.watermark == 1:
            never = [page for page in spare if _never_taken(ledger, pool, page)]
            idle = [one for one in lost if not one.holders]
            if never and idle:
                return _before_never_taken(ledger, idle[0], never[0])
        return None


def _never_taken(ledger: Ledger, pool: Pool, page: int) -> bool:
    """Whether nobody has had a page since the pool began, so that in one queue of all pages it
    stands before every page that was given back. Where a pool grows, new pages may come last.
    """
    record = ledger.records[pool.id].get(page)
    return not pool.grows and (record is None or record.taken == record.released == -1)


def _behind_others(ledger: Ledger, nodes: set[int]) -> set[int]:
    """Return those of the prefixes that continue another of them."""
    parent = ledger.trie.parent
    behind = set()
    for node in nodes:
        shorter = parent[node]
        while shorter >= 0 and shorter not in nodes:
            shorter = parent[shorter]
        if shorter >= 0:
            behind.add(node)
    return behind


def _expired(one: Ended, eviction: Eviction) -> bool:
    """Whether a key ended because nobody had used its page for as long as the pool declares that
    it lives.
    """
    return eviction.ttl > 0 and one.unused >= eviction.ttl and not one.holders


def _ends(event: Unpublish, key: Key, record: PageRecord) -> bool:
    """Whether the event ends the key, which could be hit and did not go with a step that does
    not run.
    """
    return key.ended_by(event) and key.usable and not goes_with_its_step(event, record)


def _pruned(ledger: Ledger, event: Unpublish) -> bool:
    """Whether retention, as the engine declares it, governs the key's group."""
    retention = ledger.header.rules.retention
    return retention.interval is not None and event.group in retention.groups


def _given_to_others(one: Ended) -> str:
    """Return a request that was given a page whose holder before still holds it, and no key says
    that they share it.
    """
    if one.record.keys or one.holders.isdisjoint(one.record.holders):
        return ""
    return next((r for r in one.record.holders if r not in one.holders and ":" not in r), "")


def _nobody_got(ledger: Ledger, one: Ended) -> bool:
    """Whether nobody holds any of the pages that the key named, and nothing else is kept there."""
    records = [ledger.records[one.pool][page] for page in (one.key.page, *one.key.extra_pages)]
    return not any(record.holders or record.keys for record in records)


def _prefix(ledger: Ledger, one: Ended) -> str:
    of = (
        f"the first {one.key.length} tokens of {one.key.r}"
        if one.key.length > 1
        else f"the first token of {one.key.r}"
    )
    return f"{of} in group {one.key.group}" if len(ledger.groups) > 1 else of


def _needless(ledger: Ledger, eviction: Eviction, one: Ended, spare: int, used: int) -> Finding:
    capacity = ledger.records[one.pool].capacity
    ahead = (
        f"; keys end ahead of need from {eviction.watermark:.0%} on, and {used} of {capacity} were"
        " in use at most"
    )
    sentence = (
        f"Let page {spare} of pool {one.pool} be free all the while: nobody holds it and no key"
        f" names it{ahead if eviction.watermark < 1 else ''}. However page {one.key.page} lost its"
        f" key, of {_prefix(ledger, one)}: a contradiction."
    )
    line = f"page {one.key.page} lost its key while page {spare} was free"
    return Finding(anomaly="needless-eviction", r=one.key.r, sentence=sentence, line=line)


def _nobody_short(ledger: Ledger, one: Ended, spare: int) -> Finding:
    sentence = (
        f"Let page {spare} of pool {one.pool} be free all the while, and of every pool more pages"
        " have been free when the operation began than it asked for. However page"
        f" {one.key.page} lost its key, of {_prefix(ledger, one)}: a contradiction."
    )
    line = f"page {one.key.page} lost its key while no pool was short of pages"
    return Finding(anomaly="needless-eviction", r=one.key.r, sentence=sentence, line=line)


def _before_never_taken(ledger: Ledger, one: Ended, never: int) -> Finding:
    sentence = (
        f"Let pages of pool {one.pool} wait in one queue, in which those go first that were given"
        f" back longest ago (lru, free_first false). Page {never} has waited there since the pool"
        f" began: nobody ever took it. However page {one.key.page} lost its key, of"
        f" {_prefix(ledger, one)}, before that: a contradiction."
    )
    line = f"page {one.key.page} was evicted before page {never}, which no request ever took"
    return Finding(anomaly="wrong-victim", r=one.key.r, sentence=sentence, line=line)


def _for_nobody(ledger: Ledger, one: Ended) -> Finding:
    sentence = (
        f"Let page {one.key.page} of pool {one.pool} be held by nobody when the operation ends."
        f" However it lost its key, of {_prefix(ledger, one)}, and nobody was given the page for"
        " it: a contradiction."
    )
    line = f"page {one.key.page} lost its key and no request was given the page"
    return Finding(anomaly="needless-eviction", r=one.key.r, sentence=sentence, line=line)


def _victim_is_held(one: Ended, r: str) -> Finding:
    holders = sorted(one.holders & one.record.holders.keys())
    sentence = (
        f"Let page {one.key.page} of pool {one.pool} be held by"
        f" {', '.join(holders)}. However its key was ended,"
        f" and the page given to {r}: a contradiction."
    )
    line = f"page {one.key.page} was evicted for {named(r)} while {named(holders[0])} holds it"
    return Finding(anomaly="wrong-victim", r=one.key.r, sentence=sentence, line=line)


def _wrong(ledger: Ledger, eviction: Eviction, one: Ended, other: int, why: str) -> Finding:
    record = ledger.records[one.pool][other]
    use = last_use(record)
    uses = (
        f"page {other} was last {use.description}, page {one.key.page} {one.last_use.description}"
    )
    waiting = waiting_for(ledger, record) if eviction.order == "lru" else ""
    looked_up = (
        f"; {waiting}, which waits, begins with what page {other} keeps, and a look-up that gets no"
        " pages is no use of it"
    ) * bool(waiting)
    sentence = (
        f"Let pages {other} and {one.key.page} of pool {one.pool} be kept for their keys alone,"
        f" evicted in the order {eviction.order}: page {other} {why} ({uses}{looked_up}). However"
        f" page {one.key.page} lost its key, of {_prefix(ledger, one)}, and page {other} kept its"
        " own: a contradiction."
    )
    line = (
        f"page {one.key.page} ({one.last_use.short}) was evicted before page {other}"
        f" ({use.short}), which goes first: {eviction.order}"
    )
    got = next((r for r in one.record.holders if ":" not in r), one.key.r)
    return Finding(anomaly="wrong-victim", r=got, sentence=sentence, line=line)
