"""What a cache of vLLM's shape tells routers of its keys, as events of a history.

Nothing is believed or mended: what the events say is written down as they say it. Hashes become
names, `h1` for the first, since they may differ from run to run. Events of a connector's memory
come by the same way, and say of which medium they are.

Source: vLLM 0.26.0 to 0.33.0, `distributed/kv_events.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from cachewitness.core.events import Event, KvCleared, KvRemoved, KvStored, KvUnreadable

NO_GROUP = -1
KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
"""The names of the classes of events."""
DEVICE = "GPU"
"""What vLLM calls the medium of its own pool, whatever the device."""


class KeyEventReader:
    """Reads `BlockStored`, `BlockRemoved` and `AllBlocksCleared`, told apart by the names of
    their classes. What a fork sends beside them, or without their fields, is unreadable.
    """

    def __init__(self) -> None:
        self._names: dict[Hashable, str] = {}

    def read(self, published: Iterable[Any], step: int) -> list[Event]:
        """Return the events of a history; one that routers cannot read is no error of ours."""
        return [self._readable(event, step) for event in published]

    def _readable(self, event: Any, step: int) -> Event:
        kind = type(event).__name__
        if kind not in KINDS:
            *others, last = KINDS
            why = f"{kind} is none of {', '.join(others)} and {last}"
            return KvUnreadable(step=step, why=why)
        try:
            return self._read(event, kind, step)
        except (AttributeError, TypeError, ValueError) as error:
            return KvUnreadable(step=step, why=f"{kind} cannot be read: {error}")

    def _read(self, event: Any, kind: str, step: int) -> Event:
        if kind == "AllBlocksCleared":
            return KvCleared(step=step)
        group = NO_GROUP if event.group_idx is None else event.group_idx
        hashes = [self._name(block_hash) for block_hash in event.block_hashes]
        medium = medium_of(event)
        if kind == "BlockRemoved":
            return KvRemoved(step=step, group=group, hashes=hashes, medium=medium)
        adapter = event.lora_name or ""
        extra = event.extra_keys or [None] * len(hashes)
        identities = [identity(keys, adapter) for keys in extra]
        return KvStored(
            step=step,
            group=group,
            hashes=hashes,
            tokens=list(event.token_ids),
            block_size=event.block_size,
            parent="" if event.parent_block_hash is None else self._name(event.parent_block_hash),
            # The salt is part of the first block alone (vLLM 0.33.0,
            # `generate_block_hash_extra_keys`), so most blocks have none.
            salt=next((salt for salt, _ in identities if salt), ""),
            adapter=adapter,
            media=[items for _, items in identities]
            if any(items for _, items in identities)
            else [],
            medium=medium,
            kind=(getattr(event, "kv_cache_spec_kind", None) or "") if medium else "",
        )

    def _name(self, block_hash: Hashable) -> str:
        return self._names.setdefault(block_hash, f"h{len(self._names) + 1}")


def medium_of(event: Any) -> str:
    """Return where the blocks of an event lie; empty for the device."""
    return medium_named(getattr(event, "medium", None))


def medium_named(name: Any) -> str:
    """Return a medium as a history names it."""
    return "" if name in (None, DEVICE) else str(name)


def identity(keys: Any, adapter: str) -> tuple[str, list[tuple[str, int]]]:
    """Return (the salt, the multimodal items) of a block's extra keys: the adapter's name, pairs
    of items, then the salt.

    Whatever else a fork puts there, of another shape, is part of the salt: it tells blocks apart,
    and the rule that holds a salt against the request's finds what does not belong there.
    """
    parts = list(keys) if isinstance(keys, tuple | list) else [] if keys is None else [keys]
    if adapter and parts[:1] == [adapter]:
        parts = parts[1:]
    items = [key for key in parts if _is_item(key)]
    salts = [key if isinstance(key, str) else repr(key) for key in parts if not _is_item(key)]
    return " ".join(salts), [(str(key[0]), int(key[1])) for key in items]


def _is_item(key: Any) -> bool:
    """Whether a key is a multimodal item: its hash, and where it begins."""
    return isinstance(key, tuple | list) and len(key) == 2 and type(key[1]) is int
