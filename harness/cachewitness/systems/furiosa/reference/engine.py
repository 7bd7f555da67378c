"""The policy `furiosa`: the reference of Furiosa-LLM's two pools and radix tree, at manager and at
scheduler level.

A trace's layout gives the kinds of attention; groups of one kind are one group here, because one
block of a pool has the tokens of all layers of its kind. A trace's `pages` are so many blocks of
average weight, which the policy's own rule splits between the pools. Group 0 is global and lives in
pool 0, group 1 slides and lives in pool 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.events import (
    Eviction,
    Group,
    Header,
    Move,
    Pool,
    Rules,
    Unkeyed,
    UnpublishReason,
)
from cachewitness.core.trace_format import Layout, Submit, TraceHeader
from cachewitness.core.trace_format import Step as StepOp
from cachewitness.engines.adapter import CAPABILITIES, Adapter, Asked, Host, Refused, Scheduled
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import ABSENT, Claim, Count, KeyId, KeysByEntry, Tables
from cachewitness.engines.driver import Driver
from cachewitness.systems.furiosa.reference import NOT_APPLICABLE
from cachewitness_reference.furiosa.config import (
    CacheConfig,
    ConfigError,
    Layers,
    Options,
    cache_config,
    layers_of,
    least_bytes,
)
from cachewitness_reference.furiosa.hybrid_match import Hit
from cachewitness_reference.furiosa.manager import HybridCacheManager
from cachewitness_reference.furiosa.request import MediaItem, Request, Status
from cachewitness_reference.furiosa.scheduler import RefusedRequest, Scheduler, Step
from cachewitness_reference.furiosa.spec import PINNED_RELEASE
from cachewitness_reference.primitives import BlockId, Position

GLOBAL, SLIDING = 0, 1
"""The groups, and the pools that they live in."""

TOKEN_BYTES = 2
"""What a token weighs in a layer whose layout does not say."""

Place = tuple[int, Position, BlockId | None, BlockId | None]
"""An entry of the tree: the tokens that it starts and stops at, its global and its sliding block.
"""


def configure(header: TraceHeader) -> CacheConfig:
    """Return the checked configuration of a trace. Raises UsageError for what the policy
    refuses.
    """
    try:
        layers = _layers(header.layout)
        kv_bytes = header.pages * sum(layers.block_bytes) // 2
        return cache_config(layers, kv_bytes, Options.parse(header.options))
    except ConfigError as error:
        raise UsageError(f"layout {header.layout.name!r}: {error}") from None


def least_pages(layout: Layout, options: Mapping[str, Any]) -> int:
    """Return the smallest pool, in pages of a trace, that holds one sequence of the length that
    memory is split for.

    Raises UsageError for what the policy refuses.
    """
    try:
        layers = _layers(layout)
        return -(-2 * least_bytes(layers, Options.parse(options)) // sum(layers.block_bytes))
    except ConfigError as error:
        raise UsageError(f"layout {layout.name!r}: {error}") from None


def _layers(layout: Layout) -> Layers:
    """Return the layers of a layout; where it does not say what a token weighs, all layers weigh
    alike.
    """
    return layers_of(
        [
            {
                "kind": group.kind,
                "block_size": group.block_size,
                "window": group.window,
                "layers": group.layers,
                "token_bytes": group.token_bytes or TOKEN_BYTES,
            }
            for group in layout.groups
        ]
    )


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the reference for a trace, at the level that the trace names.

    Raises UsageError for an option that the policy refuses, naming it.
    """
    if (release := options.get("release", PINNED_RELEASE)) not in ("", PINNED_RELEASE):
        raise UsageError(
            f"--engine: release {release!r} is unknown; there is {PINNED_RELEASE!r} alone, which"
            " has no versions"
        )
    config = configure(header)
    return Driver(describe(header, config), Furiosa(config))


def describe(trace: TraceHeader, config: CacheConfig) -> Header:
    """Return the history header: two pools without a null block, one group in each."""
    layers = config.layers
    options = config.options
    window = layers.window + (options.window_tail == "W")
    everywhere, sliding = _evictions(options)
    return Header(
        engine="reference",
        level=trace.level,
        pools=[
            Pool(id=GLOBAL, pages=config.global_blocks, eviction=everywhere),
            Pool(id=SLIDING, pages=config.sliding_blocks, eviction=sliding),
        ],
        groups=[
            Group(id=GLOBAL, kind="full", block_size=layers.block_size, pool=GLOBAL),
            Group(
                id=SLIDING,
                kind="sliding",
                block_size=layers.block_size,
                pool=SLIDING,
                window=window,
            ),
        ],
        rules=Rules(
            caching=options.enable_caching,
            alignment=layers.block_size if options.hit_granularity == "block" else 1,
            # The tree has one entry for a prefix, and an entry whose block went stays without.
            unkeyed=Unkeyed(duplicates=True),
        ),
        capabilities=CAPABILITIES,
        not_applicable=NOT_APPLICABLE,
        engine_version=PINNED_RELEASE,
        trace=trace.name,
    )


def _evictions(options: Options) -> tuple[Eviction | None, Eviction | None]:
    """Return what the pools declare: LRU of entries not in use, from the leaves; the sliding pool
    by itself.

    An entry is used by whoever's path runs through it. Hits of whole blocks alone leave entries
    that no key stands for, and a window that frees what it left ends keys without need: of neither
    can anything be declared.
    """
    if options.hit_granularity == "block":
        return None, None
    sliding = Eviction("lru-used", together=True) if options.out_of_window == "evictable" else None
    return Eviction("lru-leaves", together=True), sliding


class Furiosa(Adapter):
    """The policy's scheduler and manager, and their books."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.manager = ObservedManager(config)
        self.scheduler = Scheduler(config, self.manager)
        self.max_model_len = config.max_request_len
        self.holds = self.max_model_len - 1
        self._shape: list[Place] = []
        self._keys = KeysByEntry()
        """The keys of each entry of the tree, by its place."""

    def attach(self, engine: Host) -> None:
        """Take note of the driver, which the manager reports to."""
        super().attach(engine)
        self.manager.diff = engine.diff
        self.manager.engine = engine

    # --- life of a request ------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in. Raises Refused if it can never run."""
        media = [MediaItem(item.at, item.length, item.hash) for item in submit.media]
        try:
            self.scheduler.add(
                Request(submit.r, tokens, salt=submit.salt, adapter=submit.adapter, media=media)
            )
        except RefusedRequest as error:
            raise Refused(str(error)) from None

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Take note of what a request generated."""
        self.scheduler.generated(r, tokens)

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go."""
        self.scheduler.finish([r])

    def preempt(self, r: str) -> None:
        """Take a running request's blocks away."""
        self.scheduler.preempt(r)

    def running(self) -> list[str]:
        """Return the requests that hold blocks."""
        return [request.request_id for request in self.scheduler.running]

    def forget(self, reason: UnpublishReason) -> bool:
        """Forget everything stored, if nobody holds a block."""
        done = self.scheduler.reset()
        self.diff.settle(reason=reason)
        return done

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: StepOp) -> Scheduled:
        """Let everybody who is asked compute what fits, or leave it to the scheduler."""
        scheduler = self.scheduler
        own = scheduler.schedule(step.budget) if asked is None else Step()
        for r, tokens in asked or ():
            request = scheduler.requests[r]
            (scheduler.extend if request.status is Status.RUNNING else scheduler.join)(
                request, tokens, own
            )
        scheduled = Scheduled()
        for r, tokens in own.num_tokens.items():
            request = scheduler.requests[r]
            scheduled.chunks[r] = (request.num_computed, request.num_computed + tokens)
            for pool, copy in ((GLOBAL, request.global_copy), (SLIDING, request.sliding_copy)):
                if copy is not None:
                    scheduled.copies.append(Move(copy.source, copy.target, pool, pool))
        return scheduled

    def complete(self, scheduled: Scheduled) -> None:
        """Store what each request computed."""
        for r, (start, stop) in scheduled.chunks.items():
            self.manager.complete(self.scheduler.requests[r], stop - start)

    # --- books ------------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the blocks that a request holds."""
        request = self.scheduler.requests.get(r)
        if request is None:
            return []
        return [
            list(request.global_blocks),
            [ABSENT if block is None else block for block in request.sliding_blocks],
        ]

    def keys(self) -> KeysByEntry:
        """Return a key for each length at which an entry can be left, in each pool that has its
        block.

        A global block is good for its column from the start: an entry further up may come to name
        it as well.
        """
        shape = [
            (e.start, e.stop, e.global_block, e.sliding_block) for e in self.manager.tree.entries()
        ]
        if shape != self._shape:
            known = self._keys
            self._shape = shape
            self._keys = KeysByEntry(
                (place, known.get(place) or self._claims_of(place)) for place in shape
            )
        return self._keys

    def _claims_of(self, place: Place) -> dict[KeyId, Claim]:
        start, stop, global_block, sliding_block = place
        size = self.config.layers.block_size
        unit = size if self.config.options.hit_granularity == "block" else 1
        column = start // size * size
        own = (start // unit + 1) * unit
        assert global_block is not None
        found: dict[KeyId, Claim] = {
            (GLOBAL, global_block, length): Claim(length)
            for length in range(column + unit, stop + 1, unit)
        }
        if sliding_block is not None:
            found |= {
                (SLIDING, sliding_block, length): Claim(length)
                for length in range(own, stop + 1, unit)
            }
        return found

    def counts(self) -> Mapping[int, Count]:
        """Return the books of both pools."""
        pools = {GLOBAL: self.manager.global_pool, SLIDING: self.manager.sliding_pool}
        return {
            index: Count(
                pool.num_free, pool.num_held, pool.num_blocks - pool.num_free - pool.num_held
            )
            for index, pool in pools.items()
        }

    def references(self, pool: int, page: int) -> int:
        """Return how many requests, and copies, hold a block."""
        return (self.manager.sliding_pool if pool == SLIDING else self.manager.global_pool).holds(
            BlockId(page)
        )


class ObservedManager(HybridCacheManager):
    """The manager as the scheduler calls it; after each call the diff is told to look."""

    diff: BlockTableDiff
    engine: Host

    def prefill(self, request: Request, hit: Hit, num_tokens: int) -> None:
        """Report the hit, and what is held until it is copied."""
        r = request.request_id
        (global_hit, sliding_hit) = self.columns(hit)
        window = [ABSENT] * (len(global_hit) - len(sliding_hit)) + list(sliding_hit)
        self.diff.hit(r, hit.length, [list(global_hit), window])
        if hit.length % self.block_size:
            self.diff.hold(GLOBAL, global_hit[-1:], f"copy:{r}")
            self.diff.hold(SLIDING, sliding_hit[-1:], f"copy:{r}")
        super().prefill(request, hit, num_tokens)

    def extend(self, request: Request, num_tokens: int) -> None:
        """Report new blocks, and what was evicted for them."""
        super().extend(request, num_tokens)
        self.diff.settle([request.request_id])

    def complete(self, request: Request, num_tokens: int) -> None:
        """Report what is held no longer to be copied."""
        self._copied(request)
        super().complete(request, num_tokens)

    def store(self, request: Request) -> None:
        """Report what was stored, and which blocks were adopted."""
        super().store(request)
        self.diff.settle([request.request_id], served=request.request_id)

    def cleanup(self, request: Request) -> None:
        """Report what the window has left."""
        super().cleanup(request)
        self.diff.settle([request.request_id])

    def free(self, request: Request) -> None:
        """Report what is given back; of a running request, its preemption first."""
        if request.status is Status.RUNNING:
            self.engine.preempted(request.request_id)
        self._copied(request)
        super().free(request)
        self.diff.settle([request.request_id])

    def _copied(self, request: Request) -> None:
        for group, copy in ((GLOBAL, request.global_copy), (SLIDING, request.sliding_copy)):
            if copy is not None:
                self.diff.release(group, [copy.source], f"copy:{request.request_id}")
