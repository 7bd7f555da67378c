"""What LMCache's policy leaves to an engine beside vLLM's choices: the pages of an object, and
which objects go.

How many go, and when, is the watermark's and the ratio's, which is no choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cachewitness.engines.choices import Choices
from cachewitness.engines.observe_tier import TIER
from cachewitness.systems.vllm.reference import choices as of_vllm
from cachewitness_reference.lmcache.eviction import LRUEvictionPolicy
from cachewitness_reference.lmcache.keys import ObjectKey
from cachewitness_reference.lmcache.l1 import L1Manager, MemoryObj, PageId


def steer(engine: Any, choices: Choices) -> None:
    """Have the free choices of a reference engine made by somebody else."""
    of_vllm.steer(engine, choices)
    if (connector := getattr(engine.adapter, "connector", None)) is not None:
        server = connector.lmcache.server
        _pages(server.l1, choices)
        _objects(server.l1, server.eviction.policy, choices)


def _pages(l1: L1Manager, choices: Choices) -> None:
    """Have the pages of new objects chosen."""
    own = l1.reserve_write

    def reserve_write(
        keys: Sequence[ObjectKey], pages_per_object: int, writer: str
    ) -> dict[ObjectKey, MemoryObj]:
        wanted = (
            sum(key not in l1.objects and (key, writer) not in l1.staging for key in keys)
            * pages_per_object
        )
        if wanted <= len(l1._free):
            for taken in range(wanted):
                page = PageId(choices.free(TIER, l1._free[taken:][::-1]))
                l1._free.remove(page)
                l1._free.insert(0, page)
            l1._free = l1._free[wanted:] + l1._free[:wanted]
        return own(keys, pages_per_object, writer)

    l1.reserve_write = reserve_write  # type: ignore[method-assign]


def _objects(l1: L1Manager, policy: LRUEvictionPolicy, choices: Choices) -> None:
    """Have it chosen which of the objects go that nobody reads; an object is named by its first
    page.
    """
    own = policy.get_eviction_actions

    def get_eviction_actions(
        ratio: float, is_eligible: Callable[[ObjectKey], bool]
    ) -> list[ObjectKey]:
        gone: list[ObjectKey] = []
        idle = {l1.objects[key].memory.pages[0]: key for key in policy.order if is_eligible(key)}
        for _ in own(ratio, is_eligible):
            page = choices.victim(TIER, idle.keys())
            gone.append(idle.pop(next(iter(idle)) if page is None else PageId(page)))
        return gone

    policy.get_eviction_actions = get_eviction_actions  # type: ignore[method-assign]
