"""The lifecycle of a request over the two pools: match, prefill or extend, store, clean up, free.

The manager keeps the tables, takes blocks and gives them back; who computes how much is the
scheduler's. A call either does all of what it says or is refused beforehand: `room` answers how
many tokens fit, and nothing is evicted to find out.

* `match`: the valid portion of what is stored of a request.
* `prefill`: give a request its hit and blocks for its first tokens; a hit inside a block is copied
  into a block of its own.
* `extend`: blocks for further tokens (a decode is an extend of one).
* `complete`: the forward pass has run. What it computed is stored in the tree, and the window moves
  on (*cleanup*).
* `free`: give everything back.

Source of the rule: spec rules `prefill`, `extend`, `cleanup`, `stored-after-pass`; choices
`duplicate`, `holes`, `out_of_window`.
"""

from __future__ import annotations

from cachewitness_reference.furiosa.block_pool import BlockPool
from cachewitness_reference.furiosa.config import CacheConfig
from cachewitness_reference.furiosa.hybrid_match import NO_HIT, Hit, usable
from cachewitness_reference.furiosa.radix_tree import Entry, RadixTree
from cachewitness_reference.furiosa.request import BlockCopy, Request
from cachewitness_reference.primitives import BlockId


class HybridCacheManager:
    """The two pools and the tree over them."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.block_size = config.layers.block_size
        self.global_pool = BlockPool(config.global_blocks, lambda block: self.tree.vacate(block))
        self.sliding_pool = BlockPool(config.sliding_blocks, self._evict_sliding)
        self.tree = RadixTree(self.block_size, self.global_pool, self.sliding_pool)

    # LOOKUP

    def match(self, request: Request) -> Hit:
        """Return the valid portion of what is stored of a request; a token at least is left to
        compute.
        """
        if not self.config.options.enable_caching:
            return NO_HIT
        limit = request.num_tokens - 1
        path = self.tree.match(request.identity, request.symbols, limit)
        return usable(
            path,
            self.tree.matched(path, request.symbols, limit),
            block_size=self.block_size,
            tail=self.config.tail,
            whole_blocks=self.config.options.hit_granularity == "block",
        )

    # ALLOCATE

    def room(self, request: Request, hit: Hit = NO_HIT) -> tuple[int, int]:
        """Return how many tokens a request could go on for by the global and by the sliding
        pool, after taking `hit`.
        """
        global_hit, sliding_hit = self.columns(hit)
        copies = bool(hit.length % self.block_size)
        computed = request.num_computed + hit.length
        columns = len(request.global_blocks) + self._count(hit.length)
        rooms = []
        for pool, used in ((self.global_pool, global_hit), (self.sliding_pool, sliding_hit)):
            available = pool.num_available - sum(map(pool.is_idle, used)) - copies
            rooms.append(
                (columns + available) * self.block_size - computed if available >= 0 else 0
            )
        return rooms[0], rooms[1]

    def prefill(self, request: Request, hit: Hit, num_tokens: int) -> None:
        """Give a request that holds nothing its hit, and blocks to write for `num_tokens` more.
        `room` must allow them.
        """
        assert not request.global_blocks and min(self.room(request, hit)) >= num_tokens > 0
        path = list(hit.path)
        global_hit, sliding_hit = self.columns(hit)
        if path and hit.length < path[-1].stop:
            path[-1] = self.tree.split(path[-1], hit.length)
        request.last = self.tree.begin(request.identity, path)
        for block in global_hit:
            self.global_pool.hold(block)
        for block in sliding_hit:
            self.sliding_pool.hold(block)
        request.first_sliding_column = len(global_hit) - len(sliding_hit)
        request.global_blocks = global_hit
        request.sliding_blocks = [*[None] * request.first_sliding_column, *sliding_hit]
        request.num_computed = request.num_stored = hit.length
        if hit.length % self.block_size:
            self._copy_last_block(request)
        self.extend(request, num_tokens)

    def extend(self, request: Request, num_tokens: int) -> None:
        """Give a request blocks to write for `num_tokens` tokens after those computed. `room`
        must allow them.
        """
        # LOOKUP: nothing; a request is matched once, before it runs.
        # ALLOCATE
        new = self._count(request.num_computed + num_tokens) - len(request.global_blocks)
        for _ in range(new):
            request.global_blocks.append(self.global_pool.take())
            request.sliding_blocks.append(self.sliding_pool.take())
        # COMMIT, RELEASE: nothing; both wait until the pass has run (`complete`).

    def _copy_last_block(self, request: Request) -> None:
        """Replace the block that a hit ends in by a copy; the source stays held until the copy
        is made.
        """
        source = request.sliding_blocks[-1]
        assert source is not None
        request.global_copy = BlockCopy(request.global_blocks[-1], self.global_pool.take())
        request.sliding_copy = BlockCopy(source, self.sliding_pool.take())
        request.global_blocks[-1] = request.global_copy.target
        request.sliding_blocks[-1] = request.sliding_copy.target

    # COMMIT

    def complete(self, request: Request, num_tokens: int) -> None:
        """Take note that a forward pass computed `num_tokens` more tokens of the request."""
        # LOOKUP, ALLOCATE: nothing; the next pass does.
        # RELEASE
        self._drop_copies(request)
        # COMMIT
        request.num_computed += num_tokens
        assert request.num_computed <= min(
            request.num_tokens, len(request.global_blocks) * self.block_size
        )
        if self.config.options.enable_caching:
            self.store(request)
        # RELEASE
        self.cleanup(request)

    def store(self, request: Request) -> None:
        """Store what was computed since the last store, going on from the entry that ended
        there.
        """
        size = self.block_size
        symbols = request.symbols
        entry = request.last
        position = request.num_stored
        upto = request.num_computed
        while position < upto:
            assert entry is not None
            column = position // size
            end = min(upto, (column + 1) * size)
            child = entry.children.get(symbols[position])
            if child is not None:
                entry, position = self._follow(request, child, position, end)
                continue
            own = request.sliding_blocks[column]
            assert own is not None
            if (
                entry.start // size == column
                and not entry.children
                and entry.users == 1
                and entry.parent is not None
            ):
                self.tree.grow(entry, symbols[position:end], request.global_blocks[column], own)
            else:
                child = self.tree.add(
                    entry, symbols[position:end], request.global_blocks[column], own
                )
                self.tree.advance(entry, child)
                entry = child
            position = end
        request.last = entry
        request.num_stored = upto

    def _follow(self, request: Request, child: Entry, position: int, end: int) -> tuple[Entry, int]:
        """Go along an entry that is there already; fill its hole, or adopt its blocks where it
        completes the column.
        """
        common = child.common(request.symbols, position, end)
        entry = child if common == len(child.symbols) else self.tree.split(child, position + common)
        assert entry.parent is not None
        self.tree.advance(entry.parent, entry)
        column = position // self.block_size
        own = request.sliding_blocks[column]
        assert entry.global_block is not None and own is not None
        if entry.sliding_block is None:
            self.tree.fill(entry, own)
        if entry.stop % self.block_size == 0:
            assert entry.sliding_block is not None
            _exchange(self.global_pool, request.global_blocks[column], entry.global_block)
            request.global_blocks[column] = entry.global_block
            if not self.sliding_pool.is_named(own):  # else an entry further up keeps it anyway
                _exchange(self.sliding_pool, own, entry.sliding_block)
                request.sliding_blocks[column] = entry.sliding_block
        return entry, entry.stop

    # RELEASE

    def cleanup(self, request: Request) -> None:
        """Give back the sliding blocks that no later query reads: column j once (j + 1) * B <= t
        - tail.
        """
        keep = max(0, request.num_computed - self.config.tail) // self.block_size
        for column in range(request.first_sliding_column, keep):
            block = request.sliding_blocks[column]
            assert block is not None
            request.sliding_blocks[column] = None
            self.sliding_pool.release(block)
            if self.config.options.out_of_window == "freed" and self.sliding_pool.is_idle(block):
                self._evict_sliding(block)
        request.first_sliding_column = max(keep, request.first_sliding_column)

    def free(self, request: Request) -> None:
        """Give back everything that a request holds, from its end on; what is stored of it stays
        stored.
        """
        self._drop_copies(request)
        for block in reversed(request.global_blocks):
            self.global_pool.release(block)
        for sliding in reversed(request.sliding_blocks[request.first_sliding_column :]):
            assert sliding is not None
            self.sliding_pool.release(sliding)
        if request.last is not None:
            self.tree.end(request.last)
        request.start_again()

    def reset(self) -> bool:
        """Forget everything stored, unless a request holds a block; return whether it was done."""
        if self.global_pool.num_held or self.sliding_pool.num_held:
            return False
        for root in list(self.tree.roots.values()):
            for child in list(root.children.values()):
                self.tree.remove(child)
        assert self.global_pool.num_free == self.global_pool.num_blocks
        assert self.sliding_pool.num_free == self.sliding_pool.num_blocks
        return True

    def _drop_copies(self, request: Request) -> None:
        for pool, copy in (
            (self.global_pool, request.global_copy),
            (self.sliding_pool, request.sliding_copy),
        ):
            if copy is not None:
                pool.release(copy.source)
        request.global_copy = request.sliding_copy = None

    def _evict_sliding(self, block: BlockId) -> None:
        for entry in self.sliding_pool.entries(block):
            assert isinstance(entry, Entry)
            self.tree.open_hole(entry)

    # COLUMNS

    def _count(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def columns(self, hit: Hit) -> tuple[list[BlockId], list[BlockId]]:
        """Return the hit's global blocks of all its columns, and the sliding ones of the columns
        that its window touches.
        """
        furthest: dict[int, Entry] = {entry.start // self.block_size: entry for entry in hit.path}
        first = max(0, hit.length - self.config.tail) // self.block_size
        global_blocks = [entry.global_block for entry in furthest.values()]
        sliding_blocks = [
            entry.sliding_block for column, entry in furthest.items() if column >= first
        ]
        return [b for b in global_blocks if b is not None], [
            b for b in sliding_blocks if b is not None
        ]


def _exchange(pool: BlockPool, own: BlockId, other: BlockId) -> None:
    if own != other:
        pool.hold(other)
        pool.release(own)
