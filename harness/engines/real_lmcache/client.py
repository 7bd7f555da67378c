"""A client of LMCache's server without a transport: the server is in this process and answers at once.

Source: LMCache 0.5.6, `v1/multiprocess/transport/base.py`, `RequestClient`; `v1/multiprocess/futures.py`, `MessagingFuture`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from harness.engines.real_lmcache.modules import part
from harness.engines.real_lmcache.server import Server, Transfer

NO_EVENT = b""
"""Of the device's event behind a copy: there is none, the answer itself comes when the copy is over."""


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
    """What LMCache's connector has for its request client."""

    begin: Begin
    """Set once there is a device."""

    def __init__(self, server: Server) -> None:
        self.server = server

    # --- a server that is there ---------------------------------------------------------------------------------------

    def get_chunk_size(self) -> Any:
        """Answer how many tokens a chunk has."""
        return _answer(self.server.sizes.chunk)

    def get_experimental(self) -> Any:
        """Answer that nothing experimental is there, no stream of key events either."""
        return _answer([])

    def report_block_allocation(self, *told: Any) -> Any:
        """Take no note: it is for statistics alone."""
        return _answer(None)

    def close(self) -> None:
        """There is no transport to be closed."""

    # --- engines, look-ups --------------------------------------------------------------------------------------------

    def register_kv_cache(self, instance: int, *told: Any) -> Any:
        """Register an engine's caches."""
        self.server.register(instance, *told)
        return _answer(None)

    def lookup(self, key: Any, readers: int) -> Any:
        """Look a prefix up."""
        self.server.lookup(key, readers)
        return _answer(None)

    def query_prefetch_status(self, r: str) -> Any:
        """Answer how many chunks a look-up has found."""
        return _answer(self.server.found(r))

    def free_lookup_locks(self, key: Any, readers: int) -> Any:
        """Let go of what a look-up locked."""
        self.server.free_lookup_locks(key, readers)
        return _answer(None)

    def end_session(self, r: str) -> Any:
        """Let go of a request."""
        self.server.end_session(r)
        return _answer(None)

    def clear(self, force: bool = False) -> Any:
        """Forget every object."""
        self.server.clear(force=force)
        return _answer(None)

    # --- copies -------------------------------------------------------------------------------------------------------

    def store(self, key: Any, instance: int, block_ids: Sequence[Sequence[int]], event: bytes) -> Any:
        """Store the key's tokens from these blocks; the answer comes when the copy is over."""
        return self._under_way(self.server.store(key, instance, block_ids, event), stores=True)

    def retrieve(self, key: Any, instance: int, block_ids: Sequence[Sequence[int]], event: bytes, skip: int) -> Any:
        """Fill these blocks with the key's tokens but the first `skip`; the answer comes when the copy is over."""
        return self._under_way(self.server.retrieve(key, instance, block_ids, event, skip), stores=False)

    def _under_way(self, transfer: Transfer, *, stores: bool) -> Any:
        return _late()(transfer, self.begin(transfer, stores))


def _answer(value: Any) -> Any:
    """Return the future of something that is there."""
    future = part("v1.multiprocess.futures", "MessagingFuture")()
    future.set_result(value)
    return future


@functools.cache
def _late() -> Any:
    base: Any = part("v1.multiprocess.futures", "MessagingFuture")

    class Late(base):  # type: ignore[misc]
        """The answer to a copy: it is there when the copy is over."""

        def __init__(self, transfer: Transfer, pending: Pending) -> None:
            super().__init__()
            self._transfer, self._pending = transfer, pending

        def query(self) -> bool:
            """Whether the answer is there."""
            if not self.is_done_.is_set() and self._pending.query():
                self.set_result((NO_EVENT, self._transfer.ok and self._pending.succeeded()))
            return bool(self.is_done_.is_set())

        def wait(self, timeout: float | None = None) -> bool:
            """Wait for the answer."""
            if not self.query():
                self._pending.wait()
            return self.query()

    return Late
