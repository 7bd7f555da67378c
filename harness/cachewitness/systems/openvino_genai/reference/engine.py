"""OpenVINO GenAI's two pools as an engine.

OpenVINO has one block table for all attention layers and one for all linear-attention layers. A
page of the ledger has one content, so each group of a layout has a pool of its own here, and groups
of a kind show the same table.

The pools are sized in one of two ways. If an option names `num_kv_blocks` or `cache_size`, or
stands for them (`scenario`, `pipeline`), they are sized as SchedulerConfig sizes them, and whatever
is not named has OpenVINO's own default; with both 0 the pools are dynamic and grow. Otherwise a
trace's `pages` are the shared budget, in which a KV block weighs one page for each attention group
and a state one for each recurrent group, and OpenVINO's own rule splits it.

Hits of hybrids end at any length. Of attention alone they are declared by block: OpenVINO resumes
inside a block too, but by a key that ends beyond, which no checker counts. A sliding group keeps
every token, as OpenVINO does. A rolled-back request (preempted in part) drops pages and goes on,
which is no event of its own; one that is dropped for want of memory is aborted. The source of a
copy is held as `copy:N` until the step has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
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
from cachewitness.core.trace_format import GroupSpec, Layout, Step, Submit, TraceHeader
from cachewitness.engines.adapter import CAPABILITIES, Adapter, Asked, Refused, Scheduled
from cachewitness.engines.cache_state import ABSENT, Claim, Count, KeyId, Tables
from cachewitness.engines.driver import Driver
from cachewitness.systems.openvino_genai.reference import fitting, sizes
from cachewitness_reference.openvino_genai import spec
from cachewitness_reference.openvino_genai.block_manager import BlockManager
from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.orchestrator import KV, LA, CacheType, Restored
from cachewitness_reference.openvino_genai.scheduler import (
    RefusedRequest,
    Scheduler,
    SchedulerOutput,
)
from cachewitness_reference.openvino_genai.sequence import (
    Identity,
    MediaItem,
    SequenceGroup,
    Status,
)
from cachewitness_reference.openvino_genai.sizing import Capacity, LayoutBytes, split_budget

PROGRESS_STEPS = 4
"""Requests that were preempted wait a step; the rest is margin."""

OF_A_TRACE: dict[str, Any] = {
    "enable_prefix_caching": True,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
}
"""What replaces OpenVINO's defaults where pools are a trace's own; `fitting.remarks` says why."""
MODEL_LEN = 4096
BLOCKS_MAX = 1 << 18
"""So many blocks of a pool a run keeps record of."""


class Built:
    """A trace's header turned into OpenVINO's terms: configuration, capacity and block sizes in
    tokens.
    """

    def __init__(self, header: TraceHeader, release: str = "") -> None:
        self.release = release or spec.NEWEST
        options = sizes.chosen(header.options)
        layout = fitting.grouped(header.layout, None, options)
        self.max_model_len = sizes.check_model_len(options.get("max_model_len", MODEL_LEN))
        self.kv_block_size = sizes.one_block_size(layout, "attention")
        self.hybrid = any(group.kind == "recurrent" for group in layout.groups)
        size = self._sized if sizes.sized(options) else self._split
        self.config, self.capacity = size(header, layout, options)
        self.groups = [self._group(index, group) for index, group in enumerate(layout.groups)]

    def _sized(
        self, header: TraceHeader, layout: Layout, options: dict[str, Any]
    ) -> tuple[SchedulerConfig, Capacity]:
        """Return configuration and capacity as SchedulerConfig says."""
        config = sizes.config_of(options)
        capacity = sizes.capacity_of(config, layout, options, self.release)
        for name, blocks in (
            ("num_kv_blocks", capacity.kv_blocks),
            ("num_linear_attention_blocks", capacity.la_blocks),
        ):
            if blocks > BLOCKS_MAX:
                raise UsageError(
                    f"policy openvino_genai: {name}: {blocks:,} blocks; a run keeps a record of"
                    f" each, of {BLOCKS_MAX:,} at most"
                )
        return config, capacity

    def _split(
        self, header: TraceHeader, layout: Layout, options: dict[str, Any]
    ) -> tuple[SchedulerConfig, Capacity]:
        """Return configuration and capacity where a trace's pages are the budget of both pools."""
        options = OF_A_TRACE | options
        recurrent = sum(group.kind == "recurrent" for group in layout.groups)
        attention = len(layout.groups) - recurrent
        if recurrent and options["enable_prefix_caching"]:
            options["cache_interval_multiplier"] = fitting.multiplier(layout, options, self.release)
        config = sizes.config_of(options)
        pages = LayoutBytes(attention, recurrent, self.kv_block_size)
        if recurrent and config.enable_prefix_caching:
            kv, _ = split_budget(header.pages, pages, config.get_cache_interval(self.kv_block_size))
        else:
            states = config.num_linear_attention_blocks or (
                1 if config.unlimited else config.max_num_seqs
            )
            kv = max(header.pages - states * recurrent, 0) // attention
        if kv == 0:
            raise UsageError(
                f"policy openvino_genai: {header.pages} pages leave no KV block beside the states;"
                " give more pages"
            )
        config = replace(config, num_kv_blocks=kv)
        return config, sizes.capacity(config, pages, self.release)

    def _group(self, index: int, group: GroupSpec) -> Group:
        if group.kind != "recurrent":
            return Group(
                index,
                group.kind,
                group.block_size,
                pool=index,
                window=group.window,
                chunk=group.chunk,
            )
        if self.capacity.interval is None:
            return Group(index, group.kind, self.max_model_len, pool=index)
        return Group(index, group.kind, self.capacity.interval, pool=index, snapshots="every-block")

    @property
    def max_prompt(self) -> int:
        """The longest prompt that is taken: one that leaves room to generate and, where prompts
        are not split, fits a batch.
        """
        batch = (
            self.max_model_len
            if self.config.dynamic_split_fuse
            else self.config.max_num_batched_tokens
        )
        return min(self.max_model_len - 1, batch)

    def scheduler(self) -> Scheduler:
        """Return a scheduler over empty pools."""
        return Scheduler(
            self.config, self.capacity, self.kv_block_size, hybrid=self.hybrid, version=self.release
        )

    def describe(self, header: TraceHeader) -> Header:
        """Return the history's header."""
        blocks = {True: self.capacity.la_blocks, False: self.capacity.kv_blocks}
        caching = self.config.enable_prefix_caching
        not_applicable = {}
        if not self.hybrid or not caching:
            not_applicable["no-fabricated-snapshots"] = (
                "no recurrent group" if caching else "prefix caching is off"
            )
        if not caching:
            not_applicable["replay-boundary-retained"] = "prefix caching is off"
        return Header(
            engine="reference",
            engine_version=self.release,
            level=header.level,
            pools=[
                Pool(
                    g.pool,
                    blocks[g.kind == "recurrent"],
                    eviction=Eviction("lru-restored"),
                    grows=self.capacity.dynamic,
                )
                for g in self.groups
            ],
            groups=self.groups,
            rules=Rules(
                caching=caching,
                alignment=1 if self.hybrid else self.kv_block_size,
                progress_steps=PROGRESS_STEPS,
                # where nothing can be scheduled, ContinuousBatching ignores everybody who runs
                engine_aborts=True,
                # the first block of a prefix has the key as long as somebody holds it
                unkeyed=Unkeyed(duplicates=True),
            ),
            capabilities=CAPABILITIES,
            not_applicable=not_applicable,
            trace=header.name,
        )


class TwoPools(Adapter):
    """The adapter: OpenVINO's scheduler, and what its books mean in pages."""

    def __init__(self, built: Built) -> None:
        self.scheduler = built.scheduler()
        self.max_model_len = built.max_model_len
        self.max_prompt = built.max_prompt
        self._groups = built.groups
        self._block_size = built.kv_block_size
        self._kind: list[CacheType] = [
            LA if group.kind == "recurrent" else KV for group in built.groups
        ]
        self._output = SchedulerOutput()
        self._copies = count(1)
        self._holding: list[tuple[int, int, str]] = []
        self._keys: dict[int, tuple[int, dict[KeyId, Claim]]] = {}
        self._blocks = {group.id: self._manager(group).pool.num_blocks for group in built.groups}

    # --- requests ---------------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in; it is looked up when the next step begins."""
        media = tuple(MediaItem(item.at, item.length, item.hash) for item in submit.media)
        identity = Identity(submit.salt, submit.adapter, media)
        if len(tokens) >= self.max_model_len:
            raise Refused(
                f"a prompt of {len(tokens)} tokens leaves no room below max_model_len"
                f" ({self.max_model_len})"
            )
        try:
            self.scheduler.add_request(
                SequenceGroup(submit.r, tokens, self._block_size, identity=identity)
            )
        except RefusedRequest as error:
            raise Refused(str(error)) from None

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Append what a request generated."""
        for token in tokens:
            self.scheduler.append(r, [token])

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go; what it computed stays to be restored."""
        self.scheduler.finish(r, Status.FINISHED if finished else Status.CANCELLED)
        self.diff.settle([r])

    def preempt(self, r: str) -> None:
        """Take everything from a request."""
        self.scheduler.preempt(r)
        self.diff.settle([r])

    def running(self) -> list[str]:
        """Return the requests that hold blocks, in the order in which they came."""
        return [
            r
            for r, group in self.scheduler.groups.items()
            if self.scheduler.cache.holds_blocks(group)
        ]

    def forget(self, reason: UnpublishReason) -> bool:
        """Forget every key; those who run go on. With new weights whoever waits is looked up
        again.
        """
        self.scheduler.cache.clear_prefix_cache()
        for group in self.scheduler.groups.values() if reason == "version" else ():
            group.looked_up = group.looked_up and self.scheduler.cache.holds_blocks(group)
        self.diff.settle(reason=reason)
        return True

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Restore whom the step may run, then schedule it."""
        scheduler = self.scheduler
        found = scheduler.restore_new(None if asked is None else [r for r, _ in asked])
        self.diff.settle(found)
        for r, restored in found.items():
            self._report(r, restored)
        starts = {r: group.num_processed for r, group in scheduler.groups.items()}
        self._output = output = (
            scheduler.schedule(step.budget) if asked is None else scheduler.schedule_expected(asked)
        )
        self._grow()
        copies = self._copies_of(output)
        for r in output.preempted:
            self.engine.preempted(r)
        for r in output.dropped:
            self.engine.over(r, self.diff.step, finished=False)
        self.diff.settle(starts)
        for r in output.dropped:
            self.diff.forget(r)
        zeros = [int(page) for page in output.zeros]
        return Scheduled(
            chunks={r: (starts[r], starts[r] + tokens) for r, tokens in output.scheduled.items()},
            copies=copies,
            zeros=[
                (g.pool, zeros)
                for g, kind in zip(self._groups, self._kind, strict=True)
                if kind is LA and zeros
            ],
        )

    def complete(self, scheduled: Scheduled) -> None:
        """Let go of what was copied, and take note of what was processed."""
        self.scheduler.complete(self._output)
        for group, page, holder in self._holding:
            self.diff.release(group, [page], holder)
        self._holding.clear()
        self.diff.settle()

    def _report(self, r: str, restored: Restored) -> None:
        if not self.scheduler.config.enable_prefix_caching:
            return
        pages = [_pages(restored.blocks.get(kind, [])) for kind in self._kind]
        self.diff.hit(r, restored.cached, pages, resume=restored.processed)

    def _grow(self) -> None:
        """Report which pools have more blocks than before."""
        for group in self._groups:
            blocks = self._manager(group).pool.num_blocks
            if blocks > self._blocks[group.id]:
                self.diff.grow(group.pool, blocks - self._blocks[group.id])
                self._blocks[group.id] = blocks

    def _copies_of(self, output: SchedulerOutput) -> list[Move]:
        """Return the moves of every group, and hold their sources until the step has run."""
        moves = []
        for kind, copy in output.copies:
            for group, own in zip(self._groups, self._kind, strict=True):
                if own is kind:
                    holder = f"copy:{next(self._copies)}"
                    self.diff.hold(group.id, [copy.source], holder)
                    self._holding.append((group.id, copy.source, holder))
                    moves.append(Move(copy.source, copy.target, group.pool, group.pool))
        return moves

    # --- books ------------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the blocks of a request by column; columns before the oldest checkpoint that it
        holds are absent.
        """
        return [_pages(self.scheduler.cache.table(kind, r)) for kind in self._kind]

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return what every key names."""
        claims: dict[KeyId, Claim] = {}
        for group in self._groups:
            claims |= self._keys_of(group)
        return claims

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool."""
        books = {}
        for group in self._groups:
            pool = self._manager(group).pool
            free = pool.num_free_blocks - pool.num_overwritable
            books[group.pool] = Count(
                free, pool.num_blocks - pool.num_free_blocks, pool.num_overwritable
            )
        return books

    def references(self, pool: int, page: int) -> int | None:
        """Return how often a block is held, by copies under way too."""
        return self._manager(self._groups[pool]).pool.blocks[page].references

    def _manager(self, group: Group) -> BlockManager:
        return self.scheduler.cache.managers[self._kind[group.id]]

    def _keys_of(self, group: Group) -> dict[KeyId, Claim]:
        pool = self._manager(group).pool
        changes, claims = self._keys.get(group.id, (-1, {}))
        if changes != pool.key_changes:
            before, claims = claims, {}
            for key, block in pool.cached.items():
                name = (group.id, block.block_id, key)
                claim = before.get(name)
                same = (
                    claim is not None
                    and claim.length == block.content_length
                    and claim.r == block.owner
                )
                claims[name] = (
                    claim
                    if claim is not None and same
                    else Claim(block.content_length, block.owner)
                )
            self._keys[group.id] = pool.key_changes, claims
        return claims


def _pages(blocks: Sequence[int | None]) -> list[int]:
    return [ABSENT if block is None else int(block) for block in blocks]


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the engine for a trace. Raises UsageError for an option that does not fit, naming
    it.
    """
    release = options.get("release", "")
    if release and release not in spec.RELEASES:
        raise UsageError(
            f"--engine: release {release!r} is unknown; known are {', '.join(spec.RELEASES)}"
        )
    built = Built(header, release)
    return Driver(built.describe(header), TwoPools(built))
