"""OpenVINO GenAI's document on the command line: its sizes and scenarios, under the ledger and
on tensors, as planned.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.events import Acquire, Group, Grow, Header, Pool, Submitted
from cachewitness.core.malformed import PAGES_MAX, MalformedHistory
from cachewitness.core.result import EXIT_FAIL, EXIT_PASS, EXIT_USAGE, Result
from cachewitness.core.trace_format import Trace, TraceHeader
from cachewitness.core.well_formed import WellFormedness
from cachewitness.engines.registry import parse
from cachewitness.systems.openvino_genai.reference.engine import Built
from cachewitness.systems.openvino_genai.reference.fitting import fit
from cachewitness.systems.openvino_genai.reference.plan import Request, plan
from cachewitness.systems.openvino_genai.reference.policy import POLICY
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_reference.openvino_genai.block_pool import Block, BlockPool
from cachewitness_reference.openvino_genai.scenarios import SCENARIOS, STARTING_POINTS
from cachewitness_reference.openvino_genai.spec import NEWEST, RELEASES
from suites.support.sampled import chosen, fewer, sampled

RUN = ("run", "--policy", "openvino_genai", "--layout", "full-mamba")
DYNAMIC = {"num_kv_blocks": 0, "enable_prefix_caching": True, "cache_interval_multiplier": 1}
BYTES = {"kv_block_bytes": 2**24, "la_block_bytes": 2**21}
"""So few blocks fit a GiB that a run is quick: 64 KV blocks, or 512 states."""


def options(given: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in given.items()
        for word in ("--option", f"{name}={json.dumps(value).strip(chr(34))}")
    ]


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = EXIT_PASS) -> str:
    assert invoke(words) == code
    printed = capsys.readouterr()
    return printed.err if code == EXIT_USAGE else printed.out


def report(
    capsys: pytest.CaptureFixture[str], *words: str, code: int = EXIT_PASS
) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output_of(capsys, *words, "--json", code=code))
    return found


# --- what a run replaces --------------------------------------------------------------------------


def test_the_top_of_the_report_says_which_defaults_are_replaced_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where pools are a trace's own; what an option sets is not listed."""
    printed = output_of(capsys, *RUN, "--suite", "scheduler")
    head = printed.split("\n\n")[0].splitlines()
    assert [line.split(" (")[0] for line in head[1:]] == [
        "replaces num_kv_blocks and cache_size",
        "replaces enable_prefix_caching",
        "replaces max_num_seqs",
        "replaces max_num_batched_tokens",
        "replaces cache_interval_multiplier",
    ]
    set_by_hand = {
        "enable_prefix_caching": True,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "cache_interval_multiplier": 2,
    }
    found = report(capsys, *RUN, "--suite", "scheduler", *options(set_by_hand))
    assert [line.partition(" (")[0] for line in found["settings"]] == [
        "replaces num_kv_blocks and cache_size"
    ]


def test_with_sizes_named_every_other_default_is_openvinos(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A batch of 256 tokens, 256 states, no prefix caching: the fields of SchedulerConfig as
    they are.
    """
    (line,) = report(capsys, *RUN, "--suite", "scheduler", "--option", "num_kv_blocks=64")[
        "settings"
    ]
    assert (
        line
        == "full-mamba: fixed pools, 64 KV blocks of 16 tokens, 256 states; prefix caching off, all"
        " else by SchedulerConfig"
    )
    config = built("full-mamba", {"num_kv_blocks": 64}).config
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.enable_prefix_caching) == (
        256,
        256,
        False,
    )
    assert built(
        "full-mamba", {"pipeline": "LLMPipeline", "cache_interval_multiplier": 8}
    ).config.unlimited


@pytest.mark.parametrize(
    ("release", "interval"), [("2026.2", 8 * 32), ("2026.3", 51 * 32), ("2026.4", 51 * 32)]
)
def test_an_unset_multiplier_is_the_releases_own(release: str, interval: int) -> None:
    """8 in 2026.2, since then ceil(19,759,104 / 393,216) = 51 on this model, however the pools
    are sized.
    """
    for given in ({}, {"num_kv_blocks": 64, "enable_prefix_caching": True}):
        assert built("qwen3.5-0.8b", given, release).capacity.interval == interval


# --- the scenarios --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "name"), sampled(list(enumerate([*SCENARIOS, *STARTING_POINTS])), 3, 1)
)
def test_every_scenario_runs_under_the_ledger(
    index: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the document's own release; prefixes are hit exactly where the scenario caches them."""
    given = {"scenario": name} | BYTES
    suites = [
        word
        for suite in sampled(("invariants", "scheduler"), 2, index)
        for word in ("--suite", suite)
    ]
    found = report(capsys, *RUN, "--release", "2026.2", *suites, *options(given))
    config = (SCENARIOS | STARTING_POINTS)[name].config
    for suite in found["suites"]:
        assert (
            suite["traces"] > 10 and bool(suite["activity"]["hits"]) == config.enable_prefix_caching
        )
    (line,) = found["settings"]
    assert line.startswith(
        f"full-mamba: {'fixed' if config.num_kv_blocks or config.cache_size else 'dynamic'} pools"
    )


@pytest.mark.toy
@pytest.mark.parametrize("name", [*SCENARIOS, *STARTING_POINTS])
def test_every_scenario_runs_on_tensors(name: str) -> None:
    """The logits over its pages are those of a cold run, also where the pools grow."""
    pytest.importorskip("torch")
    where = configuration({"scenario": name} | BYTES, "2026.2")
    result = run(random_trace(where.shape("scheduler"), 4, withdraw=False), "toy:release=2026.2")
    assert result.outcome == "pass", result.findings[:1]
    tensors = next(tally for tally in result.tallies if tally.checker == "tensors")
    assert tensors.opportunities > 20
    grown = any(isinstance(event, Grow) for event in result.history.events)
    assert grown == ((SCENARIOS | STARTING_POINTS)[name].sizing == "dynamic")


@pytest.mark.toy
def test_a_command_runs_a_scenario_on_the_toy(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words = (
        *RUN,
        "--engine",
        "toy",
        "--suite",
        "scheduler",
        "--option",
        "scenario=4",
        "--option",
        "num_kv_blocks=24",
    )
    found = report(capsys, *words)
    tensors = next(row for row in found["checkers"] if row["checker"] == "tensors")
    assert found["suites"][0]["activity"]["evictions"] and tensors["opportunities"] > 100


@pytest.mark.toy
def test_without_prefix_caching_the_warm_arms_are_left_out_and_the_cold_ones_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There is nothing that they could hit, which is no lack of the engine."""
    pytest.importorskip("torch")
    words = (
        *RUN,
        "--engine",
        "toy:dtype=float64",
        "--suite",
        "cold-vs-cached",
        "--option",
        "scenario=3",
    )
    found = report(capsys, *words)
    left_out = {
        entry["what"].split(" on ")[0]
        for entry in found["not_run"]
        if entry["why"] == "prefix caching is off"
    }
    assert {
        "cold-vs-cached: arm miss",
        "cold-vs-cached: arm hit",
        "cold-vs-cached: arm preempted",
    } <= left_out
    assert found["suites"][0]["traces"] >= 5


@pytest.mark.parametrize(
    "given",
    [
        DYNAMIC,
        {"num_kv_blocks": 24, "max_num_seqs": 3},
        {"cache_size": 1, "max_num_seqs": 9} | BYTES,
    ],
)
def test_a_campaign_takes_the_same_sizes(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = output_of(
        capsys,
        "fuzz",
        "--policy",
        "openvino_genai",
        "--layout",
        "full-mamba",
        *options(given),
        "--operations",
        "1500",
    )
    assert "verdict: pass" in printed


# --- pools that grow ------------------------------------------------------------------------------


def configuration(given: dict[str, Any], release: str = "") -> Configuration:
    layout, fitted = fit(layouts.load("full-mamba"), None, given, release)
    return Configuration(layout, fitted, "openvino_genai")


def run(trace: Trace, engine: str = "reference") -> Result:
    return drive(trace, parse(engine).open(trace.header))


def crowded(seed: int, level: Any = "scheduler") -> Trace:
    return random_trace(configuration(DYNAMIC).shape(level), seed, withdraw=False)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("level", ["manager", "scheduler"])
def test_a_dynamic_cache_begins_empty_and_grows_on_demand(release: str, level: Any) -> None:
    """At both levels; 2026.2 makes room for its first requests and then for 256 tokens at a
    time.
    """
    result = run(crowded(1, level), f"reference:release={release}")
    assert not result.findings and [pool.pages for pool in result.history.header.pools] == [0, 0]
    grown = [event.pages for event in result.history.events if isinstance(event, Grow)]
    assert set(grown[2:]) == {16} if release == "2026.2" else not set(grown[2:]) <= {16}


def numbered_over(self: BlockPool, num_blocks: int) -> None:
    """Give the first new block the number of the last one, which somebody may hold."""
    first = max(len(self.blocks) - 1, 0)
    for block_id in range(first, first + num_blocks):
        block = Block(block_id, self._tick())  # type: ignore[arg-type]
        self.blocks[block_id:] = [block]
        self._unused.append(block)


def test_new_blocks_under_the_number_of_an_old_one_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BlockPool, "grow", numbered_over)
    found = {finding.anomaly for seed in range(4) for finding in run(crowded(seed)).findings}
    assert found & {"double-allocation", "aliased-write", "wrong-count", "stale-hit"}


def test_keys_that_end_while_grown_blocks_wait_are_found_and_those_that_ended_before_are_not() -> (
    None
):
    """A pool that grows in the step in which keys ended had no room when they did."""
    fault = "reference:mutant=openvino-store-overwritten-first"
    found = (finding.anomaly for seed in range(6) for finding in run(crowded(seed), fault).findings)
    assert "needless-eviction" in found
    assert not [finding for seed in range(fewer(6, 3)) for finding in run(crowded(seed)).findings]


@pytest.mark.parametrize(
    ("pool", "event", "line"),
    [
        (
            Pool(0, 4),
            Grow(pool=0, pages=1),
            "pool 0 - at `$.pool`; it does not grow, by the header",
        ),
        (
            Pool(0, 0, grows=True),
            Grow(pool=1, pages=1),
            "pool 1 - at `$.pool`; it does not grow, by the header",
        ),
        (Pool(0, 0, grows=True), Grow(pool=0, pages=0), "0 more - at `$.pages`; at least 1"),
        (Pool(0, 9, grows=True), Grow(pool=0, pages=PAGES_MAX - 8), "at most 4194304 in all"),
        (
            Pool(0, 0),
            Grow(pool=0, pages=1),
            "pages are 1 to 4194304, null pages among them, 0 only of a pool that grows",
        ),
    ],
)
def test_growth_that_no_pool_can_have_is_refused_by_its_field(
    pool: Pool, event: Grow, line: str
) -> None:
    with pytest.raises(MalformedHistory) as caught:
        WellFormedness(Header("mine", "manager", [pool], [Group(0, "full", 4)]), live=True).follow(
            event
        )
    assert line in str(caught.value)


def test_a_page_is_there_once_its_pool_has_grown() -> None:
    """Not before."""
    followed = WellFormedness(
        Header("mine", "manager", [Pool(0, 0, grows=True)], [Group(0, "full", 4)]), live=True
    )
    followed.follow(Submitted(r="a", tokens=[1, 2]))
    with pytest.raises(MalformedHistory, match="page 2 does not exist"):
        followed.follow(Acquire(pool=0, group=0, pages=[2], holder="a"))
    followed.follow(Grow(pool=0, pages=3))
    followed.follow(Acquire(pool=0, group=0, pages=[2], holder="a"))


# --- plan and run ---------------------------------------------------------------------------------


def built(name: str, given: dict[str, Any], release: str = NEWEST) -> Built:
    """Return what a run on a layout is built from. Raises UsageError for what it refuses."""
    model = layouts.model(name) if layouts.has_model(name) else None
    layout, fitted = fit(layouts.load(name), model, given, release)
    return Built(TraceHeader("t", layout, 64, policy="openvino_genai", options=fitted), release)


SIZED = [
    {"num_kv_blocks": 1024},
    {"num_kv_blocks": 64, "num_linear_attention_blocks": 5},
    {"cache_size": 2},
    {"cache_size": 3, "num_linear_attention_blocks": 7},
    {"cache_size": 1, "num_kv_blocks": 96},
    {"num_kv_blocks": 0},
    {"scenario": "4"},
    {"scenario": "5_budget"},
    {"pipeline": "LLMPipeline", "num_kv_blocks": 200},
    {"pipeline": "VLMPipeline"},
    {"num_kv_blocks": 64, "use_cache_eviction": True},
    {"num_kv_blocks": 64, "use_sparse_attention": True},
    {"num_kv_blocks": 1024, "memory_gib": 1},
    {"num_kv_blocks": 64, "dynamic_split_fuse": False, "max_num_batched_tokens": 100},
]
CACHED = [
    {},
    {"enable_prefix_caching": False},
    {"enable_prefix_caching": True},
    {"cache_interval_multiplier": 4},
    {"cache_interval_multiplier": 0},
    {"enable_prefix_caching": True, "max_num_seqs": 12, "max_num_batched_tokens": "unlimited"},
]
KEPT: list[dict[str, Any]] = [
    {},
    {"device": "gpu", "kv_precision": "f16", "state_precision": "f32"},
    dict(BYTES),
]


def planned(name: str, given: dict[str, Any], release: str) -> tuple[Any, ...] | str:
    try:
        answer = {line.name: line.value for line in plan(Request(given, name, release)).lines}
    except UsageError as error:
        return str(error)
    interval = answer.get("interval_tokens")
    return (
        answer["kv_block_tokens"],
        answer["kv_blocks"],
        answer["la_blocks"],
        interval,
        answer["kv_tokens"],
        answer["dynamic"],
    )


def ran(name: str, given: dict[str, Any], release: str) -> tuple[Any, ...] | str:
    """Return what the header of a run's history says of its pools and groups."""
    model = layouts.model(name) if layouts.has_model(name) else None
    try:
        layout, fitted = fit(layouts.load(name), model, given, release)
        trace = TraceHeader("t", layout, 64, policy="openvino_genai", options=fitted)
        made = Built(trace, release)
    except UsageError as error:
        return str(error)
    header = made.describe(trace)
    sizes = {group.block_size for group in header.groups if group.kind != "recurrent"}
    pages = {
        pool.pages
        for pool, group in zip(header.pools, header.groups, strict=True)
        if group.kind != "recurrent"
    }
    states = {
        pool.pages
        for pool, group in zip(header.pools, header.groups, strict=True)
        if group.kind == "recurrent"
    }
    every = {group.block_size for group in header.groups if group.kind == "recurrent"}
    (tokens,) = sizes
    (blocks,) = pages
    caching = header.rules.caching
    (dynamic,) = {pool.grows for pool in header.pools}
    interval = next(iter(every)) if every and caching else None
    return tokens, blocks, next(iter(states), 0), interval, tokens * blocks, dynamic


GIVEN = list(product(SIZED, CACHED, KEPT))
REFUSED = (
    *("deepseek-v4-flash", "full-full-narrow", "full-swa-unequal", "glm-5.1", "glm-5.2"),
    "kimi-linear-48b-a3b",
)
"""Layouts of which OpenVINO GenAI takes few configurations or none."""


AGREEING = [
    (release, index, name) for index, name in enumerate(layouts.names()) for release in RELEASES
]
TAKEN = [one for one in AGREEING if [*RELEASES][one[1] % len(RELEASES)] == one[0]]
"""Every layout in one release, and every release on a third of them."""


@pytest.mark.parametrize(("release", "index", "name"), chosen(AGREEING, *TAKEN))
def test_plan_and_run_agree_on_every_layout_and_option_or_refuse_in_the_same_words(
    index: int, name: str, release: str
) -> None:
    """Blocks, tokens of a block, states, tokens between checkpoints: some of 252 configurations
    of each layout and release.
    """
    agreed = 0
    some = sampled(GIVEN, 11, index)  # another eleventh for each layout
    for parts in some:
        given = parts[0] | parts[1] | parts[2]
        mine = planned(name, given, release)
        other = ran(name, given, release)
        if isinstance(other, str) and "a run keeps a record of each" in other:
            assert not isinstance(mine, str) and max(mine[1], mine[2]) > 2**18
            continue
        assert mine == other, (name, release, given)
        agreed += not isinstance(mine, str)
    assert agreed > 20 * len(some) / len(GIVEN) or name in REFUSED


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"use_cache_eviction": True},
            "use_cache_eviction: left out of this specification, since each layer drops",
        ),
        (
            {"use_sparse_attention": True},
            "use_sparse_attention: left out of this specification, since a prompt then",
        ),
        (
            {"num_kv_blocks": 64, "enable_prefix_caching": True},
            "cache_interval_multiplier: unset, release 2026.4 derives it",
        ),
        (
            {"cache_size": 1},
            "cache_size is split by the bytes of blocks; name kv_block_bytes and la_block_bytes",
        ),
        ({"scenario": "seven"}, "option 'scenario': none is called 'seven'"),
        (
            {"pipeline": "Pipeline"},
            "option 'pipeline' is one of ContinuousBatchingPipeline, LLMPipeline, VLMPipeline",
        ),
        ({"num_kv_blocks": 2**20}, "num_kv_blocks: 1,048,576 blocks; a run keeps a record of each"),
        (
            {"num_kv_blocks": 64, "cache_interval_multiplier": 2**20},
            "a checkpoint every 16,777,216 tokens",
        ),
        ({"kv_precision": "f16"}, "kv_precision: layout 'full-mamba' has no model"),
        ({"kv_block_bytes": 9}, "kv_block_bytes: needs la_block_bytes beside it"),
        (
            {"foo": 1},
            "option 'foo' is unknown; known are cache_interval_multiplier, cache_size, device, ",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_one_line_of_a_run(
    given: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = output_of(capsys, *RUN, *options(given), code=EXIT_USAGE)
    assert line in error and error.startswith("cachewitness: ") and error.count("\n") == 1


def test_a_fault_in_sized_pools_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """What a run with sizes named passes is not passed blindly."""
    words = (
        *RUN,
        "--engine",
        "reference:mutant=openvino-shared-block-written",
        "--fail-fast",
        "--option",
        "scenario=4",
    )
    assert "aliased-write" in output_of(
        capsys, *words, "--suite", "random", "--suite", "scheduler-random", code=EXIT_FAIL
    )


def test_rules_left_out_are_listed_with_what_they_are() -> None:
    absent = {rule.name: rule.summary for rule in POLICY.rules if not rule.implemented}
    assert absent["cache-eviction"].startswith("use_cache_eviction:")
    assert absent["sparse-attention"].startswith("use_sparse_attention:")
