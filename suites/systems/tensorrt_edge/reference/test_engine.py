"""TensorRT-Edge-LLM's policy as an engine: lawful over random traces, and what its faults look
like to the checkers.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Acquire, Header, Hit, StepBegin
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Layout, Step, Submit, Trace, TraceHeader
from cachewitness.engines.adapter import Scheduled
from cachewitness.engines.driver import Driver
from cachewitness.systems.tensorrt_edge.reference import NOT_APPLICABLE
from cachewitness.systems.tensorrt_edge.reference.engine import assemble, open_engine, row_length
from cachewitness.systems.tensorrt_edge.reference.policy import configurations
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.sampled import fewer

SEEDS = range(fewer(12, 6))
LEVELS: tuple[Any, ...] = ("manager", "scheduler")


def configuration(layout: str = "full-swa-mamba", **options: Any) -> Configuration:
    return Configuration(layouts.load(layout), options, "tensorrt_edge")


def results(
    where: Configuration, plant: Callable[[Driver], None] | None = None, seeds: range = SEEDS
) -> list[tuple[Trace, Result]]:
    """Run the random traces of a configuration, at both levels, on engines with a fault or
    without.
    """
    found = []
    for level in LEVELS:
        for seed in seeds:
            trace = random_trace(where.shape(level), seed, withdraw=False)
            engine = assemble(trace.header)
            if plant is not None:
                plant(engine)
            found.append((trace, drive(trace, engine)))
    return found


def anomalies(found: list[tuple[Trace, Result]]) -> Counter[str]:
    return Counter(finding.anomaly for _, result in found for finding in result.findings)


def moved(found: list[tuple[Trace, Result]]) -> Counter[str]:
    """Count what moved: rows that were compacted, captures that were restored and saved."""
    counts: Counter[str] = Counter()
    for _, result in found:
        for event in result.history.events:
            if isinstance(event, StepBegin):
                counts["compacted"] += sum(move.src_pool == move.dst_pool for move in event.copies)
                counts["restored"] += sum(move.src_pool != move.dst_pool for move in event.copies)
                counts["saved"] += len(event.stores)
    return counts


@pytest.mark.parametrize("where", configurations(), ids=lambda where: where.name)
def test_the_policy_is_lawful_and_something_happens(where: Configuration) -> None:
    """Rows move, captures are made and come back, states are restored, and no checker objects."""
    found = results(where)
    assert [finding.sentence for _, result in found for finding in result.findings] == []
    counts = moved(found)
    assert min(counts["compacted"], counts["restored"], counts["saved"]) > 0
    tallies: Counter[str] = Counter()
    for _, result in found:
        tallies.update({tally.checker: tally.opportunities for tally in result.tallies})
    assert tallies["safety-law"] > 0 and tallies["ownership"] > 0
    if any(group.kind == "recurrent" for group in where.layout.groups):
        assert tallies["no-fabricated-snapshots"] > 0


@pytest.mark.parametrize(("survivors", "harmed"), [("ascending", False), ("descending", True)])
def test_compaction_in_place_harms_whoever_does_not_keep_the_order(
    survivors: str, harmed: bool
) -> None:
    """Ascending survivors are the lawful look-alike: row by row is right for them, and wrong for
    any other order.
    """
    found = anomalies(results(configuration(survivors=survivors, compaction="in_place")))
    assert (found["stale-hit"] > 0) is harmed and set(found) <= {"stale-hit", "state-position-skew"}


def late(engine: Driver) -> None:
    """Let requests that restore a capture of L tokens compute token L - 1 again, as the releases
    do.
    """
    rows: Any = engine.adapter
    original = rows.schedule

    def schedule(asked: Any, budget: int) -> Scheduled:
        scheduled: Scheduled = original(asked, budget)
        for _, request in rows._step.restores:
            start, stop = scheduled.chunks.get(request.request_id, (0, 0))
            if stop:
                scheduled.chunks[request.request_id] = (start - 1, stop)
        for event in engine.events:
            if isinstance(event, Hit) and event.resume:
                event.resume -= 1
        return scheduled

    rows.schedule = schedule


def test_a_state_beside_a_shorter_kv_length_is_a_skew() -> None:
    """The releases' own fault: a state at N, and prefill from N - 1. Without states it is
    harmless.
    """
    assert anomalies(results(configuration(), late))["state-position-skew"] > 0
    assert not anomalies(results(configuration("full-swa"), late))


def forgetful(engine: Driver) -> None:
    """Move KV, but leave recurrent rows where they are."""
    rows: Any = engine.adapter
    compact = rows.runtime.cache.compact_batch
    rows.runtime.cache.compact_batch = lambda *arguments: compact(*arguments)._replace(states=())


def test_states_that_stay_behind_their_rows_are_found() -> None:
    """KV, lengths and states move together, or somebody goes on from another's past."""
    found = anomalies(results(configuration("full-mamba"), forgetful))
    assert found["stale-hit"] + found["state-position-skew"] > 0


def some_seed_shows(anomaly: str, plant: Callable[[Driver], None], seeds: int) -> bool:
    """Return whether a fault is found as an anomaly by one of so many traces; those behind it
    are not run.
    """
    return any(
        anomalies(results(configuration(), plant, range(seed, seed + 1)))[anomaly]
        for seed in range(seeds)
    )


def saltless(engine: Driver) -> None:
    """Name captures by their tokens alone."""
    rows: Any = engine.adapter
    add = rows.runtime.add

    def bare(request: Any) -> None:
        request.salt = ""
        request.lora = ""
        request.media = ()
        add(request)

    rows.runtime.add = bare


def test_captures_without_an_identity_are_found() -> None:
    assert some_seed_shows("cross-identity-hit", saltless, 30)


def eager(engine: Driver) -> None:
    """Keep captures of old weights."""
    rows: Any = engine.adapter
    rows.renew = lambda: True


def test_captures_of_old_weights_are_found() -> None:
    assert some_seed_shows("cross-identity-hit", eager, 60)


# --- how it is told -------------------------------------------------------------------------------


def header(**options: Any) -> TraceHeader:
    return TraceHeader(
        name="t",
        layout=layouts.load("full-mamba"),
        pages=20,
        policy="tensorrt_edge",
        options=options,
    )


def described(**options: Any) -> Header:
    return assemble(header(**options)).describe()


def test_pages_are_batch_rows() -> None:
    """A pool of rows for each group, one column as long as a row, and as many places for
    captures in another tier.
    """
    declared = described(max_batch_size=3, max_sequence_length=100, system_prompts=2)
    assert [(pool.pages, pool.tier, pool.null) for pool in declared.pools] == [
        (3, "local", [])
    ] * 2 + [(2, "cpu", [])] * 2
    assert [(g.kind, g.block_size, g.pool, g.source_group) for g in declared.groups] == [
        ("full", 100, 0, -1),
        ("recurrent", 100, 1, -1),
        ("full", 100, 2, 0),
        ("recurrent", 100, 3, 1),
    ]


def test_a_row_is_twice_as_long_as_what_the_pages_hold() -> None:
    """20 slots of 16 tokens for two groups are ten blocks each, 160 tokens, and as many to
    generate.
    """
    assert row_length(layouts.load("full-mamba"), 20) == 320
    assert described().groups[0].block_size == 320


def test_invariants_about_keys_do_not_apply_and_say_why() -> None:
    """They are never counted as passed."""
    declared = described()
    assert set(declared.not_applicable) == set(NOT_APPLICABLE)
    assert all("has no keys" in reason for reason in declared.not_applicable.values())
    trace = random_trace(configuration().shape("manager"), 0, withdraw=False)
    tallies = {tally.checker: tally for tally in drive(trace, assemble(trace.header)).tallies}
    assert all(
        tallies[name].not_applicable and not tallies[name].opportunities for name in NOT_APPLICABLE
    )


@pytest.mark.parametrize("off", [{"enable_caching": False}, {"system_prompts": 0}])
def test_without_captures_there_is_no_tier(off: dict[str, Any]) -> None:
    declared = described(**off)
    assert len(declared.pools) == 2 and not declared.rules.caching
    assert declared.not_applicable["no-fabricated-snapshots"] == "nothing is captured"


def test_the_harness_s_names_of_options_are_known() -> None:
    declared = described(max_num_seqs=2, max_model_len=50, tier_pages=1)
    assert [pool.pages for pool in declared.pools] == [2, 2, 1, 1] and declared.groups[
        0
    ].block_size == 50


def test_a_release_compacts_in_place() -> None:
    """Which is right for the order that its runtime keeps, and refused for a release that there
    is not.
    """
    engine: Any = open_engine(header(survivors="descending"), {"release": "0.9"})
    for r in ("a", "b"):
        engine.apply(Submit(r, f"{r}:20"))
    engine.apply(Step(run=[("a", 20), ("b", 20)]))
    moves = engine.adapter.runtime.cache.compact_batch([1, 0], 2, 2)
    assert [tuple(move) for move in moves.states] == [(0, 1)] and moves.kv == ()
    with pytest.raises(UsageError, match=r"release '0\.6' is unknown"):
        open_engine(header(), {"release": "0.6"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retention_interval": 0}, "option 'retention_interval' is unknown"),
        ({"max_batch_size": 0}, "option 'max_batch_size' (0) must be a whole number in [1, "),
        ({"max_batch_size": True}, "option 'max_batch_size' (True) must be a whole number"),
        ({"max_sequence_length": 1 << 49}, "must be a whole number in [1, 16777216]"),
        ({"system_prompts": -1}, "option 'system_prompts' (-1) must be a whole number in [0, "),
        ({"joining": "never"}, "option 'joining' ('never') must be one of continuous, static"),
        ({"enable_caching": "no"}, "option 'enable_caching' ('no') must be true or false"),
    ],
)
def test_an_option_that_does_not_fit_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        assemble(header(**options))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_move_is_one_copy_over_rows_that_stay_held() -> None:
    """Row 0 of two ends; row 1 moves in the next step, held as `copy:N` until that has run."""
    engine = assemble(header(system_prompts=0))
    for r in ("a", "b"):
        engine.apply(Submit(r, f"{r}:20"))
    engine.apply(Step(run=[("a", 20), ("b", 20)]))
    engine.apply(Finish("a"))
    events = engine.apply(Step(run=[("b", 1)]))
    begin = next(event for event in events if isinstance(event, StepBegin))
    assert [(move.src, move.dst, move.src_pool, move.dst_pool) for move in begin.copies] == [
        (1, 0, 0, 0),
        (1, 0, 1, 1),
    ]
    taken = {
        (event.holder, event.pool, *event.pages) for event in events if isinstance(event, Acquire)
    }
    assert {holder.partition(":")[0] for holder, *_ in taken} == {"b", "copy"}
    assert {("b", 0, 0), ("b", 1, 0)} <= taken
    assert [
        (event.holder[:4], event.pages)
        for event in events
        if type(event).__name__ == "Release" and event.holder != "b"
    ] == [("copy", [1]), ("copy", [1])]


def test_a_hit_is_served_by_the_tier_of_captures() -> None:
    """The second request is told of 16 tokens, fetched from place 0 into its row, and computes
    from token 16.
    """
    engine = assemble(header())
    for r in ("a", "b"):
        engine.apply(Submit(r, f"sys:16 {r}:4"))
    engine.apply(Step(run=[("a", 20)]))
    events = engine.apply(Step(run=[("b", 20)]))
    hit = next(event for event in events if isinstance(event, Hit))
    assert (hit.reported, hit.resume, hit.pages, hit.tier) == (16, 16, [[1], [1], [0], [0]], "cpu")
    begin = next(event for event in events if isinstance(event, StepBegin))
    assert [(move.src, move.dst, move.src_pool, move.dst_pool) for move in begin.copies] == [
        (0, 1, 2, 0),
        (0, 1, 3, 1),
    ]
    assert [(run.r, run.start, run.stop) for run in begin.runs] == [("b", 16, 20)]


def test_a_published_layout_fits() -> None:
    """Blocks of hundreds of tokens are a measure like any other."""
    layout: Layout = layouts.load("qwen3.5-0.8b")
    trace = random_trace(
        Configuration(layout, {}, "tensorrt_edge").shape("scheduler"), 1, withdraw=False
    )
    assert drive(trace, assemble(trace.header)).outcome == "pass"


def test_running_the_policy_needs_no_torch() -> None:
    """Neither the policy nor its engine imports it."""
    code = (
        "import sys; sys.modules['torch'] = None\nfrom cachewitness.cli import main\n"
        "words = 'cachewitness run --policy tensorrt_edge --suite scheduler --layout full-mamba --quiet'\n"  # noqa: E501
        "sys.argv = words.split()\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
