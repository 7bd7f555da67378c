"""The differential: the reference runs beside the engine, and what must be equal is compared after every operation.

Engines are free in some choices, so the reference follows them instead of making its own:

* `block-ids`: any free block may be handed out; ids are never compared, only which columns of a table are null;
* `victims`: whichever cached block the engine evicts to make room, the reference evicts too;
* `duplicates`: of several blocks with the same key, either may be hit.

Everything else must be equal: hit lengths, who runs which tokens, how many pages are zeroed and copied for it, which prefixes
are published and unpublished, and the counts of free, held and cached blocks. The first difference is the finding; after it the
two live in different worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from harness.engines.manager_height import ManagerHeight
from harness.engines.protocol import Engine
from harness.history.events import Counts, Event, Hit, Publish, ResetDone, StepBegin, Take, Unpublish
from harness.policies.vllm.engine import assemble, configure
from harness.run.execute import drive
from harness.trace.format import Op, Trace
from harness.verdict.result import Finding, Result, Tally
from reference_impl.vllm.kv_cache_manager import KVCacheManager
from reference_impl.vllm.spec import RELEASES

NAME = "differential"
POLICY = "vllm"
"""The policy whose reference can be made to follow."""
SUMMARY = "in lock-step with the reference: hits, chunks, published keys and counts are equal, free choices followed"
ANOMALIES = ("divergence",)
TOLERANCES = {
    "block-ids": "any free block may be handed out",
    "victims": "whichever cached block the engine evicts, the reference evicts",
    "duplicates": "of several blocks with the same key, either may be hit",
}


def lockstep(trace: Trace, engine: Engine, *, until: Callable[[Finding], bool] | None = None, keep: bool = True) -> Result:
    """Run a trace on an engine and, beside it, on the reference of the same release; judge both ways.

    `until` and `keep` are as in `harness.run.execute.drive`.
    """
    reference = _Follower(trace, engine.describe().engine_version)
    tally = Tally(checker=NAME)

    def compare(_: int, op: Op, events: list[Event]) -> Finding | None:
        if tally.findings:
            return None
        tally.opportunities += 1
        difference = reference.compare(op, events)
        if not difference:
            return None
        tally.findings = 1
        return Finding(anomaly="divergence", checker=NAME, sentence=difference)

    result = drive(trace, engine, until=until, beside=compare, keep=keep)
    result.tallies.append(tally)
    return result


class _Follower:
    """The reference, made to take the blocks that the engine took."""

    def __init__(self, trace: Trace, engine_version: str) -> None:
        release = ".".join(engine_version.split(".")[:2])
        self._config = configure(trace.header, release if release in RELEASES else "")
        manager = KVCacheManager(self._config)
        self._wanted: list[int] = []
        self._companions: dict[int, list[int]] = {}
        self._own_choice = manager.block_pool.get_new_blocks
        self._queue = manager.block_pool.free_block_queue
        manager.block_pool.get_new_blocks = self._get_new_blocks  # type: ignore[method-assign]
        self._engine: ManagerHeight = assemble(trace.header, self._config, manager, "reference")

    def compare(self, op: Op, theirs: list[Event]) -> str:
        """Apply the operation and return the first difference as a sentence; empty if there is none."""
        self._wanted = list(_fresh_slots(theirs, self._companions))
        self._companions |= {e.slot: e.companions for e in theirs if isinstance(e, Publish)}
        try:
            ours = self._engine.apply(op)
        except (AssertionError, ValueError) as error:
            return _sentence("carry the operation out", "did", f"could not follow ({error})")
        for (what, a), (_, b) in zip(_facts(theirs), _facts(ours), strict=True):
            if a != b:
                return _sentence(what, _told(a, b), _told(b, a))
        return ""

    def _get_new_blocks(self, num_blocks: int) -> Any:
        wanted, self._wanted = self._wanted[:num_blocks], self._wanted[num_blocks:]
        for slot in reversed(wanted):
            if slot in self._queue:
                self._queue.move_to_end(slot, last=False)  # type: ignore[arg-type]
        return self._own_choice(num_blocks)


def _fresh_slots(events: list[Event], companions: dict[int, list[int]]) -> Iterator[int]:
    """Yield the slots that were newly allocated, in the order in which the reference asks for them.

    That is call by call, group by group, and within a group the target of a copy before further columns. A call ends with
    `counts` unless it left the counts alone, so a `hit` and another holder tell of a new one too. What was hit is not new; of
    a copy, which holds its source and then its target, only a target outside the tables is left to name. `companions` are
    the further pages of published snapshots.
    """
    shared: set[int] = set()
    batch: dict[int, list[int]] = {}
    holder, source_seen = "", False
    for event in events:
        taker = event.holder if isinstance(event, Take) and not event.holder.startswith("copy:") else ""
        if isinstance(event, Counts | Hit) or taker not in ("", holder):
            yield from _in_group_order(batch)
            batch, holder, shared = {}, "", set()
            if isinstance(event, Hit):
                hit = [slot for column in event.slots for slot in column]
                holder, shared = event.r, {page for slot in hit for page in (slot, *companions.get(slot, ()))}
        if not isinstance(event, Take):
            continue
        fresh = batch.setdefault(event.group, [])
        if taker:
            holder = taker
            fresh.extend(slot for slot in event.slots if slot not in shared)
            continue
        if source_seen and event.slots[0] not in fresh:
            fresh.insert(0, event.slots[0])
        source_seen = not source_seen
    yield from _in_group_order(batch)


def _in_group_order(batch: dict[int, list[int]]) -> Iterator[int]:
    for _, slots in sorted(batch.items()):
        yield from slots


def _facts(events: list[Event]) -> list[tuple[str, Any]]:
    """Return what must be equal of the events of one operation, in the order in which differences are told."""
    hits = [(e.r, e.reported, e.resume) for e in events if isinstance(e, Hit)]
    resets = [e.ok for e in events if isinstance(e, ResetDone)]
    runs, tables, prepared = [], [], []
    for event in events:
        if isinstance(event, StepBegin):
            runs += [(run.r, run.start, run.stop) for run in event.runs]
            prepared.append((sum(len(slots) for _, slots in event.zeros), len(event.copies)))
            tables += [(run.r, [[slot != 0 for slot in table] for table in run.tables]) for run in event.runs]
    published = sorted((e.group, e.r, e.length) for e in events if isinstance(e, Publish))
    unpublished = sorted((e.group, e.length) for e in events if isinstance(e, Unpublish))
    counts = [(e.free, e.held, e.cached) for e in events if isinstance(e, Counts)][-1:]
    return [
        ("resets", resets),
        ("hits (request, reported, resume)", hits),
        ("runs (request, start, stop)", runs),
        ("columns that are not null", tables),
        ("pages (zeroed, copied) before the step", prepared),
        ("published keys (group, request, length)", published),
        ("unpublished keys (group, length)", unpublished),
        ("blocks (free, held, cached)", counts),
    ]


def _told(mine: list[Any], other: list[Any]) -> str:
    """Return what one side has beyond the other; if that is nothing, all of it."""
    extra = [item for item in mine if item not in other]
    return msgspec.json.encode(extra or mine).decode() if extra or not other or len(mine) != len(other) else "nothing more"


def _sentence(what: str, engine: str, reference: str) -> str:
    followed = ", ".join(TOLERANCES)
    return (
        f"Let the engine and the reference carry out the same operation, the engine's free choices ({followed}) followed. Of "
        f"{what}, the engine says {engine}; however the reference says {reference}: a contradiction."
    )
