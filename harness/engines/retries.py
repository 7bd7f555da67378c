"""When a request that a server did not answer is sent again, and after how long."""

from __future__ import annotations

ATTEMPTS = 3
"""How often a request is sent before it counts as failed."""
TURNED_AWAY = 10
"""The same where the server says when to come back."""
WAIT_S = 0.5
"""How long the second attempt waits; each further one twice as long."""
WAIT_MAX_S = 60.0
"""A server that wants to be left alone for longer is one that does not answer."""
PASSING = (0, 408, 425, 429, 500, 502, 503, 504)
"""What may pass: a connection that broke (0), a server that is overloaded or fell over. What it refuses, it refuses again."""


def wait_s(attempt: int, status: int, retry_after: str = "") -> float | None:
    """Return how long to wait after so many attempts, the last of which ended with this status; None: do not ask again.

    `retry_after` is the header of that name: seconds; a date counts as not given.
    """
    told = float(retry_after) if retry_after.strip().isdecimal() else None
    if status not in PASSING or attempt >= (ATTEMPTS if told is None else TURNED_AWAY):
        return None
    if told is None:
        return float(WAIT_S * 2 ** (attempt - 1))
    return told if told <= WAIT_MAX_S else None
