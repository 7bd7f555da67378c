"""What a router is to the harness, and how one is found by name.

A router is given each message that a worker publishes, and asked before each request what every
worker has of its prompt. What it may leave out it declares itself: whether it counts the pages of a
block, and whether it looks at all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from cachewitness._util.errors import UsageError
from cachewitness._util.imports import imported
from cachewitness.core.engine_failure import EngineFailure, by_the_user, describe_error
from cachewitness.engines.deadline import call_within

SECONDS = 60.0
"""How long a router may take to be imported or built, to take a message in, or to be asked."""
WireEvent = Mapping[str, Any]
Replay = Callable[[int, int], Iterable[tuple[int, Sequence[WireEvent]]]]
"""Returns a worker's messages from a number on, with their numbers."""


class Router(Protocol):
    """What is judged. `counts`: a block that two pages hold is there until both are gone;
    `all_groups`: it looks at every cache group, else at full attention alone.
    """

    counts: bool
    all_groups: bool

    def take(self, worker: int, number: int, events: Sequence[WireEvent]) -> None:
        """Take in a message; a worker numbers its messages from 0."""

    def foresee(self, tokens: Sequence[int], salt: str, adapter: str) -> Mapping[int, int]:
        """Return for each worker how many tokens of a prompt it can take from its cache; a worker
        that is left out has none of it.
        """


Make = Callable[[Sequence[Mapping[str, Any]], Replay], Router]
"""Builds a router for a model's cache groups, as vLLM names them (kind, block_size, window, chunk),
and what returns the messages that it missed."""


def load(name: str, seconds: float = SECONDS) -> Make:
    """Return what builds the router that is called `module:Class`.

    Raises UsageError if it cannot be imported, within so many seconds, or does not declare what it
    leaves out.
    """
    module, colon, attribute = name.partition(":")
    if not module or not colon or not attribute:
        raise UsageError(f"--router: {name!r} is not of the form module:Class")
    try:
        with call_within("be imported", seconds):
            made = getattr(imported(module), attribute)
    except EngineFailure as error:
        raise UsageError(f"--router: {name} cannot be imported: it {error}") from None
    except BaseException as error:
        if by_the_user(error):
            raise
        raise UsageError(f"--router: {name} cannot be imported ({describe_error(error)})") from None
    if not callable(made):
        raise UsageError(f"--router: {name} is no class")
    for declared in ("counts", "all_groups"):
        if not isinstance(getattr(made, declared, None), bool):
            raise UsageError(
                f"--router: {name} does not declare `{declared}`; set it to True or False"
            )
    make: Make = made
    return make
