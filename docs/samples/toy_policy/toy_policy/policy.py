"""Registers the policy: how it is opened and configured, one seeded fault, a plan, and a question for test vectors."""

from collections.abc import Mapping
from typing import Any

import click

from cachewitness.core.events import Eviction
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import full_attention
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import mutant
from cachewitness.engines.policy import AXES, PolicyKind, Rule
from cachewitness.plan import options
from cachewitness.plan.result import Plan
from cachewitness.vectors.case import Questions
from cachewitness.vectors.form import Flag
from cachewitness.vectors.scripts import replays
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from toy_policy.cache import PagedCache
from toy_policy.engine import ToyAdapter

NAME = "toy_policy"


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the engine for a trace."""
    described = full_attention.describe(header, NAME, Eviction("lru"))
    size = described.groups[0].block_size
    return Driver(described, ToyAdapter(PagedCache(header.pages, size), header.pages * size))


def configurations() -> list[Configuration]:
    """Return the configurations of a run in which the user chose nothing."""
    return [Configuration(layouts.load("full"), {}, NAME)]


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
@click.option("--tokens", type=options.SIZE, required=True, help="Tokens of a sequence.")
@options.as_json
def plan(tokens: int, as_json: bool) -> None:
    """Count the blocks of 16 tokens that a sequence takes."""
    answer = Plan(NAME, "1")
    answer.add("blocks", -(-tokens // 16), f"ceil({tokens} / 16)")
    options.show(answer, as_json=as_json)


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
    not_applicable=full_attention.NO_STATES,
    plan=lambda: plan,
)
MUTANTS = (salt_left_out,)
QUESTIONS = Questions(
    {"lifecycle": lambda: replays(*configurations(), "manager", (16, 17), ["last-token"])},
    {"last-token": Flag("a whole prompt is taken from the cache")},
)
