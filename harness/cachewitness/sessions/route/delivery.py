"""How a worker's messages reach a router: one by one, late, with gaps, twice, beside those of
another medium, over a restart.

Places are counted in messages, so they mean the same in a trace that was made smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest

DELIVERIES: Mapping[str, str] = {
    "whole": "every message arrives",
    "late": "the router subscribes when a worker has published two messages, and asks for those",
    "gaps": "one message in three is lost, and the router asks for it when the next one comes",
    "twice": "messages come twice, and older ones again",
    "media": "each block is told of on the medium CPU as well, and told to be gone from it",
    "seeds": "every message arrives, and each worker names equal blocks in its own way",
    "restart": "the first worker starts anew behind its fourth message and numbers from 0",
}
"""How messages arrive, by name."""
_LATE, _RESTART = 2, 4
Message = list[dict[str, Any]]


def known(name: str) -> str:
    """Return a delivery's name. Raises UsageError if there is none."""
    if name not in DELIVERIES:
        raise UsageError(
            f"--delivery: {name!r} is unknown{nearest(name, DELIVERIES)}; known are"
            f" {', '.join(DELIVERIES)}"
        )
    return name


class Channel:
    """The messages of one start of one worker, and which of them arrive when."""

    def __init__(self, delivery: str) -> None:
        self.log: list[Message] = []
        self.behind = False
        """Whether something was published that the router has not got and cannot have asked for."""
        self._delivery = delivery
        self._elsewhere: list[dict[str, Any]] = []

    def publish(self, events: Sequence[dict[str, Any]]) -> Iterator[int]:
        """Publish a message; yield the numbers of those that arrive now."""
        self.log.append(self._with_media(events))
        number = len(self.log) - 1
        self.behind = (
            number < _LATE
            if self._delivery == "late"
            else self._delivery == "gaps" and number % 3 == 1
        )
        if self.behind:
            return
        yield number
        if self._delivery == "twice" and number % 2:
            yield number
            if number > 2:
                yield number - 1

    @property
    def ends(self) -> bool:
        """Whether the worker starts anew now."""
        return self._delivery == "restart" and len(self.log) == _RESTART

    def replay(self, first: int) -> list[tuple[int, Message]]:
        """Return the messages from a number on, with their numbers."""
        return [(number, self.message(number)) for number in range(len(self.log))[first:]]

    def message(self, number: int) -> Message:
        """Return a copy of a message, as one that came over a wire: the router's to change."""
        return deepcopy(self.log[number])

    def _with_media(self, events: Sequence[dict[str, Any]]) -> Message:
        """Return the events with those of a copy on another medium: what is stored is told of there
        too, every second time to be gone with the next message.
        """
        if self._delivery != "media":
            return list(events)
        gone, self._elsewhere = self._elsewhere, []
        stored = [{**event, "medium": "CPU"} for event in events if event["type"] == "BlockStored"]
        self._elsewhere = [
            {
                "type": "BlockRemoved",
                "block_hashes": event["block_hashes"],
                "medium": "CPU",
                "group_idx": event["group_idx"],
            }
            for event in stored[::2]
        ]
        return [*events, *gone, *stored]
