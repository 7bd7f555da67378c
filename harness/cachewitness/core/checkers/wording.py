"""Words that several checkers' sentences share."""

from __future__ import annotations

from collections.abc import Collection


def count(number: int, what: str) -> str:
    """Return a number of things, `1 token` or `2 tokens`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def describe_retention(interval: int, boundaries: Collection[int]) -> str:
    """Return what a retention interval keeps of a prompt that can be resumed at some boundaries,
    all of them in tokens.
    """
    places = " or ".join(str(boundary) for boundary in sorted(boundaries) if boundary)
    told = [f"multiples of {interval}"] if interval else []
    told += [f"what a request needs to resume at {places}"] if places else []
    return " and ".join(told) or "nothing of it"
