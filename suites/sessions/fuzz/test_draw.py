"""Drawn configurations fit their policy, are the same for the same seed, and leave nothing out
that they are meant to have.
"""

from __future__ import annotations

from collections import Counter
from math import gcd

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Level, Submit, length_of
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.campaign import levels_of
from cachewitness.sessions.fuzz.draw import Restriction, draw
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.systems.vllm.reference.draw import UNIT_MAX
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import SCHEDULER_OPTIONS, Configuration
from cachewitness.workloads.source import Seeded

DRAWS = 400


def _drawn(
    level: Level, chosen: Restriction | None = None, policy: str = "vllm", count: int = DRAWS
) -> list[Configuration]:
    return [
        draw(Seeded(f"{policy}/{n}"), policy, level, chosen or Restriction()) for n in range(count)
    ]


@pytest.mark.parametrize("policy", policies.names())
def test_what_is_drawn_is_accepted(policy: str) -> None:
    """The reference of every policy builds every trace of a plan, at every level that it has."""
    spec = parse("reference")
    plan = Plan(policy, levels_of(spec, policy), Restriction(), seed=1)
    met = set()
    for number in range(40):
        configuration, trace = plan.draw(number)
        spec.open(trace.header).close()
        met.add(trace.header.level)
        assert configuration.policy == trace.header.policy == policy
    assert met == set(levels_of(spec, policy))


@pytest.mark.parametrize("policy", policies.names())
def test_prompts_fit_the_longest_sequence_that_was_chosen(policy: str) -> None:
    """With `--option max_model_len=48` prompts leave a token to generate; chains of blocks,
    which are few, may be refused.
    """
    levels = levels_of(parse("reference"), policy)
    plan = Plan(policy, levels, Restriction(options={"max_model_len": 48}), seed=1)
    lengths = [
        length_of(op.prompt)
        for n in range(20)
        for op in plan.draw(n)[1].ops
        if isinstance(op, Submit)
    ]
    assert (
        sum(length == 47 for length in lengths) > 0
        and sum(length > 47 for length in lengths) < len(lengths) // 20
    )


def test_a_seed_is_a_campaign() -> None:
    """Trace number i depends on the seed and on i alone; another seed or stream gives other
    traces.
    """
    plan = Plan("vllm", ("manager", "scheduler"), Restriction(), seed=5)
    assert [plan.draw(n) for n in range(8)] == [plan.draw(n) for n in (0, 1, 2, 3, 4, 5, 6, 7)]
    others = (
        Plan("vllm", plan.levels, Restriction(), seed=6),
        Plan("vllm", plan.levels, Restriction(), 5, "self_test"),
    )
    assert all(other.draw(0) != plan.draw(0) for other in others)


def test_groups_are_of_every_kind_and_size() -> None:
    """One to four groups, equal and unequal blocks, windows one before, on and one behind a
    boundary.
    """
    groups = [configuration.layout.groups for configuration in _drawn("manager")]
    assert {len(one) for one in groups} == {1, 2, 3, 4}
    assert {group.kind for one in groups for group in one} == {"full", "sliding", "recurrent"}
    unequal = sum(len({group.block_size for group in one}) > 1 for one in groups)
    assert DRAWS // 5 < unequal < DRAWS * 4 // 5
    edges = Counter(
        g.window % g.block_size
        for one in groups
        for g in one
        if g.kind == "sliding" and g.block_size > 2
    )
    assert (
        all(edges[rest] > 10 for rest in (0, 1)) and sum(edges.values()) > edges[0] + edges[1] + 10
    )
    assert (
        max(configuration.shape("manager").unit for configuration in _drawn("manager")) <= UNIT_MAX
    )


def test_options_of_every_kind_are_drawn() -> None:
    """All kinds of retention, hits inside a block, EAGLE, drafts, steps in flight, a tier, large
    snapshots, releases.
    """
    manager = _drawn("manager")
    scheduler = _drawn("scheduler")
    intervals = [
        configuration.options["retention_interval"]
        for configuration in manager
        if "retention_interval" in configuration.options
    ]
    assert None in intervals and 0 in intervals and any(interval for interval in intervals)
    for name in (
        "hash_block_size",
        "use_eagle",
        "pages_per_snapshot",
        "release",
        "watermark",
        "pin_shared_prefix_boundary",
    ):
        assert sum(name in configuration.options for configuration in manager) >= 5, name
    for name in (
        "num_speculative_tokens",
        "async_depth",
        "tier_pages",
        "max_num_seqs",
        "max_num_batched_tokens",
    ):
        assert sum(name in configuration.options for configuration in scheduler) >= 20, name
    assert not any(
        configuration.options.get(name) for configuration in manager for name in SCHEDULER_OPTIONS
    )
    assert {
        configuration.options.get("num_speculative_tokens", 0) for configuration in scheduler
    } == {0, 1, 2, 3, 4, 5}
    assert {configuration.options.get("async_depth", 0) for configuration in scheduler} == {0, 1, 2}


def test_eagle_is_drawn_beside_windows_and_states_where_states_are_as_long_as_hashed_blocks() -> (
    None
):
    """Elsewhere vLLM and its reference keep a state in vain
    (`fixtures/findings/eagle-state-where-no-hit-ends.jsonl`).
    """
    drawn = [one for one in _drawn("scheduler", count=1200) if one.options.get("use_eagle")]
    sizes = [{group.kind: group.block_size for group in one.layout.groups} for one in drawn]
    finest = [
        one.options.get("hash_block_size", gcd(*(group.block_size for group in one.layout.groups)))
        for one in drawn
    ]
    both = [
        (size["recurrent"], fine)
        for size, fine in zip(sizes, finest, strict=True)
        if {"sliding", "recurrent"} <= size.keys()
    ]
    assert len(both) > 5 and all(state == fine for state, fine in both)


def test_what_the_user_chose_is_not_drawn() -> None:
    """Layouts and options stay as they were given; an engine of one release is given no other."""
    layout = layouts.load("full-mamba")
    chosen = Restriction([layout], {"retention_interval": 64, "hash_block_size": 8}, historic=False)
    for configuration in _drawn("scheduler", chosen, count=60):
        assert configuration.layout == layout
        assert (
            configuration.options["retention_interval"],
            configuration.options["hash_block_size"],
        ) == (64, 8)
        assert "release" not in configuration.options
    with pytest.raises(UsageError, match="hash_block_size"):
        draw(Seeded(1), "vllm", "manager", Restriction([layout], {"hash_block_size": 5}))
