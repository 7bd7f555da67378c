"""Runs the connector and the tier of vllm-kvblockd under the ledger, without kvblockd's server.

`--engine vllm:source=SRC,connector=vllm_kvblockd.connector:KvblockdConnector,`
`prepare=kvblockd_in_memory:prepare`, or
`vllm:source=SRC,connector=offloading,spec=vllm_kvblockd.tier_manager:KvblockdTieringSpec,`
`secondary_tiers=[{"type":"kvblockd"}],prepare=kvblockd_in_memory:prepare`, with `PYTHONHASHSEED=0`.

The server is a program in Go, which is on no package index. Here a dictionary is the server and the
client that speaks to it: what is put under a key stays, and is put once. The connector's thread
that sends what was staged runs; a step is over when it has nothing left to send.

Source: vllm-kvblockd 0.1.0, `connector.py`, `store_queue.py`, `tier_manager.py`; kvblockd 0.1.0,
`client.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from itertools import count, takewhile
from types import SimpleNamespace
from typing import Any

SECONDS = 60.0
"""How long a step waits for what is sent: it takes milliseconds."""
Alloc = Callable[[int, bytes, int], Any]

_engines = count(1)


class Client:
    """In place of `kvblockd.client.Client`, for one engine."""

    def __init__(self, there: dict[bytes, bytes], status: Any) -> None:
        self._there = there
        self._status = status
        self.counters = SimpleNamespace(snapshot=dict)

    def batch_exists(
        self, keys: Sequence[bytes], deadline: float | None = None
    ) -> tuple[int, list[bool]]:
        """Return how many keys from the first on are there, and whether each is."""
        known = [key in self._there for key in keys]
        return sum(1 for _ in takewhile(bool, known)), known

    def put(self, key: bytes, data: Any) -> Any:
        """Keep what lies under a key, unless something does."""
        if key in self._there:
            return self._status.OK_EXISTS
        parts = data if isinstance(data, list) else [data]
        self._there[key] = b"".join(bytes(part) for part in parts)
        return self._status.OK

    def batch_get_scatter(
        self, keys: Sequence[bytes], prefix_len: int, alloc: Alloc, deadline: float | None = None
    ) -> list[Any]:
        """Write what lies behind the prefix of each key where `alloc` says; return by key whether
        that was done.
        """
        return [
            self._get(index, self._there.get(key), prefix_len, alloc)
            for index, key in enumerate(keys)
        ]

    def _get(self, index: int, whole: bytes | None, prefix_len: int, alloc: Alloc) -> Any:
        if whole is None:
            return self._status.NOT_FOUND
        body = whole[prefix_len:]
        room = alloc(index, whole[:prefix_len], len(body))
        if room is None:
            return self._status.NOT_FOUND
        memoryview(room)[: len(body)] = body
        return self._status.OK

    def touch_lease(self, keys: Iterable[bytes], sub: int) -> list[Any]:
        """Do nothing: what is there stays."""
        return [self._status.OK for _ in keys]

    def close(self) -> None:
        """Do nothing: no connection is held."""


def prepare(vllm_config: Any) -> None:
    """Give each engine a server of its own, and have steps wait until the connector's thread has
    sent what they staged.
    """
    status = importlib.import_module("kvblockd.protocol").Status
    connector: Any = importlib.import_module("vllm_kvblockd.connector")
    tier: Any = importlib.import_module("vllm_kvblockd.tier_manager")
    there: dict[bytes, bytes] = {}

    def client(*args: Any, **kwargs: Any) -> Client:
        return Client(there, status)

    connector.Client = tier.Client = client
    kind = connector.KvblockdConnector
    if not hasattr(kind, "of_kvblockd"):
        kind.of_kvblockd = kind.wait_for_save
    kind.wait_for_save = _sent_behind(kind.of_kvblockd)


def _sent_behind(save: Callable[[Any], None]) -> Callable[[Any], None]:
    def wait_for_save(self: Any) -> None:
        save(self)
        self._store_flush(SECONDS)

    return wait_for_save
