"""The observer says neither more nor less than what happened to blocks: its events add up to the
manager's own books.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import Acquire, Counts, Event, Hit, Publish, Release, Unpublish
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Op,
    Preempt,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.observe import ObservedManager
from cachewitness.systems.vllm.reference.engine import assemble, configure
from cachewitness.systems.vllm.reference.policy import default_configurations
from cachewitness.systems.vllm.reference.reporting_pool import observable_manager
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace

ORDER = [Hit, Unpublish, Release, Acquire, Publish, Counts]


class Slow:
    """A pool that does not say which blocks changed, as vLLM's does not."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        if name == "drain_dirty":
            raise AttributeError(name)
        return getattr(self._pool, name)


def engine(header: TraceHeader, slow: bool = False) -> Any:
    config = configure(header)
    manager = observable_manager(config)
    if slow:
        manager.block_pool = Slow(manager.block_pool)  # type: ignore[assignment]
    return assemble(header, config, manager, "reference")


def run(trace: Trace, slow: bool = False) -> list[Event]:
    built = engine(trace.header, slow)
    return [event for op in trace.ops for event in built.apply(op)]


def traces() -> list[Trace]:
    return [
        random_trace(configuration.shape("manager"), seed, withdraw=seed % 2 == 0)
        for configuration in default_configurations()
        for seed in range(3)
    ]


def small(
    layout: str, prompts: list[str], pages: int = 40, **options: Any
) -> tuple[Any, TraceHeader]:
    header = TraceHeader("small", layouts.load(layout), pages, options=options)
    built = engine(header)
    for number, prompt in enumerate(prompts):
        built.apply(Submit(f"r{number}", prompt))
    return built, header


@pytest.mark.parametrize(
    "trace", traces(), ids=lambda trace: f"{trace.header.layout.name}-{trace.header.seed}"
)
def test_takes_and_drops_add_up_to_reference_counts(trace: Trace) -> None:
    """Whenever the engine states its counts, the takes less the drops of each page are its
    reference count.
    """
    holders: Counter[int] = Counter()
    refs: dict[int, int] = {}
    stated = 0
    for event in run(trace):
        if isinstance(event, Acquire):
            holders.update(event.pages)
        elif isinstance(event, Release):
            holders.subtract(event.pages)
        elif isinstance(event, Counts):
            refs.update(event.refs)
            stated += 1
            assert {page: n for page, n in holders.items() if n} == {
                page: n for page, n in refs.items() if n
            }
            assert event.held == sum(n > 0 for n in refs.values())
            assert event.free + event.held + event.cached == trace.header.pages - 1
    assert stated > 5


@pytest.mark.parametrize(
    "trace", traces()[:9], ids=lambda trace: f"{trace.header.layout.name}-{trace.header.seed}"
)
def test_published_keys_are_those_of_the_pool(trace: Trace) -> None:
    """What was published and not unpublished is what the pool can be hit as, page by page and
    length by length.
    """
    built = engine(trace.header)
    keys: set[tuple[int, int, int]] = set()
    for op in trace.ops:
        for event in built.apply(op):
            if isinstance(event, Publish):
                assert (event.group, event.page, event.length) not in keys
                keys.add((event.group, event.page, event.length))
            elif isinstance(event, Unpublish):
                keys.remove((event.group, event.page, event.length))
    pool = built.adapter.manager.manager.block_pool
    cached = {
        (block.block_id, block.block_hash_num_tokens)
        for block in pool.blocks
        if block.block_hash is not None
    }
    cached |= {
        (page, length)
        for page, more in pool.cached_block_hashes_by_block.items()
        for length in more.values()
    }
    assert {(page, length) for _, page, length in keys} == cached


@pytest.mark.parametrize(
    "configuration", default_configurations()[::4], ids=lambda configuration: configuration.name
)
def test_looking_at_every_block_tells_the_same(configuration: Configuration) -> None:
    """A pool that does not say what changed is observed to the same events as one that does."""
    trace = random_trace(configuration.shape("manager"), 11, withdraw=True)
    assert run(trace, slow=True) == run(trace)


def test_events_of_a_call_come_in_order() -> None:
    """One call that hits, evicts, takes and publishes says so in that order, and states its
    counts last.
    """
    built, _ = small("full", ["a:64", "b:64", "a:32 c:32"], pages=10)
    for r in ("r0", "r1"):
        built.apply(Step([(r, 64)]))
        built.adapter.manager.free(built.adapter.placed[r].request)
    events = [event for event in built.apply(Step([("r2", 64)])) if type(event) in ORDER]
    places = [ORDER.index(type(event)) for event in events]
    assert places == sorted(places)
    assert set(places) == {0, 1, 3, 4, 5}


def test_hit_is_told_when_pages_are_given() -> None:
    """A request that is looked up and gets no pages is not hit; the hit that counts is that of
    the successful look-up.
    """
    built, _ = small("full", ["a:64", "b:64"], pages=6)
    assert [e for e in built.apply(Step([("r0", 64), ("r1", 64)])) if isinstance(e, Hit)] == [
        Hit(step=1, r="r0", reported=0, resume=0, pages=[[]])
    ]


def test_reasons_follow_the_call() -> None:
    """A key that a reset ends and one that new tokens push out are told apart."""
    built, _ = small("full", ["a:64", "b:64"], pages=6)
    built.apply(Step([("r0", 64)]))
    built.adapter.manager.free(built.adapter.placed["r0"].request)
    evicted = [e for e in built.apply(Step([("r1", 64)])) if isinstance(e, Unpublish)]
    assert {e.reason for e in evicted} == {"evict"}
    built.adapter.manager.free(built.adapter.placed["r1"].request)
    built.adapter.manager.events = events = []
    assert built.adapter.manager.reset_prefix_cache()
    assert {e.reason for e in events if isinstance(e, Unpublish)} == {"reset"}


def test_both_ends_of_a_copy_are_held_until_it_is_made() -> None:
    """A hit inside a block copies the page on write; source and target are held by the copy
    while it is due.
    """
    built, _ = small("full-mamba", ["a:63", "a:63"], retention_interval=0, hash_block_size=4)
    for _ in range(3):
        built.apply(Step([("r0", 64)]))
    events = built.apply(Step([("r1", 64)]))
    begin = next(e for e in events if type(e).__name__ == "StepBegin")
    assert len(begin.copies) == 2
    ends = [page for move in begin.copies for page in (move.src, move.dst)]
    before = events[: events.index(begin)]
    after = events[events.index(begin) :]
    held = [
        s
        for e in before
        if isinstance(e, Acquire) and e.holder.startswith("copy:")
        for s in e.pages
    ]
    given_back = [
        s for e in after if isinstance(e, Release) and e.holder.startswith("copy:") for s in e.pages
    ]
    assert held == ends
    assert given_back == ends


def test_a_key_that_moves_is_replaced() -> None:
    """A running request keeps its page when its cached tail is copied: the key leaves the page
    for its copy.
    """
    built, _ = small("full-mamba", ["a:63"], retention_interval=0, hash_block_size=4)
    events: list[Event] = []
    for _ in range(3):
        events = built.apply(Step([("r0", 64)]))
        moved = [e for e in events if isinstance(e, Unpublish)]
        if moved:
            break
    assert [(e.group, e.length, e.reason) for e in moved] == [(1, 60, "replace")]
    assert [(e.group, e.length) for e in events if isinstance(e, Publish)] == [(1, 60)]


def test_a_snapshot_of_several_pages_is_held_and_keyed_as_one() -> None:
    """With two pages to a snapshot each is taken with its companion, and the key names the
    companion.
    """
    built, _ = small("full-mamba", ["a:33"], retention_interval=None, pages_per_snapshot=2)
    events = built.apply(Step([("r0", 32)]))
    (take,) = [e for e in events if isinstance(e, Acquire) and e.group == 1]
    (key,) = [e for e in events if isinstance(e, Publish) and e.group == 1]
    assert len(take.pages) == 2
    assert [key.page, *key.extra_pages] == take.pages


@pytest.mark.parametrize("slow", [False, True])
def test_a_second_page_that_becomes_the_first_of_a_snapshot_has_a_key_of_its_own(
    slow: bool,
) -> None:
    """It shows the key of its snapshot. When that is evicted and the page is the first of the next
    one of the same prefix, its references and its key are what they were.
    """
    options = {"hash_block_size": 1, "free_list": "lifo", "pages_per_snapshot": 2}
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", 16), GroupSpec("sliding", 4, 4)]
    layout = Layout("three", groups, "", "")
    header = TraceHeader("t", layout, 145, level="manager", options=options)
    steps: list[list[tuple[str, int]]] = [
        *([("a", 31)], [("b", 79)], [("b", 79)], [("a", 40), ("b", 92)], [("b", 80)]),
        *([[("a", 45), ("b", 69)]] * 3),
    ]
    ops: list[Op] = [
        *(Submit(r, "x:96") for r in "ab"),
        *(Step(run) for run in steps),
        Submit("c", "x:96"),
        Step([("a", 1), ("c", 64)]),
        Finish("c"),
        Preempt("b"),
        Step([("a", 63), ("b", 32)]),
    ]
    result = drive(Trace(header, ops), engine(header, slow))
    assert result.findings == []
    keys = [e for e in result.history.events if isinstance(e, Publish) and e.group == 1]
    first = {key.page for key in keys}
    assert first & {page for key in keys for page in key.extra_pages}
    assert any(isinstance(e, Hit) and e.r == "b" and e.resume for e in result.history.events)


def test_free_blocks_are_counted_by_the_queue() -> None:
    """A block that is queued twice shows: free, held and cached no longer add up to the pool."""
    built, header = small("full", ["a:16"], pages=6)
    pool = built.adapter.manager.manager.block_pool
    queued = pool.get_num_free_blocks
    pool.get_num_free_blocks = lambda: queued() + 1
    (counts,) = [e for e in built.apply(Step([("r0", 16)])) if isinstance(e, Counts)]
    assert counts.free + counts.held + counts.cached == header.pages


def test_a_table_without_references_is_reported_as_it_is() -> None:
    """The observer believes tables and counts apart: a page that joins a table unreferenced is
    taken all the same.
    """
    built, _ = small("full", ["a:16"])
    built.apply(Step([("r0", 16)]))
    observed: ObservedManager = built.adapter.manager
    observed.manager.coordinator.single_type_managers[0].req_to_blocks["r0"].append(
        observed.manager.block_pool.blocks[7]
    )
    observed.events = events = []
    observed.cache_blocks(built.adapter.placed["r0"].request, 16)
    assert events == [Acquire(pool=0, group=0, pages=[7], holder="r0", step=1)]
