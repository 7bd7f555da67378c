"""Liveness: a request that can run does run, within the number of steps that the engine declares,
and is not given up.

A reset for which nothing stands in the way is done.
"""

from __future__ import annotations

from cachewitness.core.checkers import capacity
from cachewitness.core.checkers.circles import Circles
from cachewitness.core.checkers.finding import FAILED_LOAD, HELD_BY_WAITING, Finding
from cachewitness.core.checkers.patience import Generous
from cachewitness.core.checkers.preemptions import VAIN, Preemptions
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import (
    Aborted,
    Copy,
    Extended,
    Finished,
    Header,
    Preempted,
    Release,
    ResetDone,
    StepBegin,
    StepEnd,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.restored import load_failed

PAUSED = "a session that waits for its client"
TOO_LONG = "max_prompt, which a request exceeds that is there"
"""What may keep all others from running."""
ABORTED = "max_prompt, beyond which the pools have room"
"""Why a request is aborted lawfully that would run."""


class Progress(Checker):
    """A feasible request advances within a stated number of steps."""

    name = "progress"
    summary = (
        "a request that is asked for, and for which the pool has room, runs within the declared"
        " number of steps, and the engine gives nobody up who could run alone; a reset that nothing"
        " stands in the way of is done; whom the engine preempts gives room at once"
    )
    anomalies = ("no-progress", "refused-reset", VAIN)

    def __init__(self) -> None:
        super().__init__()
        self._waited: dict[str, int] = {}
        self._idle: dict[str, int] = {}
        """For each request that could run alone, in how many steps in a row nobody ran since it
        came."""
        self._circles = Circles()
        self._taken: set[tuple[int, str]] = set()
        """Whose pages the engine took by itself, in which step, until that ends."""
        self._still = 0
        """In how many steps in a row nobody ran, though somebody was there."""
        self._watches_room = False
        self._most_held: list[dict[int, int]] = [{}, {}]
        """How many pages of each pool were held at most since the last two steps began, where the
        engine declares that it gives requests up for want of room."""
        self._gave_back: list[set[str]] = [set(), set()]
        """Who gave pages back since the last two steps began, where the engine so declares."""
        self._hopeless = -1
        """The step in which the engine gave up a request that the pools can never hold."""
        self._load_failed = False
        """Whether a load from another tier has failed since somebody ran last."""
        self._lost: set[str] = set()
        """Requests whose load from another tier has failed, which they may be given up for."""
        self._generous: Generous | None = None
        self._preemptions = Preemptions()

    def not_applicable(self, header: Header) -> str:
        self._watches_room = header.rules.engine_aborts
        generous = Generous(header)
        self._generous = generous if generous.declared else None
        return super().not_applicable(header)

    def handlers(self) -> dict[type, Handler]:
        return {
            Release: self.on_release,
            StepBegin: self.on_step,
            StepEnd: self.on_step_end,
            ResetDone: self.on_reset,
            Copy: self.on_copy,
            Aborted: self.on_end,
            Finished: self.on_end,
            Preempted: self.on_preempted,
            Extended: self.on_extended,
        }

    def on_step(self, ledger: Ledger, event: StepBegin) -> Found:
        """Judge who waits, and who was preempted for this step."""
        vain = self._preemptions.began(event)
        waits = self._waits(ledger, event)
        return (*(waits or ()), *vain) if vain else waits

    def _waits(self, ledger: Ledger, event: StepBegin) -> Found:
        """Count how long each feasible request has been refused in a row, and how long nobody
        ran at all.
        """
        # Before the wait: who runs in circles is scheduled in every step, so it never waits.
        if circle := self._circles.step(ledger, event, lambda r: capacity.fits_alone(ledger, r)):
            return (_stuck(*circle),)
        if self._watches_room:
            self._most_held = [self._most_held[1], dict(ledger.holdings.held)]
            self._gave_back = [self._gave_back[1], set()]
        ran = {run.r for run in event.runs}
        limit = ledger.header.rules.progress_steps
        if ran:
            self._idle.clear()
            self._still = 0
            self._load_failed = False
        for r in ran if self._waited else ():
            self._waited.pop(r, None)
        if self._generous is not None:
            self._note_asked(ledger, event, self._generous)
        for r, tokens in event.asked:
            if r in ran:
                self.opportunities += 1
                continue
            # No opportunity either: an engine that has no room for it decided nothing.
            if not capacity.owed(
                ledger, r, tokens, ledger.header.rules.reserved_pages
            ) or _state_under_way(ledger, r, event.step):
                continue
            if ledger.header.rules.static_batches and _others_run(ledger, r):
                self.excused["static_batches"] += 1
                continue
            self.opportunities += 1
            waited = self._waited[r] = self._waited.get(r, 0) + 1
            # Equal, not more: a request that goes on waiting is found once.
            if waited == limit + 1:
                return (
                    _stuck(
                        r,
                        f"was asked for, with room in the pool, in {waited} steps up to step"
                        f" {event.step}",
                        f"request {r} could run and was not scheduled for {count(waited, 'step')}",
                    ),
                )
        return self._nobody(ledger, event, ran, limit) if not event.asked else None

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Note how many pages were held before these are given back, and by whom."""
        self._preemptions.released(ledger, event)
        if not self._watches_room:
            return None
        self._gave_back[1].add(event.holder)
        most = self._most_held[1]
        most[event.pool] = max(most.get(event.pool, 0), ledger.holdings.held[event.pool])
        return None

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """Where somebody was taken out of the step nobody was refused: they had a place, and the
        room that others lacked.

        An engine that takes requests out of steps by itself gets nothing forgotten by that.
        """
        if any((event.step, r) not in self._taken for r in event.withdrawn):
            self._waited.clear()
            self._begin_anew()
        if self._taken:
            self._taken = {taken for taken in self._taken if taken[0] > event.step}
        return None

    def on_preempted(self, ledger: Ledger, event: Preempted) -> Found:
        """Note who lost its pages; if that was asked for, what kept others from running so far says
        nothing of what comes.

        Who has no place has nothing to lose: to ask for that as well takes no room from anybody,
        and gives none.
        """
        if self._circles.preempted(ledger, event) and _placed(ledger, event.r):
            self._idle.clear()
        if event.by_engine:
            self._taken.add((event.step, event.r))
        self._preemptions.preempted(ledger, event)
        return None

    def on_extended(self, ledger: Ledger, event: Extended) -> Found:
        """Note that a session goes on from fewer tokens than it had."""
        self._circles.extended(event)
        return None

    def _begin_anew(self) -> None:
        self._idle.clear()
        self._circles.begin_anew()
        if self._generous is not None:
            self._generous.begin_anew()

    def _note_asked(self, ledger: Ledger, event: StepBegin, generous: Generous) -> None:
        """Note who would be found in time if this engine, which declares that much, never ran it
        again.
        """
        reserved = ledger.header.rules.reserved_pages
        for r, tokens in event.asked:
            if capacity.feasible(ledger, r, tokens, generous.spare):
                generous.ask(r, roomy=capacity.feasible(ledger, r, tokens, reserved))
        for r in self._could_run(ledger) if not event.asked else ():
            generous.ask(r, roomy=True)

    def close(self, ledger: Ledger) -> Found:
        """Count who would have been found but for what the engine declares."""
        generous = self._generous
        if generous is not None:
            self.excused[generous.declared] += len(generous.spared)
            self.bounds[generous.declared] = generous.judged
        return None

    def on_reset(self, ledger: Ledger, event: ResetDone) -> Found:
        """Count no wait for what a reset makes start again, and hold an engine that refuses one
        to what stands in its way.
        """
        self._begin_anew()
        # Busy pages may be in use by the device; to refuse then is what keeps the reset safe.
        if _busy(ledger):
            return None
        self.opportunities += 1
        if event.ok:
            return None
        if ledger.header.rules.idle_resets and ledger.requests.live:
            self.excused["idle_resets"] += 1
            return None
        sentence = (
            "Let nobody hold a page, and no copy or step that does anything be under way, after"
            f" step {event.step}. Nothing stands in the way of a reset of tier {event.tier};"
            " however it was refused: a contradiction."
        )
        line = f"the reset of tier {event.tier} was refused; no request holds a page"
        return (Finding(anomaly="refused-reset", sentence=sentence, line=line),)

    def on_copy(self, ledger: Ledger, event: Copy) -> Found:
        """Count no wait for what then failed, and note whom it was for if it may be given up."""
        if event.phase == "fail":
            self._load_failed |= load_failed(ledger.header, event)
            self._begin_anew()
            lost = {
                r for move in event.moves for r in ledger.records[move.dst_pool][move.dst].holders
            }
            self._preemptions.failed(lost)
            tier = ledger.header.rules.tier
            self._lost.update(lost if tier is not None and tier.engine_aborts else ())
        return None

    def on_end(self, ledger: Ledger, event: Aborted | Finished) -> Found:
        """Hold an engine that ended a request, which nobody asked for, to what it declares and
        has room for.
        """
        self._circles.ended(event.r)
        if not event.by_engine and _is_filled(ledger, event.r):
            # Who waited for what was loaded for it waits for the next who asks for that.
            self._idle.clear()
        if not event.by_engine or event.r in self._lost:
            return None
        self.opportunities += 1
        request = ledger.requests[event.r]
        most = ledger.header.rules.max_prompt
        prompt = request.prompt_tokens
        reserved = ledger.header.rules.reserved_pages
        if ledger.header.rules.ranks > 1 and not (
            request.begun or ledger.holdings.pages_of.get(event.r, 0)
        ):
            self.excused["ranks"] += 1
            return None
        fits = capacity.fits_alone(ledger, event.r, reserved)
        if not fits:
            self._hopeless = event.step
        if most and prompt > most:
            # A token more is what suites try on purpose, so that it says nothing of the limit.
            if prompt > most + 1 and capacity.fits_beyond_doubt(ledger, event.r, reserved):
                self.excused[ABORTED] += 1
            return None
        if not fits:
            return None
        if ledger.header.rules.engine_aborts and not self._had_room_for_all(ledger, event):
            self.excused["engine_aborts"] += 1
            return None
        # An engine may refuse a prompt longer than it declares; any other one that fits is owed an
        # answer.
        limit = f"prompts of up to {count(most, 'token')}" if most else "prompts of any length"
        room = ", and had room beside the others" if ledger.header.rules.engine_aborts else ""
        sentence = (
            f"Let {event.r} be a request with a prompt of {count(prompt, 'token')}, which alone"
            f" would fit the pool{room}; the engine declares that it takes {limit}. However it gave"
            f" {event.r} up, which nobody had asked for: a contradiction."
        )
        line = (
            f"request {event.r} was aborted by the engine; its prompt of {count(prompt, 'token')}"
            " fits the pool"
        )
        return (Finding(anomaly="no-progress", r=event.r, sentence=sentence, line=line),)

    def _had_room_for_all(self, ledger: Ledger, event: Aborted | Finished) -> bool:
        """Whether there was room beside the others, none of whom the pools can never hold: such an
        engine gives up everybody who waits behind one of those.
        """
        hopeless = self._hopeless == event.step or not all(
            other == event.r or capacity.fits_alone(ledger, other) for other in ledger.requests.live
        )
        return not hopeless and self._had_room(ledger, event.r)

    def _had_room(self, ledger: Ledger, r: str) -> bool:
        """Whether the whole of a request would have fitted beside all that was held since the last
        two steps began: beyond doubt, or as the engine declares if that was its own.
        """
        holding = {holder for holder, pages in ledger.holdings.pages_of.items() if pages}
        if not (holding | self._gave_back[0] | self._gave_back[1]) - {r}:
            return capacity.fits_alone(ledger, r)
        before, since = self._most_held
        most = {
            pool: max(held, before.get(pool, 0), since.get(pool, 0))
            for pool, held in ledger.holdings.held.items()
        }
        return capacity.room_beside(ledger, r, most)

    def _nobody(self, ledger: Ledger, event: StepBegin, ran: set[str], limit: int) -> Found:
        waiting = self._could_run(ledger)
        self._idle = {r: self._idle.get(r, 0) + 1 for r in waiting if not ran}
        if waiting:
            self.opportunities += 1
        late = [r for r, idle in self._idle.items() if idle == limit + 1]
        if not late:
            if not ran:
                self._count_still(ledger, limit)
            return None
        return (
            _stuck(
                late[0],
                f"could run alone, but nobody ran in {limit + 1} steps up to step {event.step}",
                f"request {late[0]} could run and no request was scheduled for"
                f" {count(limit + 1, 'step')}",
                self._why_nobody(ledger, waiting),
            ),
        )

    def _why_nobody(self, ledger: Ledger, waiting: list[str]) -> str:
        """Return what is behind it that none of those runs who could run alone."""
        if self._load_failed:
            return FAILED_LOAD
        room = all(capacity.room_beside(ledger, r, _held_by_others(ledger, r)) for r in waiting)
        return "" if room else HELD_BY_WAITING

    def _count_still(self, ledger: Ledger, limit: int) -> None:
        """Count who kept everybody from being found, where nobody ran for so long that somebody
        would have been.
        """
        live = ledger.requests.live.values()
        excuses = sorted(
            {
                PAUSED if request.paused else TOO_LONG
                for request in live
                if request.paused or not capacity.fits_alone(ledger, request.r)
            }
        )
        # Sessions that all wait for their clients leave nobody who could run.
        self._still = self._still + 1 if any(not request.paused for request in live) else 0
        if self._still == limit + 1:
            self.excused.update(excuses)

    @staticmethod
    def _could_run(ledger: Ledger) -> list[str]:
        """Return the requests that could run alone, if nothing may keep all of them from it.

        A queue in order of arrival may stand still behind a request that can never run; a session
        that waits for its client keeps its pages, and its place, until it is over.
        """
        live = ledger.requests.live.values()
        free = not any(request.paused for request in live) and all(
            capacity.fits_alone(ledger, request.r) for request in live
        )
        return [request.r for request in live] if free else []


def _held_by_others(ledger: Ledger, r: str) -> dict[int, int]:
    """Return how many pages of each pool others hold, and r does not."""
    return {
        pool: sum(bool(record.holders) and r not in record.holders for record in records.values())
        for pool, records in ledger.records.items()
    }


def _placed(ledger: Ledger, r: str) -> bool:
    """Whether a request was looked up, or ran, or holds pages since it came or lost its place.

    Where nothing is cached nobody need be looked up, and its pages may have been given back before
    it is said to lose them.
    """
    request = ledger.requests[r]
    found = request.hit is not None or request.computed > 0 or not ledger.header.rules.caching
    return found or ledger.holdings.pages_of.get(r, 0) > 0


def _is_filled(ledger: Ledger, r: str) -> bool:
    """Whether copies under way fill pages that a request holds."""
    return any(
        copies and r in ledger.records[pool][page].holders
        for (pool, page), copies in ledger.contents.filling.items()
    )


def _others_run(ledger: Ledger, r: str) -> bool:
    """Whether somebody else is in a batch, which r joins when that is over."""
    holding = ledger.holdings.pages_of
    return any(
        other.r != r and (other.computed > 0 or holding.get(other.r, 0) > 0)
        for other in ledger.requests.live.values()
    )


def _busy(ledger: Ledger) -> bool:
    """Whether somebody holds a page of any tier, or a step in which something is done, or a
    copy, is under way.
    """
    under_way = any(map(_does_something, ledger.open_steps.values()))
    return bool(under_way or any(ledger.holdings.held.values()) or ledger.contents.copying)


def _does_something(step: StepBegin) -> bool:
    """Whether anybody runs in a step, or anything is copied; with steps in flight there is one
    under way at all times.
    """
    return bool(
        step.runs
        or step.copies
        or step.stores
        or step.begun
        or step.ended
        or step.failed
        or step.zeros
    )


def _stuck(r: str, what: str, line: str, cause: str = "") -> Finding:
    return Finding(
        anomaly="no-progress",
        r=r,
        sentence=f"Let {r} be a request that {what}; however it did not advance: a contradiction.",
        line=line,
        cause=cause,
    )


def _state_under_way(ledger: Ledger, r: str, step: int) -> bool:
    """Whether somebody writes, in this very step, a state that r could resume from: a copy of it
    has to wait for the next.

    Behind a request that computes the same prompt chunk by chunk, that may go on for as many steps
    as there are chunks.
    """
    prefix_of = ledger.requests[r].node_of
    states = (
        key for key in ledger.keys.pending(step) if ledger.groups[key.group].kind == "recurrent"
    )
    return any(key.r != r and key.node == prefix_of(key.length) for key in states)
