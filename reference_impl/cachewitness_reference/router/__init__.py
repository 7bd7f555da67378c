"""A router that follows the key events of a fleet of vLLM engines, and is right: a sample to copy.

It is asked how many tokens of a prompt each worker could take from its cache. It counts, since two
pages may hold the same block; it asks every group, since a hybrid resumes only where all of them
can; it knows salts, adapters and media other than the device; it asks for the messages that it
missed, and begins anew with a worker that does.

Names of blocks (hashes) mean something to their worker alone. A prefix is known here by a digest of
its tokens, and each worker's events say which of its names stands for which digest. Events of a
group that keeps only some blocks have tokens of more blocks than names: then the names count, and
what they stand for is learned from the events of other groups.

Source: vLLM 0.33.0, `distributed/kv_events.py`, `v1/core/kv_cache_coordinator.py`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from math import gcd, lcm
from typing import Any

Event = Mapping[str, Any]
Messages = Iterable[tuple[int, Sequence[Event]]]


def beginning(salt: str, adapter: str) -> Any:
    """Return the digest of no tokens, under a salt and an adapter."""
    return sha256(repr((salt, adapter)).encode())


def follow(digest: Any, tokens: Sequence[int]) -> Any:
    """Return the digest of a prefix and these tokens behind it."""
    longer = digest.copy()
    longer.update(array("q", tokens).tobytes())
    return longer


def needed(group: Event, length: int) -> range:
    """Return the lengths at which a group needs a block so that a request resumes at `length`."""
    first = 0
    if group["kind"] == "mamba":
        first = length - 1
    elif group["kind"] == "chunked_local_attention":
        first = length // group["chunk"] * group["chunk"]
    elif group["window"]:
        first = max(0, length - group["window"] + 1)
    size = group["block_size"]
    return range((first // size + 1) * size, length + 1, size)


class Worker:
    """What one worker has, as far as its events say; `number` is that of its next message."""

    def __init__(self) -> None:
        self.number = 0
        self.clear()

    def clear(self) -> None:
        """Forget every block."""
        self.pages = Counter[tuple[int, Any]]()
        self.digests: dict[Any, Any] = {}
        self.names: dict[bytes, Any] = {}

    def take(self, event: Event) -> None:
        """Take in an event; blocks of other media are no blocks of the device."""
        if event["type"] == "AllBlocksCleared":
            self.clear()
        elif event["medium"] in (None, "GPU"):
            group = event["group_idx"] or 0
            blocks = [(group, name) for name in event["block_hashes"]]
            if event["type"] == "BlockRemoved":
                self.pages.subtract(blocks)
            else:
                self.pages.update(blocks)
                self.learn(event)

    def learn(self, event: Event) -> None:
        """Learn which prefixes the names of an event stand for, if it names each of its blocks."""
        names = event["block_hashes"]
        size = event["block_size"]
        parent = event["parent_block_hash"]
        adapter = event["lora_name"] or ""
        salts = ((event["extra_keys"] or [None])[:1] or [None])[0] or ()
        salt = next((key for key in salts[bool(adapter) :] if isinstance(key, str)), "")
        digest = beginning(salt, adapter) if parent is None else self.digests.get(parent)
        if digest is None or len(names) * size != len(event["token_ids"]):
            return
        for at, name in enumerate(names):
            digest = follow(digest, event["token_ids"][at * size : (at + 1) * size])
            self.digests[name] = digest
            self.names[digest.digest()] = name


class Router:
    """Knows a fleet of workers, all of one model. `groups` are its cache groups (kind, block_size,
    window, chunk); `replay(worker, number)` returns a worker's messages from a number on.
    """

    counts = True
    all_groups = True

    def __init__(self, groups: Sequence[Event], replay: Callable[[int, int], Messages]) -> None:
        self.groups = groups
        self.replay = replay
        self.workers: dict[int, Worker] = {}

    def take(self, worker: int, number: int, events: Sequence[Event]) -> None:
        """Take in a message; one that came before is dropped, the first one begins anew."""
        if number == 0 or worker not in self.workers:
            self.workers[worker] = Worker()
        known = self.workers[worker]
        missed = self.replay(worker, known.number) if number > known.number else ()
        for at, message in (*missed, (number, events)):
            if at == known.number:
                known.number += 1
                for event in message:
                    known.take(event)

    def foresee(self, tokens: Sequence[int], salt: str, adapter: str) -> dict[int, int]:
        """Return for each worker how many tokens of a prompt it need not compute; the last token
        is always computed.
        """
        sizes = [group["block_size"] for group in self.groups]
        digests = {0: beginning(salt, adapter)}
        for end in range(gcd(*sizes), len(tokens), gcd(*sizes)):
            digests[end] = follow(digests[end - gcd(*sizes)], tokens[end - gcd(*sizes) : end])
        lengths = range((len(tokens) - 1) // lcm(*sizes) * lcm(*sizes), 0, -lcm(*sizes))
        return {
            name: next((n for n in lengths if self.resumes(worker, digests, n)), 0)
            for name, worker in self.workers.items()
        }

    def resumes(self, worker: Worker, digests: Mapping[int, Any], length: int) -> bool:
        """Whether every group of a worker has what a request needs to resume at a length."""
        return all(
            worker.pages[number, worker.names.get(digests[end].digest())] > 0
            for number, group in enumerate(self.groups)
            for end in needed(group, length)
        )
