"""Which pages requests gave back while they went on: what a copy to another tier takes from there
is no more theirs.

A window that moves on, or a state that is passed, leaves a page to others. An engine that stores it
later, for the request that had it, stores what others have written. A copy does not say for whom
it is made; the key that names it does, so until then a page of another tier is marked with all who
had given its source back (`Content.foreign`), and what is loaded from there with the cause alone
(`Content.stale`). An engine may store the last of a request in the step behind its end, so until
then what it gave back is not forgotten.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cachewitness.core.events import Copy, Group, Header, Move, Publish, Release
from cachewitness.core.ledger.records import (
    GIVEN_BACK,
    OFFERED_AGAIN,
    UNKNOWN,
    Content,
    ForeignTo,
    Key,
    PageRecord,
    PoolRecords,
)
from cachewitness.core.ledger.requests import Requests


class _Former(NamedTuple):
    """A page as it was given back: how many resets of other tiers there had been, and up to which
    position it held content.
    """

    resets: int
    stop: int


class GivenBack:
    """Follows the pages that live requests gave back."""

    def __init__(self, header: Header, records: dict[int, PoolRecords], requests: Requests) -> None:
        self._groups = header.groups
        self._records = records
        self._requests = requests
        self._local = {group.pool for group in header.local_groups()}
        self._resets = 0
        """How many resets of other tiers there were."""
        self._former: dict[tuple[int, int], dict[tuple[str, int], list[_Former]]] = {}
        """(pool, page) -> (request, group) -> what was given back, each time."""
        self._places: dict[str, list[tuple[int, int]]] = {}
        self._ended: list[str] = []
        """Requests that have ended since a step began last."""
        self._last_stored: list[str] = []
        """Those that had ended by then: of them that step may store something."""

    def release(self, event: Release) -> None:
        """Note pages that a request gives back which goes on."""
        for page in event.pages:
            place = event.pool, page
            former = _Former(self._resets, self._records[event.pool][page].stop)
            by = self._former.setdefault(place, {}).setdefault((event.holder, event.group), [])
            by.append(former)
            self._places.setdefault(event.holder, []).append(place)

    def end(self, r: str) -> None:
        """Note a request that has ended."""
        self._ended.append(r)

    def begin_step(self) -> None:
        """Forget those of whom the step before stored the last."""
        for r in self._last_stored:
            self.forget(r)
        self._last_stored, self._ended = self._ended, []

    def forget(self, r: str) -> None:
        """Forget what a request gave back that begins anew, or of which nothing is stored any
        more.
        """
        for place in self._places.pop(r, ()):
            former = self._former.get(place, {})
            for who in [who for who in former if who[0] == r]:
                del former[who]
            if not former:
                self._former.pop(place, None)

    def reset(self, pools: Collection[int]) -> None:
        """Note a reset; of another tier, it may have what is kept offered again."""
        self._resets += not self._local.issuperset(pools)

    def mark(self, event: Copy, images: list[Content]) -> None:
        """Mark what copies carry between the device and another tier."""
        for move, image in zip(event.moves, images, strict=True):
            source = self._records[move.src_pool][move.src]
            stored = move.dst_pool not in self._local
            loaded = move.src_pool not in self._local
            if stored and not loaded:
                image.foreign += self._who(move, source)
            if loaded and not stored:
                causes = {
                    cause_of(source, key, self._groups, self._requests) for key in source.keys
                }
                image.stale = image.stale or max(causes, default="")
                image.foreign = ()

    def _who(self, move: Move, record: PageRecord) -> tuple[ForeignTo, ...]:
        """Return who had given back a page that is stored. Of a request that has it again, for
        tokens further on, the copy may have another cause; not under the key of what it held then.
        """
        found: list[ForeignTo] = []
        for (r, group), times in self._former.get((move.src_pool, move.src), {}).items():
            has_again = record.held_for.get(r) == group
            for former in times:
                cause = OFFERED_AGAIN if former.resets < self._resets else GIVEN_BACK
                freed = self._key_of(group, move.dst_pool, former.stop)
                found.append(ForeignTo(r, group, cause, freed if has_again else 0, freed))
        return tuple(found)

    def _key_of(self, group: int, pool: int, stop: int) -> int:
        """Return the length of the key that another tier's block has in which a position lies;
        UNKNOWN if that pool has no blocks of the group.
        """
        size = next(
            (
                one.block_size
                for one in self._groups
                if (one.source_group, one.pool) == (group, pool)
            ),
            0,
        )
        return -(-max(stop, 1) // size) * size if size else UNKNOWN


def cause_of(content: Content, key: Key | Publish, groups: list[Group], requests: Requests) -> str:
    """Return the cause of what is wrong with a page under a key: that it was copied from a page
    which a request with the key's prefix had given back; else nothing.

    A key of another tier is of whoever got its hash last, so it may name another request with that
    prefix. A request may have given the page back several times: the one counts at which it held
    what the key names, if there is such a one.
    """
    if content.stale or not content.foreign:
        return content.stale
    source = groups[key.group].source_group
    node = requests[key.r].node_of(key.length)
    fitting = [
        one
        for one in content.foreign
        if one.group == source
        and one.r in requests
        and one.length in (0, key.length)
        and requests[one.r].node_of(key.length) == node != UNKNOWN
    ]
    return next((one.cause for one in fitting if one.freed == key.length), "") or next(
        (one.cause for one in fitting), ""
    )
