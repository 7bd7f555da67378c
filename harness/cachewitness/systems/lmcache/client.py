"""A client of LMCache's server without a transport: the server is in this process and answers at
once.

Source: LMCache 0.5.6, `v1/multiprocess/transport/base.py`, `RequestClient`;
`v1/multiprocess/futures.py`, `MessagingFuture`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cachewitness.systems.lmcache.modules import part
from cachewitness.systems.lmcache.outage import Heartbeat, Moment, Outages
from cachewitness.systems.lmcache.server_process import Server, Transfer

NO_EVENT = b""
"""Of the device's event behind a copy: there is none, the answer itself comes when the copy is
over."""


class Pending(Protocol):
    """A copy that is under way on the device."""

    def query(self) -> bool:
        """Whether it is over."""

    def wait(self) -> None:
        """Wait until it is."""

    def succeeded(self) -> bool:
        """Whether it brought everything."""


Begin = Callable[[Transfer, bool], Pending]
"""Begins a copy on the device that LMCache has made: the transfer, and whether it is a store."""


class Client:
    """What LMCache's connector has for its request client. While the server is away, what is
    asked waits until it is back.
    """

    begin: Begin
    """Set once there is a device."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.outages = Outages()
        self._heartbeats: list[Heartbeat] = []
        self._unasked: list[tuple[Any, Callable[[], Any]]] = []
        """What was asked while the server was away: the future of its answer, and what answers."""

    def heartbeat(self, **arguments: Any) -> Heartbeat:
        """Return what LMCache has in place of its thread that asks whether the server lives."""
        self._heartbeats.append(made := Heartbeat(**arguments))
        return made

    def step(self) -> Moment:
        """Count a step: the server may go away with it, or be back. What was asked in between
        reaches one that begins anew.
        """
        moment = self.outages.step()
        if moment.back:
            asked, self._unasked = self._unasked, []
            if self.outages.how == "dies":
                self.server.restart()
            for future, answer in asked:
                future.set_result(answer())
        if moment.noticed or moment.back:
            for heartbeat in self._heartbeats:
                heartbeat.beat(answered=moment.back)
        return moment

    def _ask(self, what: str, answer: Callable[[], Any]) -> Any:
        future = part("v1.multiprocess.futures", "MessagingFuture")()
        if self.outages.away:
            self.outages.asked[what] += 1
            self._unasked.append((future, answer))
            future.wait = lambda timeout=None: bool(future.query())
        else:
            future.set_result(answer())
        return future

    # --- a server that is there -------------------------------------------------------------------

    def get_chunk_size(self) -> Any:
        """Answer how many tokens a chunk has."""
        return self._ask("chunk size", lambda: self.server.sizes.chunk)

    def get_experimental(self) -> Any:
        """Answer that nothing experimental is there, no stream of key events either."""
        return self._ask("experimental", list)

    def report_block_allocation(self, *arguments: Any) -> Any:
        """Take no note: it is for statistics alone."""
        return self._ask("report", lambda: None)

    def close(self) -> None:
        """There is no transport to be closed."""

    # --- engines, look-ups ------------------------------------------------------------------------

    def register_kv_cache(self, instance: int, *arguments: Any) -> Any:
        """Register an engine's caches."""
        return self._ask("register", lambda: self.server.register(instance, *arguments))

    def lookup(self, key: Any, readers: int) -> Any:
        """Look a prefix up."""
        return self._ask("look-up", lambda: self.server.lookup(key, readers))

    def query_prefetch_status(self, r: str) -> Any:
        """Answer how many chunks a look-up has found."""
        return self._ask("look-up", lambda: self.server.found(r))

    def free_lookup_locks(self, key: Any, readers: int) -> Any:
        """Let go of what a look-up locked."""
        return self._ask("free", lambda: self.server.free_lookup_locks(key, readers))

    def end_session(self, r: str) -> Any:
        """Let go of a request."""
        return self._ask("end", lambda: self.server.end_session(r))

    def clear(self, force: bool = False) -> Any:
        """Forget every object."""
        return self._ask("clear", lambda: self.server.clear(force=force))

    # --- copies -----------------------------------------------------------------------------------

    def store(
        self, key: Any, instance: int, block_ids: Sequence[Sequence[int]], event: bytes
    ) -> Any:
        """Store the key's tokens from these blocks; the answer comes when the copy is over."""
        return self._under_way("store", self.server.store(key, instance, block_ids, event))

    def retrieve(
        self, key: Any, instance: int, block_ids: Sequence[Sequence[int]], event: bytes, skip: int
    ) -> Any:
        """Fill these blocks with the key's tokens but the first `skip`; the answer comes when
        the copy is over.
        """
        return self._under_way(
            "retrieve", self.server.retrieve(key, instance, block_ids, event, skip)
        )

    def _under_way(self, what: str, transfer: Transfer) -> Any:
        self.outages.asked[what] += self.outages.away
        return _late()(self.outages, transfer, self.begin(transfer, what == "store"))


@functools.cache
def _late() -> Any:
    base: Any = part("v1.multiprocess.futures", "MessagingFuture")

    class Late(base):  # type: ignore[misc]
        """The answer to a copy: it is there when the copy is over."""

        def __init__(self, outages: Outages, transfer: Transfer, pending: Pending) -> None:
            super().__init__()
            self._outages = outages
            self._transfer = transfer
            self._pending = pending

        def query(self) -> bool:
            """Whether the answer is there."""
            if not self.is_done_.is_set() and self._pending.query():
                self.set_result((NO_EVENT, self._transfer.ok and self._pending.succeeded()))
            return bool(self.is_done_.is_set())

        def wait(self, timeout: float | None = None) -> bool:
            """Wait for the answer; none comes while the server is away, however long one waits."""
            if not self.query() and not self._outages.away:
                self._pending.wait()
            return self.query()

    return Late
