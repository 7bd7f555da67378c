"""Events as a router gets them: objects with vLLM's fields, over tokens that mean the same on every
worker.

An engine numbers its texts as they come, so the same text has other token ids on another worker.
Which number stands for which text shows in the requests.

Source: vLLM 0.33.0, `distributed/kv_events.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cachewitness.core.events import (
    Accept,
    Event,
    Group,
    KvCleared,
    KvRemoved,
    KvStored,
    Submitted,
)
from cachewitness.core.trace_format import SEGMENT_TOKENS_MAX, Submit, Vocabulary, segments

KINDS = {
    "full": "full_attention",
    "sliding": "sliding_window",
    "chunked": "chunked_local_attention",
    "recurrent": "mamba",
}
"""What vLLM calls the kinds of groups."""
_NAMES = 1 << 24
"""So many blocks a worker may name before it starts anew."""
_UNHEARD = 1 << 20
"""Texts that a worker never met have numbers from here on."""


def described(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a model's groups as a router is told of them."""
    return [
        {
            "kind": KINDS[group.kind],
            "block_size": group.block_size,
            "window": group.window,
            "chunk": group.chunk,
        }
        for group in groups
    ]


class Texts:
    """The token ids of one worker, and those that stand for the same texts in the whole fleet."""

    def __init__(self, fleet: Vocabulary) -> None:
        self._fleet = fleet
        self._shared: dict[int, int] = {}
        self._own: dict[int, int] = {}

    def learn(self, op: Submit, event: Submitted) -> None:
        """Learn the texts of a prompt."""
        at = 0
        for name, _, count in segments(op.prompt):
            if count:
                self._learn(name, event.tokens[at])
            at += count

    def learn_answer(self, text: str, event: Accept) -> None:
        """Learn the text of an answer."""
        if event.tokens:
            self._learn(text, event.tokens[-1])

    def _learn(self, name: str, token: int) -> None:
        number = token // SEGMENT_TOKENS_MAX
        shared = self._fleet.token(name, 0) // SEGMENT_TOKENS_MAX
        self._shared[number] = shared
        self._own[shared] = number

    def shared(self, tokens: Sequence[int]) -> list[int]:
        """Return a worker's tokens as the fleet's."""
        return _renumbered(tokens, self._shared)

    def own(self, tokens: Sequence[int]) -> list[int]:
        """Return the fleet's tokens as a worker's."""
        return _renumbered(tokens, self._own)


def _renumbered(tokens: Sequence[int], known: Mapping[int, int]) -> list[int]:
    """Return tokens whose texts have other numbers; those of a text that nobody has told of stay
    apart from all others.
    """
    size = SEGMENT_TOKENS_MAX
    return [
        known.get(token // size, _UNHEARD + token // size) * size + token % size for token in tokens
    ]


Shared = dict[tuple[str, str, tuple[int, ...]], int]
"""Numbers of prefixes (salt, adapter, tokens), the same on every worker."""


class Names:
    """Numbers for the names of blocks that an engine gives in one start of it.

    With `shared`, equal prefixes have equal numbers on every worker and in every start, as hashes
    of content have; else no other start uses any of them, as with a seed for each process. What a
    name stands for shows where an event names each of its blocks.
    """

    def __init__(self, start: int, shared: Shared | None) -> None:
        self._first = start * _NAMES
        self._shared = shared
        self._known: dict[str, int] = {}
        self._prefixes: dict[str, tuple[str, str, tuple[int, ...]]] = {}

    def number(self, name: str) -> int:
        """Return the number of a name."""
        return self._known.setdefault(name, self._first + len(self._known))

    def learn(self, event: KvStored, tokens: Sequence[int]) -> None:
        """Learn what the names of an event stand for; `tokens` are the fleet's."""
        size = event.block_size
        behind = (
            self._prefixes.get(event.parent) if event.parent else (event.salt, event.adapter, ())
        )
        if self._shared is None or behind is None or len(event.hashes) * size != len(tokens):
            return
        salt, adapter, before = behind
        for index, name in enumerate(event.hashes):
            prefix = salt, adapter, (*before, *tokens[: (index + 1) * size])
            self._prefixes[name] = prefix
            self._known.setdefault(name, self._shared.setdefault(prefix, len(self._shared)))


def events_of(
    events: Sequence[Event], groups: Sequence[Group], texts: Texts, names: Names
) -> Iterator[dict[str, Any]]:
    """Yield the key events among those of an operation."""
    for event in events:
        if isinstance(event, KvCleared):
            yield {"type": "AllBlocksCleared"}
        elif isinstance(event, KvRemoved | KvStored):
            if isinstance(event, KvStored):
                names.learn(event, texts.shared(event.tokens))
            common: dict[str, Any] = {
                "block_hashes": [names.number(name) for name in event.hashes],
                "medium": event.medium or "GPU",
                "group_idx": max(event.group, 0),
            }
            if isinstance(event, KvRemoved):
                yield {"type": "BlockRemoved", **common}
            else:
                group = groups[max(event.group, 0)]
                yield {"type": "BlockStored", **common, **_stored(event, group, texts, names)}


def _stored(event: KvStored, group: Group, texts: Texts, names: Names) -> dict[str, Any]:
    adapter = [event.adapter] if event.adapter else []
    extra = [[*adapter, *([event.salt] if event.salt else [])], *[adapter] * len(event.hashes[1:])]
    return {
        "parent_block_hash": names.number(event.parent) if event.parent else None,
        "token_ids": texts.shared(event.tokens),
        "block_size": event.block_size,
        "lora_id": None,
        "lora_name": event.adapter or None,
        "extra_keys": [keys or None for keys in extra[: len(event.hashes)]],
        "kv_cache_spec_kind": KINDS[group.kind],
        "kv_cache_spec_sliding_window": group.window or None,
    }
