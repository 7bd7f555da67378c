"""The benchmarks measure what they say: their workloads are what the pages claim, and their sums
add up.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks import workload
from benchmarks.area_chart import Area, stacked, thinned
from benchmarks.bare import Bare
from benchmarks.conversations import KINDS, Loop, Plan, Served
from benchmarks.learning import CAP, Choices, Corpus, Swarm, hardest
from benchmarks.retention_page import RunOf, agreement
from cachewitness._util.chart import LINES, Curves, curves
from cachewitness.core.driving import drive
from cachewitness.core.events import Counts, StepBegin
from cachewitness.core.trace_format import Finish, Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import SWARM, write

PLAN = Plan(talkers=3, turns=3, running=2, system=32, words=12, thoughts=32, answer=20, chunk=16)
PAGES = 61


def served(**options: object) -> Served:
    header = TraceHeader(
        name="talk", layout=layouts.load("full-mamba"), pages=PAGES, options=options
    )
    return Loop(header, parse("reference").open(header), PLAN).run()


@pytest.fixture(scope="module")
def dense() -> Served:
    return served(retention_interval=None)


def test_every_prompt_is_looked_up_once_with_all_its_tokens(dense: Served) -> None:
    """Turn t of a talker looks up the system prompt, the words of turns 0..t and the answers of
    turns 0..t-1; no thoughts.
    """
    for turn, seen in enumerate(dense.turns):
        lengths = [
            PLAN.system
            + sum(PLAN.words_of(talker, t) for t in range(turn + 1))
            + sum(PLAN.answer_of(talker, t) for t in range(turn))
            for talker in range(PLAN.talkers)
        ]
        assert seen.looked_up == sum(lengths)
        assert seen.prefilled == seen.looked_up - seen.hit


def test_census_accounts_for_every_page_but_the_null_block(dense: Served) -> None:
    assert dense.samples
    assert all(len(pages) == len(KINDS) and sum(pages) == PAGES - 1 for _, pages in dense.samples)


def test_conversations_are_clean_and_repeatable(dense: Served) -> None:
    again = served(retention_interval=None)
    assert dense.findings == [] and dense.digest == again.digest
    assert Served.from_plain(again.plain()) == again


def test_sparse_retention_changes_the_digest(dense: Served) -> None:
    """The digest is over what happened, so two policies do not look alike."""
    assert served(retention_interval=0).digest != dense.digest


def test_agreement_says_how_two_runs_differ(dense: Served) -> None:
    def beside(other: Served) -> list[RunOf]:
        return [RunOf("pressure", "dense", "reference", other)]

    assert agreement(dense, beside(dense)) == "identical"
    assert agreement(dense, beside(replace(dense, digest=""))).startswith("same hits")
    assert agreement(dense, beside(served(retention_interval=0))).startswith("differs")
    assert agreement(dense, []) == "not compared"


def test_workload_keeps_its_number_of_requests_and_ends_them() -> None:
    """Never more than LIVE requests are there, whatever the length of the trace."""
    live: set[str] = set()
    for op in workload.operations(2000):
        if isinstance(op, Submit):
            live.add(op.r)
        elif isinstance(op, Finish):
            live.remove(op.r)
        else:
            assert isinstance(op, Step) and {r for r, _ in op.run} <= live
        assert len(live) <= workload.LIVE


def test_workload_is_under_pressure_and_prefills_four_blocks_a_step() -> None:
    trace = Trace(workload.header(), list(workload.operations(600)))
    result = drive(trace, parse("reference").open(trace.header))
    chunks = [
        run.stop - run.start
        for e in result.history.events
        if isinstance(e, StepBegin)
        for run in e.runs
    ]
    assert result.findings == []
    assert result.activity.evictions and result.activity.hits and result.activity.restored
    assert max(chunks) >= 4 * workload.BLOCK


def test_filling_leaves_a_pool_full_of_keys() -> None:
    """At rest only what the last prompt's window gave back has no key: no more blocks than that
    prompt has.
    """
    trace = Trace(workload.header(400), list(workload.filling(400)))
    result = drive(trace, parse("reference").open(trace.header))
    counts = [event for event in result.history.events if isinstance(event, Counts)][-1]
    assert counts.held == 0 and counts.free <= 64 and counts.cached >= 399 - 64
    assert result.activity.evictions and result.findings == []


def test_bare_policy_computes_the_same_tokens_as_the_harness() -> None:
    """What the harness is compared with does the same work: every live request stands where it
    stands under the harness.
    """
    ops = list(workload.operations(500))
    bare = Bare(workload.header())
    bare.run(ops)
    engine = parse("reference").open(workload.header())
    reached: dict[str, int] = {}
    for op in ops:
        for event in engine.apply(op):
            if isinstance(event, StepBegin):
                reached |= {run.r: run.stop for run in event.runs}
    assert bare.requests and all(
        request.num_computed_tokens == reached[r] for r, request in bare.requests.items()
    )


def test_charts_are_well_formed_and_thinning_keeps_the_mean() -> None:
    samples = [(index / 10, [index, 10 - index, 0, 0, 0]) for index in range(10)]
    picture = stacked([Area("a & b", samples, [0.5])], KINDS, "hit rate")
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    drawn = curves(
        [Curves("a & b", ["1", "2"], {f"line {index}": [0.5, 1.0] for index in range(len(LINES))})]
    )
    assert len(ElementTree.fromstring(drawn).findall("{*}polyline")) == len(LINES)
    assert thinned(samples, 2) == [
        (pytest.approx(0.2), [2, 8, 0, 0, 0]),
        (pytest.approx(0.7), [7, 3, 0, 0, 0]),
    ]


def test_choices_that_are_replayed_make_the_same_trace() -> None:
    """The corpus of a search that learns holds choices and not traces."""
    shape = Configuration(layouts.load("full-mamba")).shape("manager")
    first = Choices([], random.Random(1))
    trace = write(shape, first, withdraw=False, operations=30, name="t")
    again = Choices(first.made, random.Random(2))
    assert (
        write(shape, again, withdraw=False, operations=30, name="t") == trace
        and again.made == first.made
    )
    other = Choices(first.made[: len(first.made) // 2], random.Random(2))
    assert write(shape, other, withdraw=False, operations=30, name="t") != trace


def test_a_corpus_keeps_what_is_new_and_takes_what_is_rare_more_often() -> None:
    corpus = Corpus(random.Random(0))
    assert corpus.begun() == []

    def saw(choice: float, features: set[str]) -> None:
        corpus.source().made[:] = [choice] * 8
        corpus.learn(features)

    saw(0.25, {"common"})
    saw(0.5, {"common"})
    saw(0.75, {"common", "rare"})
    for _ in range(50):
        saw(0.5, {"common"})
    taken = Counter(choice for _ in range(400) for choice in corpus.begun())
    assert taken[0.75] > 5 * taken[0.25] > 0 and not taken[0.5]


def test_a_swarm_takes_the_factors_more_often_that_showed_something_new() -> None:
    """Of two kinds of operations, traces without the first show something new; what becomes of
    the second does not matter.
    """
    swarm = Swarm(random.Random(0))
    for number in range(2_000):
        source = swarm.source()
        first = source.choice(SWARM)
        _ = source.choice(SWARM)
        swarm.learn({number} if not first else set())
    drawn = [
        (source.choice(SWARM), source.choice(SWARM))
        for source in (swarm.source() for _ in range(1_000))
    ]
    none = [sum(factor == 0 for factor in kind) / 1_000 for kind in zip(*drawn, strict=True)]
    assert none[0] > 0.9 and 0.2 < none[1] < 0.7, "drawn blindly, both are left out of two in five"


def test_the_hardest_faults_are_those_that_are_found_last() -> None:
    assert hardest({"b": [1, 9, 2], "a": [5, 1, 5], "c": [CAP]}) == ["c", "a", "b"]
