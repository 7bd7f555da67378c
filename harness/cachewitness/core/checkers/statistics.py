"""What an engine tells of its use and of its hits, held against what happened.

Operators scale by the share of the pool that is in use and by the hit rate, and clients pay for
tokens that no cache had. So the share has to be that of the pages that somebody holds, a look-up
counts once, when its request is admitted, and a client is told how many tokens of its prompt were
restored when it was first admitted, before its answer ends.

A load from another tier that fails has its request looked up again, and engines do not agree
whether it came back or is new. So from then on both kinds are judged together. Where there are
tiers a client may be told of any of its admissions, and what the device had of a hit lies between
nothing and all.

What another tier is asked for and has goes on where the device's part of the hit ends. A history
does not say where that is, so the numbers of both are held against each other: together they are
the hits, and the tier was asked for what is left of the requests. The tier had no more than lies in
blocks that were fetched from it; a device that fetches again what it has makes that more.

Sources: vLLM 0.33.0, `v1/core/sched/scheduler.py`, `schedule` (`connector_prefix_cache_stats`) and
`make_stats`; `v1/metrics/stats.py`; vllm-project/vllm#43736.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.events import (
    Accept,
    Copy,
    Extended,
    Finished,
    Header,
    Hit,
    Paused,
    Preempted,
    Stats,
    StepEnd,
    Submitted,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.restored import load_failed, loaded

NEARLY = 1e-6
"""By how much a share may differ from the quotient that it is, for rounding."""
STEPS_MAX = 8
"""An engine reports statistics at least once in this number of steps in which requests run."""


class LookUps(NamedTuple):
    """How many look-ups there were, of how many tokens, and how many of these were found."""

    requests: int
    tokens: int
    found: int

    def __add__(self, other: LookUps) -> LookUps:  # type: ignore[override]
        return LookUps(*(mine + its for mine, its in zip(self, other, strict=True)))

    def __str__(self) -> str:
        return (
            f"{count(self.requests, 'look-up')} of {count(self.tokens, 'token')}, of which"
            f" {self.found} were found"
        )


NONE = LookUps(0, 0, 0)


class StatisticsTrue(Checker):
    """Statistics for operators and clients say what happened."""

    name = "statistics"
    summary = (
        "what operators are told of pages in use and tokens found, and clients of tokens restored,"
        " is what happened"
    )
    anomalies = ("false-statistics",)

    def __init__(self) -> None:
        super().__init__()
        self._tiered = False
        self._load_failed = False
        """Whether a load from another tier has failed."""
        self._back: set[str] = set()
        """Requests that lost their place since they came."""
        self._first = NONE
        self._again = NONE
        """Look-ups of requests admitted since the last statistics: of those that had not lost
        their place, of others."""
        self._in_vain = NONE
        """Of requests that may restore nothing: engines need not look them up."""
        self._full = False
        """Whether some group keeps every token, so that all of a hit has pages."""
        self._fetched = 0
        """How many tokens lie in blocks that were fetched from another tier."""
        self._hits: dict[str, list[int]] = {}
        """What each request hit; its client may be given one of these numbers."""
        self._untold: set[str] = set()
        """Requests whose clients have been given no number."""
        self._numbered: set[str] = set()
        """Requests whose clients were given one, since there was more input if there was."""
        self._answered: set[str] = set()
        """Requests of whose answer there is a token."""
        self._silent = 0
        """How many steps with a run have ended since the last statistics."""

    def not_applicable(self, header: Header) -> str:
        if why := super().not_applicable(header):
            return why
        self._tiered = any(pool.tier != "local" for pool in header.pools)
        self._full = any(group.kind == "full" for group in header.local_groups())
        return "" if header.rules.stats else "the engine tells no operator of its use"

    def handlers(self) -> dict[type, Handler]:
        return {
            Submitted: self.on_submit,
            Extended: self.on_extend,
            Preempted: self.on_preempt,
            Hit: self.on_hit,
            Copy: self.on_copy,
            Accept: self.on_accept,
            Paused: self.on_finish,
            Finished: self.on_finish,
            StepEnd: self.on_step_end,
            Stats: self.on_stats,
        }

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget requests that are over."""
        self._back &= ledger.requests.keys()
        self._untold &= ledger.requests.keys()
        self._numbered &= ledger.requests.keys()
        self._answered &= ledger.requests.keys()
        self._hits = {r: hits for r, hits in self._hits.items() if r in ledger.requests}

    def on_submit(self, ledger: Ledger, event: Submitted) -> Found:
        """Note a request whose client has no number yet."""
        self._hits[event.r] = []
        self._untold.add(event.r)
        self._numbered.discard(event.r)
        self._answered.discard(event.r)
        return None

    def on_extend(self, ledger: Ledger, event: Extended) -> Found:
        """Note more input of a request. It kept its pages, so its client need not be told again
        (vLLM 0.33.0, `Request.take_prefill_stats`).
        """
        self._hits[event.r] = []
        self._numbered.discard(event.r)
        return None

    def on_preempt(self, ledger: Ledger, event: Preempted) -> Found:
        """Note a request that lost its place."""
        self._back.add(event.r)
        return None

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Note what a request found that is admitted."""
        looked_up = LookUps(1, len(ledger.requests[event.r].tokens), event.reported)
        if self._full:
            self._fetched += loaded(ledger.header, event, event.reported)
        elif event.tier != "local":
            self._fetched += event.reported
        # Whoever restores nothing by its own choice is not counted on the device (vLLM 0.33.0,
        # `KVCacheManager.record_prefix_cache_stats`).
        if not ledger.header.rules.caching or ledger.requests[event.r].prompt_logprobs:
            self._in_vain += looked_up
        elif event.r in self._back:
            self._again += looked_up
        else:
            self._first += looked_up
        if self._tiered or event.r not in self._back:
            self._hits[event.r].append(event.reported)
        return None

    def on_copy(self, ledger: Ledger, event: Copy) -> Found:
        """Note a load that fails."""
        self._load_failed |= load_failed(ledger.header, event)
        return None

    def on_accept(self, ledger: Ledger, event: Accept) -> Found:
        """Note that an answer has begun."""
        self._answered.add(event.r)
        return None

    def on_finish(self, ledger: Ledger, event: Finished | Paused) -> Iterator[Finding]:
        """Look for a client whose answer is over, and who was told no number."""
        if not ledger.header.rules.clients or event.r not in self._answered:
            return
        self.opportunities += 1
        if event.r in self._untold:
            hits = " and ".join(map(str, self._hits.get(event.r) or [0]))
            sentence = (
                "Let an engine declare that it tells clients how many tokens of their prompts came"
                f" from a cache. However the answer of {event.r}, admitted with {hits}, is over and"
                " its client was told no number: a contradiction."
            )
            line = f"{named(event.r)} hit {hits} tokens and is answered; its client was told none"
            yield Finding(anomaly="false-statistics", r=event.r, sentence=sentence, line=line)

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Iterator[Finding]:
        """Hold an engine that tells operators of its use to that: where it stops, nothing of it
        is judged any more.
        """
        self._silent += any(ledger.requests.ran_in(event))
        if self._silent == STEPS_MAX + 1:
            sentence = (
                "Let an engine declare that it tells operators of its use. However in"
                f" {self._silent} steps in which somebody ran, up to step {event.step}, it told"
                " nothing: a contradiction."
            )
            line = (
                f"requests ran in {count(self._silent, 'step')} up to step {event.step}; the engine"
                " reported no statistics"
            )
            yield Finding(anomaly="false-statistics", sentence=sentence, line=line)

    def on_stats(self, ledger: Ledger, event: Stats) -> Iterator[Finding]:
        """Compare the statistics with the pages held and the requests admitted."""
        self.opportunities += 1
        self._silent = 0
        pages = sum(
            pool.pages - len(pool.null) for pool in ledger.header.pools if pool.id == event.pool
        )
        held = ledger.holdings.held[event.pool]
        if abs(event.usage * pages - held) > NEARLY * max(pages, 1):
            claim = (
                f"that {event.usage:.4f} of the pool is in use, {event.usage * pages:.2f} of"
                f" {count(pages, 'page')}"
            )
            line = (
                f"{held} of {count(pages, 'page')} are held in step {event.step}; the engine"
                f" reports {event.usage * pages:.2f} in use"
            )
            yield _wrong("operators", event, claim, f"{held} of them are held", line)
        if event.requests >= 0:
            yield from self._look_ups(event)
        if event.tier is not None:
            yield from self._tier(event, LookUps(*event.tier))
        self._first = self._again = self._in_vain = NONE
        self._fetched = 0
        for r, tokens in event.restored:
            yield from self._restored(ledger, event, r, tokens)

    def _look_ups(self, event: Stats) -> Iterator[Finding]:
        first = LookUps(event.requests, event.looked_up, event.found)
        again = LookUps(*event.again)
        if self._load_failed:
            pairs = [(first + again, self._first + self._again, "")]
        else:
            pairs = [(first, self._first, ""), (again, self._again, " that came back")]
        for reported, happened, whose in pairs:
            if (
                reported[:2] != happened[:2]
                or not (0 if self._tiered else happened.found) <= reported.found <= happened.found
            ):
                line = (
                    f"requests{whose} hit {happened.found} of {happened.tokens} tokens in"
                    f" {count(happened.requests, 'look-up')}; the engine reports {reported.found}"
                    f" of {reported.tokens} in {reported.requests}"
                )
                yield _wrong(
                    "operators",
                    event,
                    f"of {reported}{whose and f' of requests{whose}'}",
                    _were(happened),
                    line,
                )

    def _tier(self, event: Stats, tier: LookUps) -> Iterator[Finding]:
        """Compare what another tier was asked for and had with what the device left it."""
        happened = self._first + self._again
        had = event.found + event.again[2]
        left = [
            LookUps(all_.requests, all_.tokens - had, all_.found - had)
            for all_ in (happened, happened + self._in_vain)
        ]
        if tier not in left or tier.found > self._fetched:
            why = (
                f"{_were(happened)}, the device told of {had} of them, and"
                f" {count(self._fetched, 'token')} can have been fetched"
            )
            line = (
                f"requests hit {min(left[0].found, self._fetched)} of {left[0].tokens} tokens of"
                f" another tier in {count(happened.requests, 'look-up')}; the engine reports"
                f" {tier.found} of {tier.tokens} in {tier.requests}"
            )
            yield _wrong("operators", event, f"of {tier} in another tier", why, line)

    def _restored(self, ledger: Ledger, event: Stats, r: str, tokens: int) -> Iterator[Finding]:
        """Compare what the client of a request is told with its last admission before it lost
        its place.
        """
        self.opportunities += 1
        if ledger.header.rules.clients and r in self._numbered:
            line = (
                f"the client of {r} was told of {tokens} restored tokens; it had been told before"
            )
            yield _wrong(
                f"the client of {r}", event, "what is restored", "it had been told before", line, r
            )
        self._untold.discard(r)
        self._numbered.add(r)
        hits = self._hits.get(r) or [0]
        if tokens not in (hits if self._tiered else hits[-1:]):
            claim = f"that {count(tokens, 'token')} of its prompt came from a cache"
            yield _wrong(
                f"the client of {r}",
                event,
                claim,
                f"it was admitted with {' and '.join(map(str, hits))}",
                f"{named(r)} hit {count(hits[-1], 'token')}; its client was told {tokens}",
                r,
            )


def _were(happened: LookUps) -> str:
    return f"there {'was' if happened.requests == 1 else 'were'} {happened}"


def _wrong(who: str, event: Stats, what: str, why: str, line: str, r: str = "") -> Finding:
    sentence = f"Let {who} be told in step {event.step} {what}; however {why}: a contradiction."
    return Finding(anomaly="false-statistics", r=r, sentence=sentence, line=line)
