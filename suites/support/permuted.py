"""The reference of a policy with its free choices drawn: other pages, other victims, other
duplicates, all of them lawful.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import policy as policies


class Drawn:
    """Draws every choice; `made` counts, by kind, those in which there was something to choose."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.made = dict.fromkeys(("free", "victim", "duplicate", "renamed"), 0)

    def free(self, pool: int, pages: Sequence[int]) -> int:
        """Draw a free page."""
        return self._draw("free", pages)

    def victim(self, pool: int, pages: Collection[int]) -> int | None:
        """Draw a cached page."""
        return self._draw("victim", sorted(pages)) if pages else None

    def duplicate(self, r: str, group: int, pages: Sequence[int]) -> int:
        """Draw one of several pages with the same key."""
        return self._draw("duplicate", pages)

    def waits(self, r: str) -> bool:
        """Leave it to what was drawn."""
        return False

    def renamed(self, r: str, group: int, length: int) -> bool:
        """Draw who keeps a key."""
        return self._draw("renamed", (False, True))

    def _draw(self, what: str, among: Sequence[int]) -> int:
        self.made[what] += len(among) > 1
        return self._random.choice(among)


def permuted(header: TraceHeader, seed: int) -> tuple[Engine, Drawn]:
    """Return the reference that a trace asks for, and who makes its free choices; it declares no
    order of eviction.
    """
    kind = policies.get(header.policy)
    drawn = Drawn(seed)
    assert kind.steer is not None
    engine: Any = kind.open(header, {})
    pools = [msgspec.structs.replace(pool, eviction=None) for pool in engine.header.pools]
    rules = engine.header.rules
    if rules.captures is not None:
        rules = msgspec.structs.replace(
            rules, captures=msgspec.structs.replace(rules.captures, order="random")
        )
    engine.header = msgspec.structs.replace(engine.header, pools=pools, rules=rules)
    kind.steer(engine, drawn)
    return engine, drawn
