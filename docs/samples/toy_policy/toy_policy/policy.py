"""Registers the policy: how it is opened and configured, one seeded fault, a plan, and a question
for test vectors.
"""

from collections.abc import Mapping
from typing import Any

import click

from cachewitness import (
    AXES,
    NO_STATES,
    Configuration,
    Driver,
    Eviction,
    Flag,
    Plan,
    PolicyKind,
    Questions,
    Rule,
    Sizing,
    TraceHeader,
    Unkeyed,
    describe_full_attention,
    load_layout,
    mutant,
    plan_as_json,
    replay_cases,
    show_plan,
    wrap,
)
from toy_policy.cache import PagedCache
from toy_policy.engine import ToyAdapter

NAME = "toy_policy"


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the engine for a trace."""
    unkeyed = Unkeyed(duplicates=True)  # of two pages with one prefix, one has the key
    described = describe_full_attention(header, NAME, Eviction("lru"), unkeyed=unkeyed)
    size = described.groups[0].block_size
    return Driver(described, ToyAdapter(PagedCache(header.pages, size), header.pages * size))


def configurations() -> list[Configuration]:
    """Return the configurations of a run in which the user chose nothing."""
    return [Configuration(load_layout("full"), {}, NAME)]


@mutant(
    name="toy-salt-left-out",
    mirrors="vllm-project/vllm#3263",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=(NAME,),
)
def salt_left_out(engine: Any) -> None:
    """A key does not say whose prefix it is."""
    wrap(engine.adapter.cache, "key", lambda key, *asked: key(*asked)[1:])


@click.command(NAME)
@click.option("--tokens", type=click.IntRange(min=1), required=True, help="Tokens of a sequence.")
@plan_as_json
def plan(tokens: int, as_json: bool) -> None:
    """Count the blocks of 16 tokens that a sequence takes."""
    answer = Plan(NAME, "1")
    answer.add("blocks", -(-tokens // 16), f"ceil({tokens} / 16)")
    show_plan(answer, as_json=as_json)


POLICY = PolicyKind(
    name=NAME,
    summary="a paged prefix cache with full attention",
    source="docs/samples/toy_policy",
    pinned="1",
    releases=("1",),
    rules=[Rule("lru", "The block that was given back first is evicted first.")],
    axes=dict.fromkeys(AXES, "plain"),
    open=open_engine,
    configurations=configurations,
    not_applicable=NO_STATES,
    sizing=Sizing(lambda: plan),
)
MUTANTS = (salt_left_out,)
QUESTIONS = Questions(
    {"lifecycle": lambda: replay_cases(*configurations(), "manager", (16, 17), ["last-token"])},
    {"last-token": Flag("a whole prompt is taken from the cache")},
)
