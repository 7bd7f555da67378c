"""Requests that run and get no further: their tokens are computed again and again."""

from __future__ import annotations

from collections.abc import Callable

from cachewitness.core.checkers.patience import PATIENCE
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import Extended, Preempted, StepBegin
from cachewitness.core.ledger.ledger import Ledger

ROUNDS, IN_FLIGHT = 2, 8
"""So many times the tokens of all live requests may be computed before one of them gets further
than ever before, and drafts of so many steps in flight beside them. Of a request that lost its
pages, tokens are what steps in flight had computed, too: it may have lost what they generated."""


class Circles:
    """Counts what is computed while nobody gets further than ever before, and who computes its last
    token again and again.

    Who lost its pages to others computes its tokens again. Once for each live request is enough for
    one of them to get further; once more is left for requests that take turns. Nothing is counted
    across what somebody asked for: a reset, a preemption.
    """

    def __init__(self) -> None:
        self._furthest: dict[str, int] = {}
        """How many tokens of each request had been computed at most, whatever was lost again."""
        self._again = 0
        """Tokens that were computed since somebody got further than ever before."""
        self._vain: dict[str, int] = {}
        """In how many steps each request's last token was computed since it got further than ever
        before."""
        self._begun = 0
        """The step that began last."""

    def step(
        self, ledger: Ledger, event: StepBegin, fits: Callable[[str], bool]
    ) -> tuple[str, str, str] | None:
        """Take note of who runs; return who got no further, what it did instead, and the same in
        one line.

        Who does not fit into the pools alone, and whoever is live beside it, may lose its pages in
        every step: `fits` tells.
        """
        self._begun = event.step
        limit = min(ledger.header.rules.progress_steps, PATIENCE)
        stuck = ""
        for run in event.runs:
            known = run.known
            if known > self._furthest.get(run.r, 0):
                self._furthest[run.r] = known
                self._again = 0
                self._vain.pop(run.r, None)
                continue
            self._again += known - run.start
            if known == len(ledger.requests[run.r].tokens):
                self._vain[run.r] = self._vain.get(run.r, 0) + 1
                stuck = run.r if self._vain[run.r] == limit + 1 else stuck
        if stuck and fits(stuck):
            steps = count(self._vain[stuck], "step")
            return (
                stuck,
                (
                    f"computed its last token in {steps} up to step {event.step} and generated"
                    " nothing behind it"
                ),
                f"request {stuck} computed its last token in {steps} and generated nothing",
            )
        return self._round(ledger, event, fits) if self._again else None

    def _round(
        self, ledger: Ledger, event: StepBegin, fits: Callable[[str], bool]
    ) -> tuple[str, str, str] | None:
        live = ledger.requests.live.values()
        drafts = ledger.header.rules.drafts * IN_FLIGHT
        tokens = [max(len(request.tokens), self._furthest.get(request.r, 0)) for request in live]
        if self._again <= ROUNDS * (sum(tokens) + drafts * len(live)):
            return None
        again = f"{count(self._again, 'token')} again and none for the first time"
        self.begin_anew()
        if not all(fits(request.r) for request in live):
            return None
        return (
            event.runs[0].r,
            f"runs in step {event.step}, up to which it and the other requests computed {again}",
            f"request {event.runs[0].r} and the other requests computed {again}",
        )

    def preempted(self, ledger: Ledger, event: Preempted) -> bool:
        """Begin anew where that was asked for; return whether it was. With its pages r loses what a
        step in flight computes.

        Who asked, the harness writes down of a live engine. In a history that says nothing of it a
        preemption outside of a step counts as asked for. One inside may be a withdrawal: beside
        steps in flight it is told long before its step ends.
        """
        withdraws = "withdraw" in ledger.header.capabilities
        asked = not event.by_engine and (withdraws or event.step <= self._begun)
        if asked:
            self.begin_anew()
        elif any(run.r == event.r for begun in ledger.open_steps.values() for run in begun.runs):
            self._vain.pop(event.r, None)
        return asked

    def extended(self, event: Extended) -> None:
        """Take note that a session goes on from fewer tokens than it had."""
        self._furthest[event.r] = min(self._furthest.get(event.r, 0), event.keep)

    def ended(self, r: str) -> None:
        """Forget a request."""
        self._furthest.pop(r, None)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was computed again."""
        self._again = 0
        self._vain.clear()
