"""Dynamo's `RadixTree`, in process.

What is ours is what Dynamo's own listener does in front of the tree: it numbers messages, asks for
those that were missed, and turns vLLM's events into the tree's. The tree indexes one group, of
full attention; it keeps a set of blocks for each worker. An event that it refuses (a block whose
parent it does not have, the removal of one that it does not have) is passed over, as Dynamo's
process does.

Source: ai-dynamo-runtime 1.6.1, `dynamo/_core.pyi`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.sessions.route.router import Replay, WireEvent

FULL = "full_attention"


class RadixTreeRouter:
    """A radix tree of blocks behind the messages of a fleet."""

    counts = False
    all_groups = False

    def __init__(self, groups: Sequence[Mapping[str, Any]], replay: Replay) -> None:
        try:
            dynamo: Any = importlib.import_module("dynamo.llm")
        except ImportError as error:
            raise UsageError(
                f"--router: Dynamo cannot be imported ({error}); pip install"
                " 'ai-dynamo-runtime==1.6.1'"
            ) from None
        self._tree = dynamo.RadixTree()
        self._hash = dynamo.compute_block_hash_for_seq
        self._group = full_attention(groups)
        self._size: int = groups[self._group]["block_size"]
        self._replay = replay
        self._next: dict[int, int] = {}
        self.refused = 0
        """Events that the tree did not take."""

    def take(self, worker: int, number: int, events: Sequence[WireEvent]) -> None:
        """Take in a message, and those that were missed before it."""
        if number == 0:
            self._tree.remove_worker(worker)
            self._next[worker] = 0
        first = self._next.setdefault(worker, 0)
        missed: Iterable[tuple[int, Sequence[WireEvent]]] = (
            self._replay(worker, first) if number > first else ()
        )
        for at, message in (*missed, (number, events)):
            if at == self._next[worker]:
                self._next[worker] += 1
                for event in message:
                    self._apply(worker, at, event)

    def _apply(self, worker: int, number: int, event: WireEvent) -> None:
        if event["type"] == "AllBlocksCleared":
            self._tree.clear_all_blocks(worker)
            return
        if event["medium"] not in (None, "GPU") or event["group_idx"] not in (None, self._group):
            return
        data: dict[str, Any] = {"removed": {"block_hashes": event["block_hashes"]}}
        if event["type"] == "BlockStored":
            data = {"stored": self._stored(event)}
        try:
            self._tree.apply_event(
                worker,
                json.dumps({"event_id": number, "data": data, "dp_rank": 0}).encode(),
            )
        except RuntimeError:
            self.refused += 1

    def _stored(self, event: WireEvent) -> dict[str, Any]:
        adapter = event["lora_name"] or ""
        extra = (event["extra_keys"] or [None])[0] or []
        first = event["parent_block_hash"] is None
        salt = next(iter(extra[bool(adapter) :]), "") if first else ""
        hashes = self._hashes(event["token_ids"], salt, adapter)
        return {
            "parent_hash": event["parent_block_hash"],
            "blocks": [
                {"block_hash": name, "tokens_hash": tokens}
                for name, tokens in zip(event["block_hashes"], hashes, strict=True)
            ],
        }

    def _hashes(self, tokens: Sequence[int], salt: str, adapter: str) -> list[int]:
        """Return Dynamo's hashes of whole blocks. A salt is published with the first block of a
        prompt alone, so it is part of that block's hash alone.
        """
        size = self._size
        named = {"lora_name": adapter or None}
        whole = list(tokens[: len(tokens) // size * size])
        return [
            *self._hash(whole[:size], size, cache_namespace=salt or None, **named),
            *self._hash(whole[size:], size, **named),
        ]

    def foresee(self, tokens: Sequence[int], salt: str, adapter: str) -> dict[int, int]:
        """Return what the tree has of a prompt but its last token, in tokens by worker."""
        scores = self._tree.find_matches(self._hashes(tokens[:-1], salt, adapter)).scores
        return {worker: blocks * self._size for (worker, _), blocks in scores.items()}


def full_attention(groups: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the one group of full attention. Raises UsageError if there are more."""
    full = [number for number, group in enumerate(groups) if group["kind"] == FULL]
    if len(full) != 1:
        raise UsageError(f"--router: the tree indexes one group of full attention, not {len(full)}")
    return full[0]
