"""What is forgotten, and when: the laws of eviction, on engines that answer right and hit
little.
"""

from __future__ import annotations

import msgspec
import pytest

from cachewitness.core.checkers import fresh
from cachewitness.core.driving import drive, judge
from cachewitness.core.events import Header, Unpublish
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Media,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines import policy as policies
from cachewitness.engines import registry
from cachewitness.workloads import anomaly_examples, layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.notation import parse

FORGETFUL = {
    "keys-end-with-their-last-holder": "needless-eviction",
    "newest-block-evicted-first": "wrong-victim",
    "heads-evicted-before-tails": "wrong-victim",
    "keys-put-off-for-good": "lost-replay-boundary",
}


def crowded(seed: int, layout: str = "full") -> Trace:
    return random_trace(Configuration(layouts.load(layout)).shape("manager"), seed, withdraw=True)


def found(engine: str, trace: Trace) -> set[str]:
    return {
        finding.anomaly
        for finding in drive(trace, registry.parse(engine).open(trace.header)).findings
    }


@pytest.mark.parametrize(("fault", "anomaly"), FORGETFUL.items())
def test_a_cache_that_answers_right_and_hits_little_is_found_on_random_work(
    fault: str, anomaly: str
) -> None:
    """A cache that forgets with the last holder, or evicts what was used last, passed every
    rule.
    """
    named = [anomaly in found(f"reference:mutant={fault}", crowded(seed)) for seed in range(8)]
    assert any(named)
    assert not any(found("reference", crowded(seed)) for seed in range(8))


@pytest.mark.parametrize("order", ["lru", "lifo", "fifo"])
def test_a_free_list_of_another_order_is_lawful_if_it_is_declared(order: str) -> None:
    trace = crowded(3, "full-mamba")
    header = msgspec.structs.replace(
        trace.header, options={**trace.header.options, "free_list": order}
    )
    assert found("reference", Trace(header, trace.ops)) == set()


def test_what_hangs_below_an_evicted_prefix_goes_with_it_although_others_are_older() -> None:
    """r1's page is the oldest; r6 goes on from what it holds, was used last, and cannot be
    reached without it.
    """
    options = {"expected_average_seq_length": 64, "out_of_window": "freed"}
    header = TraceHeader(
        "t", layouts.load("full-swa"), 29, level="scheduler", policy="furiosa", options=options
    )
    picture = [Media(at=7, length=3, hash="dog")]
    ops: list[Op] = [Submit("r1", "A:1 @r1:1"), Submit("r3", "A:27 @r2:1 r3:1"), Step()]
    ops += [Submit("r4", "A:32", media=picture), Submit("r5", "r5:30"), Step()]
    ops += [
        Finish("r1"),
        Submit("r6", "A:1 @r1:1 @r6:12"),
        Step(),
        Abort("r4"),
        *[Step()] * 33,
        Finish("r6"),
        Step(),
    ]
    result = drive(Trace(header, ops), registry.parse("reference").open(header))
    gone = {
        event.page
        for event in result.history.events
        if isinstance(event, Unpublish) and event.group == 0
    }
    assert len(gone) >= 4 and result.findings == []


def test_who_declares_nothing_is_not_judged_and_told_why() -> None:
    """And the anomaly is not passed silently: the tally has the reason."""
    header: Header = registry.parse("reference").open(crowded(0).header).describe()
    silent = msgspec.structs.replace(
        header, pools=[msgspec.structs.replace(pool, eviction=None) for pool in header.pools]
    )
    checker = next(checker for checker in fresh() if checker.name == "eviction")
    assert "does not declare how keys end" in checker.not_applicable(silent)
    assert checker.not_applicable(header) == ""


@pytest.mark.parametrize("policy", [name for name in policies.names() if name != "tensorrt_edge"])
def test_every_reference_with_keys_declares_its_pools(policy: str) -> None:
    kind = policies.get(policy)
    for configuration in kind.configurations()[:2]:
        trace = random_trace(configuration.shape(kind.levels[-1]), 1, withdraw=False)
        pools = kind.open(trace.header, {}).describe().pools
        assert all(pool.eviction is not None for pool in pools), configuration


def test_idle_pages_stand_in_the_order_in_which_they_were_let_go() -> None:
    """The ledger's order is what the first page is judged by, so it must be that of the times of
    release.
    """
    trace = crowded(5)
    history = drive(trace, registry.parse("reference").open(trace.header), []).history
    ledger = Ledger(history.header)
    most = 0
    for event in history.events:
        ledger.apply(event)
        released = [record.released for record in ledger.holdings.idle[0].values()]
        assert released == sorted(released)
        most = max(most, len(released))
    assert most > 2


def test_a_key_that_lived_its_time_is_counted_as_excused_by_what_the_engine_declares() -> None:
    """It is no finding, and the report says how often the declaration was what made it lawful."""
    (story,) = [story for story in anomaly_examples.load() if story.name == "lived-its-time"]
    legal, early = (
        judge(history.header, iter(history.events))
        for history in (story.history("legal"), story.history("anomalous"))
    )
    of = {tally.checker: tally.excused for tally in legal.tallies}
    assert legal.findings == [] and of["eviction"] == {"ttl 3": 1}
    assert [finding.anomaly for finding in early.findings] == ["needless-eviction"]
    assert {tally.checker: tally.excused for tally in early.tallies}["eviction"] == {}


@pytest.mark.parametrize("free_list", ["lru", "fifo"])
def test_a_block_that_nobody_took_goes_before_a_cached_one_in_either_queue(free_list: str) -> None:
    """In vLLM's queue what has no key is in front; in one queue of all it is there the longest."""
    options = {"free_list": free_list} if free_list != "lru" else {}
    shape = Configuration(layouts.load("full-mamba"), options).shape("manager")
    trace = random_trace(shape, 1, withdraw=False)
    fault = registry.parse("reference:mutant=never-taken-blocks-wait-behind-returned-ones")
    found = {finding.anomaly for finding in drive(trace, fault.open(trace.header)).findings}
    assert {"lru": "needless-eviction", "fifo": "wrong-victim"}[free_list] in found
    assert not drive(trace, registry.parse("reference").open(trace.header)).findings


ASKING = """\
pool 0: 10 pages, null 0, evicts random above 1 %
group 0: full block 4
rules: alignment 4
submit r1 a:13
hit r1 0
acquire r1 | 1 2 3 4
step 1: r1 0..13 | 1 2 3 4
publish 0/1 r1:4
publish 0/2 r1:8
publish 0/3 r1:12
counts 0: free 5 held 4 cached 0
finish r1
release r1 | 1 2 3 4
counts 0: free 6 held 0 cached 3
submit r2 b:{tokens}
unpublish 0/3 evict
hit r2 0
acquire r2 | {pages}
step 2: r2 0..{tokens} | {pages}
counts 0: free {free} held {held} cached 2
"""


@pytest.mark.parametrize(("held", "asks", "anomalies"), [
    (3, 2, []),  # 3 + 2 · 2 pages are more than the 6 that are free
    (2, 2, ["needless-eviction"]),
    (2, 3, []),
    (2, 0, []),  # what is asked beyond what is taken is not said
])  # fmt: skip
def test_keys_end_ahead_of_need_only_where_more_is_asked_for_than_is_free(
    held: int, asks: int, anomalies: list[str]
) -> None:
    """Although the watermark lets them end at any filling."""
    pages = " ".join(str(5 + number) for number in range(held))
    text = ASKING.format(tokens=4 * held - 1, pages=pages, free=7 - held, held=held)
    history = parse(text)
    (pool,) = history.header.pools
    assert pool.eviction is not None
    eviction = msgspec.structs.replace(pool.eviction, asks=asks)
    pools = [msgspec.structs.replace(pool, eviction=eviction)]
    header = msgspec.structs.replace(history.header, pools=pools)
    findings = judge(header, iter(history.events)).findings
    assert [finding.anomaly for finding in findings if finding.checker == "eviction"] == anomalies
