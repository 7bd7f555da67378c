"""TensorRT-Edge-LLM's hybrid cache manager as an engine: batch rows are slots, compaction is one copy.

The manager has no blocks: a row is one page as long as the longest sequence, so tables have one column and `block_size` is that
length. Each group has a pool of its own with the same rows, since the ledger keeps one content per page. What the layout calls a
block is a measure only; a row is as long as the longest request that a pool of `slots` such blocks could hold.

Captured system prompts lie in pools of another tier, one place each per group, held by `capture:N`. Upstream keeps them on the
device as well; they are a tier because they are reached by copies alone. They have keys of the runtime's, not of the manager's:
nothing is published, and invariants about keys do not apply. A row that moves is held as `copy:N` until the step has run.

The states of a request that starts from nothing need no zeros here: the worker, as a kernel does, starts from none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import lcm
from typing import Any

from harness import layouts
from harness.cells import Cell
from harness.engines.policy_height import PolicyHeight, Refused, Scheduled
from harness.engines.witness import Claim, Count, KeyId, Tables
from harness.errors import UsageError
from harness.history import Group, Header, Move, Pool, Rules
from harness.policies import PolicyKind, Rule, Serving, served_plainly
from harness.trace import GroupSpec, Layout, Submit, TraceHeader
from reference_impl.tensorrt_edge import spec
from reference_impl.tensorrt_edge.config import (
    CacheError,
    Config,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from reference_impl.tensorrt_edge.policy import HybridCachePolicy
from reference_impl.tensorrt_edge.runtime import Request, Runtime, RuntimeOptions, Step
from reference_impl.tensorrt_edge.system_prompts import SavedPrompt

TIER = "cpu"
NO_KEYS = "the manager has no keys: a row is named by its request"
CAPABILITIES = ["abort", "adapter", "media", "preempt", "reset", "salt", "update_weights"]
SLOTS_MAX = 1 << 20
"""The most rows, tokens of a row and captures that are built; more would be a mistake in a configuration."""

ALIASES = {
    "max_num_seqs": "max_batch_size",
    "max_model_len": "max_sequence_length",
    "tier_slots": "system_prompts",
}
"""The harness's names for options of this policy."""
CHOICES = {
    "joining": ("continuous", "static"),
    "survivors": ("ascending", "descending"),
    "compaction": ("simultaneous", "in_place"),
}
LEAST = {"max_batch_size": 1, "max_sequence_length": 1, "system_prompts": 0, "max_num_batched_tokens": 1}
SWITCHES = ("enable_caching", "replay_last_token")


def checked(header: TraceHeader) -> dict[str, Any]:
    """Return the options of a trace, by their names here, with defaults. Raises UsageError naming what does not fit."""
    options: dict[str, Any] = {
        "max_batch_size": spec.MAX_BATCH_SIZE_DEFAULT,
        "max_sequence_length": row_length(header.layout, header.slots),
        "system_prompts": spec.SYSTEM_PROMPTS_DEFAULT,
        "max_num_batched_tokens": 0,
        **{name: choices[0] for name, choices in CHOICES.items()},
        "enable_caching": True,
        "replay_last_token": False,
    }
    for given, value in header.options.items():
        name = ALIASES.get(given, given)
        if name not in options:
            known = ", ".join(sorted(options))
            raise UsageError(f"policy tensorrt_edge: option {given!r} is unknown; known are {known}")
        _check(given, name, value)
        options[name] = value
    return options


def _check(given: str, name: str, value: object) -> None:
    where = f"policy tensorrt_edge: option {given!r} ({value!r})"
    if name in CHOICES and value not in CHOICES[name]:
        raise UsageError(f"{where} must be one of {', '.join(CHOICES[name])}")
    if name in SWITCHES and not isinstance(value, bool):
        raise UsageError(f"{where} must be true or false")
    if name in LEAST:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not LEAST[name] <= value <= SLOTS_MAX:  # type: ignore[operator]
            raise UsageError(f"{where} must be a whole number in [{LEAST[name]}, {SLOTS_MAX}]")


def row_length(layout: Layout, slots: int) -> int:
    """Return how many tokens a row holds: those of the longest request that `slots` blocks of the layout could hold."""
    unit = lcm(*(group.block_size for group in layout.groups))
    blocks_per_unit = sum(unit // group.block_size for group in layout.groups)
    return min(max(slots * unit // blocks_per_unit, 1), SLOTS_MAX)


def configure(layout: Layout, options: Mapping[str, Any]) -> Config:
    """Return the manager's configuration: a decoder layer for every layer of every group, heads of no matter what size."""
    types = [_kind(group) for group in layout.groups for _ in range(group.layers)]
    attention, mamba = types.count(LayerType.ATTENTION), types.count(LayerType.MAMBA)
    rows, length = options["max_batch_size"], options["max_sequence_length"]
    return Config(
        layer_types=tuple(types),
        kv_config=KVConfig(attention, rows, length, (KVLayerConfig(1, 64),) * attention),
        mamba_config=MambaConfig(mamba, rows, 1, 64, 64, 64, 4),
        max_batch_size=rows,
    )


def _kind(group: GroupSpec) -> LayerType:
    return LayerType.MAMBA if group.kind == "recurrent" else LayerType.ATTENTION


def describe(header: TraceHeader, options: Mapping[str, Any]) -> Header:
    """Return the history's header: a pool of rows for each group and, if anything is captured, a pool of places for each."""
    layout, places = header.layout, _places(options)
    length, count_of = options["max_sequence_length"], len(layout.groups)
    groups = [Group(i, g.kind, length, pool=i, window=g.window, chunk=g.chunk) for i, g in enumerate(layout.groups)]
    pools = [Pool(id=i, slots=options["max_batch_size"]) for i in range(count_of)]
    if places:
        aside = [
            Group(count_of + g.id, g.kind, length, pool=count_of + g.id, window=g.window, chunk=g.chunk, of=g.id)
            for g in groups
        ]
        pools += [Pool(id=group.pool, slots=places, tier=TIER) for group in aside]
        groups += aside
    recurrent = any(group.kind == "recurrent" for group in layout.groups)
    not_applicable = {
        "commit-order": NO_KEYS,
        "reuse-floor": NO_KEYS,
        "replay-boundary-retained": NO_KEYS,
        "interval-sparsity": NO_KEYS,
    }
    if not (recurrent and places):
        not_applicable["no-fabricated-snapshots"] = "nothing is captured" if recurrent else "no recurrent group"
    if options["joining"] == "static":
        not_applicable["progress"] = "a static batch ends with its slowest request; others wait for it"
    return Header(
        engine="reference",
        engine_version=spec.PINNED_RELEASE,
        height=header.height,
        pools=pools,
        groups=groups,
        rules=Rules(caching=places > 0),
        capabilities=CAPABILITIES,
        not_applicable=not_applicable,
        trace=header.name,
    )


def _places(options: Mapping[str, Any]) -> int:
    return options["system_prompts"] if options["enable_caching"] else 0


class Rows:
    """The adapter: a runtime over the manager's books, and what its steps mean in slots."""

    def __init__(self, header: Header, runtime: Runtime, budget: int = 0) -> None:
        self.runtime, self.budget = runtime, budget
        self.max_model_len = runtime.cache.config.kv_config.max_sequence_length
        self._groups = header.local_groups()
        self._tiered = len(header.groups) > len(self._groups)
        self._rows, self._places = runtime.cache.config.max_batch_size, runtime.prompts.capacity
        self._step: Step | None = None
        self._moving: dict[int, set[int]] = {group.id: set() for group in self._groups}
        self._captures: dict[int, tuple[SavedPrompt, str]] = {}
        self._copies, self._serial = count(1), count(1)

    def attach(self, engine: PolicyHeight) -> None:
        """Take note of whom to tell."""
        self._witness = engine.witness

    # --- requests ------------------------------------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in. The part that others share is its system prompt; if it shares none, the whole prompt is."""
        media = tuple((item.at, item.length, item.hash) for item in submit.media)
        request = Request(submit.r, tokens, shared or len(tokens), submit.adapter, submit.salt, media)
        try:
            self.runtime.add(request)
        except CacheError as error:
            raise Refused(str(error)) from None

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Append what a request generated."""
        self.runtime.requests[r].tokens += tokens

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go; its row is evicted when the next step begins."""
        self.runtime.end(r)
        self._witness.settle([r])

    def preempt(self, r: str) -> None:
        """Take a running request's row."""
        self.runtime.preempt(r)
        self._witness.settle([r])

    def running(self) -> list[str]:
        """Return the requests that have a row, in the order in which they came."""
        return [r for r, request in self.runtime.requests.items() if request.slot is not None]

    def reset(self, tier: str) -> Mapping[str, bool]:
        """Forget captures, if their tier is meant; on the device itself nothing outlives its request."""
        answers = {}
        if tier in ("", "local"):
            answers["local"] = True
        if tier in ("", TIER) and self._tiered:
            self._forget()
            answers[TIER] = True
        return answers

    def renew(self) -> None:
        """Forget captures: they are of other weights."""
        self._forget()

    def _forget(self) -> None:
        self.runtime.prompts.forget_all()
        self._hold_captures()
        self._witness.settle()

    # --- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self, asked: Sequence[tuple[str, int]] | None, budget: int) -> Scheduled:
        """Plan a step: compaction and restores are copies before the runs, captures are stores after them."""
        limit = min(budget or self.budget, self.budget or budget)
        self._step = step = self.runtime.begin_step(asked, limit)
        copies = self._compaction(step)
        self._hold_captures()
        for request in step.joined:
            self._report(request, next((saved for saved, r in step.restores if r is request), None))
        self._witness.settle([request.request_id for request in self.runtime.running()])
        for saved, request in step.restores:
            copies += [Move(saved.place, _row(request), self._aside(group).pool, group.pool) for group in self._groups]
        stores = [
            Move(_row(request), saved.place, group.pool, self._aside(group).pool)
            for request, saved in step.saves
            for group in self._groups
        ]
        return Scheduled(chunks={r: (start, stop) for r, (start, stop) in step.chunks.items()}, copies=copies, stores=stores)

    def complete(self, scheduled: Scheduled) -> None:
        """Commit the step, and let go of the rows that moved."""
        assert self._step is not None
        self.runtime.end_step(self._step)
        for group, rows in self._moving.items():
            self._witness.release(group, sorted(rows), self._copy)
            rows.clear()
        self._witness.settle()

    def _compaction(self, step: Step) -> list[Move]:
        """Return the moves of every group, and hold the rows that they read until the step has run."""
        self._copy = f"copy:{next(self._copies)}"
        copies = []
        for group in self._groups:
            moves = step.moves.states if group.kind == "recurrent" else step.moves.kv
            copies += [Move(src, dst, group.pool, group.pool) for src, dst in moves]
            self._moving[group.id].update(move.src for move in moves)
            self._witness.hold(group.id, sorted(self._moving[group.id]), self._copy)
        return copies

    def _hold_captures(self) -> None:
        """Report which places are captures now, and which are no more."""
        now = {saved.place: saved for saved in self.runtime.prompts.saved.values()}
        for place, (saved, holder) in list(self._captures.items()):
            if now.get(saved.place) is not saved:
                del self._captures[place]
                for group in self._groups:
                    self._witness.release(self._aside(group).id, [place], holder)
        for taken, saved in now.items():
            if taken not in self._captures:
                holder = f"capture:{next(self._serial)}"
                self._captures[taken] = (saved, holder)
                for group in self._groups:
                    self._witness.hold(self._aside(group).id, [taken], holder)

    def _report(self, request: Request, saved: SavedPrompt | None) -> None:
        rows = [[_row(request)] if saved is not None else [] for _ in self._groups]
        places = [[int(saved.place)] if saved is not None else [] for _ in self._groups] if self._tiered else []
        tier = "local" if saved is None else TIER
        self._witness.hit(request.request_id, request.computed, rows + places, tier=tier)

    def _aside(self, group: Group) -> Group:
        """Return the group of the other tier that keeps copies of this one's rows."""
        count_of = len(self._groups)
        return Group(count_of + group.id, group.kind, group.block_size, pool=count_of + group.id, of=group.id)

    # --- books ---------------------------------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the row of a request, in every group."""
        request = self.runtime.requests.get(r)
        return [[_row(request)] for _ in self._groups] if request is not None and request.slot is not None else []

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return nothing: the manager has no keys."""
        return {}

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool; a row that is still to be read by a compaction is not free."""
        taken = {_row(request) for request in self.runtime.running()}
        books = {}
        for group in self._groups:
            held = len(taken | self._moving[group.id])
            books[group.pool] = Count(self._rows - held, held, 0)
            if self._tiered:
                captured = len(self.runtime.prompts.saved)
                books[self._aside(group).pool] = Count(self._places - captured, captured, 0)
        return books

    def references(self, pool: int, slot: int) -> int | None:
        """Return nothing: rows are not counted."""
        return None


def _row(request: Request) -> int:
    assert request.slot is not None
    return int(request.slot)


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> PolicyHeight:
    """Build the engine for a trace. Raises UsageError for an option that does not fit, naming it."""
    from harness.mutants import plant

    release, mutant = options.get("release", ""), options.get("mutant", "")
    if release and release not in spec.RELEASES:
        raise UsageError(f"--engine: release {release!r} is unknown; known are {', '.join(spec.RELEASES)}")
    engine = assemble(header)
    if mutant:
        plant(mutant, "tensorrt_edge", engine, header.height)
    return engine


def assemble(header: TraceHeader) -> PolicyHeight:
    """Put a runtime under the harness's operations."""
    options = checked(header)
    cache = HybridCachePolicy(configure(header.layout, options), in_place=options["compaction"] == "in_place")
    own = RuntimeOptions(_places(options), options["joining"], options["survivors"], options["replay_last_token"])
    described = describe(header, options)
    return PolicyHeight(described, Rows(described, Runtime(cache, own), options["max_num_batched_tokens"]))


def cells() -> list[Cell]:
    """Return the configurations of a run: every kind of group, rows and captures under pressure, each way to run."""
    three, mamba, window = (layouts.load(name) for name in ("full-swa-mamba", "full-mamba", "full-swa"))
    return [
        Cell(layout, options, spec_name)
        for spec_name in ("tensorrt_edge",)
        for layout, options in (
            (layouts.load("full"), {}),
            (mamba, {}),
            (three, {}),
            (three, {"max_batch_size": 2, "system_prompts": 1}),
            (mamba, {"max_batch_size": 3, "survivors": "descending"}),
            (window, {"max_batch_size": 2, "system_prompts": 2}),
            (mamba, {"replay_last_token": True}),
            (three, {"joining": "static", "max_batch_size": 3}),
            (layouts.load("full-mamba-unequal"), {"system_prompts": 2}),
        )
    ]


def cold_cells() -> list[Cell]:
    """Return the configurations on which tensors are compared."""
    three, mamba = layouts.load("full-swa-mamba"), layouts.load("full-mamba")
    return [
        Cell(three, {}, "tensorrt_edge"),
        Cell(mamba, {"survivors": "descending"}, "tensorrt_edge"),
        Cell(mamba, {"replay_last_token": True}, "tensorrt_edge"),
    ]


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of a runtime that answers prompts; its rows are as many as the batch."""
    return served_plainly("tensorrt_edge", layout, serving)


POLICY = PolicyKind(
    name="tensorrt_edge",
    summary="the hybrid cache manager of TensorRT-Edge-LLM: batch rows, compaction, captured system prompts",
    source=spec.REPOSITORY,
    pinned=spec.PINNED_RELEASE,
    releases=spec.RELEASES,
    rules=[Rule(rule.name, rule.summary, rule.implemented) for rule in spec.RULES.values()],
    axes=spec.AXES,
    open=open_engine,
    cells=cells,
    cold_cells=cold_cells,
    serve=serve,
    not_applicable={
        "commit-order": NO_KEYS,
        "reuse-floor": NO_KEYS,
        "replay-boundary-retained": NO_KEYS,
        "interval-sparsity": NO_KEYS,
    },
)
