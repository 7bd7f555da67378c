"""Defines when two states are equal: when no further operation can have different outcomes in them.

Of the engine this covers everything that its policy keeps: requests, tables, the order of the free
queue, keys and which page is found first under each. Of the harness it is what the ledger says of
every page and what checkers remember. Pages are numbered in the order in which requests, and then
the free queue, reach them, because page numbers mean nothing. Left out are counters that only grow,
copies that the observer keeps, what a step clears when it starts, and records of requests that have
ended.

If something were left out wrongly, a search would skip states. So a test continues from states that
were taken for equal and compares the outcomes.

Source of the fields: `reference_impl/cachewitness_reference/vllm`, read under its own names; one
that is missing is an error, not an empty state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any

import msgspec

from cachewitness.core.checkers.circles import Circles
from cachewitness.core.checkers.content_floor import ContentFloor
from cachewitness.core.checkers.ownership import Ownership
from cachewitness.core.checkers.progress import Progress
from cachewitness.core.checkers.protocol import Checker
from cachewitness.core.checkers.retention import (
    IntervalSparsity,
    ReplayBoundaryRetained,
    replay_needs,
)
from cachewitness.core.events import StepBegin
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING, PageRecord
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.engines.observe_tier import TIER
from cachewitness_reference.vllm.scheduler import SchedulerOutput

_FORGOTTEN_BY_A_STEP = {"cached_blocks_this_step", "new_block_ids"}
_OF_A_REQUEST_ELSEWHERE = {"block_hashes", "num_preemptions"}
"""Hashes follow from tokens; no decision depends on how often a request was preempted."""
_PLAIN = (int, str, bytes, bool)
_UNTOUCHED = PageRecord()
_FIELDS: dict[type, list[str]] = {}
_STORE: dict[tuple[bytes, int], bytes] = {}


def fingerprint(engine: Any, ledger: Ledger, checkers: Iterable[Checker], *, last: bool) -> bytes:
    """Return sixteen bytes that name the state of an engine of the reference's shape and of those
    who watch it.

    `last`: nobody is submitted any more, so a key matters only if it names a prefix that somebody
    live has or may come to have.
    """
    view = _View(engine, ledger, last=last)
    content = (view.engine(), view.ledger(), [view.remembered(checker) for checker in checkers])
    return blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()


class _View:
    """Reads a state; pages get their names from the order in which it comes to them."""

    def __init__(self, engine: Any, ledger: Ledger, *, last: bool) -> None:
        self._engine = engine
        self._ledger = ledger
        self._live = (
            [request.nodes[-1] for request in ledger.requests.values() if request.live]
            if last
            else None
        )
        self._manager = engine.adapter.manager.manager
        self._pool = self._manager.block_pool
        self._singles = self._manager.coordinator.single_type_managers
        self._names: dict[int, int] = {self._pool.null_block.block_id: 0}
        self._places: dict[int, int] = {}
        self._nodes: dict[int, bytes] = {}

    def _name(self, page: int) -> int:
        return self._names.setdefault(page, len(self._names))

    def _rendered(self, value: Any) -> Any:
        """Return a value as plain data; blocks by their names."""
        if value is None or type(value) in _PLAIN:
            return value
        if isinstance(value, Mapping):
            return [(self._rendered(key), self._rendered(entry)) for key, entry in value.items()]
        if isinstance(value, list | tuple):
            return [self._rendered(entry) for entry in value]
        if isinstance(value, set | frozenset):
            return sorted(value)
        if isinstance(value, Enum):
            return value.name
        return self._name(value.block_id) if hasattr(value, "block_id") else value

    # --- the engine -------------------------------------------------------------------------------

    def engine(self) -> Any:
        """Return what the policy keeps."""
        requests, queues = self._requests()
        in_flight = self._in_flight()
        tables = [self._single(single) for single in self._singles]
        queue = [self._name(page) for page in self._pool.free_block_queue]
        index = self._pool.cached_block_hash_to_block
        found = [
            (
                key,
                self._name(block.block_id),
                [self._name(page) for page in index._later.get(key, ())],
            )
            for key, block in sorted(index._first.items())
            if self._live is None or self._matters(block.block_id)
        ]
        further = self._pool.cached_block_hashes_by_block
        blocks = [
            (
                name,
                block.ref_cnt,
                self._key(block),
                self._rendered(extra_pages),
                list(further.get(page, ())),
            )
            for page, name in self._names.items()
            for block in (self._pool.blocks[page],)
            for extra_pages in (getattr(block, "extra_pages", ()),)
        ]
        return (
            requests,
            queues,
            in_flight,
            tables,
            queue,
            found,
            blocks,
            self._rendered(self._manager._adopted_from),
            self._tier(),
        )

    def _tier(self) -> Any:
        """Return what a second tier keeps, in the order in which its places are given away, and
        what is due to be stored.
        """
        tier = getattr(self._manager, "tier", None)
        if tier is None:
            return ()
        cached = [(key, place.block_id, place.num_copies) for key, place in tier._cached.items()]
        for page in (
            *(page for _, page, _ in cached),
            *(place.block_id for place in reversed(tier._free)),
        ):
            self._places.setdefault(page, len(self._places))
        due = [
            (r, self._name(block.block_id), key)
            for r, block, key in self._manager.tiered_pool.keys_to_store
        ]
        return [(key, copies) for key, _, copies in cached], due

    def _in_flight(self) -> Any:
        """Return the steps that were scheduled and have not run, the oldest first: the worker's
        part and the scheduler's.
        """
        outputs = getattr(self._engine.adapter, "_outputs", ())
        return [
            self._step(step.begin, output)
            for step, output in zip(self._engine.in_flight, outputs, strict=True)
        ]

    def _step(self, begin: StepBegin, output: SchedulerOutput) -> Any:
        runs = [
            (run.r, run.start, run.stop, [self._names_of(table) for table in run.tables])
            for run in begin.runs
        ]
        copies = [(self._name(move.src), self._name(move.dst)) for move in begin.copies]
        zeros = [self._names_of(pages) for _, pages in begin.zeros]
        stale = [r for r, count in output.num_preemptions.items() if self._preemptions(r) != count]
        held = self._rendered(output.retained_blocks)
        return (
            runs,
            copies,
            zeros,
            stale,
            held,
            list(output.num_scheduled_tokens.items()),
            sorted(output.generating),
        )

    def _names_of(self, pages: Iterable[int]) -> list[int]:
        return [self._name(page) if page >= 0 else page for page in pages]

    def _preemptions(self, r: str) -> int:
        """Return how often a request was preempted; −1 if it has ended, so that nothing of a
        step in flight is its own.
        """
        request = self._engine.adapter.scheduler.requests.get(r)
        return -1 if request is None else request.num_preemptions

    def _key(self, block: Any) -> Any:
        return (
            block.block_hash
            if self._live is None or self._matters(block.block_id)
            else block.block_hash is not None
        )

    def _matters(self, page: int) -> bool:
        """Whether a page holds, or is named as, something that a live request has or may come to
        have.
        """
        record = self._record(page)
        return bool(record.holders) or any(
            self._comparable(node) for node in (record.node, *(key.node for key in record.keys))
        )

    def _comparable(self, node: int) -> bool:
        """Whether a prefix is of one line with one of a live request: it begins it, or goes on
        from it.
        """
        if self._live is None:
            return True
        if node < 0:
            return False
        trie = self._ledger.trie
        return any(
            trie.ancestor(node, trie.depth[mine]) == trie.ancestor(mine, trie.depth[node])
            for mine in self._live
        )

    def _requests(self) -> tuple[Any, Any]:
        scheduler = getattr(self._engine.adapter, "scheduler", None)
        if scheduler is None:
            placed = self._engine.adapter.placed.values()
            return [(self._request(each.request), each.running) for each in placed], ()
        queues = [
            [request.request_id for request in queue]
            for queue in (scheduler.waiting, scheduler.running)
        ]
        return [self._request(request) for request in scheduler.requests.values()], queues

    def _request(self, request: Any) -> Any:
        return [
            self._rendered(getattr(request, name)) for name in _fields(type(request))
        ] + self._rendered(_further(request))

    def _single(self, single: Any) -> Any:
        """Return what one group's manager keeps of each request: everything of it that is a
        collection.
        """
        kept = [(n, v) for n, v in sorted(vars(single).items()) if isinstance(v, dict | list | set)]
        return [self._rendered(value) for name, value in kept if name not in _FORGOTTEN_BY_A_STEP]

    # --- the harness ------------------------------------------------------------------------------

    def ledger(self) -> Any:
        """Return what is known of pages and of requests that live."""
        ledger = self._ledger
        records = [(name, self._page(self._record(page))) for page, name in self._names.items()]
        records += [
            (-1 - name, self._page(self._record(page, TIER))) for page, name in self._places.items()
        ]
        requests = [
            (request.r, self._known(request))
            for request in ledger.requests.values()
            if request.live
        ]
        ended = ledger.requests.ended_in_flight.items()
        outlived = sorted((r, self._ago(step), self._ago(since)) for (step, r), since in ended)
        left = sorted((self._ago(step), self._name(page)) for step, _, page in ledger.holdings.left)
        return (
            records,
            requests,
            self._lost(),
            len(ledger.requests),
            outlived,
            left,
            self._answers(),
        )

    def _answers(self) -> Any:
        """Return what requests said that have ended: whoever is submitted may continue it."""
        if self._live is not None:
            return ()
        return [
            (request.prompt_tokens, request.tokens)
            for request in self._ledger.requests.values()
            if not request.live
        ]

    def _ago(self, step: int) -> int:
        """Return which of the steps in flight a step is, 1 for the oldest; 0 if it has ended."""
        return max(step - self._ledger.requests.last_step_ended, 0)

    def _lost(self) -> Any:
        """Return the keys whose end is forgiven, and to whom: those of its replay, and states at
        shared-prefix boundaries.
        """
        ledger = self._ledger
        if ReplayBoundaryRetained.name in ledger.header.not_applicable:
            return ()
        live = [
            (request, self._needs(request))
            for request in ledger.requests.values()
            if request.live and request.hit
        ]
        lost = []
        for group, ended in enumerate(ledger.keys.ended):
            for node, how in ended.items():
                by = [
                    request.r
                    for request, needs in live
                    if request.hit
                    and request.hit.step <= how.step
                    and (needs is None or (group, node) in needs)
                ]
                if by and how.reason != "retention":
                    lost.append((group, self._node(node), by))
        return sorted(lost)

    def _needs(self, request: RequestRecord) -> set[tuple[int, int]] | None:
        """Return the (group, prefix) whose keys may still be owed to a request; None: any, as
        somebody may yet come.
        """
        ledger = self._ledger
        if self._live is None:
            return None
        needs = set(replay_needs(ledger, request)[1])
        if ledger.header.rules.retention.shared_prefix_boundary:
            states = [group.id for group in ledger.local if group.kind == "recurrent"]
            needs |= {(group, node) for group in states for node in request.nodes}
        return needs

    def remembered(self, checker: Checker) -> Any:
        """Return what a checker remembers that bears on what it will say.

        What others remember bears on their counters, on the operation at hand, or on keys that end
        by retention, by which none of vLLM's ends once it is there.
        """
        requests = self._ledger.requests
        if isinstance(checker, Progress):
            return (
                sorted(checker._waited.items()),
                checker._idle,
                self._recomputed(checker._circles),
            )
        if isinstance(checker, Ownership):
            return sorted(
                (r, step - requests.last_step_ended) for r, step in checker._ended.items()
            )
        if isinstance(checker, ReplayBoundaryRetained):
            return sorted(
                (r, at) for r, at in checker._shared_prefix_boundaries.items() if requests[r].live
            )
        if isinstance(checker, IntervalSparsity):
            return sorted(
                (r, sorted(points))
                for r, points in checker._shared_prefix_boundaries.items()
                if requests[r].live
            )
        if isinstance(checker, ContentFloor):
            return self._lying(checker)
        return None

    def _recomputed(self, circles: Circles) -> Any:
        """Return what was computed again since somebody got further than ever before, and how far
        that was.

        How far a request came says nothing where no less of it is computed now: whatever it runs
        next gets further. At manager level it is left out: there the trace says who runs and who
        is preempted, so no scheduler can preempt for ever.
        """
        requests = self._ledger.requests
        if self._ledger.header.level == "manager":
            return ()
        furthest = sorted(
            (r, at) for r, at in circles._furthest.items() if at > requests[r].computed
        )
        return circles._again, furthest, sorted(circles._vain.items())

    def _lying(self, checker: ContentFloor) -> Any:
        """Return what a checker of content knows to lie in pages without a key, or to have lost its
        key while it was held.

        Who came before a reset is left out: it only excuses, and the way without the reset is
        shorter, so it is met first.
        """
        lying = [one for one in checker._lying.values() if self._comparable(one.node)]
        stripped = [(group, node) for group, node in checker._stripped if self._comparable(node)]
        return (
            sorted(
                (
                    one.group,
                    self._node(one.node),
                    one.pool,
                    self._place(one.pool, one.page),
                    one.keyed,
                )
                for one in lying
            ),
            sorted((group, self._node(node)) for group, node in stripped),
        )

    def _place(self, pool: int, page: int) -> int:
        return (
            self._places.setdefault(page, len(self._places)) if pool == TIER else self._name(page)
        )

    def _record(self, page: int, pool: int = 0) -> PageRecord:
        """Return the record of a page; one that nobody touched is as every page was at first."""
        return self._ledger.records[pool].get(page, _UNTOUCHED)

    def _page(self, record: PageRecord) -> Any:
        if not record.holders and not any(
            map(self._comparable, (record.node, *(key.node for key in record.keys)))
        ):
            return len(record.keys)
        older = [(span.start, span.stop, self._node(span.node)) for span in record.older]
        keys = sorted(
            (key.group, self._node(key.node), key.length, key.state, self._ago(key.step))
            for key in record.keys
        )
        content = (
            self._node(record.node),
            record.start,
            record.stop,
            record.group,
            record.state,
            record.tainted,
        )
        return content, older, keys, sorted(record.holders.items()), self._ago(record.used_in)

    def _known(self, request: RequestRecord) -> Any:
        states = sorted((group, sorted(lengths)) for group, lengths in request.states.items())
        return (
            request.tokens,
            request.prompt_tokens,
            request.computed,
            request.drafted,
            request.resume,
            bool(request.ran_steps),
            states,
        )

    def _node(self, node: int) -> bytes:
        """Return a prefix by its tokens, whatever number it has."""
        if node < 0:
            return b"nothing" if node == NOTHING else b"unknown"
        known = self._nodes.get(node)
        if known is None:
            trie = self._ledger.trie
            if not trie.depth[node]:
                return b""
            parent = self._node(trie.parent[node])
            step = (parent, trie.symbol[node])
            known = _STORE.get(step)
            if known is None:
                known = _STORE[step] = blake2b(
                    parent + step[1].to_bytes(8, "big"), digest_size=8
                ).digest()
            self._nodes[node] = known
        return known


def _fields(kind: type) -> list[str]:
    """Return the attributes that a class keeps in pages, less those that follow from others."""
    if kind not in _FIELDS:
        _FIELDS[kind] = sorted(
            {n for base in kind.__mro__ for n in getattr(base, "__slots__", ())}
            - _OF_A_REQUEST_ELSEWHERE
        )
    return _FIELDS[kind]


def _further(thing: Any) -> list[Any]:
    """Return the attributes that an object keeps in a dictionary."""
    kept = getattr(thing, "__dict__", {})
    return [kept[name] for name in sorted(kept) if name not in _OF_A_REQUEST_ELSEWHERE]
