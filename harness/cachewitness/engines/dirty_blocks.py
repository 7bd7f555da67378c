"""Which blocks of a pool may have changed, without looking at every block after every call.

A pool of vLLM's shape changes its blocks in a few methods. Each is listened to on the pool at hand;
what passes through is noted, and so is what joined or left a table. Nothing of it is believed: two
numbers that the pool keeps itself, how many blocks are free and how many keys its index has, have
to agree with it. If they do not, or if a look at every block now and then shows a change that was
not noted, the answer is to look at every block. So a fork whose methods have other names costs time
and no event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from typing import Any

CHANGING = (
    "_insert_block_hash",
    "evict_blocks",
    "free_blocks",
    "get_new_blocks",
    "move_block_hashes",
    "touch",
    "unpin_blocks",
)
"""Methods of vLLM's `BlockPool` that change blocks, 0.24.0 to 0.33.0; those that they call are not
among them."""
KEYING = "_insert_block_hash"
"""The one of them that gives a block a further key; a pool of several keys that has it not is
looked at block by block."""
FURTHER = "cached_block_hashes_by_block"
"""Where a pool has the keys of its blocks beside the first, 0.26.0 to 0.33.0."""
LOOK_EVERY = 256
"""Calls between two looks at every block."""
Keys = Set[Hashable]
_NO_KEYS: Keys = frozenset()
_NOTHING: Mapping[int, Keys] = {}


class DirtyBlocks:
    """Listens to a pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._blocks = pool.blocks
        self._refs: list[int] = [block.ref_cnt for block in self._blocks]
        self._keys: list[Any] = [block.block_hash for block in self._blocks]
        self._further: dict[int, Keys] = {}
        """The keys of blocks that have several, beside the first."""
        self._noted: set[int] = set()
        self._heard: list[Any] = []
        self._calls = 0
        self._uses = self._counted()
        self._free = pool.get_num_free_blocks()
        self._index = getattr(pool, "cached_block_hash_to_block", None)
        heard = [name for name in CHANGING if hasattr(type(pool), name)]
        self._listening = hasattr(self._index, "__len__") and not hasattr(pool, "drain_dirty")
        self._listening &= KEYING in heard or not hasattr(pool, FURTHER)
        for name in heard if self._listening else ():
            setattr(pool, name, self._listen(name))

    def note(self, pages: Iterable[int]) -> None:
        """Note blocks that change by other ways."""
        self._noted.update(pages)

    @property
    def further(self) -> Mapping[int, Keys]:
        """The keys that blocks have beside the first, in releases where there can be several."""
        further: Mapping[int, Keys] = getattr(self._pool, FURTHER, _NOTHING)
        return further

    def changed(self) -> list[int]:
        """Return in order the blocks whose references or keys are not as they were when this was
        last asked.
        """
        found = self._found()
        further = self.further
        for page in found:
            block = self._blocks[page]
            self._refs[page] = block.ref_cnt
            self._keys[page] = block.block_hash
            if page in further:
                self._further[page] = frozenset(further[page])
            elif self._further:
                self._further.pop(page, None)
        return found

    def _found(self) -> list[int]:
        for given in self._heard:
            self._note(given)
        self._heard.clear()
        noted, self._noted = self._noted, set()
        self._calls += 1
        if self._listening and self._calls % LOOK_EVERY:
            found = self._among(noted)
            if self._agrees(found):
                return found
        found = self._among(range(len(self._blocks)))
        if self._listening and self._calls % LOOK_EVERY == 0 and not noted.issuperset(found):
            self._listening = False
        self._uses = self._counted()
        self._free = self._pool.get_num_free_blocks()
        return found

    def _counted(self) -> Counter[Hashable]:
        """Return how many blocks have each key."""
        uses = Counter(key for block in self._blocks if (key := block.block_hash) is not None)
        for keys in self.further.values():
            uses.update(keys)
        return uses

    def _among(self, pages: Iterable[int]) -> list[int]:
        blocks = self._blocks
        refs = self._refs
        keys = self._keys
        further = self.further
        had = self._further
        changed = [
            s
            for s in sorted(pages)
            if (block := blocks[s]).ref_cnt != refs[s] or block.block_hash != keys[s]
        ]
        if further or had:
            several = {s for s in pages if further.get(s, _NO_KEYS) != had.get(s, _NO_KEYS)}
            return sorted(several.union(changed)) if several else changed
        return changed

    def _agrees(self, found: list[int]) -> bool:
        """Whether the pool's own numbers are what they were but for the blocks found."""
        further = self.further
        had_further = self._further
        several = bool(further or had_further)
        for page in found:
            block = self._blocks[page]
            had = self._keys[page]
            self._free += (block.ref_cnt <= 0) - (self._refs[page] <= 0)
            if block.block_hash != had:
                self._count(block.block_hash, 1)
                self._count(had, -1)
            if several:
                for key in further.get(page, _NO_KEYS):
                    self._count(key, 1)
                for key in had_further.get(page, _NO_KEYS):
                    self._count(key, -1)
        index = self._pool.cached_block_hash_to_block
        return self._free == self._pool.get_num_free_blocks() and len(self._uses) == len(index)

    def _count(self, key: Hashable | None, more: int) -> None:
        if key is not None:
            self._uses[key] += more
            if not self._uses[key]:
                del self._uses[key]

    def _listen(self, name: str) -> Callable[..., Any]:
        """Return the pool's method as one that keeps what it is given and what it returns."""
        pool = self._pool
        kind = type(self._pool)
        keep = self._heard.append

        def listening(*args: Any, **kwargs: Any) -> Any:
            if args and hasattr(args[0], "__next__"):
                args = ([*args[0]], *args[1:])
            answer = getattr(kind, name)(pool, *args, **kwargs)
            keep(args)
            if kwargs:
                keep([*kwargs.values()])
            if answer is not None:
                keep(answer)
            return answer

        return listening

    def _note(self, given: Any) -> None:
        """Note a block, or those in a collection of blocks, of their ids, or of such
        collections.
        """
        page = getattr(given, "block_id", None)
        if page is not None:
            self._noted.add(page)
        elif isinstance(given, list | tuple | set):
            for one in given:
                self._note(one)
        elif isinstance(given, int) and 0 <= given < len(self._blocks):
            self._noted.add(given)
