"""What must be equal when a trace is run: facts by operation, and from where on a free choice may
show.

An engine is free in three choices: which cached block it evicts (`victims`), which of several
blocks with one key it hits (`duplicates`), and whom it preempts when nothing fits (`preemptions`).
Block ids are never compared. A vector cannot follow an engine's choices as the differential does,
so it says from which operation on they may show; until then all facts must be equal. From there on,
the first operation whose facts differ is excused if the choice itself is among the differences:
other keys ended, another request was preempted, or, with duplicates, only the counts of blocks
differ. Nothing after it is compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from cachewitness.core.events import (
    Accept,
    Acquire,
    Counts,
    Event,
    Hit,
    Preempted,
    Publish,
    ResetDone,
    StepBegin,
    Submitted,
    Unpublish,
)
from cachewitness.core.trace_format import Op, Preempt, Reset, UpdateWeights
from cachewitness.vectors.form import Facts, LifecycleExpected

FREE = {"victims": "unpublished", "preemptions": "preempted", "duplicates": "counts"}
"""The free choices, and the fact in which each shows first."""


class Recorder:
    """Turns the events of operations into facts, and notices free choices."""

    def __init__(self) -> None:
        self._facts: list[Facts] = []
        self._pages: dict[tuple[int, int], dict[int, tuple[str, Any]]] = {}
        self._tokens: dict[str, list[int]] = {}
        self._identity: dict[str, Any] = {}
        self._live: dict[Any, int] = {}
        self._free: dict[str, int] = {}
        self._pool_of: dict[int, int] = {}
        self._unused: dict[int, int] = {}

    def see(self, index: int, op: Op, events: list[Event]) -> None:
        """Take in what one operation made happen."""
        self.facts(index, op, events)

    def facts(self, index: int, op: Op, events: list[Event]) -> Facts | None:
        """Take in what one operation made happen and return its facts; None if there are none."""
        hits = []
        runs = []
        preempted = []
        published = []
        unpublished = []
        resets = []
        counts: dict[int, tuple[int, int, int, int]] = {}
        roomy = self._roomy(events)
        for event in events:
            match event:
                case Submitted():
                    self._tokens[event.r] = list(event.tokens)
                    self._identity[event.r] = (
                        event.salt,
                        event.adapter,
                        tuple((m.at, m.length, m.hash) for m in event.media),
                    )
                case Accept():
                    self._tokens[event.r].extend(event.tokens)
                case Hit():
                    hits.append((event.r, event.reported, event.resume))
                    self._notice_duplicates(event, index)
                case StepBegin():
                    runs += [(run.r, run.start, run.stop) for run in event.runs]
                case Preempted():
                    preempted.append(event.r)
                    # Whom to preempt is the engine's choice unless the operation named somebody; an
                    # answer with another victim is then right too.
                    if not isinstance(
                        op, Preempt | Reset | UpdateWeights
                    ) and event.r not in getattr(op, "withdraw", ()):
                        self._free.setdefault("preemptions", index)
                case Publish():
                    published.append((event.group, event.r, event.length))
                    self._publish(event)
                case Unpublish():
                    unpublished += self._unpublish(event)
                    if event.reason == "evict" and event.group not in roomy:
                        self._free.setdefault("victims", index)
                case ResetDone():
                    resets.append(event.ok)
                case Counts():
                    counts[event.pool] = (event.pool, event.free, event.held, event.cached)
        self._unused |= {pool: count[1] for pool, count in counts.items()}
        facts = Facts(
            op=index,
            hits=sorted(hits),
            runs=sorted(runs),
            preempted=sorted(preempted),
            published=sorted(published),
            unpublished=sorted(unpublished),
            counts=[counts[pool] for pool in sorted(counts)],
            resets=resets,
        )
        if facts == Facts(op=index):
            return None
        self._facts.append(facts)
        return facts

    def expected(self) -> LifecycleExpected:
        """Return everything seen."""
        free = sorted(self._free)
        return LifecycleExpected(self._facts, min(self._free.values(), default=None), free)

    def _roomy(self, events: list[Event]) -> set[int]:
        """Return the groups whose pool had unused blocks for all that were taken, so that nobody
        had to go for want of room.
        """
        taken: Counter[int] = Counter()
        for event in events:
            if isinstance(event, Acquire):
                self._pool_of[event.group] = event.pool
                taken[event.pool] += len(event.pages)
        return {
            group
            for group, pool in self._pool_of.items()
            if taken[pool] <= self._unused.get(pool, 0)
        }

    def _notice_duplicates(self, event: Hit, index: int) -> None:
        for group, column in enumerate(event.pages):
            for page in column:
                if any(
                    self._live[key] > 1 for _, key in self._pages.get((group, page), {}).values()
                ):
                    self._free.setdefault("duplicates", index)

    def _publish(self, event: Publish) -> None:
        key = self._key(event.group, event.r, event.length)
        self._pages.setdefault((event.group, event.page), {})[event.length] = (event.r, key)
        self._live[key] = self._live.get(key, 0) + 1

    def _unpublish(self, event: Unpublish) -> list[tuple[int, str, int]]:
        keys = self._pages.get((event.group, event.page), {})
        out = []
        for length in [event.length] if event.length else list(keys):
            r, key = keys.pop(length, ("", None))
            out.append((event.group, r, length))
            if r:
                self._live[key] -= 1
        return out

    def _key(self, group: int, r: str, length: int) -> Any:
        salt, adapter, media = self._identity[r]
        seen = tuple(item for item in media if item[0] < length)
        return group, salt, adapter, seen, tuple(self._tokens[r][:length])


class Comparison:
    """Compares an engine's facts with those expected, until they part. `difference` is then what
    was expected and what came.
    """

    def __init__(self, expected: LifecycleExpected) -> None:
        self._facts = {facts.op: facts for facts in expected.facts}
        self._free_from = expected.free_from
        self._free = expected.free
        self.difference = ("", "")
        self.excused = False

    @property
    def parted(self) -> bool:
        """Whether they have parted: nothing after that means anything."""
        return self.difference != ("", "")

    def compare(self, index: int, got: Facts | None) -> None:
        """Compare the facts of one operation."""
        want = self._facts.get(index, Facts(op=index))
        have = got or Facts(op=index)
        fields = [
            name for name in Facts.__struct_fields__ if getattr(want, name) != getattr(have, name)
        ]
        if not fields or self.parted:
            return
        sides = [
            ", ".join(f"{name} {_format(getattr(side, name))}" for name in fields[:2])
            for side in (want, have)
        ]
        self.difference = (f"in operation {index}: {sides[0]}", sides[1])
        self.excused = (
            self._free_from is not None and index >= self._free_from and self._is_free(fields)
        )

    def _is_free(self, fields: list[str]) -> bool:
        if fields == [FREE["duplicates"]]:
            return "duplicates" in self._free
        return any(FREE[choice] in fields for choice in self._free if choice != "duplicates")


def _format(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 160 else text[:157] + "…"
