"""Runs the connector of openlake-vllm under the ledger, without OpenLake's servers.

`--engine vllm:source=SRC,connector=openlake_client.openlake_connector:OpenLakeConnector,`
`prepare=openlake_in_memory:prepare,connector_config={"openlake_nodes":["here"],`
`"openlake_min_external_lookup_tokens":0}`, with `PYTHONHASHSEED=0`; or `prepare` as
`openlake_in_memory:mended`.

A dictionary is the servers and the compiled client that copies to them and from them, by the
addresses that it is given. The threads of the worker run when its step has, one after the other:
what was handed to them is done then, and told with the next step. The worker is the only one, and
nothing is to be waited for on a stream.

Two things that it does as released would hide everything else; `mended` takes them back. Its
scheduler forgets who comes back in the step that says that they were preempted: it raises, or they
wait for ever; here it forgets those alone who have got no blocks since. It stores the null block,
block 0, where a request has none: what left a window, states that were passed; here nothing is
stored from there.

Source: openlake-vllm 0.8.1, `openlake_adapter.py`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

Places = Sequence[Sequence[int]]


class Client:
    """In place of `openlake_client.Client`, for one engine. What is put under a key stays. Memory
    that was not registered is refused, as by what copies over a network.
    """

    def __init__(self, there: dict[bytes, bytes], *, nulls: bool) -> None:
        self._there = there
        self._nulls = nulls
        self._memories = dict[int, int]()

    def attach(self, *args: Any) -> None:
        """Do nothing: no server is asked."""

    def register_memory(self, address: int, size: int) -> None:
        """Note where memory begins, which is where its null block lies, and its bytes."""
        self._memories[address] = size

    def batch_is_exist(self, keys: Sequence[bytes]) -> list[int]:
        """Return 1 for each key that is there, else 0."""
        return [int(key in self._there) for key in keys]

    def put_batch(self, keys: Sequence[bytes], addresses: Places, sizes: Places) -> list[int]:
        """Keep what lies at the addresses of each key."""
        for key, at, lengths in zip(keys, addresses, sizes, strict=True):
            self._check(at, lengths)
            if self._nulls or at[0] not in self._memories:
                self._there[key] = b"".join(map(ctypes.string_at, at, lengths))
        return [0 for _ in keys]

    def get_batch(self, keys: Sequence[bytes], addresses: Places, sizes: Places) -> list[int]:
        """Write what each key has to its addresses; return -1 for one that is not there."""
        return list(map(self._get, keys, addresses, sizes))

    def _get(self, key: bytes, addresses: Sequence[int], sizes: Sequence[int]) -> int:
        if key not in self._there:
            return -1
        self._check(addresses, sizes)
        left = self._there[key]
        for address, size in zip(addresses, sizes, strict=True):
            ctypes.memmove(address, left[:size], size)
            left = left[size:]
        return 0

    def _check(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Raise ValueError for what does not lie in registered memory."""
        for address, size in zip(addresses, sizes, strict=True):
            if not any(0 <= address - at <= most - size for at, most in self._memories.items()):
                raise ValueError(f"{size} bytes at {address:#x} are not in registered memory")

    def reset(self) -> None:
        """Forget everything."""
        self._there.clear()

    def close(self) -> None:
        """Do nothing: no connection is held."""


class Emptied(queue.Queue[Any]):
    """A queue whose reader ends when nothing is left."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return what was put first. Raises SystemExit if there is nothing."""
        if self.empty():
            raise SystemExit
        return super().get(block, timeout)


def prepare() -> None:
    """Give each engine servers of its own."""
    _prepare(nulls=True)


def _prepare(*, nulls: bool) -> None:
    adapter: Any = importlib.import_module("openlake_client.openlake_adapter")
    there: dict[bytes, bytes] = {}
    package: Any = importlib.import_module("openlake_client")
    package.Client = lambda **kwargs: Client(there, nulls=nulls)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    adapter.torch = SimpleNamespace(cuda=SimpleNamespace(Event=lambda: event))
    adapter.queue = SimpleNamespace(Queue=Emptied)
    adapter.KVTransferThread.start = lambda thread: thread.ready_event.set()
    kind = adapter.OpenLakeWorker
    if not hasattr(kind, "of_openlake"):
        kind.of_openlake = kind.get_finished
    kind.get_finished = _carried_out(kind.of_openlake)
    scheduler = adapter.OpenLakeScheduler
    if not hasattr(scheduler, "of_openlake"):
        scheduler.of_openlake = (scheduler.update_state_after_alloc, scheduler.build_connector_meta)
    scheduler.update_state_after_alloc, scheduler.build_connector_meta = scheduler.of_openlake
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    state.get_dcp_group = state.get_pcp_group = state.get_world_group = lambda: alone
    state.get_tensor_model_parallel_rank = lambda: 0
    state.get_tensor_model_parallel_world_size = lambda: 1


def mended() -> None:
    """Do the same, without the two things that hide everything else."""
    _prepare(nulls=False)
    kind = importlib.import_module("openlake_client.openlake_adapter").OpenLakeScheduler
    update, build = kind.of_openlake

    def update_state_after_alloc(self: Any, request: Any, *args: Any) -> None:
        update(self, request, *args)
        vars(self).setdefault("given_blocks", set()).add(request.request_id)

    def build_connector_meta(self: Any, output: Any) -> Any:
        preempted = output.preempted_req_ids or set()
        back = preempted & vars(self).pop("given_blocks", set())
        meta = build(self, dataclasses.replace(output, preempted_req_ids=preempted - back))
        meta.preempted_req_ids = preempted
        return meta

    kind.update_state_after_alloc = update_state_after_alloc
    kind.build_connector_meta = build_connector_meta


def _carried_out(finished: Callable[..., Any]) -> Callable[..., Any]:
    def get_finished(self: Any, *args: Any) -> Any:
        transfers = finished(self, *args)
        for thread in [*self.kv_recv_threads, self.kv_send_thread]:
            with suppress(SystemExit):
                thread.run()
        return transfers

    return get_finished
