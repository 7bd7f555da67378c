"""Dynamo's indexer, a process of its own: key events come to it over ZMQ, answers go over HTTP.

What is ours is what a fleet does around it: workers publish as vLLM does, answer when messages are
asked for again, and are registered when their first message comes, anew when one numbers from 0
again. A salt is tagged, as Dynamo's own worker for vLLM does before the engine gets it: the process
takes no other string of an event for a salt.

One process serves all traces in turn, as long as it answers: a router that is built takes away the
workers of the one before.

Source: ai-dynamo-runtime 1.6.1, `python -m dynamo.indexer`; docs.nvidia.com/dynamo, Standalone KV
Indexer; the messages: vLLM 0.33.0, `distributed/kv_events.py`, ZmqEventPublisher.
"""

from __future__ import annotations

import atexit
import importlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from typing import Any

import msgspec

from cachewitness._util import http
from cachewitness._util.errors import UsageError
from cachewitness.sessions.route.router import Replay, WireEvent
from cachewitness.systems.dynamo.radix_tree import full_attention

SALT = "dynamo-cache-salt:"
"""What Dynamo puts in front of a salt."""
STARTS_S, ANSWERS_S = 60.0, 20.0
"""Seconds in which the process must listen, and in which it must answer or take a message in."""
MOST = 1 << 20
"""Bytes of an answer that are read."""
Messages = Iterable[tuple[int, Sequence[WireEvent]]]
"""Messages with their numbers."""
_END = (-1).to_bytes(8, "big", signed=True)
_LAST_TOKEN = (1 << 32) - 1
_NAMES = 1 << 62
_RUN = """
from cachewitness._util.workers import die_with_the_parent
die_with_the_parent()
from dynamo.indexer.main import main
main()
"""


class IndexerProcess:
    """The process, and what is asked of it. Raises UsageError if it does not start."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._numbers = count()
        self._workers: dict[int, tuple[str, Publisher]] = {}
        self._child = subprocess.Popen(
            [sys.executable, "-c", _RUN, "--port", str(port), "--threads", "1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(self.close)
        ends = time.monotonic() + STARTS_S
        while True:
            with suppress(http.NoAnswer):
                http.ask("GET", f"{self._url}/workers", within=ANSWERS_S, most=MOST)
                return
            if self._child.poll() is not None or time.monotonic() > ends:
                raise UsageError(
                    "--router: Dynamo's indexer does not start; python -m dynamo.indexer says why"
                )
            time.sleep(0.02)

    def model(self) -> str:
        """Return the name of a model that has no workers, nor has any other."""
        for instance in [*self._workers]:
            self.unregister(instance)
        return f"model-{next(self._numbers)}"

    def register(self, model: str, size: int, publisher: Publisher) -> int:
        """Register a worker; return its number, which is one for all models."""
        instance = next(self._numbers)
        self._workers[instance] = model, publisher
        self.ask(
            "register",
            instance_id=instance,
            model_name=model,
            block_size=size,
            endpoint=publisher.endpoint,
            replay_endpoint=publisher.replay_endpoint,
        )
        publisher.wait_for_a_subscriber()
        return instance

    def unregister(self, instance: int) -> None:
        """Take a worker away."""
        model, publisher = self._workers.pop(instance)
        publisher.close()
        self.ask("unregister", instance_id=instance, model_name=model)

    def close(self) -> None:
        """End the process, and what its workers publish."""
        for _, publisher in self._workers.values():
            publisher.close()
        self._workers.clear()
        self._end()

    def _end(self) -> None:
        self._child.kill()
        self._child.wait()

    def ended(self) -> bool:
        """Whether the process is gone, by itself or since it gave no answer."""
        return self._child.poll() is not None

    def ask(self, path: str, **body: Any) -> Any:
        """Return what it answers. Raises ConnectionError if it answers nothing, or a failure; what
        answers nothing is ended, so that it fails the one trace and none of those behind it.
        """
        try:
            reply = http.ask(
                "POST",
                f"{self._url}/{path}",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
                within=ANSWERS_S,
                most=MOST,
            )
        except http.NoAnswer as error:
            self._end()
            why = f"no answer within {ANSWERS_S} s" if error.late else str(error)
            raise ConnectionError(f"{path}: {why}") from None
        if reply.status not in (http.OK, 201):
            raise ConnectionError(f"{path}: status {reply.status}: {reply.body[:200]!r}")
        return reply.json()


class Publisher:
    """A worker's end of the wire, from one start of it to the next."""

    def __init__(self, zmq: Any, size: int) -> None:
        self._size = size
        self._sent: dict[int, bytes] = {}
        context = zmq.Context.instance()
        # A subscription shows on an XPUB, and what is sent before it comes is lost.
        self._live = context.socket(zmq.XPUB)
        self._asked = context.socket(zmq.ROUTER)
        for end in (self._live, self._asked):
            end.setsockopt(zmq.LINGER, 0)
            end.bind("tcp://127.0.0.1:*")
        self.endpoint, self.replay_endpoint = (
            end.getsockopt_string(zmq.LAST_ENDPOINT) for end in (self._live, self._asked)
        )

    def wait_for_a_subscriber(self) -> None:
        """Wait until somebody listens. Raises TimeoutError if nobody does."""
        if not self._live.poll(ANSWERS_S * 1000):
            raise TimeoutError("Dynamo's indexer does not subscribe")
        self._live.recv()

    def publish(self, number: int, events: Sequence[WireEvent]) -> list[int]:
        """Publish a message; return the tokens of a block that it ends with and no prompt has."""
        tokens = [_LAST_TOKEN - number] * self._size
        mark = {
            "type": "BlockStored",
            "block_hashes": [_NAMES + number],
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": self._size,
            "medium": "GPU",
        }
        self._sent[number] = _message([*events, mark])
        self._live.send_multipart([b"", number.to_bytes(8, "big"), self._sent[number]])
        return tokens

    def answer(self, replay: Callable[[int], Messages]) -> None:
        """Send the messages that are asked for again, as the engine's publisher does."""
        if not self._asked.poll(1):
            return
        who, _, first = self._asked.recv_multipart()
        for number, events in replay(int.from_bytes(first, "big")):
            message = self._sent.get(number) or _message(events)
            self._asked.send_multipart([who, b"", b"", number.to_bytes(8, "big"), message])
        self._asked.send_multipart([who, b"", b"", _END, b""])

    def close(self) -> None:
        """Close both ends."""
        self._live.close()
        self._asked.close()


class IndexerRouter:
    """Dynamo's process behind the messages of a fleet."""

    counts = False
    all_groups = False

    def __init__(self, groups: Sequence[Mapping[str, Any]], replay: Replay) -> None:
        self._size: int = groups[full_attention(groups)]["block_size"]
        self._zmq, self._process = _running()
        self._model = self._process.model()
        self._replay = replay
        self._workers: dict[int, Publisher] = {}
        self._instances: dict[int, int] = {}
        self._next: dict[int, int] = {}

    @classmethod
    def stop(cls) -> None:
        """End the process that serves all routers; the next one starts another."""
        if _started.cache_info().currsize:
            _started()[1].close()
            _started.cache_clear()

    def take(self, worker: int, number: int, events: Sequence[WireEvent]) -> None:
        """Publish a message, and wait until the process has taken it in."""
        if number == 0 or worker not in self._workers:
            self._register(worker)
        publisher = self._workers[worker]
        mark = publisher.publish(number, events)
        if number < self._next[worker]:
            return  # It has had this one, and takes it in no second time.
        self._next[worker] = number + 1
        ends = time.monotonic() + ANSWERS_S
        while not self._known(mark, worker):
            if time.monotonic() > ends:
                raise TimeoutError(f"Dynamo's indexer does not take in message {number}")
            publisher.answer(partial(self._replay, worker))

    def _register(self, worker: int) -> None:
        if worker in self._instances:
            self._process.unregister(self._instances.pop(worker))
        publisher = self._workers[worker] = Publisher(self._zmq, self._size)
        self._next[worker] = 0
        self._instances[worker] = self._process.register(self._model, self._size, publisher)

    def _known(self, tokens: Sequence[int], worker: int) -> bool:
        return worker in self._scores(token_ids=tokens)

    def _scores(self, **prompt: Any) -> dict[int, int]:
        answer = self._process.ask("query", model_name=self._model, **prompt)["scores"]
        named = {worker: answer.get(str(name), {}) for worker, name in self._instances.items()}
        return {worker: ranks["0"] for worker, ranks in named.items() if ranks}

    def foresee(self, tokens: Sequence[int], salt: str, adapter: str) -> dict[int, int]:
        """Return what the process has of a prompt but its last token, in tokens by worker."""
        if not self._workers:
            return {}
        return self._scores(
            token_ids=tokens[:-1], cache_salt=salt or None, lora_name=adapter or None
        )


def _message(events: Iterable[WireEvent]) -> bytes:
    """Return a message as vLLM encodes it: the time, the events, the data parallel rank."""
    published = [dict(_tagged(event)) for event in events]
    return msgspec.msgpack.encode([0.0, published, 0])


def _tagged(event: WireEvent) -> WireEvent:
    """Return an event with its salt, the last extra key of a prompt's first block, tagged."""
    first = (event.get("extra_keys") or [None])[0] or []
    salts = first[bool(event.get("lora_name")) :]
    if event.get("parent_block_hash") is not None or not salts:
        return event
    keys = [*first[: -len(salts)], *(SALT + salt for salt in salts)]
    return {**event, "extra_keys": [keys, *event["extra_keys"][1:]]}


def _running() -> tuple[Any, IndexerProcess]:
    """Return ZMQ's module and a process that has not ended; see `_started`."""
    if _started()[1].ended():
        IndexerRouter.stop()
    return _started()


@cache
def _started() -> tuple[Any, IndexerProcess]:
    """Return ZMQ's module and the process. Raises UsageError if either is not installed."""
    if not find_spec("dynamo"):
        raise UsageError(
            "--router: Dynamo is not installed; pip install 'ai-dynamo-runtime==1.6.1' pyzmq"
        )
    try:
        zmq = importlib.import_module("zmq")
    except ImportError as error:
        raise UsageError(f"--router: ZMQ cannot be imported ({error}); pip install pyzmq") from None
    return zmq, IndexerProcess()
