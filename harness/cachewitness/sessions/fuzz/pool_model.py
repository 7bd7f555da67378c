"""What a pool of blocks must be like after a sequence of calls, worked out without the pool.

The model keeps what is held, what is free and in which order it became free, and what was published
under which key. It grows with the blocks that were handed out, never with the size of the pool. It
sees the calls and their results, never the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from heapq import heappop, heappush
from itertools import islice
from typing import Literal, NoReturn

Block = Hashable
Key = Hashable
Order = Literal["lru", "fifo", "lifo"]
"""Which free block is handed out first: the one that was freed longest ago, the one that was
allocated longest ago, or the one that was freed last."""

_BEFORE: dict[Order, str] = {
    "lru": "was freed earlier",
    "fifo": "was allocated earlier",
    "lifo": "was freed later",
}
REUSED = "it was handed out again since"


class Violation(AssertionError):
    """What a pool did wrong, in a sentence; each kind is a subclass, so that one is not shrunk into
    another.
    """

    kind = ""


class Hung(BaseException):
    """A pool that does not answer, in a sentence. Hypothesis lets it pass: every attempt to shrink
    the calls would wait as long again.
    """

    kind = "hung"


@cache
def violation(kind: str) -> type[Violation]:
    """Return the exception of a kind, such as `double-free`."""
    return type(
        f"Violation[{kind}]", (Violation,), {"__doc__": f"The violation {kind}.", "kind": kind}
    )


def violated(kind: str, sentence: str) -> NoReturn:
    """Raise the violation."""
    raise violation(kind)(sentence)


class LiveBlocks:
    """The blocks that somebody holds, with their reference counts; drawn by index in O(1)."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._place: dict[Block, int] = {}
        self._more: dict[Block, int] = {}
        """References beyond the first, of blocks that have some."""

    def __len__(self) -> int:
        return len(self._blocks)

    def references(self, block: Block) -> int:
        """Return how many references to a block are left."""
        return 1 + self._more.get(block, 0) if block in self._place else 0

    def consecutive(self, index: int, count: int) -> list[Block]:
        """Return up to `count` different blocks from an index on, round the end."""
        if not self._blocks:
            return []
        start = index % len(self._blocks)
        taken = self._blocks[start : start + count]
        return taken + self._blocks[: min(count - len(taken), start)]

    def add(self, block: Block) -> None:
        """Count one more reference."""
        if block in self._place:
            self._more[block] = self._more.get(block, 0) + 1
        else:
            self._place[block] = len(self._blocks)
            self._blocks.append(block)

    def add_all(self, free: Sequence[Block]) -> None:
        """Count the first reference to blocks that nobody holds."""
        self._place.update(zip(free, range(len(self), len(self) + len(free)), strict=True))
        self._blocks += free

    def held_of(self, blocks: AbstractSet[Block]) -> AbstractSet[Block]:
        """Return which of some blocks are held."""
        return self._place.keys() & blocks

    def remove_all(self, released: Sequence[Block]) -> list[Block]:
        """Count one reference less to each of different blocks; return those that became free."""
        if len(released) == len(self) and not self._more:
            self._blocks.clear()
            self._place.clear()
            return list(released)
        return list(filter(self._remove, released))

    def _remove(self, block: Block) -> bool:
        if block in self._more:
            self._more[block] -= 1
            if not self._more[block]:
                del self._more[block]
            return False
        # The last block takes the place of the one that goes, so that no other has to move.
        place = self._place.pop(block)
        last = self._blocks.pop()
        if place < len(self._blocks):
            self._blocks[place] = last
            self._place[last] = place
        return True


class FreeOrder:
    """The free blocks whose order is judged, and which of them comes first."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._rank: dict[Block, int] = {}
        self._heap: list[tuple[int, int, Block]] = []
        self._clock = 0
        self._allocated: dict[Block, int] = {}

    def allocated(self, taken: Sequence[Block]) -> None:
        """Take note that blocks were handed out; what `judge` saw has no rank any more."""
        if self._order == "fifo":
            first = self._clock + 1
            self._clock += len(taken)
            self._allocated.update(zip(taken, range(first, self._clock + 1), strict=True))

    def freed(self, block: Block) -> None:
        """Take note that a block became free."""
        self._clock += 1
        rank = self._clock
        if self._order == "fifo":
            rank = self._allocated[block]
        elif self._order == "lifo":
            rank = -rank
        self._rank[block] = rank
        heappush(self._heap, (rank, self._clock, block))

    def forget(self, block: Block) -> None:
        """Do not judge a block any more."""
        self._rank.pop(block, None)

    def forget_all(self) -> None:
        """Do not judge any block that is free now."""
        self._rank.clear()
        self._heap.clear()

    def judge(self, taken: Sequence[Block], fresh: int, verb: str) -> None:
        """Judge blocks that left the free blocks in one call, while `fresh` blocks were never
        used.
        """
        ranks = {block: self._rank.pop(block) for block in self._rank.keys() & set(taken)}
        if not ranks:
            return
        last = max(ranks, key=ranks.__getitem__)
        if fresh and self._order != "lifo":
            violated(
                "order", f"block {last!r} was {verb} although {blocks(fresh)} had never been used"
            )
        while self._heap and self._rank.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        if self._heap and self._heap[0][0] < ranks[last]:
            first = self._heap[0][2]
            violated(
                "order",
                f"block {last!r} was {verb} before block {first!r}, which {_BEFORE[self._order]}"
                f" (declared order: {self._order})",
            )


class PoolModel:
    """A pool of `size` blocks that can be handed out. `publishes`: blocks have keys, and the order
    is judged of those that lookups can still find, else of all. `evicts`: cached blocks need not be
    handed out before they are evicted.
    """

    def __init__(
        self, size: int, *, order: Order | None, publishes: bool, evicts: bool, null: Block | None
    ) -> None:
        self.size = size
        self.live = LiveBlocks()
        self.freed: list[Block] = []
        """Blocks that became free, in that order; some are held again."""
        self.keys: dict[Key, set[Block]] = {}
        """The blocks that a lookup of a key may return."""
        self.keys_known: list[Key] = []
        self._seen: set[Block] = set()
        self._keys_of: dict[Block, list[Key]] = {}
        self._cached: set[Block] = set()
        """Free blocks with keys."""
        self._ambiguous: set[Key] = set()
        """Keys that named two blocks at a time: a pool may keep both, or one."""
        self._doubtful: set[Key] = set()
        """Keys whose blocks may have been evicted without being named."""
        self._evicted_unseen = 0
        """How many blocks were evicted without being named."""
        self._gone: dict[tuple[Key, Block], str] = {}
        self._order = FreeOrder(order) if order else None
        self._publishes = publishes
        self._evicts = evicts
        self._null = null

    # --- what there is ----------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return self.size - len(self.live)

    @property
    def free_at_least(self) -> int:
        """How many blocks must be there to be handed out."""
        return self.free - (len(self._cached) if self._evicts else 0)

    @property
    def cached(self) -> int:
        """How many free blocks have keys."""
        return len(self._cached)

    def is_free(self, block: Block) -> bool:
        """Whether nobody holds a block that was handed out before."""
        return not self.live.references(block)

    def keys_of(self, block: Block) -> Sequence[Key]:
        """Return the keys under which a block was published."""
        return self._keys_of.get(block, ())

    def with_keys(self, count: int) -> list[Block]:
        """Return the blocks of the latest keys, up to so many keys."""
        found = (block for key in self.keys_known[: -count - 1 : -1] for block in self.keys[key])
        return list(dict.fromkeys(found))

    def keys_gone(self, count: int) -> list[Key]:
        """Return the keys that were taken away last, up to so many."""
        return [key for key, _ in islice(reversed(self._gone), count)]

    def findable(self, key: Key) -> bool:
        """Whether a pool that keeps its keys must find a key."""
        return bool(self.keys.get(key)) and key not in self._ambiguous | self._doubtful

    # --- calls ------------------------------------------------------------------------------------

    def alloc(self, taken: Sequence[Block]) -> int:
        """Judge the blocks that were handed out; return how many of them had keys."""
        different = set(taken)
        if len(different) < len(taken):
            [(twice, _)] = Counter(taken).most_common(1)
            violated("handed-out-twice", f"one call handed block {twice!r} out twice")
        if self._null is not None and self._null in different:
            violated("null-block", f"the null block {self._null!r} was handed out")
        if held := self.live.held_of(different):
            block = next(block for block in taken if block in held)
            violated(
                "handed-out-twice",
                f"block {block!r} was handed out while a reference to it is left",
            )
        self._seen |= different
        if len(self._seen) > self.size or len(taken) > self.free:
            violated(
                "capacity",
                f"{len(self.live) + len(taken)} blocks are held of a pool of {self.size}"
                if len(taken) > self.free
                else f"{len(self._seen)} different blocks came out of a pool of {self.size}",
            )
        if self._order:
            self._order.judge(taken, self.size - len(self._seen), "handed out")
        keyed = self._keys_of.keys() & different
        for block in keyed:
            self._drop_keys(block, REUSED)
        self.live.add_all(taken)
        if self._order:
            self._order.allocated(taken)
        return len(keyed)

    def acquire(self, block: Block) -> None:
        """Take note of one more reference, to a block that is held or was found."""
        self.live.add(block)
        self._cached.discard(block)
        if self._order:
            self._order.forget(block)

    def release(self, released: Sequence[Block]) -> None:
        """Take note that references were given back, one of each block, in this order."""
        free = self.live.remove_all(released)
        self.freed += free
        keyed = self._keys_of.keys() & set(free)
        self._cached |= keyed
        if self._order:
            for block in filter(keyed.__contains__, free) if self._publishes else free:
                if self._ordered(block):
                    self._order.freed(block)

    def publish(self, key: Key, block: Block) -> None:
        """Take note that a block was published under a key."""
        if key not in self.keys:
            self.keys[key] = set()
            self.keys_known.append(key)
        elif self.keys[key]:
            self._ambiguous.add(key)
            if self._order:
                for other in self.keys[key]:
                    self._order.forget(other)
        self.keys[key].add(block)
        if key not in self._keys_of.setdefault(block, []):
            self._keys_of[block].append(key)
        self._doubtful.discard(key)
        self._gone.pop((key, block), None)

    def not_found(self, key: Key) -> None:
        """Judge that a lookup found nothing, in a pool that keeps its keys."""
        if self.findable(key):
            violated(
                "lost-key",
                f"lookup({key!r}) found nothing; however it was published of"
                f" {_one_of(self.keys[key])}, and nothing has taken it away since",
            )

    def found(self, key: Key, block: Block) -> None:
        """Judge the block that a lookup returned."""
        if block in self.keys.get(key, ()):
            return
        if why := self._gone.get((key, block)):
            violated("stale-key", f"lookup({key!r}) returned block {block!r}; however {why}")
        violated(
            "wrong-block",
            f"lookup({key!r}) returned block {block!r}, which was never published under this key",
        )

    def unpublish(self, block: Block) -> None:
        """Take note that a block's keys were taken away."""
        self._drop_keys(block, "it was unpublished since")
        if self._order:
            self._order.forget(block)

    def reset(self) -> None:
        """Take note that every key was taken away."""
        for block in list(self._keys_of):
            self._drop_keys(block, "the pool was reset since")
        if self._order and self._publishes:
            self._order.forget_all()

    def evict(self, asked: int, evicted: Sequence[Block] | int | None) -> int:
        """Judge which cached blocks were evicted: these, so many of them, or an unknown number.
        Return how many can have been.
        """
        certain = sum(map(self._certain, self._cached)) - self._evicted_unseen
        due = min(asked, max(certain, 0))
        if evicted is None or isinstance(evicted, int):
            if evicted is not None and evicted < due:
                violated("evicted-few", f"{evicted} blocks were evicted, {due} can be")
            self._evicted_unseen += len(self._cached) if evicted is None else evicted
            self._doubtful.update(*map(self.keys_of, self._cached))
            if self._order:
                self._order.forget_all()
            return min(asked if evicted is None else evicted, len(self._cached))
        for block in evicted:
            if self.live.references(block):
                violated(
                    "evicted-held", f"block {block!r} was evicted while a reference to it is left"
                )
            if block not in self._cached:
                violated("evicted-uncached", f"block {block!r} was evicted and is not cached")
        if len(evicted) < due:
            violated("evicted-few", f"{blocks(len(evicted))} were evicted, {due} can be")
        if self._order:
            self._order.judge(evicted, 0, "evicted")
        for block in evicted:
            self._drop_keys(block, "it was evicted since")
        return len(evicted)

    # --- parts ------------------------------------------------------------------------------------

    def _ordered(self, block: Block) -> bool:
        return self._certain(block) if self._publishes else True

    def _certain(self, block: Block) -> bool:
        """Return whether every pool keeps a block's keys."""
        keys = self._keys_of.get(block, ())
        return bool(keys) and self._ambiguous.isdisjoint(keys)

    def _drop_keys(self, block: Block, why: str) -> None:
        for key in self._keys_of.pop(block, ()):
            self.keys[key].discard(block)
            self._gone[key, block] = why
        self._cached.discard(block)


def _one_of(some: AbstractSet[Block]) -> str:
    [block] = some  # a key that named two blocks is ambiguous
    return f"block {block!r}"


def blocks(count: int) -> str:
    """Return a number of blocks in words."""
    return f"{count:,} block{'' if count == 1 else 's'}"
