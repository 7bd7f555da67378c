"""A server that goes away and comes back, counted in steps: it has died and begins with nothing, or
goes on where it stood.

While it is away nothing is answered. LMCache's thread that asks whether the server lives
(`HeartbeatThread`) notices that some steps later, and that the server is back when it is.

Source: LMCache 0.5.6, `integration/vllm/vllm_multi_process_adapter.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

OUTAGE = "outage"
"""The word of a connector's configuration that says how its server goes away now and then."""
EVERY, FIRST = 17, 7
"""An outage begins with every so many steps, and the first with this one."""
LASTS = 6
"""Steps that it lasts; in a seventh the server is back."""
NOTICED = 2
"""Steps until the thread that asks has had no answer."""


class Heartbeat:
    """In place of the thread that asks whether the server lives: it asks when it is told to."""

    stop_requested = False

    def __init__(self, health_event: Any, **arguments: Any) -> None:
        self._healthy = health_event
        self._recover: Callable[[], bool] = lambda: True

    def register_recover_callback(self, callback: Callable[[], bool]) -> None:
        """Take what has to succeed before the server counts as back."""
        self._recover = callback

    def start(self) -> None:
        """Do nothing."""

    stop = start

    def beat(self, *, answered: bool) -> None:
        """Take note of whether the server answered (`HeartbeatThread._execute`)."""
        if not answered:
            self._healthy.clear()
        elif not self._healthy.is_set() and self._recover():
            self._healthy.set()


class Moment(NamedTuple):
    """What happens with a step: the server goes away, the thread notices that, the server is
    back.
    """

    goes: bool = False
    noticed: bool = False
    back: bool = False


class Outages:
    """When a server is away: never, or as `how` says: it `dies`, or it `stalls` and goes on."""

    def __init__(self) -> None:
        self.how = ""
        self.away = False
        self.asked: Counter[str] = Counter()
        """How often it was asked for what while it was away."""
        self._step = 0

    def step(self) -> Moment:
        """Count a step."""
        self._step += 1
        place = (self._step - FIRST) % EVERY
        if not self.how or self._step < FIRST:
            return Moment()
        if place == 0:
            self.away = True
        back = self.away and place == LASTS
        if back:
            self.away = False
        return Moment(goes=place == 0, noticed=self.away and place == NOTICED, back=back)
