"""What a router was worth to those who operate a fleet: what it foresaw beside what engines hit,
and the requests that it sent to the wrong worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cachewitness.sessions.route.fleet import Routed

CAUSES = {
    "router": "the router is wrong",
    "late": "keys began or ended, and that had not reached it yet",
    "unnamed": "events do not say which blocks of a sparse group are meant",
    "contract": "the router does not count, or does not look at all groups",
    "waited": "keys began or ended while the request waited, or for one sent at the same time",
    "engine": "the engine takes less than its keys allow, or more",
}
"""Why a hit may differ from what was foreseen."""


@dataclass
class Sums:
    """Requests that were looked up, of one kind of layout; lengths in tokens.

    `more` and `less` are by how much too much and too little was foreseen, by cause; `wrong` so
    many requests were sent to a worker that had less than another, `lost` tokens less in all.
    """

    requests: int = 0
    prompt: int = 0
    foreseen: int = 0
    hit: int = 0
    equal: int = 0
    wrong: int = 0
    lost: int = 0
    more: Counter[str] = field(default_factory=Counter)
    less: Counter[str] = field(default_factory=Counter)

    def add(self, routed: Iterable[Routed]) -> None:
        """Take in requests; those that were never looked up are left out."""
        for one in routed:
            if one.hit < 0:
                continue
            self.requests += 1
            self.prompt += one.prompt
            self.foreseen += one.foreseen
            self.hit += one.hit
            self.equal += one.foreseen == one.hit
            self.wrong += one.bounds.keys < one.best
            self.lost += one.best - one.bounds.keys
            for cause, tokens in causes(one).items():
                (self.more if tokens > 0 else self.less)[cause] += abs(tokens)


def causes(one: Routed) -> dict[str, int]:
    """Return why a hit is not what was foreseen: by cause the tokens that were foreseen too many,
    or too few if negative. They add up to the difference.
    """
    least, most, keys = one.bounds
    fair = min(max(one.foreseen, least), most)
    parts = {
        "router" if one.settled else "late": one.foreseen - (fair if one.settled else keys),
        "unnamed": fair - most if one.settled else 0,
        "contract": most - keys if one.settled else 0,
        "waited": keys - one.keys_at_hit,
        "engine": one.keys_at_hit - one.hit,
    }
    return {cause: tokens for cause, tokens in parts.items() if tokens}
