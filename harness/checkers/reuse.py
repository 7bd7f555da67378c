"""The reuse floor: a request resumes no earlier than the engine's own keys allow; never hitting is no way to be safe."""

from __future__ import annotations

from harness.checkers.finding import Finding
from harness.checkers.lookup import Lookup
from harness.checkers.protocol import Checker, Found, Handler
from harness.checkers.tier_floor import longest_apart
from harness.checkers.wording import count
from harness.history.events import Header, Hit
from harness.ledger.ledger import Ledger


class ReuseFloor(Checker):
    """A request resumes no earlier than the engine's own keys allow.

    Acceptable: a look-up that wants some block of a window that reads none (vLLM 0.33.0, `SlidingWindowManager`, of a window
    of one token); what the device and a second tier hold only together, where the engine declares that it asks them apart.
    """

    name = "reuse-floor"
    summary = "a request resumes no earlier than at the longest prefix that every group holds by the engine's own keys"
    anomalies = ("lost-hit",)

    def not_applicable(self, header: Header) -> str:
        return super().not_applicable(header) or ("" if header.rules.caching else "prefix caching is off")

    def handlers(self) -> dict[type, Handler]:
        return {Hit: self.on_hit}

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Compare where the request resumes with the longest common prefix."""
        floor, distance = Lookup(ledger, ledger.requests[event.r]).longest_common(), ledger.header.rules.reuse_distance
        if floor <= distance:
            return None
        self.opportunities += 1
        if event.resume + distance >= floor:
            return None
        tier = ledger.header.rules.tier
        if tier is not None and event.resume >= longest_apart(ledger, ledger.requests[event.r], tier):
            self.acceptable += 1
            return None
        if event.resume >= Lookup(ledger, ledger.requests[event.r], last_block=True).longest_common():
            self.acceptable += 1
            return None
        sentence = (
            f"Let {event.r} be admitted in step {event.step}. By the engine's own keys every group holds its first "
            f"{count(floor, 'token')}; however it resumes at {event.resume} and computes "
            f"{count(floor - event.resume, 'token')} again: a contradiction."
        )
        return (Finding(anomaly="lost-hit", r=event.r, sentence=sentence),)
