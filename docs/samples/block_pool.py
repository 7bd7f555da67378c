"""A block pool as small as they come: reference counts, keys, and least recently used eviction.

A free block keeps its key until it is handed out again. `suites/sessions/fuzz/test_allocator.py`
tests the pool, and plants faults in it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict


class BlockPool:
    """Blocks 1 to `size`; block 0 is the null block, which is never handed out."""

    def __init__(self, size: int) -> None:
        self.unused = OrderedDict.fromkeys(range(1, size + 1))
        self.counts = dict.fromkeys(self.unused, 0)
        self.block_of: dict[str, int] = {}
        self.keys_of: dict[int, list[str]] = {}

    def alloc(self, n: int) -> list[int]:
        if n > len(self.unused):
            raise MemoryError(f"{n} blocks asked for, {len(self.unused)} free")
        taken = [self.unused.popitem(last=False)[0] for _ in range(n)]
        for block in taken:
            self.forget(block)
            self.counts[block] = 1
        return taken

    def free(self, blocks: list[int]) -> None:
        if any(times > self.counts[block] for block, times in Counter(blocks).items()):
            raise ValueError("a block has no reference left")
        for block in blocks:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.unused[block] = None

    def share(self, block: int) -> None:
        if self.counts[block] == 0:
            raise ValueError(f"block {block} is free")
        self.counts[block] += 1

    def touch(self, block: int) -> None:
        self.unused.pop(block, None)
        self.counts[block] += 1

    def publish(self, key: str, block: int) -> None:
        if key not in self.block_of:
            self.block_of[key] = block
            self.keys_of.setdefault(block, []).append(key)

    def lookup(self, key: str) -> int | None:
        return self.block_of.get(key)

    def forget(self, block: int) -> None:
        for key in self.keys_of.pop(block, ()):
            del self.block_of[key]

    def evict(self, n: int) -> list[int]:
        evicted = [block for block in self.unused if block in self.keys_of][:n]
        for block in evicted:
            self.forget(block)
        return evicted

    def reset(self) -> bool:
        if len(self.unused) < len(self.counts):
            return False
        self.block_of.clear()
        self.keys_of.clear()
        return True

    def available(self) -> int:
        return len(self.unused)

    def references(self, block: int) -> int:
        return self.counts[block]
