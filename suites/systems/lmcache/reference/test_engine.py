"""LMCache behind vLLM's scheduler under every checker: lawful where the reference is, and found
where a release is not.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli.suites import SUITES
from cachewitness.core.driving import drive
from cachewitness.core.events import Event, Hit, Publish, ResetDone, StepBegin, Unpublish
from cachewitness.core.result import EXIT_PASS, Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.driver import Driver
from cachewitness.engines.registry import parse
from cachewitness.report.summary import Report
from cachewitness.sessions.run.runner import Runner
from cachewitness.systems.lmcache.reference.engine import LMCacheAdapter, layer_specs, open_engine
from cachewitness.systems.lmcache.reference.policy import configurations, variants
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    RegistrationError,
    create_engine_group_infos,
)
from cachewitness_reference.lmcache.spec import DEFAULT_CHUNK_SIZE
from suites.support.sampled import sampled

APART = {"separate_object_groups": True}


def script(layout: str, options: dict[str, Any]) -> Script:
    """Begin a trace on a layout."""
    shape = Shape(layouts.load(layout), {"tier_pages": 200, **options}, "scheduler", "lmcache")
    return Script(shape, "by-hand", "", "")


def engine(trace: Trace) -> Driver:
    """Open the reference for a trace."""
    opened = open_engine(trace.header, {})
    assert isinstance(opened.adapter, LMCacheAdapter)
    return opened


def replayed(layout: str, length: int, **options: Any) -> Result:
    """Compute a prompt, lose it on the device, and send it again."""
    s = script(layout, options)
    s.serve("a", f"doc:{length}", decode=1)
    s.reset(tier="local")
    s.serve("b", f"doc:{length}", decode=1)
    trace = s.trace()
    return drive(trace, engine(trace))


def hits(result: Result) -> list[tuple[str, int, int, str]]:
    """Return every look-up as (request, reported, resume, tier)."""
    return [
        (e.r, e.reported, e.resume, e.tier) for e in result.history.events if isinstance(e, Hit)
    ]


def run(chosen: list[Configuration]) -> Report:
    """Run the scenarios and random workloads."""
    return Runner(parse("reference"), chosen).run(
        [suite for suite in SUITES if suite.name in ("scheduler", "scheduler-random")]
    )


@pytest.mark.parametrize(
    "configuration", sampled(configurations(), 5), ids=lambda configuration: configuration.name
)
def test_every_rule_holds_on_the_configuration(configuration: Configuration) -> None:
    """And the tier served: hits to which it contributed."""
    report = run([configuration])
    assert [failure.finding.sentence for suite in report.suites for failure in suite.failures] == []
    assert sum(suite.activity.from_tier for suite in report.suites) > 0


def test_a_run_is_not_vacuous() -> None:
    """Every rule that applies had something to judge; all groups, states among them, came back
    from the tier.
    """
    report = run(variants(layouts.load("full-swa-mamba")))
    assert report.exit_code == EXIT_PASS and report.vacuous == []
    activity = report.suites[0].activity
    assert min(activity.from_tier, activity.restored, activity.evictions, activity.preemptions) > 0


@pytest.mark.parametrize(("layout", "apart"), [("full-swa", [True, False]), ("full-mamba", [True])])
def test_states_are_never_drawn_in_one_object_with_attention(
    layout: str, apart: list[bool]
) -> None:
    """LMCache's document requires `--separate-object-groups` for them."""
    drawn = [one.options["separate_object_groups"] for one in variants(layouts.load(layout))]
    assert drawn == apart


def test_evictions_of_the_tier_are_told() -> None:
    """With room for two prompts, the third evicts; keys of the tier end, and nobody finds them."""
    s = script("full-mamba", {**APART, "tier_pages": 20})
    for index in range(4):
        s.serve(f"r{index}", f"doc{index}:80")
    s.reset(tier="local")
    s.serve("again", "doc0:80")
    trace = s.trace()
    result = drive(trace, engine(trace))
    local = len(result.history.header.local_groups())
    ended = [e for e in result.history.events if isinstance(e, Unpublish) and e.group >= local]
    assert result.findings == [] and ended and {event.reason for event in ended} == {"evict"}
    assert hits(result)[-1][2] < 64


# --- the document's rules on real tables ----------------------------------------------------------


def found_in_tier(events: list[Event], group: int) -> list[int]:
    """Return the lengths at which copies of a group were keyed."""
    return sorted(
        event.length for event in events if isinstance(event, Publish) and event.group == group
    )


@pytest.mark.parametrize(
    ("budget", "states"), [(16, [16, 32, 48, 64]), (32, [32, 64]), (48, [48, 64])]
)
def test_align_snapshots_the_state_only_at_the_end_of_each_step(
    budget: int, states: list[int]
) -> None:
    """Document, step 2: a larger budget skips block boundaries, so no snapshot is stored there;
    attention has them all.
    """
    s = script("full-mamba", {**APART, "max_num_batched_tokens": budget})
    s.serve("a", "doc:65")
    trace = s.trace()
    result = drive(trace, engine(trace))
    assert result.findings == []
    assert found_in_tier(result.history.events, 2) == [16, 32, 48, 64]
    assert found_in_tier(result.history.events, 3) == states


def test_groups_together_store_only_chunks_at_which_a_step_ended() -> None:
    """And since one object group needs all chunks, a gap ends what is served; with a budget of N
    there is none.
    """
    for budget, expected in ((48, 0), (16, 64)):
        assert hits(replayed("full-mamba", 65, max_num_batched_tokens=budget))[-1][2] == expected


def test_groups_apart_serve_across_boundaries_without_a_state() -> None:
    assert hits(replayed("full-mamba", 65, max_num_batched_tokens=48, **APART))[-1][2] == 64


def test_reset_of_the_local_cache_leaves_lmcache_intact() -> None:
    """Document, Verifying Correctness, step 2 and 3: missed on the device, served by the tier."""
    result = replayed("full-swa-mamba", 70, **APART)
    assert result.findings == [] and hits(result) == [("a", 0, 0, "local"), ("b", 64, 64, "cpu")]


def test_reset_of_the_external_cache_forgets() -> None:
    """What `reset_external=true` would do."""
    s = script("full-mamba", APART)
    s.serve("a", "doc:70")
    s.reset()
    s.serve("b", "doc:70")
    trace = s.trace()
    result = drive(trace, engine(trace))
    assert hits(result)[-1] == ("b", 0, 0, "local")
    assert [(e.tier, e.ok) for e in result.history.events if isinstance(e, ResetDone)] == [
        ("local", True),
        ("cpu", True),
    ]


def test_new_weights_end_every_key() -> None:
    """Our choice."""
    s = script("full", {})
    s.serve("a", "doc:70")
    s.update_weights(1)
    s.serve("b", "doc:70")
    trace = s.trace()
    result = drive(trace, engine(trace))
    assert result.findings == [] and hits(result)[-1][2] == 0


def test_generated_tokens_come_back_only_if_they_were_stored() -> None:
    """`save_decode_cache`: a prompt of 20 and 30 tokens generated, asked for as a prompt of 51."""
    for save, expected in ((False, 16), (True, 48)):
        s = script("full-mamba", {**APART, "save_decode_cache": save})
        s.serve("a", "doc:20", decode=31)
        s.reset(tier="local")
        s.serve("b", "doc:20 @a:30 more:1")
        trace = s.trace()
        result = drive(trace, engine(trace))
        assert result.findings == [] and hits(result)[-1][2] == expected


def test_a_whole_prompt_is_hit_but_its_last_token() -> None:
    """Without states: 64 reported, resumed at 63, the last token written again into the block
    that was loaded.
    """
    result = replayed("full-swa", 64, **APART)
    assert result.findings == [] and hits(result)[-1] == ("b", 64, 63, "cpu")


def test_with_states_the_chunk_of_the_last_token_is_left_out() -> None:
    result = replayed("full-mamba", 64, **APART)
    assert result.findings == [] and hits(result)[-1] == ("b", 48, 48, "cpu")


@pytest.mark.parametrize("release", ["0.5.3", "0.5.4", "0.5.5"])
def test_without_the_reserve_the_harness_finds_the_state_one_token_ahead(release: str) -> None:
    """Releases before 0.5.6, on a prompt of whole chunks: the last token is applied twice."""
    options = {**APART, "release": release, "max_num_batched_tokens": 16}
    result = replayed("full-mamba", 64, **options)
    assert {finding.anomaly for finding in result.findings} == {"state-position-skew"}
    assert replayed("full-mamba", 65, **options).findings == []


def test_the_released_null_mask_is_found() -> None:
    """Left out only where all blocks are null, a chunk is stored beside a state that was never
    written.
    """
    s = script("full-mamba", {"max_num_batched_tokens": 48})
    s.serve("a", "doc:65")
    trace = s.trace()
    opened = engine(trace)
    server = opened.adapter.connector.lmcache.server
    server._has_content = lambda blocks: any(block.block_id for block in blocks)  # type: ignore[method-assign]
    assert "fabricated-snapshot" in {finding.anomaly for finding in drive(trace, opened).findings}


@pytest.mark.parametrize(
    ("layout", "windows"),
    [
        ("gemma-3-27b", [4, -1]),
        ("gemma-4-31b", [4, -1]),
        ("gpt-oss-20b", [1, -1]),
        ("deepseek-v4-flash", [1, -1]),
        ("glm-5.1", [-1]),
        ("glm-5.2", [-1]),
        ("gemma-2-9b", [16, -1]),
        ("gpt-oss-120b", [1, -1]),
        ("llama-3.1-8b", [-1]),
        ("llama-4-scout", [-1]),
        ("mistral-7b-v0.2", [-1]),
        ("qwen3-4b", [-1]),
    ],
)
def test_validated_attention_models_need_no_configuration(layout: str, windows: list[int]) -> None:
    """Document: they are detected at registration, with the default chunk of 256; windows of
    1024 are 4 chunks, of 128 one.
    """
    infos = create_engine_group_infos(layer_specs(layouts.load(layout)))
    assert KVLayerGroups(infos, DEFAULT_CHUNK_SIZE, separate_object_groups=True).windows == windows


@pytest.mark.parametrize("layout", ["qwen3.5-0.8b", "qwen3.6-27b", "qwen3-next-80b-a3b"])
def test_validated_recurrent_models_need_their_n_as_chunk(layout: str) -> None:
    """Document: chunk N or a multiple; with the default chunk registration fails."""
    groups = layouts.load(layout).groups
    infos = create_engine_group_infos(layer_specs(layouts.load(layout)))
    for chunk in (groups[0].block_size, 2 * groups[0].block_size):
        assert KVLayerGroups(infos, chunk, separate_object_groups=True).windows == [1, -1]
    with pytest.raises(RegistrationError, match="must be a multiple of tokens_per_block"):
        KVLayerGroups(infos, DEFAULT_CHUNK_SIZE, separate_object_groups=True)


# --- the floor ------------------------------------------------------------------------------------


def test_a_look_up_that_finds_less_than_the_tier_holds_is_a_lost_hit() -> None:
    """The declared latitude is exact: one chunk less is found."""
    s = script("full-mamba", {**APART, "max_num_batched_tokens": 16})
    s.serve("a", "doc:65")
    s.reset(tier="local")
    s.serve("b", "doc:65")
    trace = s.trace()
    opened = engine(trace)
    server = opened.adapter.connector.lmcache.server
    lookup = server.lookup
    server.lookup = lambda r, tokens, count: lookup(r, tokens, count - 16)  # type: ignore[method-assign,assignment]
    assert [finding.anomaly for finding in drive(trace, opened).findings] == ["lost-hit"]


def test_what_device_and_tier_hold_only_together_is_within_the_latitude() -> None:
    """The tier has lost its attention and the device its states: a tier that completes pages
    would serve, this one may not.
    """
    s = script("full-mamba", {**APART, "max_num_batched_tokens": 16, "retention_interval": 0})
    s.serve("a", "doc:81")
    s.serve("b", "doc:49 b:5")
    trace = s.trace()
    opened = engine(trace)
    submits = [index for index, op in enumerate(trace.ops) if getattr(op, "r", "") == "b"]
    first = trace.with_ops(trace.ops[: submits[0]])
    apply = opened.apply
    server = opened.adapter.connector.lmcache.server
    done = Counter[str]()

    def losing(op: Any) -> list[Event]:
        done["ops"] += 1
        events = apply(op)
        if done["ops"] == len(first.ops):
            attention = [key for key in server.l1.objects if key.object_group_id == 0]
            server.l1.delete(attention)
            events += opened.adapter.connector.store.changes(opened.diff.step, "evict")
        return events

    opened.apply = losing  # type: ignore[method-assign]
    result = drive(trace, opened)
    floor = next(tally for tally in result.tallies if tally.checker == "reuse-floor")
    others = [
        finding for finding in result.findings if finding.checker != "eviction"
    ]  # which sees what is deleted above
    assert (others, floor.acceptable) == ([], 1)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "options", "text"),
    [
        (
            "full",
            {"chunk_size": 24},
            "lmcache_tokens_per_chunk 24 must be a multiple of tokens_per_block 16",
        ),
        ("full", {"chunk_size": 0}, "'chunk_size' (0) must be a positive whole number"),
        ("full", {"tier_pages": 0}, "'tier_pages' (0) must be a positive whole number"),
        ("full", {"trigger_watermark": 2}, "'trigger_watermark' (2) must be in (0, 1]"),
        ("full", {"eviction_ratio": 0}, "'eviction_ratio' (0) must be in (0, 1]"),
        ("full", {"save_decode_cache": "yes"}, "'save_decode_cache' cannot be 'yes'"),
        ("full", {"release": "0.1"}, "LMCache '0.1' is unknown"),
        ("full", {"release": "0.5.0", **APART}, "has no such flag; it came with 0.5.1"),
        ("full", {"vllm_release": "0.1"}, "release '0.1' is unknown"),
        ("full", {"nonsense": 1}, "option 'nonsense' is unknown"),
        (
            "full-mamba",
            {"max_num_batched_tokens": 15},
            "Set --max-num-batched-tokens to at least 16.",
        ),
        ("full-mamba", {"release": "0.5.3", "max_num_batched_tokens": 32}, "< 2 * block_size"),
        (
            "full-mamba",
            {"release": "0.5.4", "vllm_release": "0.30", "mamba_cache_mode": "all"},
            "mamba_cache_mode='all' (only 'align' keeps reusable state snapshots)",
        ),
        ("full-mamba", {"hash_block_size": 4}, "hits inside a block are not in this specification"),
        (
            "full-mamba",
            {"use_eagle": True},
            "'use_eagle' and 'pages_per_snapshot' are not in this specification",
        ),
        (
            "full-mamba",
            {"save_decode_cache": True, "num_speculative_tokens": 3},
            "'save_decode_cache'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    layout: str, options: dict[str, Any], text: str
) -> None:
    trace = script(layout, options).trace()
    with pytest.raises(UsageError) as caught:
        open_engine(trace.header, {})
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_mode_all_is_served_since_0_5_5() -> None:
    """A state at every block boundary, whatever the steps: every chunk is servable."""
    options = {
        **APART,
        "release": "0.5.6",
        "vllm_release": "0.30",
        "mamba_cache_mode": "all",
        "max_num_batched_tokens": 64,
    }
    result = replayed("full-mamba", 65, **options)
    assert result.findings == [] and hits(result)[-1][2] == 64
    assert found_in_tier(result.history.events, 3) == [16, 32, 48, 64]


def test_without_prefix_caching_nothing_is_behind_the_scheduler() -> None:
    s = script("full", {"enable_caching": False})
    s.serve("a", "doc:64")
    s.serve("b", "doc:64")
    trace = s.trace()
    result = drive(trace, open_engine(trace.header, {}))
    assert result.findings == [] and [hit[2] for hit in hits(result)] == [0, 0]
    assert not any(event.stores for event in result.history.events if isinstance(event, StepBegin))


def test_a_salt_that_a_key_cannot_carry_is_refused_in_one_line() -> None:
    s = script("full", {})
    s.serve("a", "doc:20", salt="a/b")
    trace = s.trace()
    with pytest.raises(UsageError, match="request 'a': ") as refused:
        drive(trace, engine(trace))
    assert "\n" not in str(refused.value)


def test_a_reset_waits_for_a_step_in_flight_that_stores() -> None:
    """What a step stores is found when it has run; after a reset that had succeeded it would be
    found all the same.
    """
    s = script("full-mamba", {**APART, "async_depth": 1})
    s.submit("a", "doc:16")
    s.step(("a", 16))
    s.reset(running=True, tier="local")
    s.step(("a", 16))
    s.reset(running=True, tier="cpu")
    s.submit("b", "doc:17")
    s.prefill("b", 16)
    trace = s.trace()
    assert drive(trace, engine(trace)).findings == []
