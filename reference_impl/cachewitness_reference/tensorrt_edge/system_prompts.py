"""Captured system prompts: what the runtime keeps of the manager's captures, and under which names.

Requests of one application begin with one system prompt. The runtime captures the cache where that
prompt ends and gives it to every later request that begins so. The name of a capture is all that
its content depends on: the prompt's tokens and the LoRA weights, as upstream has it, and salt and
media, which are our choice. It is found whole or not at all: there is one length at which its
recurrent states can be resumed, its own.

A capture is *reserved* when the step that ends at its position is scheduled and *found* only after
that step has run. The releases keep all captures for ever; here at most `capacity` are kept, and
the one used longest ago makes room, never one that a step at hand restores or writes. Where all are
in use nothing is captured: no request fails for it.

Source: `systemPromptKVCache.h`, `genAndSaveSystemPromptKVCache` and `setUpForPrefillExecution`
(0.7.1). The bound is our own.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NewType

from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge.capture import Captured

PlaceId = NewType("PlaceId", int)
"""A place for one captured system prompt, counted from 0."""


@dataclass(frozen=True)
class SystemPromptKey:
    """What a capture depends on: the tokens that it covers, and `media` (at, length, hash) that
    reach into them.
    """

    tokens: tuple[int, ...]
    lora: str = ""
    salt: str = ""
    media: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """One slot's KV cache, recurrent and conv states, captured together."""

    kv: Captured[None]
    recurrent: Captured[None]
    conv: Captured[None]

    def __post_init__(self) -> None:
        assert self.kv.position == self.recurrent.position == self.conv.position

    @property
    def position(self) -> Position:
        """The number of tokens that the snapshot stands for."""
        return self.kv.position


@dataclass
class SavedPrompt:
    """A place that is taken. `snapshot` is None until the step that writes it has run; `users`
    are the steps at hand.
    """

    key: SystemPromptKey
    place: PlaceId
    snapshot: Snapshot | None = None
    users: int = field(default=1)


class SystemPrompts:
    """At most `capacity` captured system prompts."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= 0
        self.capacity = capacity
        self.saved: OrderedDict[SystemPromptKey, SavedPrompt] = OrderedDict()
        self.forgotten: list[SavedPrompt] = []
        """Captures that made room or were forgotten, until somebody takes note of them."""
        self._free = [PlaceId(place) for place in reversed(range(capacity))]

    def find(self, key: SystemPromptKey) -> SavedPrompt | None:
        """Return the capture of a system prompt, pinned for the step at hand; None if there is
        none to restore.
        """
        # LOOKUP
        saved = self.saved.get(key)
        if saved is None or saved.snapshot is None:
            return None
        saved.users += 1
        self.saved.move_to_end(key)
        return saved

    def reserve(self, key: SystemPromptKey) -> SavedPrompt | None:
        """Return a place for a capture; None if the key has one already, or if there is no room."""
        # ALLOCATE
        if key in self.saved:
            return None
        if not self._free:
            victim = next((saved for saved in self.saved.values() if not saved.users), None)
            if victim is None:
                return None
            self._forget(victim)
        saved = self.saved[key] = SavedPrompt(key, self._free.pop())
        assert len(self.saved) + len(self._free) == self.capacity
        return saved

    def save(self, saved: SavedPrompt, snapshot: Snapshot) -> None:
        """Keep what was captured: from now on it is found."""
        # COMMIT
        assert saved.snapshot is None and self.saved[saved.key] is saved
        saved.snapshot = snapshot
        self.release(saved)

    def release(self, saved: SavedPrompt) -> None:
        """Unpin a capture after the step that used it."""
        # RELEASE
        assert saved.users > 0
        saved.users -= 1

    def forget_all(self) -> None:
        """Forget every capture; no step may be at hand."""
        # LOOKUP, ALLOCATE, COMMIT: nothing; every capture goes.
        # RELEASE
        for saved in list(self.saved.values()):
            assert not saved.users
            self._forget(saved)

    def _forget(self, saved: SavedPrompt) -> None:
        assert not saved.users
        del self.saved[saved.key]
        self.forgotten.append(saved)
        self._free.append(saved.place)
