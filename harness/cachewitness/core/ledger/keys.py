"""Which prefixes the engine published, and what became of each key.

A key is pending until the step that writes its content ends. Then it is committed if the content is
there, whoever was taken out of the step: a copy to another tier is made all the same. If not, it is
withdrawn with its request, or unbacked. A reset, new weights or a new version of an adapter end it;
`Unpublish` takes it away and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from cachewitness.core.events import Group, Publish, Run, StepBegin, Unpublish, UnpublishReason
from cachewitness.core.ledger.holdings import Holdings
from cachewitness.core.ledger.records import Key, KeyState, PoolRecords


class Ended(NamedTuple):
    """Why a key was unpublished, in which step, of which page, and by which event."""

    reason: UnpublishReason
    step: int
    page: int
    seq: int


class Keys:
    """The engine's keys, by group and prefix."""

    def __init__(
        self, groups: list[Group], records: dict[int, PoolRecords], holdings: Holdings
    ) -> None:
        self._groups = groups
        self._records = records
        self._holdings = holdings
        self.published: list[dict[int, dict[int, Key]]] = [{} for _ in groups]
        """Per group: node -> page -> key, of everything published."""
        self.ended: list[dict[int, Ended]] = [{} for _ in groups]
        """Per group: node -> how its last key was unpublished."""
        self._pending: dict[int, list[Key]] = {}

    def pending(self, step: int) -> list[Key]:
        """Return the keys that become committed, or vanish, when the step ends."""
        return self._pending.get(step, [])

    def awaiting(self, r: str, step: int) -> Key | None:
        """Return the longest key of a request that waits for the end of a step, or of a later
        one; None if there is none.
        """
        keys = [
            key
            for late, keys in self._pending.items()
            if late >= step
            for key in keys
            if key.r == r and key.node >= 0
        ]
        return max(keys, key=lambda key: key.length, default=None)

    def publish(self, event: Publish, node: int, state: KeyState) -> None:
        """Add a key; one that is pending waits for the end of its step."""
        group = event.group
        page = event.page
        step = event.step
        extra_pages = event.extra_pages
        key = Key(group, page, event.r, event.length, step, extra_pages, node, state)
        if state == "pending":
            self._pending.setdefault(step, []).append(key)
        self.published[group].setdefault(node, {})[page] = key
        pool = self._groups[group].pool
        for named in self._places(key):
            self._holdings.add_key(key, pool, named)

    def unpublish(self, event: Unpublish) -> None:
        """End the keys of a group that name a page: those of a length, or all of them if it is
        0.
        """
        records = self._records[self._groups[event.group].pool]
        if event.page in records.null:
            return
        for key in list(records[event.page].keys):
            if key.ended_by(event):
                self._end(key, Ended(event.reason, event.step, event.page, event.seq))

    def _end(self, key: Key, ended: Ended) -> None:
        pages = self.published[key.group].get(key.node, {})
        if pages.get(key.page) is key:
            del pages[key.page]
            if not pages:
                del self.published[key.group][key.node]
                self.ended[key.group][key.node] = ended
        pending = self._pending.get(key.step)
        if pending and key in pending:
            pending.remove(key)
        pool = self._groups[key.group].pool
        for page in self._places(key):
            self._holdings.remove_key(key, pool, page)

    def _places(self, key: Key) -> list[int]:
        """Return the pages that a key occupies, each once; in a null page nothing is ever
        stored.
        """
        null = self._records[self._groups[key.group].pool].null
        return [page for page in dict.fromkeys((key.page, *key.extra_pages)) if page not in null]

    def begin_step(self, event: StepBegin) -> None:
        """Note which keys that wait for a step it will not write, or run past. What is in another
        tier is copied there.
        """
        pending = self._pending.get(event.step)
        ran = {run.r: run for run in event.runs} if pending else {}
        for key in pending or ():
            if self._groups[key.group].source_group < 0:
                run = ran.get(key.r)
                key.unrun = run is None
                if run is not None and run.checkpoints:
                    key.passed_from = _passed_from(run, key, self._groups[key.group].block_size)

    def end_step(self, step: int, withdrawn: Iterable[Key], unbacked: Iterable[Key]) -> None:
        """Decide what the keys of a step have become."""
        for key in self._pending.pop(step, ()):
            key.state = "committed"
        for key in withdrawn:
            key.state = "withdrawn"
        for key in unbacked:
            key.state = "unbacked"

    def reset(self, pools: Collection[int]) -> None:
        """Mark the keys over some pools as ended by a reset."""
        for key in self._all():
            if self._groups[key.group].pool in pools:
                key.state = "reset"
        self._decide_no_more()

    def outdate(self, of: Callable[[Key], bool]) -> None:
        """Mark keys as ended by new weights, or by a new version of an adapter."""
        for key in self._all():
            if of(key):
                key.state = "outdated"
        self._decide_no_more()

    def _decide_no_more(self) -> None:
        """Let the steps in flight decide of their keys only those that have not ended."""
        for keys in self._pending.values():
            keys[:] = [key for key in keys if key.state == "pending"]

    def _all(self) -> Iterator[Key]:
        """Yield all keys, some of them twice. One that was published again for the same page is
        known to the page alone.
        """
        for prefixes in self.published:
            for pages in prefixes.values():
                yield from pages.values()
        for records in self._records.values():
            for record in records.values():
                yield from record.keys


def _passed_from(run: Run, key: Key, block_size: int) -> int:
    """Return where a run began that saves states on its way, the first of them behind a key; −1 if
    that is not inside the key's block, or if it saves none.
    """
    saved = [length for group, _, length in run.checkpoints if group == key.group]
    inside = key.length - block_size < run.start < key.length
    return run.start if inside and saved and key.length < min(saved) else -1
