"""Counts the processor time that is spent inside vLLM's own code, apart from the harness's
observers that it calls in between.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from cachewitness.core.trace_format import Submit
from cachewitness.engines.manager_adapter import NewRequest

P = ParamSpec("P")
R = TypeVar("R")

TIMED = (
    "allocate_slots",
    "cache_blocks",
    "free",
    "get_computed_blocks",
    "new_step_starts",
    "reset_prefix_cache",
    "take_kv_cache_block_copies",
    "take_new_block_ids",
)


class Clock:
    """Runs while vLLM's code runs. Calls nest: one into vLLM starts it, one back into the
    harness halts it until it returns.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None

    def inside(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the same function, of vLLM's, as one whose time is counted."""

        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._since is not None:
                return function(*args, **kwargs)
            self._since = process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._halt()

        return counted

    def outside(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the same function, of the harness's, as one whose time is left out where vLLM
        calls it.
        """

        def left_out(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._since is None:
                return function(*args, **kwargs)
            self._halt()
            try:
                return function(*args, **kwargs)
            finally:
                self._since = process_time()

        return left_out

    def _halt(self) -> None:
        if self._since is not None:
            self.seconds += process_time() - self._since
            self._since = None


class TimedManager:
    """vLLM's cache manager, `timed`, whose calls a clock counts."""

    def __init__(self, timed: Any, clock: Clock) -> None:
        self.timed = timed
        self.clock = clock
        for name in TIMED:
            if hasattr(timed, name):
                setattr(self, name, clock.inside(late(timed, name)))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the manager that is timed."""
        return type(self.timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.timed, name)

    def new_requests(self, new_request: NewRequest) -> NewRequest:
        """Return the same maker of requests; making one, and adding a token to it, hashes blocks
        and is vLLM's time.
        """
        make = SimpleNamespace(request=new_request)
        clocked = self.clock.inside(late(make, "request"))

        def timed(op: Submit, tokens: list[int]) -> Any:
            request = clocked(op, tokens)
            request.append_output_token_ids = self.clock.inside(request.append_output_token_ids)
            return request

        return timed


def late(owner: Any, name: str) -> Callable[..., Any]:
    """Return a method that is looked up when it is called, so that a fault planted into its
    owner is met.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(owner, name)(*args, **kwargs)

    return call
