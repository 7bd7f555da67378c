"""What events for routers prove by themselves, without the keys that they tell of.

A router counts, for each medium and group, how often a block is there. So an event has a form; a
name stands for one block of tokens; what is removed was stored there. That a block was never told
of, or is told of and was never there, shows in the keys alone (`key_events`).

Two pages of one prefix are told twice, and so is a hit with vLLM's `kv_cache_report_mode=full`: to
be stored again is lawful unless the engine promises to tell of each block once.

Sources: vLLM 0.33.0, `distributed/kv_events.py`, `v1/core/block_pool.py`,
`distributed/kv_transfer/kv_connector/v1/offloading/events.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from cachewitness.core.checkers.wording import count
from cachewitness.core.events import KeyEvents, KvRemoved, KvStored

MALFORMED = "malformed-key-event"
FALSE = "false-key-event"
FULL = "full_attention"
"""What vLLM calls a group of which every block is kept (`kv_cache_spec_kind`)."""
SHOWN = 16
"""Characters of a name that are shown; a hash may have 64."""

Place = tuple[str, int]
"""(medium, group); the medium is empty for the device's."""


class Problem(NamedTuple):
    """What is wrong with an event: the anomaly, and why in a few words. `before` are the tokens of
    which its name was told before, if it was told of others. `dropped`: it has no tokens, and its
    name was stored with them before, and removed.
    """

    anomaly: str
    why: str
    before: tuple[int, ...] = ()
    dropped: bool = False


class Meaning(NamedTuple):
    """What a name was stored for: tokens, the name in front of them, an adapter, a salt, images."""

    tokens: tuple[int, ...]
    parent: str
    adapter: str
    salt: str
    media: tuple[tuple[str, int], ...]


class EventStream:
    """What a router believes who was told all of this, and no more. `once`: the engine promises to
    tell of each block once.

    `whole` is true as long as nothing can have been told that did not come here. `excused` counts
    what could not be judged, by the reason; `again` how often a block was stored that was there.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.whole = True
        self.excused: Counter[str] = Counter()
        self.again = 0
        self.full: frozenset[int] = frozenset()
        """Groups that are known to be of full attention, whatever events say."""
        self._once = once
        self._there: dict[Place, Counter[str]] = defaultdict(Counter)
        self._meanings: dict[tuple[str, str, int], Meaning] = {}
        self._ends: dict[str, tuple[int, ...]] = {}
        """The tokens with which the prefix of a name ends, whatever the medium and the block."""
        self._named: set[str] = set()
        self._names_of: dict[tuple[int, ...], set[str]] = defaultdict(set)
        """By the tokens of a block: the names that it was stored under, on any medium."""
        self.sizes: set[int] = set()
        """How many tokens a block has that was stored."""
        self._kinds: dict[int, str] = {}
        self._grouped: dict[str, bool] = {}
        """By medium: whether its events name a group."""

    def stored(self, event: KvStored, allowed: KeyEvents) -> Iterator[Problem]:
        """Take in blocks that are told to be there. `allowed` is what the engine declares that its
        events leave open.
        """
        place = event.medium, event.group
        full = event.kind == FULL or event.group in self.full
        if not event.tokens and (allowed.bare or not full) and len(event.hashes) == 1:
            # vLLM's own connectors have no tokens of groups that are pruned.
            self.excused["key_events without tokens"] += 1
            self._store(place, event.hashes)
            return
        yield from self._group_named(event)
        yield from self._kind_kept(event)
        wrong = misshapen(event, gaps=allowed.gaps and not full)
        if wrong:
            yield Problem(MALFORMED, wrong, dropped=self._was_dropped(event))
        elif event.parent and event.parent not in self._named:
            yield from self._orphaned(event, allowed)
        if not wrong and len(event.hashes) * event.block_size == len(event.tokens):
            yield from self._meant(event)
        again = [name for name in event.hashes if self._there[place][name] > 0]
        self.again += len(again)
        if again and self._once:
            yield Problem(
                FALSE, f"{shown(again[0])} is there already, and no event removed it meanwhile"
            )
        self._store(place, event.hashes)

    def removed(self, event: KvRemoved) -> Iterator[Problem]:
        """Take out blocks that are told to be gone."""
        if not event.hashes:
            yield Problem(MALFORMED, "it names no block")
        yield from self._group_named(event)
        there = self._there[event.medium, event.group]
        for name in event.hashes:
            if there[name] > 0:
                there[name] -= 1
            elif self.whole:
                yield Problem(FALSE, self._why_not_there(name))
            else:
                self.excused["blocks that may have been stored unseen"] += 1

    def has(self, groups: tuple[int, ...], tokens: list[int]) -> bool:
        """Whether a block of these tokens is told to be on another medium than the device, for one
        of some groups; of which tokens it is, may have been told with the same name elsewhere.
        """
        names = self._names_of.get(tuple(tokens), ())
        return any(
            there[name] > 0
            for (_, group), there in self._there.items()
            if group in groups
            for name in names
        )

    def reset(self) -> None:
        """Take everything out, of a medium whose own event of that does not come here."""
        self._there.clear()
        self.missed()

    def cleared(self) -> None:
        """Take everything out. Such an event does not say of which medium it is: where there are
        several, nobody can say any more what is there.
        """
        if len({medium for (medium, _), names in self._there.items() if names}) > 1:
            self.missed()
        self._there.clear()

    def missed(self) -> None:
        """Note that something may have been told that did not come here."""
        self.whole = False

    def _store(self, place: Place, names: list[str]) -> None:
        self._there[place].update(names)
        self._named.update(names)

    def _why_not_there(self, name: str) -> str:
        others = [place for place, names in self._there.items() if names[name] > 0]
        if others:
            medium, group = others[0]
            where = f"of {_medium(medium)}" + (f", group {group}" if group >= 0 else "")
            return f"{shown(name)} is a block {where} alone"
        if name in self._named:
            return f"{shown(name)} was removed as often as it was stored"
        return f"no event stored {shown(name)}"

    def _was_dropped(self, event: KvStored) -> bool:
        """Whether an event has no tokens of a block that was stored with them, and removed."""
        if event.tokens:
            return False
        stored = {name for medium, name, _ in self._meanings if medium == event.medium}
        there = self._there[event.medium, event.group]
        return all(name in stored and not there[name] for name in event.hashes)

    def _orphaned(self, event: KvStored, allowed: KeyEvents) -> Iterator[Problem]:
        if allowed.orphans:
            self.excused["key_events orphans"] += 1
        elif not self.whole:
            self.excused["parents that may have been stored unseen"] += 1
        else:
            yield Problem(
                MALFORMED, f"its parent {shown(event.parent)} is a block that no event told"
            )

    def _meant(self, event: KvStored) -> Iterator[Problem]:
        """Yield why a name cannot stand for this block: it stands for another."""
        for name, meaning in self._learned(event):
            known = self._meanings.setdefault((event.medium, name, event.block_size), meaning)
            ends = self._ends.setdefault(name, meaning.tokens)
            alike = min(len(ends), event.block_size)
            if ends[-alike:] != meaning.tokens[-alike:]:
                known = known._replace(tokens=ends)
            other = [field for field in _WORDS if _differ(field, known, meaning)]
            if other:
                why = f"{shown(name)} was stored before with {_WORDS[other[0]]}"
                yield Problem(FALSE, why, known.tokens)
                return

    def heard(self, event: KvStored) -> None:
        """Take note of names that are judged elsewhere: they may be parents, and stand for the
        same tokens here.
        """
        self._named.update(event.hashes)
        if not misshapen(event, gaps=False):
            for name, meaning in self._learned(event):
                self._ends.setdefault(name, meaning.tokens)

    def _learned(self, event: KvStored) -> Iterator[tuple[str, Meaning]]:
        """Yield each name of an event and what it stands for, and take note of both."""
        self.sizes.add(event.block_size)
        for name, meaning in _meanings(event):
            self._names_of[meaning.tokens].add(name)
            yield name, meaning

    def _group_named(self, event: KvStored | KvRemoved) -> Iterator[Problem]:
        names = event.group >= 0
        if self._grouped.setdefault(event.medium, names) != names:
            yield Problem(
                MALFORMED,
                f"it names {'a' if names else 'no'} group, and other events of"
                f" {_medium(event.medium)} name {'none' if names else 'one'}",
            )

    def _kind_kept(self, event: KvStored) -> Iterator[Problem]:
        known = self._kinds.setdefault(event.group, event.kind) if event.kind else event.kind
        if known != event.kind:
            yield Problem(
                MALFORMED, f"group {event.group} is of kind {event.kind}, and was of {known}"
            )


_WORDS = {
    "tokens": "other tokens",
    "parent": "another parent",
    "adapter": "another adapter",
    "salt": "another salt",
    "media": "other images",
}


def _differ(field: str, one: Meaning, other: Meaning) -> bool:
    """Whether two events say different things; a salt or images that one does not name are left
    open.
    """
    first = getattr(one, field)
    second = getattr(other, field)
    silent = field in ("salt", "media") and not (first and second)
    return first != second and not silent


def _meanings(event: KvStored) -> Iterator[tuple[str, Meaning]]:
    """Yield each name of an event that names every block, and what it stands for."""
    size = event.block_size
    for index, name in enumerate(event.hashes):
        yield (
            name,
            Meaning(
                tuple(event.tokens[index * size : (index + 1) * size]),
                event.hashes[index - 1] if index else event.parent,
                event.adapter,
                "" if index else event.salt,
                tuple(event.media[index]) if event.media else (),
            ),
        )


def misshapen(event: KvStored, *, gaps: bool) -> str:
    """Return why hashes, tokens and block size do not go together; empty if they do. `gaps`: see
    `KeyEvents`.
    """
    size = event.block_size
    tokens = len(event.tokens)
    hashes = len(event.hashes)
    phrase = f"it has {hashes} {'hash' if hashes == 1 else 'hashes'} for"
    if (
        size < 1
        or tokens % size
        or hashes * size > tokens
        or (event.media and len(event.media) != hashes)
    ):
        return f"{phrase} {count(tokens, 'token')} in blocks of {size}"
    if len(set(event.hashes)) < hashes:
        return "it has the same hash twice"
    if gaps or (hashes and hashes * size == tokens):
        return ""
    return f"{phrase} {count(tokens // size, 'block')}, and does not say of which"


def shown(name: str) -> str:
    """Return a name as a line shows it."""
    return repr(name if len(name) <= SHOWN else name[:SHOWN] + "…")


def _medium(name: str) -> str:
    return name or "the device"
