"""The document's six scenarios and four starting points, sized for a measured model and then served
from.

The model has KV blocks of 32 tokens and 32 768 bytes and states of 73 728 bytes; expected sizes are
the document's rules worked out by hand for it.
"""

from __future__ import annotations

import pytest

from cachewitness_reference.openvino_genai.orchestrator import LA
from cachewitness_reference.openvino_genai.scenarios import SCENARIOS, STARTING_POINTS, Scenario
from cachewitness_reference.openvino_genai.scheduler import Scheduler
from cachewitness_reference.openvino_genai.sequence import SequenceGroup
from cachewitness_reference.openvino_genai.sizing import LayoutBytes, derive

UNLIMITED = 18446744073709551615
GIB = 1073741824
LAYOUT = LayoutBytes(kv_block_bytes=32768, la_block_bytes=73728)
NAMED = SCENARIOS | STARTING_POINTS
MODES = pytest.mark.parametrize("scenario", NAMED.values(), ids=NAMED)

SIZES = {
    "scenario_1": (1024, 32),
    "scenario_1_prefix": (1024, 128),
    "scenario_2": ((GIB - 32 * 73728) // 32768, 32),
    "scenario_2_prefix": (25574, 3197),
    "scenario_3": (1024, 64),
    "scenario_3_budget": ((GIB - 64 * 73728) // 32768, 64),
    "scenario_4": (1024, 256),
    "scenario_4_budget": (20971, 5243),
    "scenario_5": (1024, 1),
    "scenario_5_budget": ((GIB - 73728) // 32768, 1),
    "scenario_6": (0, 0),
    "scenario_6_prefix": (0, 0),
    "general": ((GIB - 256 * 73728) // 32768, 256),
    "throughput": (2048, 64),
    "interactive": (0, 0),
    "prefix_heavy": (25574, 3197),
}
"""KV blocks and states. The split of multiplier 8 was measured; that of 4 is worked out, and one KV
block more does not fit."""


def build(name: str) -> Scheduler:
    config = NAMED[name].config
    return Scheduler(config, derive(config, LAYOUT), LAYOUT.kv_block_size, hybrid=True)


def serve(s: Scheduler, r: str, prompt: list[int], generate: int = 4) -> int:
    """Serve one request to its end; return where it resumed."""
    s.add_request(SequenceGroup(r, prompt, LAYOUT.kv_block_size, max_new_tokens=generate))
    resumed = s.restore_new()[r].processed
    group = s.groups[r]
    while group.length < len(prompt) + generate:
        output = s.schedule()
        assert not output.dropped
        s.complete(output)
        if group.num_available == 0:
            s.append(r, [group.length])
    s.finish(r)
    return resumed


def test_every_scenario_has_a_size_here() -> None:
    assert set(SIZES) == set(NAMED)
    assert {name.split("_")[1] for name in SCENARIOS} == set("123456") and len(STARTING_POINTS) == 4


@MODES
def test_sizes(scenario: Scenario) -> None:
    """Explicit counts, a split budget or nothing, as the document's rules give them."""
    capacity = derive(scenario.config, LAYOUT)
    assert (capacity.kv_blocks, capacity.la_blocks) == SIZES[scenario.name]
    assert capacity.dynamic == (scenario.sizing == "dynamic")


@MODES
def test_a_budget_is_not_exceeded_and_not_wasted(scenario: Scenario) -> None:
    """Both pools together take at most `cache_size`, and leave less than a KV block and a state
    unused.
    """
    if scenario.sizing == "budget":
        spare = scenario.config.cache_size * GIB - derive(scenario.config, LAYOUT).total_bytes
        assert 0 <= spare < 32768 + 73728


@MODES
def test_recommended_settings(scenario: Scenario) -> None:
    """num_linear_attention_blocks stays 0 everywhere, and of num_kv_blocks and cache_size the
    scenario sets its one.
    """
    config = scenario.config
    assert config.num_linear_attention_blocks == 0
    assert (config.num_kv_blocks > 0, config.cache_size > 0) == (
        scenario.sizing == "explicit",
        scenario.sizing == "budget",
    )


@MODES
def test_serves_and_gives_everything_back(scenario: Scenario) -> None:
    """Prompts shorter and longer than an interval, one after another; afterwards nobody holds a
    block.
    """
    s = build(scenario.name)
    for number, length in enumerate((1, 31, 300, 700)):
        serve(s, f"r{number}", [number * 10_000 + i for i in range(length)])
    assert all(
        not m.tables and m.pool.num_free_blocks == m.pool.num_blocks > 0
        for m in s.cache.managers.values()
    )


@MODES
def test_prefixes_are_reused_exactly_where_prefix_caching_is_on(scenario: Scenario) -> None:
    """A repeated prompt of 700 tokens resumes at the last interval end before it, or nowhere."""
    s = build(scenario.name)
    interval = derive(scenario.config, LAYOUT).interval
    serve(s, "first", list(range(700)))
    expected = 0 if interval is None else 700 // interval * interval
    assert serve(s, "second", list(range(700))) == expected


def running(s: Scheduler, count: int) -> int:
    """Return how many of so many short requests run at once."""
    for number in range(count):
        s.add_request(
            SequenceGroup(
                f"r{number}", range(number * 1000, number * 1000 + 3), LAYOUT.kv_block_size
            )
        )
    return len(s.schedule().scheduled)


@pytest.mark.parametrize(
    ("name", "at_once"), [("scenario_1", 32), ("scenario_3", 64), ("throughput", 64)]
)
def test_scenario_3_max_num_seqs_is_the_concurrency_without_prefix_caching(
    name: str, at_once: int
) -> None:
    """Through the pool of states, of which there are so many, and not through the scheduler."""
    assert running(build(name), 80) == at_once


def test_scenario_1_with_prefix_caching_max_num_seqs_is_no_admission_limit() -> None:
    """128 states admit as many sequences as the token budget, 256 / 3, whatever max_num_seqs
    says.
    """
    assert running(build("scenario_1_prefix"), 100) == 86


def test_scenario_2_derived_sizes_depend_on_layout_and_multiplier() -> None:
    config = NAMED["scenario_2_prefix"].config
    other_layout = derive(config, LayoutBytes(8192, 835584))
    other_multiplier = derive(NAMED["scenario_4_budget"].config, LAYOUT)
    assert (
        len(
            {
                (c.kv_blocks, c.la_blocks)
                for c in (derive(config, LAYOUT), other_layout, other_multiplier)
            }
        )
        == 3
    )


def test_scenario_3_states_are_driven_by_sequences_not_tokens() -> None:
    """Sixty-four sequences of three tokens take sixty-four states, one of 3,000 tokens takes
    one.
    """
    short = build("scenario_3")
    long = build("scenario_3")
    running(short, 64)
    assert short.cache.managers[LA].pool.num_free_blocks == 0
    long.add_request(SequenceGroup("long", range(3000), LAYOUT.kv_block_size))
    while long.groups["long"].num_processed < 3000:
        long.complete(long.schedule())
    assert long.cache.managers[LA].pool.num_free_blocks == 63


def test_scenario_4_smaller_multiplier_resumes_finer_and_costs_more() -> None:
    """Of 700 shared tokens intervals of 128 give back 640 and intervals of 256 give 512, for
    twice the states.
    """
    fine = build("scenario_4")
    coarse = build("scenario_1_prefix")
    resumed = []
    for s in (fine, coarse):
        serve(s, "first", list(range(700)))
        resumed.append(serve(s, "second", [*range(690), *range(9000, 9010)]))
    assert resumed == [640, 512]
    assert (fine.capacity.la_blocks, coarse.capacity.la_blocks) == (256, 128)


def test_scenario_4_states_are_aligned_with_token_capacity() -> None:
    """The pool of states covers every token that the KV pool holds, and no whole interval more."""
    for name in (
        "scenario_4",
        "scenario_4_budget",
        "scenario_1_prefix",
        "scenario_2_prefix",
        "prefix_heavy",
    ):
        capacity = derive(NAMED[name].config, LAYOUT)
        assert capacity.interval is not None
        tokens = capacity.kv_blocks * LAYOUT.kv_block_size
        assert 0 <= capacity.la_blocks * capacity.interval - tokens < capacity.interval


def test_scenario_5_reserves_one_state_and_serves_one_stream_at_a_time() -> None:
    """The document lets the capacity grow if concurrency increases; measured, and here, requests
    wait.
    """
    s = build("scenario_5")
    assert running(s, 3) == 1
    assert s.cache.managers[list(s.cache.managers)[1]].pool.num_blocks == 1


def test_scenario_5_kv_capacity_is_set_independently() -> None:
    explicit = derive(NAMED["scenario_5"].config, LAYOUT)
    shared = derive(NAMED["scenario_5_budget"].config, LAYOUT)
    assert explicit.la_blocks == shared.la_blocks == 1
    assert (explicit.kv_blocks, shared.kv_blocks) == (1024, (GIB - 73728) // 32768)


def test_scenario_6_starts_empty_and_grows_on_demand() -> None:
    """First for one request, then for another beside it; a server of fixed size would have
    dropped neither nor grown.
    """
    for name in ("scenario_6", "scenario_6_prefix", "interactive"):
        s = build(name)
        assert all(m.pool.num_blocks == 0 for m in s.cache.managers.values())
        sizes = []
        for number in range(3):
            s.add_request(
                SequenceGroup(
                    f"r{number}",
                    range(number * 10_000, number * 10_000 + 500),
                    32,
                    max_new_tokens=9,
                )
            )
            s.complete(s.schedule())
            sizes.append([m.pool.num_blocks for m in s.cache.managers.values()])
        assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_interactive_default_has_no_batch_limit_and_no_prefix_caching() -> None:
    config = NAMED["interactive"].config
    assert (config.max_num_batched_tokens, config.enable_prefix_caching) == (UNLIMITED, False)


def test_prefix_heavy_default_leaves_the_multiplier_unset() -> None:
    assert NAMED["prefix_heavy"].config.cache_interval_multiplier is None
