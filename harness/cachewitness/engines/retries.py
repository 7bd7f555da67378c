"""When a request that a server did not answer is sent again, after how long, and how often in
all.
"""

from __future__ import annotations

from threading import Lock

ATTEMPTS = 3
"""How often a request is sent before it counts as failed."""
TURNED_AWAY = 10
"""The same where the server says when to come back."""
WAIT_S = 0.5
"""How long the second attempt waits; each further one twice as long."""
WAIT_MAX_S = 60.0
"""A server that wants to be left alone for longer is one that does not answer."""
PASSING = (0, 408, 425, 429, 500, 502, 503, 504)
"""What may pass: a connection that broke (0), a server that is overloaded or fell over. What it
refuses, it refuses again."""

AWAY = (0, 502, 503, 504)
"""What a server, or a proxy in front of it, says that is not there. Where it says when to come back
it is there, and busy."""
AWAY_MAX, AWAY_SHARE = 3, 20
"""A server that is away more often than that, and more often than once in so many requests, is one
that does not answer."""


class Absences:
    """Counts how often a server was not there for a request, over all requests of one engine,
    which come in several threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests = self._away = 0

    def asked(self) -> None:
        """Count a request."""
        with self._lock:
            self._requests += 1

    def too_many(self, status: int, retry_after: str) -> int:
        """Count a status with which a request was turned away; return how often the server was
        away, 0 if that is borne.
        """
        with self._lock:
            self._away += status in AWAY and not retry_after
            return self._away if self._away > max(AWAY_MAX, self._requests // AWAY_SHARE) else 0


def wait_s(attempt: int, status: int, retry_after: str = "") -> float | None:
    """Return how long to wait after so many attempts, the last of which ended with this status;
    None: do not ask again.

    `retry_after` is the header of that name: seconds; a date counts as not given.
    """
    requested = float(retry_after) if retry_after.strip().isdecimal() else None
    if status not in PASSING or attempt >= (ATTEMPTS if requested is None else TURNED_AWAY):
        return None
    if requested is None:
        return float(WAIT_S * 2 ** (attempt - 1))
    return requested if requested <= WAIT_MAX_S else None
