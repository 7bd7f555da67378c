"""Stores that are owed: what an engine says that it puts into a second tier is there when it is
asked for again.

What is owed follows from block tables and content: when a step ends, a request that ran in it holds
the pages of the chunks that it has just completed. If the request ends as intended, and there was
room in the tier, a copy of each is found there by whoever begins with the same tokens, until its
key ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.key_floor import settled_tokens
from cachewitness.core.checkers.lookup import has_usable_key
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.tier_floor import longest_in_tier, needed_in_tier
from cachewitness.core.checkers.wording import named
from cachewitness.core.events import (
    Aborted,
    Copy,
    Finished,
    Group,
    Header,
    Hit,
    Preempted,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Version,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord

Place = tuple[int, int]
"""A group of the device and a prefix."""
Name = TypeVar("Name", str, int)

LOCAL = "local"


@dataclass(slots=True, eq=False)
class Owed:
    """A chunk of `r` that has no copy yet, its tokens from `start` to `length`. `node` is its
    prefix, `places` are those whose copies make it up, and `step` is the one that completed it.

    `since`: the event from which on a key that ended may be of its store. `ended`: the last step
    that had ended when its request was over.
    """

    r: str
    start: int
    length: int
    node: int
    places: list[Place]
    step: int
    since: int
    ended: int = -1


class _Begun(NamedTuple):
    """When a step began, and how many pages of other tiers were free then."""

    seq: int
    room: int


class StoresOwed(Checker):
    """What a request computed, and the engine says that it stores, is in the second tier later."""

    name = "stores"
    summary = (
        "what a request that ended computed is found in the second tier, as far as the engine"
        " declares that it stores it and there was room"
    )
    anomalies = ("lost-store",)
    lacks = "a chunk that was to be stored and is asked for again"

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, list[Owed]] = {}
        """By request that has not ended: chunks that it completed and that have no copy yet."""
        self._owed: dict[int, list[Owed]] = {}
        """By prefix: chunks of requests that ended."""
        self._failed: dict[Place, int] = {}
        """The latest step that had begun when a store of it failed: until then it was on its way,
        and was not stored once more."""
        self._begun: dict[int, _Begun] = {}
        """By step in flight."""
        self._found: dict[str, int] = {}
        """How many tokens the tier had of a request that restores none of its prompt; where a hit
        is one prefix, what lies in front of its end is not stored again."""

    def not_applicable(self, header: Header) -> str:
        if reason := super().not_applicable(header):
            return reason
        if not header.rules.caching:
            return "prefix caching is off"
        if not any(group.source_group >= 0 for group in header.groups):
            return "there is no second tier"
        if header.rules.stores is None:
            return "the engine does not say what it stores in its second tier (`stores`)"
        return ""

    def handlers(self) -> dict[type, Handler]:
        return {
            StepBegin: self.on_step_begin,
            StepEnd: self.on_step_end,
            Finished: self.on_finish,
            Aborted: self.on_lost,
            Preempted: self.on_lost,
            Copy: self.on_copy,
            Hit: self.on_hit,
            ResetDone: self.on_reset,
            Version: self.on_version,
        }

    # --- what is owed -----------------------------------------------------------------------------

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Note how much room there is beside what the step stores."""
        self._begun[event.step] = _Begun(event.seq, _free_aside(ledger))
        return None

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """Note the chunks that the step completed, as far as the tables of their requests have
        their pages and no copy is there yet.
        """
        begun = self._begun.pop(event.step, _Begun(event.seq, 0))
        room = min(begun.room, _free_aside(ledger))
        # What was there when the engine chose what to store may end before the step does.
        complete = [
            owed
            for run in ledger.requests.ran_in(event)
            for owed in _completed(ledger, ledger.requests[run.r], run, event.step, begun.seq)
        ]
        complete = [owed for owed in complete if owed.length > self._found.get(owed.r, 0)]
        missing = [owed for owed in complete if not _there(ledger, owed)]
        self._failed = {place: step for place, step in self._failed.items() if step >= event.step}
        self.opportunities += len(complete) - len(missing)
        # An engine may take room for all of a store or for nothing, and store with it what it lacks
        # of the prompt in front of the chunk.
        last = {owed.r: owed for owed in missing}
        if missing and sum(_pages_lacking(ledger, owed) for owed in last.values()) <= room:
            for owed in missing:
                if not self._failed.keys().isdisjoint(owed.places):
                    continue
                self._pending.setdefault(owed.r, []).append(owed)
        return None

    def on_finish(self, ledger: Ledger, event: Finished) -> Found:
        """From now on it is owed what the request completed; an engine that gave it up owes
        nothing.
        """
        self._found.pop(event.r, None)
        settled = settled_tokens(ledger, ledger.requests[event.r])
        for owed in self._pending.pop(event.r, ()):
            if _reachable(ledger, owed.length) <= settled and not event.by_engine:
                owed.ended = ledger.requests.last_step_ended
                self._owed.setdefault(owed.node, []).append(owed)
        return None

    def on_lost(self, ledger: Ledger, event: Aborted | Preempted) -> Found:
        """Of a request that did not end as intended, or lost its pages, nothing is owed."""
        self._found.pop(event.r, None)
        self._pending.pop(event.r, None)
        return None

    # --- what keeps it from being owed ------------------------------------------------------------

    def on_copy(self, ledger: Ledger, event: Copy) -> Found:
        """Nothing is there of a store that failed."""
        if event.phase == "fail":
            failed = {
                (image.group, image.node) for image in ledger.contents.copying.get(event.id, ())
            }
            self._failed |= dict.fromkeys(failed, max(self._begun, default=event.step))
            self._drop(lambda owed: not failed.isdisjoint(owed.places))
        return None

    def on_reset(self, ledger: Ledger, event: ResetDone) -> Found:
        """Owe nothing of what a tier was asked to forget."""
        if event.ok and event.tier != LOCAL:
            self._drop(lambda owed: True)
        return None

    def on_version(self, ledger: Ledger, event: Version) -> Found:
        """Keys of every tier end with new weights."""
        self._drop(lambda owed: True)
        return None

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Owe nothing at prefixes that stand for others now."""
        self._drop(lambda owed: any(node in gone for _, node in owed.places))
        self._failed.clear()

    def _drop(self, of: Callable[[Owed], bool]) -> None:
        self._pending = _without(self._pending, of)
        self._owed = _without(self._owed, of)

    # --- look-ups ---------------------------------------------------------------------------------

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Look for a copy of each chunk that the request's prompt begins with and that is owed."""
        request = ledger.requests[event.r]
        if request.prompt_logprobs and ledger.header.rules.tier is not None:
            self._found[event.r] = longest_in_tier(ledger, request, ledger.header.rules.tier)
        if not self._owed:
            return None
        # What is on its way may still arrive.
        if any(ledger.pools[pool].tier != LOCAL for pool, _ in ledger.contents.filling):
            return None
        stores = ledger.header.rules.stores
        assert stores is not None, "the rule does not apply without"
        since = ledger.requests.last_step_ended - stores.steps
        nodes = [node for node in request.nodes if node in self._owed]
        asked = [owed for node in nodes for owed in self._owed[node] if owed.ended <= since]
        self._drop(lambda owed: owed in asked)
        self.opportunities += len(asked)
        missing = [owed for owed in asked if not _there(ledger, owed) and not _went(ledger, owed)]
        return [_lost(event, missing[0])] if missing else None


def _without(owing: dict[Name, list[Owed]], of: Callable[[Owed], bool]) -> dict[Name, list[Owed]]:
    """Return what is owed but for some of it."""
    kept = {name: [one for one in owed if not of(one)] for name, owed in owing.items()}
    return {name: owed for name, owed in kept.items() if owed}


def _reachable(ledger: Ledger, length: int) -> int:
    """Return the first boundary, in tokens, at which a request could resume that reads a chunk up
    to `length`; an engine may key, and store, nothing up to there.
    """
    rules = ledger.header.rules
    return length if rules.tier is not None else -(-length // rules.alignment) * rules.alignment


def _free_aside(ledger: Ledger) -> int:
    """Return how many pages of other tiers nobody holds and no key names."""
    return sum(
        ledger.records[pool.id].capacity
        - ledger.holdings.held[pool.id]
        - len(ledger.holdings.idle[pool.id])
        for pool in ledger.header.pools
        if pool.tier != LOCAL
    )


def _pages_lacking(ledger: Ledger, owed: Owed) -> int:
    """Return how many pages the tier lacks of a request up to the end of a chunk, at most."""
    nodes = ledger.requests[owed.r].nodes
    return sum(
        not any(has_usable_key(ledger, other, nodes[length]) for other in ledger.stored[group.id])
        for group in ledger.local
        for length in range(group.block_size, owed.length + 1, group.block_size)
    )


def _completed(
    ledger: Ledger, request: RequestRecord, run: Run, step: int, since: int
) -> Iterator[Owed]:
    """Yield the chunks that a run completed and whose pages its tables have, as far as the engine
    declares that it stores them.
    """
    stores = ledger.header.rules.stores
    tier = ledger.header.rules.tier
    assert stores is not None, "the rule does not apply without"
    groups = [
        group
        for group in ledger.local
        if ledger.stored[group.id] and group.id in (stores.groups or (group.id,))
    ]
    if request.prompt_tokens < stores.shortest:
        return
    upto = run.known if stores.answers else min(run.known, request.prompt_tokens)
    apart = [[group] for group in groups] if tier is None or not tier.together else [groups]
    for parts in apart:
        size = tier.chunk if tier is not None else parts[0].block_size
        for end in range((run.start // size + 1) * size, upto + 1, size):
            lengths = [
                (group, length)
                for group in parts
                for length in ([end] if tier is None else needed_in_tier(group, end, tier))
                if end - size < length
            ]
            if lengths and all(_in_table(ledger, request, run, *place) for place in lengths):
                places = [(group.id, request.nodes[length]) for group, length in lengths]
                yield Owed(
                    request.r,
                    end - size,
                    end,
                    request.nodes[end],
                    places,
                    step,
                    since,
                )


def _in_table(ledger: Ledger, request: RequestRecord, run: Run, group: Group, length: int) -> bool:
    """Whether the page in a run's table holds the block, or the state, at a length in tokens, and
    the state has a key if the engine declares that it stores no others.
    """
    stores = ledger.header.rules.stores
    keyed = group.kind == "recurrent" and stores is not None and stores.keyed
    if keyed and request.nodes[length] not in ledger.keys.published[group.id]:
        return False
    column = (length - 1) // group.block_size
    table = run.tables[group.id]
    return column < len(table) and ledger.contents.content_matches(
        group, table[column], request.nodes[length], length
    )


def _there(ledger: Ledger, owed: Owed) -> bool:
    """Whether the tier has all of a chunk."""
    return all(
        any(has_usable_key(ledger, other, node) for other in ledger.stored[group])
        for group, node in owed.places
    )


def _went(ledger: Ledger, owed: Owed) -> bool:
    """Whether some of a chunk was stored since it was computed, and its key ended."""
    return any(
        (ended := ledger.keys.ended[other].get(node)) is not None and ended.seq >= owed.since
        for group, node in owed.places
        for other in ledger.stored[group]
    )


def _lost(event: Hit, owed: Owed) -> Finding:
    tokens = f"[{owed.start},{owed.length})"
    sentence = (
        f"Let {owed.r} compute tokens {tokens} in step {owed.step}, and end as intended. The engine"
        " declares that it stores such chunks, and there was room in the second tier; no key of"
        f" them has ended there since. However {event.r} begins with the same tokens, and there is"
        f" no copy of {tokens}: a contradiction."
    )
    line = f"{named(owed.r)} computed its tokens {tokens}; the second tier has no copy of them"
    return Finding(anomaly="lost-store", r=owed.r, sentence=sentence, line=line)
