"""Who goes when memory runs short: a share of the keys, those that were of use longest ago, one by
one.

Eviction has no regard for what belongs together; the fold makes that safe. Its order is what keeps
it from doing much harm. Of a list of keys the last becomes the oldest, since without a chunk the
later ones are worthless, but not the other way round. A store's list goes from object group to
object group, so all objects of the last group are older than any of the first. With attention first
and states behind it, every state of a request goes before any of its attention.

A thread looks once a second whether the watermark is reached. An allocation that fails evicts
nothing.

Sources (0.5.6): `v1/distributed/eviction_policy/lru.py`;
`storage_controllers/eviction_controller.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from cachewitness_reference.lmcache.keys import ObjectKey
from cachewitness_reference.lmcache.l1 import L1Manager
from cachewitness_reference.lmcache.spec import EVICTION_RATIO, EVICTION_TRIGGER_WATERMARK


class LRUEvictionPolicy:
    """The order in which keys were of use, the oldest first."""

    def __init__(self) -> None:
        self._order: OrderedDict[ObjectKey, None] = OrderedDict()

    @property
    def order(self) -> list[ObjectKey]:
        """Every tracked key, the one to go first in front."""
        return list(self._order)

    def on_keys_reserved_write(self, keys: Sequence[ObjectKey]) -> None:
        """Track keys from the moment that they take memory."""
        self.on_keys_write_finished(keys)

    def on_keys_write_finished(self, keys: Sequence[ObjectKey]) -> None:
        """Make keys the youngest, the first of the list youngest of all."""
        for key in reversed(keys):
            self._order[key] = None
            self._order.move_to_end(key)

    def on_keys_accessed(self, keys: Sequence[ObjectKey]) -> None:
        """Do the same with those that are still tracked."""
        self.on_keys_write_finished([key for key in keys if key in self._order])

    def on_keys_deleted(self, keys: Sequence[ObjectKey]) -> None:
        """Forget keys."""
        for key in keys:
            self._order.pop(key, None)

    def get_eviction_actions(
        self, ratio: float, is_eligible: Callable[[ObjectKey], bool]
    ) -> list[ObjectKey]:
        """Return the oldest eligible keys: `ratio` of all that are tracked, rounded down, but
        one at least.
        """
        target = max(int(len(self._order) * ratio), 1)
        keys: list[ObjectKey] = []
        for key in self._order:
            if len(keys) == target:
                break
            if is_eligible(key):
                keys.append(key)
        return keys


class L1EvictionController:
    """Evicts from the first level when too much of it is used."""

    def __init__(
        self,
        l1: L1Manager,
        *,
        watermark: float = EVICTION_TRIGGER_WATERMARK,
        ratio: float = EVICTION_RATIO,
    ) -> None:
        self.policy = LRUEvictionPolicy()
        self._l1 = l1
        self._watermark = watermark
        self._ratio = ratio
        l1.listeners.append(self.policy)

    def tick(self) -> list[ObjectKey]:
        """Look once whether the watermark is reached, and evict if so; return what went."""
        used, total = self._l1.memory_usage()
        if total == 0 or used / total < self._watermark:
            return []
        return self._l1.delete(self.policy.get_eviction_actions(self._ratio, self._l1.is_evictable))
