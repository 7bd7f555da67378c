"""Ownership: every page is free, held or cached, and its holders are exactly those who took it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from cachewitness.core.attention_span import first_needed
from cachewitness.core.checkers.diagnose import keeps_hash
from cachewitness.core.checkers.finding import KEPT_HASH, Finding
from cachewitness.core.checkers.locks import TierLocks
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.victims import waiting_for
from cachewitness.core.checkers.wording import all_named, named, page_list
from cachewitness.core.checkers.wording import count as quantity
from cachewitness.core.events import (
    Aborted,
    Acquire,
    Counts,
    Finished,
    Group,
    Preempted,
    Release,
    StepEnd,
    Submitted,
    Write,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import PageRecord, PoolRecords, Span
from cachewitness.core.ledger.requests import RequestRecord

SUSPECTS_LINE = 4
"""Fewer pages than this that may be counted wrong are named in the line as well."""
_TOTALS = " be as the tables say"
"""What sentences about the totals of a pool have in common."""
_UNCHANGED = ", and has not changed that since"
"""What sentences about one page that is counted as before have in common."""
_NOT_COUNTED = "not counted"
"""The cause of a wrong reference count in an operation in which the engine counts nothing: that is
no finding. A count may still come while the operation lasts, so the doubt stays until its end."""


class Ownership(Checker):
    """Leaks, double frees, aliased writes, and counts that do not add up."""

    name = "ownership"
    summary = (
        "reference counts equal holders; free + held + cached = total; nobody overwrites what"
        " another holder needs"
    )
    anomalies = ("leak", "double-free", "aliased-write", "reference-count")

    def __init__(self) -> None:
        super().__init__()
        self._ended: dict[str, int] = {}
        self._last_counts: dict[int, Counts] = {}
        """By pool: what the engine counted last; it stands until it counts again."""
        self._moved: set[int] = set()
        """Pools of which pages were taken or given back in the operation at hand."""
        self._references: dict[tuple[int, int], tuple[int, int]] = {}
        """By pool and page: how often the engine counted it to be held last, and in which step."""
        self._counted: Counter[int] = Counter()
        """By pool: how often the engine counted it."""
        self._holding: list[Acquire | Release] = []
        """Who took pages and gave them back in the latest step."""
        self._given_back: dict[int, Release] = {}
        """By pool: who gave pages back last."""
        self._changes: defaultdict[tuple[int, int], int] = defaultdict(int)
        """By pool and page whose count is known: how often its holders changed."""
        self._locks = TierLocks()

    def handlers(self) -> dict[type, Handler]:
        return {
            Acquire: self.on_acquire,
            Release: self.on_release,
            Write: self.on_write,
            Counts: self.on_counts,
            Finished: self.on_end,
            Aborted: self.on_end,
            Preempted: self.on_end,
            Submitted: self.on_submitted,
            StepEnd: self.on_step_end,
        }

    def on_acquire(self, ledger: Ledger, event: Acquire) -> Found:
        """Refuse a null block, and a free page that a copy still fills, as anybody's own; who
        takes pages is not at an end.
        """
        self._ended.pop(event.holder, None)
        self._note(event)
        self._locks.taken(ledger.header, event)
        self._expect_references(event)
        if event.pool in self._last_counts and event.pool not in self._moved:
            self._expect_counts(event)
        records = ledger.records[event.pool]
        filling = _filling(ledger)
        if filling and not event.holder.startswith("copy:"):
            filled = [page for page in event.pages if (event.pool, page) in filling]
            nobodys = [
                page for page in filled if not records[page].holders and not records[page].keys
            ]
            if nobodys:
                return (_still_filled(event, nobodys[0]),)
        if records.null.isdisjoint(event.pages):
            return None
        null = next(page for page in event.pages if page in records.null)
        sentence = (
            f"Let page {null} be the null block of pool {event.pool}, which all tables share;"
            f" however {event.holder} took it as its own: a contradiction."
        )
        line = f"{named(event.holder)} was given page {null}, the null block"
        return (Finding(anomaly="aliased-write", r=event.holder, sentence=sentence, line=line),)

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Refuse what the holder does not hold, or not so often."""
        self._note(event)
        self._locks.dropped(event)
        self._given_back[event.pool] = event
        self._expect_references(event)
        if event.pool in self._last_counts and event.pool not in self._moved:
            self._expect_counts(event)
        records = ledger.records[event.pool]
        holder = event.holder
        pages = event.pages
        counted = Counter(pages) if len(set(pages)) < len(pages) else dict.fromkeys(pages, 1)
        for page, times in counted.items():
            if times > records[page].holders.get(holder, 0):
                sentence = (
                    f"Let {holder} give page {page} back in step {event.step}; however by its"
                    " tables it does not hold it any more: a contradiction."
                )
                line = f"{named(holder)} released page {page} more often than it acquired it"
                return (Finding(anomaly="double-free", r=holder, sentence=sentence, line=line),)
        return None

    def _note(self, event: Acquire | Release) -> None:
        if self._holding and self._holding[-1].step != event.step:
            self._holding.clear()
        self._holding.append(event)

    def on_write(self, ledger: Ledger, event: Write) -> Found:
        """Content that another holder still needs stays as it is."""
        records = ledger.records[event.pool]
        r = event.r
        for index, page in enumerate(event.pages):
            if page < 0 or page in records.null:
                return (_null_write(event, page),)
            record = records[page]
            times = record.holders.get(r, 0)
            # Nearly every write: nothing below can be wrong of a page that r alone holds once.
            if times == 1 and len(record.holders) == 1:
                continue
            others_hold = len(record.holders) > (times > 0)
            self.opportunities += others_hold or times > 1
            if (event.pool, page) in ledger.contents.filling:
                return (_filled_meanwhile(event, page, record),)
            # A step that its request does not outlive still writes into pages given back meanwhile.
            if not times and (event.step, r) not in ledger.requests.ended_in_flight:
                return (_unheld_write(event, page, record),)
            doubled = times > 1 and _stands_twice(ledger, event, page)
            harmed = r if doubled else _harmed(ledger, page, record, event, index)
            if harmed:
                return (_aliased(ledger, event, page, record, harmed),)
        return None

    def on_counts(self, ledger: Ledger, event: Counts) -> Found:
        """Compare the engine's counts with the holders in the ledger: as they are now, or when
        the operation is over.
        """
        self.opportunities += 1
        self._last_counts[event.pool] = event
        self._counted[event.pool] += 1
        for page, count in event.refs:
            self._references[event.pool, page] = (count, event.step)
        # An engine may count before it reports what it took, so a difference is judged again when
        # all of the operation was reported.
        if _miscounts(ledger, event):
            self.deferred.append(lambda ledger: self._name_pages(ledger, event))
        return None

    def _name_pages(self, ledger: Ledger, event: Counts) -> Finding | None:
        """Find a wrong count; if totals alone tell it, name the pages that may be the one, and who
        gave pages of the pool back last.
        """
        found = _miscounts(ledger, event)
        if found is None or _TOTALS not in found.sentence:
            return found
        suspects, change = _suspects(ledger, event, self._holding)
        last = self._given_back.get(event.pool)
        clauses = []
        if change is not None:
            found.seq = change.seq
        if suspects:
            each = map(_suspected(ledger, event, change), suspects)
            clauses.append(f"it may be {' or '.join(each)}")
            found.line += f" ({page_list(suspects)}?)" if len(suspects) < SUSPECTS_LINE else ""
        if last is not None:
            clauses.append(
                f"{last.holder} was the last to give pages of the pool back, in step {last.step}"
                f" ({page_list(last.pages)})"
            )
        if clauses:
            found.sentence = found.sentence.replace(
                ": a contradiction.", f" ({'; '.join(clauses)}): a contradiction."
            )
        return found

    def _expect_references(self, event: Acquire | Release) -> None:
        """Expect that pages whose holders change, and whose counts are known, are counted anew when
        the operation is over, if the engine counts the pool in it at all.
        """
        pool = event.pool
        known = [page for page in event.pages if (pool, page) in self._references]
        if not known:
            return
        if event.holder.startswith("copy:"):
            # A copy ends when its step has run; the engine lets go of its pages when it hears of
            # that, operations later. What it counts until then is nobody's mistake.
            # One step may read a page for two copies, which end together.
            for page in set(known):
                del self._references[pool, page]
                self._changes[pool, page] += 1
            return
        self.opportunities += 1
        before = self._counted[pool]
        for page in known:
            self._changes[pool, page] += 1
        changes = [self._changes[pool, page] for page in known]

        def judge(ledger: Ledger) -> Finding | None:
            counted = self._counted[pool] > before
            for page, change in zip(known, changes, strict=True):
                if self._changes[pool, page] > change:
                    continue  # whoever took it or gave it back since answers for its count
                count, step = self._references[pool, page]
                record = ledger.records[pool].get(page)
                holders = record.holders if record is not None else {}
                if count != sum(holders.values()):
                    found = _not_counted(page, count, step, holders, event)
                    found.cause = "" if counted else _NOT_COUNTED
                    return found
            return None

        self.deferred.append(judge)

    def _expect_counts(self, event: Acquire | Release) -> None:
        """Expect that what was counted some steps ago is still so, or counted anew, when the
        operation is over.
        """
        pool = event.pool
        self._moved.add(pool)

        def judge(ledger: Ledger) -> Finding | None:
            counts = self._last_counts[pool]
            held = ledger.holdings.held[pool]
            # A count of the step before is not stale yet: engines count once in a step, some of
            # them before they have moved its pages.
            if counts.step + 1 < event.step and counts.held != held:
                return _counts_no_more(counts, held, event)
            self._moved.discard(pool)
            return None

        self.deferred.append(judge)

    def operation_over(self, ledger: Ledger) -> Found:
        """Judge what is in doubt; who counts no more is found once.

        A page that is counted wrong says more than the totals of its pool, which it makes wrong
        too.
        """
        by_sentence = {one.sentence: one for one in super().operation_over(ledger) or ()}
        found = [one for one in by_sentence.values() if one.cause != _NOT_COUNTED]
        if any(_UNCHANGED in one.sentence for one in found):
            found = [one for one in found if _TOTALS not in one.sentence]
        for pool in self._moved:
            del self._last_counts[pool]
        self._moved.clear()
        return found

    def on_end(self, ledger: Ledger, event: Finished | Aborted | Preempted) -> Found:
        """Remember who has to give everything back, and the last step in flight: until it ends
        an engine may wait with that.
        """
        # A device that runs behind may still write into its pages: until the last step in flight
        # ends it is right to keep them.
        self._ended[event.r] = max([event.step, *ledger.open_steps])
        self._locks.over(event)
        return None

    def on_submitted(self, ledger: Ledger, event: Submitted) -> Found:
        """Count who may have pages of other tiers held for it."""
        self._locks.came(event.r)
        return None

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """One step after its end, a request holds nothing any more; some steps behind, nothing
        of another tier is held for it.
        """
        found = self._locks.judge(ledger, ledger.header.rules.progress_steps)
        if not self._ended:
            return found
        due = [r for r, step in self._ended.items() if step < event.step]
        found += [_leak(ledger, r) for r in due if ledger.holdings.pages_of.get(r)]
        for r in due:
            del self._ended[r]
        return found

    def at_rest(self, ledger: Ledger) -> Found:
        """At rest, nobody who ended holds anything."""
        over = [r for r, step in self._ended.items() if step not in ledger.open_steps]
        return [_leak(ledger, r) for r in over if ledger.holdings.pages_of.get(r)]


def _filling(ledger: Ledger) -> Collection[tuple[int, int]]:
    """Return the (pool, page) that copies fill which end behind all steps in flight, those that
    begin with one among them.
    """
    filling = ledger.contents.filling
    steps = ledger.open_steps.values()
    if not any(step.begun for step in steps):
        return filling
    over = {number for step in steps for number in (*step.ended, *step.failed, *step.flushed)}
    begun = {
        (move.dst_pool, move.dst)
        for step in steps
        for number, move in step.begun
        if number not in over
    }
    return filling.keys() | begun


def _miscounts(ledger: Ledger, event: Counts) -> Finding | None:
    """Compare the engine's counts with the holders in the ledger."""
    found = None
    records = ledger.records[event.pool]
    held = ledger.holdings.held[event.pool]
    free = event.free
    cached = event.cached
    if free + event.held + cached != records.capacity or free < 0 or event.held < 0 or cached < 0:
        found = _wrong_sum(event, records.capacity)
    elif (wrong := _first_miscounted(records, event)) is not None:
        found = _miscounted(wrong, dict(event.refs)[wrong], records[wrong].holders, event.step)
    elif event.held != held:
        found = _wrong_held(event, held, len(ledger.holdings.idle[event.pool]))
    if found is not None:
        found.seq = event.seq
    return found


def _suspects(
    ledger: Ledger, event: Counts, holding: list[Acquire | Release]
) -> tuple[list[int], Acquire | Release | None]:
    """Return the pages that an engine's totals may have missed, and the latest change of a step
    that they are of: who took what it counts as free or cached, or gave back what it counts as
    held. Only a page with a key is cached. Where no such page changed hands, those that a waiting
    request begins with were perhaps looked up and given back again.
    """
    records = ledger.records[event.pool]
    fewer = event.held < ledger.holdings.held[event.pool]
    as_cached = fewer and event.cached > len(ledger.holdings.idle[event.pool])
    fitting = [
        page
        for page, record in records.items()
        if bool(record.holders) == fewer and (not as_cached or record.keys)
    ]
    for change in reversed(holding):
        moves = change.pool == event.pool and isinstance(change, Acquire) == fewer
        if moves and (pages := [page for page in change.pages if page in fitting]):
            return pages, change
    looked_up = [page for page in fitting if as_cached and waiting_for(ledger, records[page])]
    return looked_up or (fitting if as_cached else []), None


def _suspected(
    ledger: Ledger, event: Counts, change: Acquire | Release | None
) -> Callable[[int], str]:
    """Return what says of a page why it may be the one."""

    def describe(page: int) -> str:
        record = ledger.records[event.pool][page]
        if change is not None:
            verb = "took" if isinstance(change, Acquire) else "gave back"
            return f"page {page}, which {change.holder} {verb} in step {change.step}"
        waits = waiting_for(ledger, record)
        begins = f" and {waits}, which waits, begins with" if waits else ""
        return f"page {page}, which {', '.join(record.holders)} holds{begins}"

    return describe


def _first_miscounted(records: PoolRecords, event: Counts) -> int | None:
    """Return the first page that the engine counts more or fewer references to than there are;
    None if there is none.
    """
    for page, count in event.refs:
        record = records.get(page)
        if count != (sum(record.holders.values()) if record is not None else 0):
            return page
    return None


def _leak(ledger: Ledger, r: str) -> Finding:
    pages = [
        page
        for records in ledger.records.values()
        for page, record in sorted(records.items())
        if r in record.holders
    ]
    sentence = (
        f"Let {r} have ended. Nobody can use its pages any more; however pages {pages} are still"
        " held by it: a contradiction."
    )
    line = f"{named(r)} ended and still holds {page_list(pages)}"
    return Finding(anomaly="leak", r=r, sentence=sentence, line=line)


def _counted(event: Counts) -> str:
    return f"free {event.free}, held {event.held}, cached {event.cached}"


def _wrong_sum(event: Counts, total: int) -> Finding:
    negative = min(event.free, event.held, event.cached) < 0
    twice = negative or event.free + event.held + event.cached > total
    what = (
        "counts fewer pages than none"
        if negative
        else "counts a page twice"
        if twice
        else "has lost a page"
    )
    sentence = (
        f"Let pool {event.pool} have {total} pages. The engine, which reports {_counted(event)},"
        f" {what}: a contradiction."
    )
    line = f"pool {event.pool} has {quantity(total, 'page')}; the engine counts {_counted(event)}"
    return Finding(anomaly="double-free" if twice else "leak", sentence=sentence, line=line)


def _wrong_held(event: Counts, held: int, cached: int) -> Finding:
    sentence = (
        f"Let pool {event.pool}{_TOTALS}: {held} pages held, {cached} cached. However"
        f" the engine counts {_counted(event)}: a contradiction."
    )
    line = (
        f"pool {event.pool} has {held} held and {cached} cached pages; the engine counts"
        f" {event.held} and {event.cached}"
    )
    return Finding(
        anomaly="leak" if event.held > held else "double-free", sentence=sentence, line=line
    )


def _counts_no_more(counts: Counts, held: int, event: Acquire | Release) -> Finding:
    sentence = (
        f"Let pool {counts.pool}{_TOTALS} after step {event.step}: {held} pages held. The"
        f" engine counted it last in step {counts.step}, as {_counted(counts)}, and what it counts"
        " stands until it counts again: a contradiction."
    )
    line = (
        f"pool {counts.pool} has {held} held pages after step {event.step}; the engine counted"
        f" {counts.held} in step {counts.step}"
    )
    return Finding(
        anomaly="leak" if counts.held > held else "double-free",
        sentence=sentence,
        line=line,
        seq=event.seq,
    )


def _miscounted(page: int, count: int, holders: dict[str, int], step: int) -> Finding:
    names = ", ".join(holders) or "nobody"
    sentence = (
        f"Let page {page} be held by {names} after step {step}, which makes"
        f" {quantity(sum(holders.values()), 'reference')}; however the engine counts"
        f" {quantity(count, 'reference')}: a contradiction."
    )
    line = (
        f"page {page} has {quantity(sum(holders.values()), 'reference')} after step {step}; the"
        f" engine counts {count}"
    )
    return Finding(
        anomaly="leak" if count > sum(holders.values()) else "double-free",
        sentence=sentence,
        line=line,
    )


def _not_counted(
    page: int, count: int, counted: int, holders: dict[str, int], event: Acquire | Release
) -> Finding:
    names = ", ".join(holders) or "nobody"
    anomaly = "leak" if count > sum(holders.values()) else "reference-count"
    sentence = (
        f"Let page {page} be held by {names} after step {event.step}, which makes"
        f" {quantity(sum(holders.values()), 'reference')}; however the engine counted"
        f" {quantity(count, 'reference')} in step {counted}{_UNCHANGED}: a contradiction."
    )
    by = event.holder
    r = by if by in holders else next(iter(holders), by)
    line = (
        f"page {page} has {quantity(sum(holders.values()), 'reference')}, the last change by {by};"
        f" the engine counts {count}"
    )
    return Finding(anomaly=anomaly, r=r, sentence=sentence, line=line, seq=event.seq)


def _null_write(event: Write, page: int) -> Finding:
    where = (
        f"page {page}, the null block that all tables share"
        if page >= 0
        else "a column that its table does not have"
    )
    sentence = (
        f"Let {event.r} compute tokens [{event.start}, {event.stop}) in step {event.step}; however"
        f" group {event.group} was to write them into {where}: a contradiction."
    )
    into = f"page {page}, the null block" if page >= 0 else "no column of its block table"
    line = f"{named(event.r)} wrote tokens [{event.start},{event.stop}) into {into}"
    return Finding(anomaly="aliased-write", r=event.r, sentence=sentence, line=line)


def _still_filled(event: Acquire, page: int) -> Finding:
    sentence = (
        f"Let a copy that has not ended fill page {page} of pool {event.pool}. Nobody has held that"
        f" page since; however {event.holder} was given it in step {event.step}, and the copy"
        f" writes over whatever {event.holder} puts there: a contradiction."
    )
    line = f"{named(event.holder)} was given page {page} while a copy still fills it"
    return Finding(anomaly="aliased-write", r=event.holder, sentence=sentence, line=line)


def _filled_meanwhile(event: Write, page: int, record: PageRecord) -> Finding:
    holders = ", ".join(record.holders) or "nobody"
    sentence = (
        f"Let a copy that has begun and not ended fill page {page} for {holders}; however {event.r}"
        f" wrote into it in step {event.step} (group {event.group}), and nothing says which of the"
        " two comes last: a contradiction."
    )
    line = f"{named(event.r)} wrote into page {page} while a copy fills it"
    return Finding(anomaly="aliased-write", r=event.r, sentence=sentence, line=line)


def _unheld_write(event: Write, page: int, record: PageRecord) -> Finding:
    owner = ", ".join(record.holders) or "nobody"
    sentence = (
        f"Let page {page} be held by {owner}; however {event.r} wrote into it in step {event.step}"
        f" (group {event.group}): a contradiction."
    )
    line = (
        f"{named(event.r)} wrote into page {page} without holding it; {all_named(record.holders)}"
        " holds it"
    )
    return Finding(anomaly="aliased-write", r=event.r, sentence=sentence, line=line)


def _aliased(ledger: Ledger, event: Write, page: int, record: PageRecord, harmed: str) -> Finding:
    if harmed == event.r:
        why = f"stand twice in {event.r}'s tables, each time for tokens of its own"
        other = "its block tables name the page twice"
    else:
        why = f"be held by {', '.join(record.holders)}, and hold what {harmed} still needs"
        other = f"{named(harmed)} still needs what it held"
    sentence = (
        f"Let page {page} {why}; however {event.r} wrote tokens [{event.start}, {event.stop}) over"
        f" it in step {event.step} (group {event.group}): a contradiction."
    )
    line = f"{named(event.r)} wrote tokens [{event.start},{event.stop}) over page {page}; {other}"
    kept = keeps_hash(ledger, record, ledger.requests[harmed])
    return Finding(
        anomaly="aliased-write",
        r=event.r,
        sentence=sentence,
        line=line,
        cause=KEPT_HASH if kept else "",
    )


def _harmed(ledger: Ledger, page: int, record: PageRecord, event: Write, index: int) -> str:
    """Return a holder that still needs what the write into its column `index` destroys in the
    page; empty if nobody does.
    """
    size = ledger.groups[event.group].block_size
    column = event.start // size + index
    lost = ledger.before(event).destroyed(
        record, max(event.start, column * size), min(event.stop, (column + 1) * size)
    )
    # What a copy is about to replace is not read any more, so to overwrite it harms nobody.
    if lost and _filled_later(ledger, page, event):
        return ""
    for holder in record.holders if lost else ():
        request = (
            ledger.requests.get(holder)
            if holder != event.r and record.held_for[holder] == record.group
            else None
        )
        if request is not None and _needed(ledger, page, record, request, lost):
            return holder
    return ""


def _needed(
    ledger: Ledger, page: int, record: PageRecord, request: RequestRecord, lost: list[Span]
) -> bool:
    """Whether the request's next query, at the position up to which it has computed, reads any
    of the lost content.
    """
    upto = request.computed
    # A state is needed only where the request goes on: one taken earlier cannot be resumed from
    # once the request has moved past it.
    if record.state:
        same = upto == record.stop and request.nodes[upto] == record.node
        return same and _in_place(ledger, page, record, request.r, upto)
    first = first_needed(ledger.groups[record.group], upto)
    for span in lost:
        low = max(span.start, first)
        high = min(span.stop, upto)
        same = low < high and ledger.trie.ancestor(span.node, high) == request.nodes[high]
        if same and _in_place(ledger, page, record, request.r, high):
            return True
    return False


def _filled_later(ledger: Ledger, page: int, event: Write) -> bool:
    """Whether a copy fills the page before a later step in flight runs: nobody relies on what
    lies there until then.
    """
    later = [begun for step, begun in ledger.open_steps.items() if step > event.step]
    return any(
        (move.dst_pool, move.dst) == (event.pool, page) for begun in later for move in begun.copies
    )


def _in_place(ledger: Ledger, page: int, record: PageRecord, r: str, stop: int) -> bool:
    """Whether the request's tables, if it runs in a step in flight, have the page where what ends
    at `stop` belongs.

    A run that its own request did not outlive may leave a piece of r's prefix in a page that r took
    for other tokens, or for the states after the drafts of a step that has not run: what lies there
    before that step is nothing to r.
    """
    group = record.group
    steps = [
        begun
        for step, begun in ledger.open_steps.items()
        if (step, r) not in ledger.requests.ended_in_flight
    ]
    runs = [(begun.step, run) for begun in steps for run in begun.runs if run.r == r]
    column = (stop - 1) // ledger.groups[group].block_size
    drafted = any(
        record.used_in < step and page in run.scratch[group] for step, run in runs if run.scratch
    )
    return (
        not runs
        or drafted
        or any(run.tables[group][column : column + 1] == [page] for _, run in runs)
    )


def _stands_twice(ledger: Ledger, event: Write, page: int) -> bool:
    """Whether the writer's tables give one place of the page to two tokens that this step needs, of
    one group or of two.

    In a ring the next column may lie in the same page, over tokens that left the window. A state
    moves on in place.
    """
    begun = ledger.open_steps.get(event.step)
    run = next((run for run in begun.runs if run.r == event.r), None) if begun else None
    elsewhere = False
    for group, table in zip(ledger.groups, run.tables if run else (), strict=False):
        assert run is not None
        places = sorted(_places(group, table, page, run.start, run.stop))
        if places and elsewhere:
            return True
        elsewhere = elsewhere or bool(places)
        if group.kind != "recurrent" and any(one[1] > other[0] for one, other in pairwise(places)):
            return True
    return False


def _places(
    group: Group, table: list[int], page: int, start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yield which places of the page, by column, a run of tokens [start, stop) needs."""
    size = group.block_size
    first = max(start - 1, 0) if group.kind == "recurrent" else first_needed(group, start)
    for column in range(first // size, -(-stop // size)):
        if table[column : column + 1] == [page]:
            yield max(first - column * size, 0), min(stop - column * size, size)
