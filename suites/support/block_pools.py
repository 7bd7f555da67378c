"""The sample pool of docs/samples/block_pool.py, the test class over it, and faults for it."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from cachewitness import machines
from cachewitness.sessions.fuzz.allocator import Failure, find

SAMPLE = Path(__file__).parents[2] / "docs" / "samples" / "block_pool.py"


MANY = hypothesis.settings(machines.ALLOCATOR_SETTINGS, max_examples=2_000)
"""A fault is found long before; which run finds it depends on the modules that are imported, whose
constants Hypothesis draws."""


def passes(allocator: type[machines.Allocator]) -> None:
    """Assert that nothing is found in the pools of a class."""
    found = find(allocator)
    assert found is None, found.text


def killed(allocator: type[machines.Allocator], kinds: set[str]) -> None:
    """Assert that the fault which is planted into the pools of a class is found, as one of these
    kinds and in calls on the class.
    """
    found = find(type(allocator.__name__, (allocator,), {"sizes": st.integers(1, 24)}))
    assert isinstance(found, Failure)
    assert found.kind in kinds, found.text
    assert f"pool = {allocator.__name__}()" in found.text


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("block_pool", SAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BlockPool: Any = _load().BlockPool


class SamplePool(machines.Allocator):
    """Everything that the sample pool has."""

    null_block = 0
    order = "lru"
    keeps = True
    exhausted = (MemoryError,)
    pool_class: Any = BlockPool

    def make(self, size: int) -> None:
        self.pool = self.pool_class(size)

    def alloc(self, n: int) -> Any:
        return self.pool.alloc(n)

    def free(self, blocks: list[Any]) -> Any:
        return self.pool.free(blocks)

    def share(self, block: Any) -> Any:
        return self.pool.share(block)

    def touch(self, block: Any) -> Any:
        return self.pool.touch(block)

    def publish(self, key: str, block: Any) -> Any:
        return self.pool.publish(key, block)

    def lookup(self, key: str) -> Any:
        return self.pool.lookup(key)

    def unpublish(self, block: Any) -> Any:
        return self.pool.forget(block)

    def evict(self, n: int) -> Any:
        return self.pool.evict(n)

    def reset(self) -> Any:
        return self.pool.reset()

    def available(self) -> int:
        return int(self.pool.available())

    def references(self, block: Any) -> int:
        return int(self.pool.references(block))


class FreedTwice(BlockPool):
    """vllm#42571: one block twice in one call is given back twice."""

    def free(self, blocks):
        for block in blocks:
            self.counts[block] = max(0, self.counts[block] - 1)
            if self.counts[block] == 0:
                self.unused[block] = None


class FreedAgain(BlockPool):
    """sglang#18694: a second free is taken, and the block is in the queue twice."""

    def __init__(self, size):
        super().__init__(size)
        self.again = []

    def free(self, blocks):
        again = [block for block in blocks if self.counts[block] == 0]
        self.again += again
        super().free([block for block in blocks if block not in again])

    def alloc(self, n):
        return [self.again.pop()] if n == 1 and self.again else super().alloc(n)


class FreedWhileShared(BlockPool):
    """The first of two holders gives the block back for both."""

    def free(self, blocks):
        super().free(blocks)
        for block in blocks:
            self.counts[block] = 0
            self.unused[block] = None


class CountKept(BlockPool):
    """sglang#16067: a shared block is never given back, as its count is not decremented."""

    def free(self, blocks):
        for block in blocks:
            if self.counts[block] == 1:
                super().free([block])


class ShareNotCounted(BlockPool):
    """A second holder takes no reference."""

    def share(self, block):
        if self.counts[block] == 0:
            raise ValueError(block)


class ShareOfFree(BlockPool):
    """A free block is shared as if somebody held it."""

    def share(self, block):
        self.counts[block] += 1


class NullHandedOut(BlockPool):
    """unified-cache-management#1053: the null block is in the queue."""

    def __init__(self, size):
        super().__init__(size)
        self.unused[0] = None
        self.counts[0] = 0


class OneTooMany(BlockPool):
    """Off by one: the pool has a block more than there is memory for."""

    def __init__(self, size):
        super().__init__(size + 1)


class OneTooFew(BlockPool):
    """Off by one: the last block is never handed out."""

    def alloc(self, n):
        if n >= len(self.unused):
            raise MemoryError(n)
        return super().alloc(n)


class PartLeft(BlockPool):
    """sglang#21404: blocks that were taken before a refusal are not given back."""

    def alloc(self, n):
        taken = []
        for _ in range(n):
            taken += super().alloc(1)
        return taken


class FirstFreedLast(BlockPool):
    """The queue is appended to at its head."""

    def free(self, blocks):
        super().free(blocks)
        for block in blocks:
            if self.counts[block] == 0:
                self.unused.move_to_end(block, last=False)


class TailFirst(BlockPool):
    """Blocks of one call go into the queue in reverse."""

    def free(self, blocks):
        super().free(blocks[::-1])


class TakenFromTail(BlockPool):
    """The block that was freed last is handed out first."""

    def alloc(self, n):
        self.unused = OrderedDict.fromkeys(reversed(self.unused))
        try:
            return super().alloc(n)
        finally:
            self.unused = OrderedDict.fromkeys(reversed(self.unused))


class TouchLeavesInQueue(BlockPool):
    """A block that is hit while free stays in the free queue."""

    def touch(self, block):
        self.counts[block] += 1


class TouchForgotten(BlockPool):
    """vllm#10507: a block is hit and not held, so the next allocation may take it."""

    def touch(self, block):
        if self.counts[block]:
            self.counts[block] += 1


class HitMovesToTheEnd(BlockPool):
    """A lookup renews a block, though the declared order counts from when it was freed."""

    def lookup(self, key):
        found = super().lookup(key)
        if found in self.unused:
            self.unused.move_to_end(found)
        return found


class HitDoesNotRenew(BlockPool):
    """FlexKV#195: a block that was hit keeps its place, so that it is the next to go."""

    def __init__(self, size):
        super().__init__(size)
        self.hit = set()

    def touch(self, block):
        self.hit.add(block)
        super().touch(block)

    def free(self, blocks):
        super().free(blocks)
        for block in self.hit & set(blocks) & self.unused.keys():
            self.unused.move_to_end(block, last=False)


class KeyLeft(BlockPool):
    """vllm#4761: the key of a block stays when the block is handed out again."""

    def forget(self, block):
        self.keys_of.pop(block, None)


class KeyOfAnother(BlockPool):
    """The index of keys is off by one block."""

    def lookup(self, key):
        found = super().lookup(key)
        return found - 1 if found and found > 1 else found


class KeyReplaced(BlockPool):
    """kvcached#362: a second key for a content leaves the first block with a stale one."""

    def publish(self, key, block):
        self.block_of[key] = block
        self.keys_of.setdefault(block, []).append(key)

    def forget(self, block):
        for key in self.keys_of.pop(block, ()):
            if self.block_of.get(key) == block and block % 2:
                del self.block_of[key]


class SecondKeyLeft(BlockPool):
    """Of a block with two keys, only the one that was published last is taken away."""

    def forget(self, block):
        for key in self.keys_of.pop(block, ())[-1:]:
            del self.block_of[key]


class EvictsHeld(BlockPool):
    """Eviction takes blocks that somebody holds."""

    def evict(self, n):
        evicted = list(self.keys_of)[:n]
        for block in evicted:
            self.forget(block)
        return evicted


class EvictsFew(BlockPool):
    """xLLM#55: shared blocks that are skipped count as evicted."""

    def evict(self, n):
        evicted = [block for block in list(self.keys_of)[:n] if block in self.unused]
        for block in evicted:
            self.forget(block)
        return evicted


class EvictsYoungest(BlockPool):
    """Eviction begins at the wrong end."""

    def evict(self, n):
        evicted = [block for block in reversed(self.unused) if block in self.keys_of][:n]
        for block in evicted:
            self.forget(block)
        return evicted


class ResetFreesHeld(BlockPool):
    """A reset makes every block free, with holders."""

    def reset(self):
        self.__init__(len(self.counts))
        return True


class ResetKeepsKeys(BlockPool):
    """A reset empties one of two indexes."""

    def reset(self):
        self.keys_of.clear()
        return True


class CounterDrifts(BlockPool):
    """vLLM's free counter after a hit: a touch does not lower it."""

    def __init__(self, size):
        super().__init__(size)
        self.touched = 0

    def touch(self, block):
        self.touched += block in self.unused
        super().touch(block)

    def available(self):
        return len(self.unused) + self.touched


class PublishesOne(BlockPool):
    """Every block but one is published in vain."""

    def publish(self, key, block):
        if block == 1:
            super().publish(key, block)


class TouchDropsKey(BlockPool):
    """A block that is hit while free loses its keys."""

    def touch(self, block):
        if block in self.unused:
            self.forget(block)
        super().touch(block)


FAULTS = {
    FreedTwice: {"double-free"},
    FreedAgain: {"double-free", "handed-out-twice"},
    FreedWhileShared: {"count", "references", "handed-out-twice"},
    CountKept: {"references", "count", "double-free"},
    ShareNotCounted: {"references"},
    ShareOfFree: {"use-after-free"},
    NullHandedOut: {"null-block", "count"},
    OneTooMany: {"count", "capacity"},
    OneTooFew: {"refused"},
    PartLeft: {"count", "refused"},
    FirstFreedLast: {"order"},
    TailFirst: {"order"},
    TakenFromTail: {"order"},
    TouchLeavesInQueue: {"count", "handed-out-twice"},
    TouchForgotten: {"count", "references", "handed-out-twice"},
    HitMovesToTheEnd: {"order"},
    HitDoesNotRenew: {"order"},
    KeyLeft: {"stale-key", "evicted-few"},
    KeyOfAnother: {"wrong-block", "stale-key"},
    KeyReplaced: {"stale-key"},
    SecondKeyLeft: {"stale-key", "evicted-few"},
    PublishesOne: {"lost-key", "evicted-few"},
    TouchDropsKey: {"lost-key", "evicted-few", "order"},
    EvictsHeld: {"evicted-held"},
    EvictsFew: {"evicted-few", "order"},
    EvictsYoungest: {"order"},
    ResetFreesHeld: {"count", "references", "handed-out-twice"},
    ResetKeepsKeys: {"stale-key", "evicted-few"},
    CounterDrifts: {"count"},
}
"""Each fault, and as what it can be found."""


def over(pool: Any) -> type[SamplePool]:
    """Return the test class over a variant of the sample pool."""
    return type(f"Test{pool.__name__}", (SamplePool,), {"pool_class": pool, "settings": MANY})
