"""What is drawn for vLLM's scheduler beside what is drawn for its policy: every option of special
requests, what the reference refuses, and nothing that vLLM is not driven with.
"""

from __future__ import annotations

from functools import cache

import pytest

from cachewitness.cli.fuzz import plan_of
from cachewitness.core.trace_format import Level
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.draw import draw
from cachewitness.systems.vllm.connectors.build import KINDS
from cachewitness.systems.vllm.request_options import NAMES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Seeded


@cache
def drawn(name: str = "vllm", level: Level = "scheduler", count: int = 300) -> list[Configuration]:
    """Return what a campaign draws for an engine at a level."""
    engine = parse(name)
    chosen = plan_of(engine, "vllm", (), (), seed=0).chosen
    return [draw(Seeded(number), "vllm", level, chosen, engine) for number in range(count)]


def test_every_option_of_special_requests_is_drawn_one_or_two_at_a_time() -> None:
    counts = {name: sum(name in one.options for one in drawn()) for name in NAMES}
    rare = {"prefill_checkpoints": 4, "shared_prefix_checkpoints": 0}
    assert all(count > rare.get(name, 15) for name, count in counts.items()), counts
    assert max(sum(name in one.options for name in NAMES) for one in drawn()) == 2
    below = drawn(level="manager", count=60)
    assert not any(name in one.options for one in below for name in NAMES)


def test_what_the_reference_refuses_is_drawn_too() -> None:
    """Drafts in steps in flight, chunked attention, hits inside a block over a connector's
    memory.
    """
    assert any(one.options.keys() >= {"num_speculative_tokens", "async_depth"} for one in drawn())
    chunked = [group for one in drawn() for group in one.layout.groups if group.kind == "chunked"]
    assert chunked and all(group.chunk % group.block_size == 0 for group in chunked)
    behind = drawn("vllm:connector=offloading", count=60)
    assert any(one.options.keys() >= {"tier_pages", "hash_block_size"} for one in behind)


def test_requests_are_special_where_the_user_asks_for_it() -> None:
    """The user's options stay, at scheduler level alone, and so does their layout."""
    asked = ["sessions=true", "scheduling_policy=priority", "async_depth=1"]
    engine = parse("vllm")
    plan = plan_of(engine, "vllm", ["full-mamba"], asked, seed=3)
    fields = set()
    for configuration, trace in (plan.draw(number, engine) for number in range(6)):
        assert trace.header.level == "scheduler"
        assert configuration.layout.name == "full-mamba"
        assert (configuration.options["sessions"], configuration.options["async_depth"]) == (
            True,
            1,
        )
        fields |= {
            name for op in trace.ops for name in ("session", "priority") if getattr(op, name, 0)
        }
    assert fields == {"session", "priority"}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_sessions_are_drawn_behind_a_connector_and_a_tier_nowhere_else(name: str) -> None:
    behind = drawn(f"vllm:connector={name}", count=60)
    untried = name.startswith(("example", "lmcache"))
    assert untried is not any("sessions" in one.options for one in behind)
    assert any("tier_pages" in one.options for one in behind)
    assert all(one.options.get("enable_caching", True) for one in behind)


def test_nothing_is_drawn_that_vllm_has_not() -> None:
    assert not any({"tier_pages", "pages_per_snapshot"} & one.options.keys() for one in drawn())
    sessions = [one for one in drawn() if "sessions" in one.options]
    assert sessions and not any(
        (one.options.get("num_speculative_tokens") or one.options.get("use_eagle"))
        and any(group.kind == "recurrent" for group in one.layout.groups)
        for one in sessions
    )


def test_the_reference_is_never_asked_for_an_engine_s_own_options() -> None:
    """The self-test of a campaign on vLLM runs what the plan draws for the reference."""
    plan = plan_of(parse("vllm"), "vllm", (), ["sessions=true"], seed=78)
    for number in range(12):
        configuration, trace = plan.draw(number)
        assert not configuration.options.keys() & {*NAMES}
        parse("reference").open(trace.header).close()
