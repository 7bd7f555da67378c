"""What a router knows of an engine's keys from events alone, and which keys no event has reported
yet.

A router knows names (hashes); which prefix a name stands for is found in the event that reports
it, by the tokens, the parent and the key that the engine has put there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from cachewitness.core.events import KvStored
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord

OTHER_MEDIA = "it names other multimodal items than the block"
"""How the line of a finding says it, without the items, for which it has no room."""
BEGINNING, ANYWHERE = -1, -2
"""In place of the prefix behind which blocks are stored: the beginning of a prompt, and a prefix
that no event reported."""


class RouterView:
    """How many pages routers believe to have each prefix of each group."""

    def __init__(self) -> None:
        self.once = False
        """Whether pages that have one prefix are reported as one."""
        self._reported: Counter[tuple[int, int]] = Counter()
        self._prefix_of: dict[str, int] = {}
        """The prefix that each name was reported for; below ANYWHERE if nothing stands for it.
        """
        self._touched: set[tuple[int, int]] = set()
        """(group, prefix) of which a key began or ended, or an event came, since the view was
        last right."""
        self._unclear: set[tuple[int, int]] = set()
        """(group, prefix) of which it cannot be said whether an event told of it or of another."""
        self._dead = ANYWHERE

    def touch(self, group: int, node: int) -> None:
        """Note that a key of a prefix began or ends."""
        self._touched.add((group, node))

    def knows(self, name: str) -> bool:
        """Whether an event named it."""
        return name in self._prefix_of

    def prefix(self, name: str) -> int:
        """Return the prefix that a parent names; BEGINNING for none, ANYWHERE if it is not
        known.
        """
        node = self._prefix_of.get(name, ANYWHERE) if name else BEGINNING
        return max(node, ANYWHERE)

    def is_for_another(self, name: str, node: int) -> bool:
        """Whether a name is in use for another prefix."""
        known = self._prefix_of.get(name, node)
        return known != node and any(
            self._reported[place] > 0 for place in self._reported if place[1] == known
        )

    def is_unclear(self, name: str) -> bool:
        """Whether the prefix that a name stands for is not known any more."""
        return self._prefix_of.get(name, BEGINNING) < ANYWHERE

    def pages(self, group: int, name: str) -> int:
        """Return how many pages routers believe to have the prefix that a name stands for."""
        return self._reported[group, self._prefix_of[name]] if name in self._prefix_of else 0

    def store(self, group: int, name: str, node: int) -> None:
        """Note that one page more has a prefix."""
        self._prefix_of[name] = node
        self._reported[group, node] += 1
        self._touched.add((group, node))

    def store_unclear(self, name: str, group: int, nodes: Iterable[int]) -> None:
        """Note a name that stands for one of some prefixes, without saying which; nothing
        is held against them.
        """
        self._prefix_of[name] = self._another()
        self._unclear.update((group, node) for node in nodes)

    def note(self, names: Iterable[str]) -> None:
        """Note the names of an event that is false: what they stand for is not known, and that
        they were told is.
        """
        for name in names:
            self._prefix_of.setdefault(name, self._another())

    def remove(self, group: int, name: str) -> bool:
        """Note that one page less has a prefix; return False if there was none."""
        place = group, self._prefix_of[name]
        if self._reported[place] < 1:
            return place[1] < ANYWHERE or place in self._unclear
        self._reported[place] -= 1
        self._touched.add(place)
        return True

    def clear(self) -> None:
        """Note that no page has any. Names go with that: with new weights they will stand for
        other prefixes.
        """
        self._touched.update(self._reported)
        self._reported.clear()
        self._unclear.clear()
        self._prefix_of.clear()

    def differences(self, ledger: Ledger) -> list[tuple[int, int, int, int]]:
        """Return (group, prefix, pages reported, pages that have the key) where these differ."""
        found = []
        for group, node in sorted(self._touched - self._unclear):
            reported = self._reported[group, node]
            there = len(ledger.keys.published[group].get(node, ()))
            there = min(there, 1) if self.once else there
            if reported != there:
                found.append((group, node, reported, there))
        return found

    def reports(self, group: int, node: int) -> bool:
        """Whether routers believe some page to have a prefix."""
        return self._reported[group, node] > 0

    def settle(self, ledger: Ledger, but: Collection[tuple[int, int]] = ()) -> None:
        """Take the engine's keys as reported, so that no difference is found twice, but those of
        some (group, prefix), which are yet to be reported.
        """
        for group, node, _, there in self.differences(ledger):
            if (group, node) not in but:
                self._reported[group, node] = there
        for place in self._touched:
            if not self._reported[place]:
                del self._reported[place]
        self._touched.intersection_update(but)

    def forget(self, gone: Collection[int]) -> None:
        """Give prefixes whose nodes stand for others now a number that is nobody's; forget names
        that no event reports.
        """
        there = {node for _, node in self._reported}
        renamed = {
            node: self._another()
            for node in sorted(there.union(node for _, node in self._touched))
            if node in gone
        }
        self._prefix_of = {
            name: renamed.get(node, node)
            for name, node in self._prefix_of.items()
            if node in renamed or (node not in gone and (node >= 0 or node in there))
        }
        self._reported = Counter(
            {
                (group, renamed.get(node, node)): pages
                for (group, node), pages in self._reported.items()
            }
        )
        self._touched = {(group, renamed.get(node, node)) for group, node in self._touched}
        self._unclear = {place for place in self._unclear if place[1] not in gone}

    def _another(self) -> int:
        self._dead -= 1
        return self._dead


@dataclass(slots=True)
class UnreportedKey:
    """A key that no event has reported: `length` tokens of a request, on `pages` pages. `nodes` are
    the request's prefixes as they were when the key began: with new weights it has others.
    """

    request: RequestRecord
    length: int
    node: int
    nodes: list[int]
    pages: int = 0

    def ends_with(self, tokens: list[int], behind: int) -> bool:
        """Whether it is these tokens behind a prefix."""
        start = self.length - len(tokens)
        if start < 0 or self.request.tokens[start : self.length] != tokens:
            return False
        return behind == ANYWHERE or (
            start == 0 if behind == BEGINNING else self.nodes[start] == behind
        )

    def media(self, size: int) -> list[tuple[str, int]]:
        """Return the multimodal items in its last `size` tokens, and where they begin, counted
        from the first of these.
        """
        start = self.length - size
        items = [
            item
            for item in self.request.media
            if item.at < self.length and start < item.at + item.length
        ]
        return [(item.hash, item.at - start) for item in items]

    def wrong_identity(self, event: KvStored, place: int) -> str:
        """Return what the event says of its block number `place` that is not so; empty if all
        is.
        """
        _, salt, adapter, _, _ = self.request.identity
        if event.adapter != adapter:
            return f"it names the adapter {event.adapter!r}, and the prefix is of {adapter!r}"
        if self.length == event.block_size and event.salt != salt:
            return f"it names the salt {event.salt!r}, and the prefix has {salt!r}"
        named = event.media[place] if event.media else []
        items = self.media(event.block_size)
        return "" if named == items else f"{OTHER_MEDIA}: {named}, not {items}"


@dataclass(frozen=True, slots=True)
class Meant:
    """The keys that a name in an event may stand for; one at most if that is sure."""

    keys: list[UnreportedKey]
    sure: bool = True


class UnreportedKeys:
    """The keys that began since all keys were reported, by group, length and prefix."""

    def __init__(self) -> None:
        self._keys: dict[int, dict[int, dict[int, UnreportedKey]]] = {}
        self._forgotten: Counter[int] = Counter()

    def add(self, group: int, request: RequestRecord, length: int) -> None:
        """Note a key."""
        self._of(group, request, length).pages += 1

    def expect(self, group: int, request: RequestRecord, length: int, pages: int) -> None:
        """Note that events must still report at least this number of pages with a key."""
        key = self._of(group, request, length)
        key.pages = max(key.pages, pages)

    def _of(self, group: int, request: RequestRecord, length: int) -> UnreportedKey:
        node = request.nodes[length]
        return (
            self._keys.setdefault(group, {})
            .setdefault(length, {})
            .setdefault(node, UnreportedKey(request, length, node, request.nodes))
        )

    def has(self, group: int, length: int, node: int) -> bool:
        """Whether no event has reported some page that has a key of a prefix."""
        return node in self._keys.get(group, {}).get(length, {})

    def take(
        self, group: int, event: KvStored, behind: int, start: int, view: RouterView
    ) -> Iterator[Meant]:
        """Yield for each hash of an event the keys that it may mean; a key that is surely meant is
        reported with that.

        `behind` is the prefix that its parent names, of `start` tokens; `view` says for which
        prefix a name stood before.
        """
        whole = behind != ANYWHERE and len(event.hashes) * event.block_size == len(event.tokens)
        named = (
            self._one_by_one(group, event, behind, start)
            if whole
            else self._out_of(group, event, behind, start, view)
        )
        for meant in named:
            for key in meant.keys if meant.sure else ():
                key.pages -= 1
                if not key.pages:
                    del self._keys[group][key.length][key.node]
            yield meant

    def _one_by_one(self, group: int, event: KvStored, behind: int, start: int) -> Iterator[Meant]:
        """Yield the key of every block in turn, each behind the one before."""
        for block in range(len(event.hashes)):
            named = _without_false_fields(
                self._find(group, event, (block, block), behind, start), event, block
            )
            yield Meant(named[:1])
            if not named:
                return
            behind = named[0].node
            start = named[0].length

    def _out_of(
        self, group: int, event: KvStored, behind: int, start: int, view: RouterView
    ) -> Iterator[Meant]:
        """Yield the keys out of all that the blocks may have, where some are left out, or nobody
        knows the parent.

        A name that could mean several prefixes before may mean one of those again: its key may have
        ended and begun on the same page. Then no other key is told by it, and of the names beside
        it nobody can say which keys are theirs.
        """
        # A name that is known keeps its meaning, so it is resolved before the others share what is
        # left.
        left = self._candidates(group, event, behind, start)
        by_name = {
            name: key for name in event.hashes for key in left if key.node == view.prefix(name)
        }
        left = [key for key in left if key not in by_name.values()]
        others = [name for name in event.hashes if name not in by_name]
        # No more keys than names, and no name ambiguous: whichever key a name means, all are told.
        exact = len(left) <= len(others) and not any(view.is_unclear(name) for name in others)
        for name in event.hashes:
            if name in by_name:
                yield Meant([by_name[name]])
            elif exact or not (left or view.is_unclear(name)):
                yield Meant([left.pop(0)] if left else [])
            else:
                yield Meant(list(left), sure=False)

    def _candidates(
        self, group: int, event: KvStored, behind: int, start: int
    ) -> list[UnreportedKey]:
        """Return the keys that end with a block of the event, of those that its adapter and its
        images allow if any do.
        """
        blocks = len(event.tokens) // event.block_size
        known = behind != ANYWHERE
        every = blocks == len(event.hashes)
        found = []
        for block in range(blocks):
            keys = self._find(group, event, (0 if known else block, block), behind, start)
            found += _without_false_fields(keys, event, block) if every else keys
        return [key for key in found if key.request.identity[2] == event.adapter] or found

    def elsewhere(self, group: int, event: KvStored) -> bool:
        """Whether some key is of the event's last block, whatever its parent."""
        last = len(event.tokens) // event.block_size - 1
        return bool(self._find(group, event, (last, last), ANYWHERE, 0))

    def drop(self, group: int, node: int) -> None:
        """Note that no event will report the key of a prefix."""
        for prefixes in self._keys.get(group, {}).values():
            prefixes.pop(node, None)

    def was_forgotten(self, group: int) -> bool:
        """Whether a key of the group ended before an event reported it; one reports it now."""
        if not self._forgotten[group]:
            return False
        self._forgotten[group] -= 1
        return True

    def clear(self, but: Collection[tuple[int, int]] = ()) -> None:
        """Take all keys as reported, but those of some (group, prefix)."""
        kept = [
            (group, length, node, key)
            for group, lengths in self._keys.items()
            for length, prefixes in lengths.items()
            for node, key in prefixes.items()
            if (group, node) in but
        ]
        self._keys.clear()
        for group, length, node, key in kept:
            self._keys.setdefault(group, {}).setdefault(length, {})[node] = key
        self._forgotten.clear()

    def forget(self, gone: Collection[int]) -> None:
        """Forget keys whose prefixes are forgotten."""
        for group, lengths in self._keys.items():
            for prefixes in lengths.values():
                for node in [node for node in prefixes if node in gone]:
                    self._forgotten[group] += prefixes.pop(node).pages

    def _find(
        self, group: int, event: KvStored, blocks: tuple[int, int], behind: int, start: int
    ) -> list[UnreportedKey]:
        """Return the keys that end with the tokens of some blocks of the event, the first and
        the last, behind a prefix.
        """
        tokens = event.tokens[blocks[0] * event.block_size : (blocks[1] + 1) * event.block_size]
        lengths = self._keys.get(group, {})
        asked = lengths.values() if behind == ANYWHERE else (lengths.get(start + len(tokens), {}),)
        return [
            key for prefixes in asked for key in prefixes.values() if key.ends_with(tokens, behind)
        ]


def _without_false_fields(
    keys: list[UnreportedKey], event: KvStored, block: int
) -> list[UnreportedKey]:
    """Return the keys of which an event says nothing false of a block; all if there is none."""
    return [key for key in keys if not key.wrong_identity(event, block)] or keys
