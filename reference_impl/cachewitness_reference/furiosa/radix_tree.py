"""The radix tree of everything stored: token by token, and yet in blocks.

An entry is a run of symbols behind its parent's, with the block of either pool that holds them. A
run never crosses the end of a block, so that an entry has one block of a kind; siblings part at any
token. Where an entry begins inside a block, its block holds the tokens before it in that column
too: it was copied, or written by the same request. So the blocks of a prefix are, column by column,
those of the entry furthest down.

Each identity has a tree of its own, so two requests never share a path unless everything that
identifies them is equal up to there. An entry is *active* while a request's stored tokens run
through it (`users`) or end with it (`ends`). An active entry is not removed. Its block is kept for
it (*pinned*) if it is the furthest of its column for some request; an entry half way down a column
may lose its block to somebody else, and then takes over the one of the entry below, which holds the
same tokens and more.

Operations cost O(tokens looked at): a match stops at the first difference, and storing goes on from
where the request's last store ended.

Source of the rule: spec rules `radix-tree`, `stored-after-pass`, `leaf-lru`; choices `identity`,
`holes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachewitness_reference.furiosa.block_pool import BlockPool
from cachewitness_reference.primitives import BlockId, Position

Symbol = int | tuple[int, str]
"""A token, or a placeholder token with the hash of its media item."""

Identity = tuple[str, str]
"""A salt and an adapter."""


class Entry:
    """Tokens [start, stop) of some prefix. A root has no symbols, no blocks and no parent."""

    __slots__ = (
        "children",
        "ends",
        "global_block",
        "identity",
        "parent",
        "pinned",
        "sliding_block",
        "start",
        "symbols",
        "users",
    )

    def __init__(
        self, parent: Entry | None, start: int, symbols: Sequence[Symbol], identity: Identity
    ) -> None:
        self.parent = parent
        self.start = start
        self.symbols = list(symbols)
        self.identity = identity
        self.children: dict[Symbol, Entry] = {}
        self.users = 0
        self.ends = 0
        self.pinned = False
        self.global_block: BlockId | None = None
        self.sliding_block: BlockId | None = None
        """None over a hole: the window's block was taken back, the entry stayed."""

    @property
    def stop(self) -> Position:
        """Where the entry ends."""
        return Position(self.start + len(self.symbols))

    def common(self, symbols: Sequence[Symbol], position: int, limit: int) -> int:
        """Return how many of its symbols are those from `position` on, up to `limit`."""
        count = min(len(self.symbols), limit - position)
        if symbols[position : position + count] == self.symbols[:count]:
            return count
        return next(i for i in range(count) if symbols[position + i] != self.symbols[i])


class RadixTree:
    """The trees of all identities over the two pools."""

    def __init__(self, block_size: int, global_pool: BlockPool, sliding_pool: BlockPool) -> None:
        self.block_size = block_size
        self._global = global_pool
        self._sliding = sliding_pool
        self.roots: dict[Identity, Entry] = {}

    # LOOKUP

    def match(self, identity: Identity, symbols: Sequence[Symbol], limit: int) -> list[Entry]:
        """Return the entries that the first `limit` symbols run through, from the root on; the
        last may be left half way.
        """
        entry = self.roots.get(identity)
        position = 0
        path = list[Entry]()
        while entry is not None and position < limit:
            entry = entry.children.get(symbols[position])
            if entry is not None:
                common = entry.common(symbols, position, limit)
                path.append(entry)
                position += common
                if common < len(entry.symbols):
                    break
        return path

    def matched(self, path: Sequence[Entry], symbols: Sequence[Symbol], limit: int) -> int:
        """Return how many symbols a path that was matched so agrees with."""
        return path[-1].start + path[-1].common(symbols, path[-1].start, limit) if path else 0

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, parents before their children."""
        pending = [child for root in self.roots.values() for child in root.children.values()]
        while pending:
            entry = pending.pop()
            yield entry
            pending += entry.children.values()

    # COMMIT

    def add(
        self,
        parent: Entry,
        symbols: Sequence[Symbol],
        global_block: BlockId,
        sliding_block: BlockId,
    ) -> Entry:
        """Append an entry behind `parent`."""
        entry = Entry(parent, parent.stop, symbols, parent.identity)
        assert symbols and symbols[0] not in parent.children
        parent.children[symbols[0]] = entry
        self._name(entry, global_block, sliding_block)
        return entry

    def split(self, entry: Entry, position: int) -> Entry:
        """Let an entry begin at `position`, and return the new one before it, which is active if
        it is.
        """
        assert position % self.block_size
        parent = entry.parent
        count = position - entry.start
        assert parent is not None and 0 < count < len(entry.symbols)
        front = Entry(parent, entry.start, entry.symbols[:count], entry.identity)
        front.users = entry.users
        front.children[entry.symbols[count]] = entry
        parent.children[front.symbols[0]] = front
        entry.parent, entry.start, entry.symbols = front, position, entry.symbols[count:]
        assert entry.global_block is not None
        self._name(front, entry.global_block, entry.sliding_block)
        return front

    def grow(
        self, entry: Entry, symbols: Sequence[Symbol], global_block: BlockId, sliding_block: BlockId
    ) -> None:
        """Let a leaf that one request alone uses go on in its column, in the blocks of that
        request.
        """
        assert not entry.children and entry.users == 1 and entry.global_block is not None
        entry.symbols += symbols
        self._move(entry, global_block)
        self._keep(entry)
        if entry.sliding_block != sliding_block:
            self.open_hole(entry)
            self.fill(entry, sliding_block)

    def fill(self, entry: Entry, sliding_block: BlockId) -> None:
        """Give an entry over a hole the block of somebody who computed its tokens again."""
        assert entry.sliding_block is None
        entry.sliding_block = sliding_block
        self._sliding.name(sliding_block, entry)

    def begin(self, identity: Identity, path: Sequence[Entry]) -> Entry:
        """Let a request's stored tokens run along a path from the root, and return the entry
        that they end with.
        """
        entry = self.roots.setdefault(identity, Entry(None, 0, (), identity))
        entry.users, entry.ends = entry.users + 1, entry.ends + 1
        for below in path:
            self.advance(entry, below)
            entry = below
        return entry

    def advance(self, entry: Entry, child: Entry) -> None:
        """Let a request's stored tokens, which end with an entry, go on to its child."""
        assert child.parent is entry and entry.ends
        entry.ends -= 1
        child.users, child.ends = child.users + 1, child.ends + 1
        self._keep(child)
        self._keep(entry)

    # RELEASE

    def end(self, last: Entry) -> None:
        """Let a request's stored tokens, which end with an entry, run through nothing any more;
        from there up to the root.
        """
        assert last.ends
        last.ends -= 1
        entry: Entry | None = last
        while entry is not None:
            assert entry.users
            entry.users -= 1
            self._keep(entry)
            if entry.parent is None and not entry.users and not entry.children:
                self.roots.pop(entry.identity)
            entry = entry.parent

    def vacate(self, block: BlockId) -> None:
        """Take every entry off a global block that none of them pins: it goes, or has the block
        of an active one below.
        """
        for entry in self._global.entries(block):
            assert isinstance(entry, Entry)
            if entry.users:
                below = entry
                while not below.pinned:
                    below = next(child for child in below.children.values() if child.users)
                assert (
                    below.global_block is not None
                    and below.start // self.block_size == entry.start // self.block_size
                )
                self._move(entry, below.global_block)
            elif entry.global_block == block:
                self.remove(entry)

    def remove(self, entry: Entry) -> None:
        """Take an entry that is not active out of the tree, and with it what hangs below."""
        below = [entry]
        for one in below:
            below += one.children.values()
        for one in reversed(below):
            assert one.users == 0 and one.global_block is not None
            self.open_hole(one)
            self._global.unname(one.global_block, one)
            one.global_block = None
        parent = entry.parent
        assert parent is not None
        del parent.children[entry.symbols[0]]
        if parent.parent is None and not parent.users and not parent.children:
            self.roots.pop(parent.identity)

    def open_hole(self, entry: Entry) -> None:
        """Take the sliding block off an entry, which stays."""
        if entry.sliding_block is not None:
            block, entry.sliding_block = entry.sliding_block, None
            self._sliding.unname(block, entry)

    def _keep(self, entry: Entry) -> None:
        """Pin the global block of an entry that is the furthest of its column for some request;
        unpin it otherwise.
        """
        wanted = entry.users > 0 and (entry.ends > 0 or entry.stop % self.block_size == 0)
        if wanted != entry.pinned and entry.global_block is not None:
            entry.pinned = wanted
            (self._global.pin if wanted else self._global.unpin)(entry.global_block)

    def _move(self, entry: Entry, global_block: BlockId) -> None:
        """Let an entry name another global block, which has its tokens as well."""
        old = entry.global_block
        if old is None or old == global_block:
            return
        entry.global_block = global_block
        self._global.name(global_block, entry)
        if entry.pinned:
            self._global.pin(global_block)
            self._global.unpin(old)
        self._global.unname(old, entry)

    def _name(self, entry: Entry, global_block: BlockId, sliding_block: BlockId | None) -> None:
        entry.global_block = global_block
        entry.sliding_block = sliding_block
        self._global.name(global_block, entry)
        if sliding_block is not None:
            self._sliding.name(sliding_block, entry)
