"""Who makes the choices that a policy leaves to an engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Choices(Protocol):
    """Who makes the choices that a policy leaves to an engine. What is offered is lawful; so is
    every answer.
    """

    def free(self, pool: int, pages: Sequence[int]) -> int:
        """Return which of the free pages without a key is handed out next."""

    def victim(self, pool: int, pages: Collection[int]) -> int | None:
        """Return which cached page makes room; None leaves it to the policy. Of an object of
        several pages, its first.
        """

    def duplicate(self, r: str, group: int, pages: Sequence[int]) -> int:
        """Return which of the pages with one key a request hits; in front is the one that was
        keyed first.
        """

    def waits(self, r: str) -> bool:
        """Say whether a request that had a choice among duplicates took one that makes it wait."""

    def renamed(self, r: str, group: int, length: int) -> bool:
        """Say whether the key of the first `length` tokens of a request goes to a second page of
        that content.
        """
