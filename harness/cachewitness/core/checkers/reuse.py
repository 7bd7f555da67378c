"""The reuse floor: a request resumes no earlier than the engine's own keys allow; never hitting
is no way to be safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from cachewitness.core.checkers.finding import Finding, Reuse
from cachewitness.core.checkers.lookup import Lookup, how_lost
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.tier_floor import ANY_TIME, NO_TIME, longest_apart
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.events import (
    Aborted,
    Copy,
    Finished,
    Header,
    Hit,
    Preempted,
    Release,
    Run,
    StepBegin,
    Submitted,
)
from cachewitness.core.ledger.ledger import Ledger

LAST_TOKEN = 1
"""Of a prompt that is cached whole the last token is computed all the same, for its logits."""


class ReuseFloor(Checker):
    """A request resumes no earlier than the engine's own keys allow.

    Acceptable: a look-up that wants some block of a window that reads none (vLLM 0.33.0,
    `SlidingWindowManager`, of a window of one token); what the device and a second tier hold only
    together, where the engine declares that it asks them apart.
    """

    name = "reuse-floor"
    summary = (
        "a request resumes no earlier than at the longest prefix that every group holds by the"
        " engine's own keys"
    )
    anomalies = ("lost-hit",)

    def __init__(self) -> None:
        super().__init__()
        self.reuse: Reuse = Reuse()
        self._computed = bytearray()
        """By prefix: whether it was computed at some time, and with it all that it begins with."""
        self._orderly = bytearray()
        """Whether a request computed it which ended as intended."""
        self._aborted = bytearray()
        """Whether none of these computed it, and a request did that was aborted."""
        self._came: dict[str, int] = {}
        """Where a request is looked up in the tier once: in which operation it came, or lost its
        pages."""
        self._dropped: set[str] = set()
        """Who gave pages back since it was looked up last: what was found may be lost before it
        runs."""
        self._failed: set[str] = set()
        """Whose load failed since it was looked up last: it is not looked up in the tier then."""

    def not_applicable(self, header: Header) -> str:
        return super().not_applicable(header) or (
            "" if header.rules.caching else "prefix caching is off"
        )

    def handlers(self) -> dict[type, Handler]:
        return {
            Submitted: self.on_come,
            Hit: self.on_hit,
            StepBegin: self.on_step_begin,
            Copy: self.on_copy,
            Release: self.on_release,
            Preempted: self.on_preempted,
            Aborted: self.on_end,
            Finished: self.on_end,
        }

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Note what had been computed of those who run; who runs first since it was looked up
        begins where it was told.
        """
        found: list[Finding] = []
        for run in event.runs:
            if run.start:
                self._note(ledger, run.r, run.start)
            request = ledger.requests[run.r]
            hit = request.hit if request.ran_steps == 0 else None
            if hit is not None and (hit.step == event.step or run.r not in self._dropped):
                found += self._computed_again(ledger, hit, run)
        return found

    def _computed_again(self, ledger: Ledger, hit: Hit, run: Run) -> list[Finding]:
        """Judge a first run that begins in front of what its look-up found on the device; what a
        tier has may fail to load.
        """
        if hit.tier != "local" or run.start >= hit.resume:
            return []
        sentence = (
            f"Let {run.r} resume at {hit.resume}, as its look-up in step {hit.step} says. However"
            f" its first run begins at {run.start} and computes"
            f" {count(hit.resume - run.start, 'token')} again: a contradiction."
        )
        line = f"{named(run.r)} hit tokens [0,{hit.resume}) and computes from {run.start} on"
        return [Finding(anomaly="lost-hit", r=run.r, sentence=sentence, line=line, owed=hit.resume)]

    def on_come(self, ledger: Ledger, event: Submitted | Preempted) -> Found:
        """Note when a request came that is looked up in the tier once."""
        tier = ledger.header.rules.tier
        if tier is not None and tier.once:
            self._came[event.r] = ledger.holdings.operation
        return None

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Note who gave pages back."""
        self._dropped.add(event.holder)
        return None

    def on_copy(self, ledger: Ledger, event: Copy) -> Found:
        """Note whose load failed: it is not looked up in the tier before it has pages."""
        for move in event.moves if event.phase == "fail" else ():
            self._failed.update(
                r for r in ledger.records[move.dst_pool][move.dst].holders if r in self._came
            )
        return None

    def on_preempted(self, ledger: Ledger, event: Preempted) -> Found:
        """Note what was computed of a request that starts again, and that it is looked up again."""
        self.on_come(ledger, event)
        return self.on_end(ledger, event)

    def on_end(self, ledger: Ledger, event: Preempted | Aborted | Finished) -> Found:
        """Note what was computed of a request that ends or starts again."""
        if not isinstance(event, Preempted):
            self._came.pop(event.r, None)
            self._failed.discard(event.r)
            self._dropped.discard(event.r)
            self._note_end(ledger, event)
        self._note(ledger, event.r, ledger.requests[event.r].computed)
        return None

    def _note_end(self, ledger: Ledger, event: Aborted | Finished) -> None:
        """Note what a request leaves that ended as intended, or one that did not."""
        request = ledger.requests[event.r]
        node = request.node_of(request.computed)
        parent = self._reach(ledger)
        finished = isinstance(event, Finished) and not event.by_engine
        orderly = self._orderly
        while node >= 0 and not orderly[node]:
            orderly[node] = finished
            self._aborted[node] = not finished
            node = parent[node]

    def _reach(self, ledger: Ledger) -> Sequence[int]:
        """Have room to note every prefix that there is; return the parents of all."""
        parent = ledger.trie.parent
        if more := len(parent) - len(self._computed):
            for prefixes in (self._computed, self._orderly, self._aborted):
                prefixes.extend(bytes(more))
        return parent

    def _acceptable(self, ledger: Ledger, event: Hit) -> bool:
        request = ledger.requests[event.r]
        tier = ledger.header.rules.tier
        before = NO_TIME if event.r in self._failed else self._came.get(event.r, ANY_TIME)
        if tier is not None and event.resume >= longest_apart(ledger, request, tier, before):
            return True
        return event.resume >= Lookup(ledger, request, last_block=True).longest_common()

    def _note(self, ledger: Ledger, r: str, length: int) -> None:
        node = ledger.requests[r].node_of(length)
        parent = self._reach(ledger)
        computed = self._computed
        while node >= 0 and not computed[node]:
            computed[node] = True
            node = parent[node]

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget prefixes whose nodes stand for others now, and whoever is no request any more."""
        self._reach(ledger)
        for prefixes in (self._computed, self._orderly, self._aborted):
            for node in gone:
                prefixes[node] = False
        self._dropped.intersection_update(ledger.requests)

    def _count(self, ledger: Ledger, event: Hit, owed: int) -> None:
        """Count what a look-up got, what it was owed, and what had been computed before; nothing of
        who restores nothing on purpose.
        """
        if ledger.requests[event.r].prompt_logprobs:
            return
        nodes = ledger.requests[event.r].nodes
        rules = ledger.header.rules
        self._reach(ledger)
        computed = self._computed
        limit = len(nodes) - 2
        length = bisect_left(range(1, limit + 1), True, key=lambda at: not computed[nodes[at]])
        owed = max(owed, event.resume)
        reach = max(length // rules.alignment * rules.alignment, owed)
        self.reuse.add(Reuse(got=event.resume, owed=owed, reach=reach))
        if reach > owed:
            how = how_lost(ledger, ledger.requests[event.r], reach)
            if how == "unkept" and self._aborted[nodes[reach]]:
                how = "aborted"
            self.reuse.add(Reuse(**{how: reach - owed}))

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Compare where the request resumes with the longest common prefix."""
        begun = ledger.open_steps.get(event.step)  # a look-up may be told behind the run
        for run in begun.runs if begun is not None else ():
            if run.r == event.r and (again := self._computed_again(ledger, event, run)):
                return again
        if event.reported > event.resume + LAST_TOKEN:
            return (_counted(event),)
        floor = Lookup(ledger, ledger.requests[event.r]).longest_common()
        short = event.resume < floor
        acceptable = short and self._acceptable(ledger, event)
        self._failed.discard(event.r)
        self._dropped.discard(event.r)
        self._count(ledger, event, event.resume if acceptable else floor)
        if not floor:
            return None
        self.opportunities += 1
        self.acceptable += acceptable
        if not short or acceptable:
            return None
        sentence = (
            f"Let {event.r} be admitted in step {event.step}. By the engine's own keys every group"
            f" holds its first {count(floor, 'token')}; however it resumes at {event.resume} and"
            f" computes {count(floor - event.resume, 'token')} again: a contradiction."
        )
        line = (
            f"{named(event.r)} resumed at {event.resume}; every group has the keys of its tokens"
            f" [0,{floor})"
        )
        return (Finding(anomaly="lost-hit", r=event.r, sentence=sentence, line=line, owed=floor),)


def _counted(hit: Hit) -> Finding:
    sentence = (
        f"Let {hit.r} be told in step {hit.step} that {count(hit.reported, 'token')} of it are"
        f" cached. However it resumes at {hit.resume} and computes"
        f" {count(hit.reported - hit.resume, 'token')} of them again: a contradiction."
    )
    line = (
        f"{named(hit.r)} resumed at {hit.resume}; the engine reports"
        f" {count(hit.reported, 'cached token')}"
    )
    return Finding(anomaly="lost-hit", r=hit.r, sentence=sentence, line=line, owed=hit.reported)
