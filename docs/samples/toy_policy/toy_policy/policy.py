"""Registers the policy: how it is opened and configured, one seeded fault, a plan, and two questions for test vectors."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from harness._util.errors import UsageError
from harness.engines.adapter import CAPABILITIES
from harness.engines.driver import Driver
from harness.engines.fault_tools import wrap
from harness.engines.mutant import mutant
from harness.engines.policy import AXES, PolicyKind, Rule, served_plainly
from harness.history.events import Eviction, Group, Header, Pool, Rules
from harness.plan import options
from harness.plan.result import Plan
from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.trace.format import GroupSpec, TraceHeader
from harness.vectors.case import Case, Questions, case
from harness.vectors.form import Flag, LookupExpected, LookupInput
from toy_policy.cache import PagedCache, Request
from toy_policy.engine import ToyAdapter

NAME = "toy_policy"
NOT_APPLICABLE = {
    "no-fabricated-snapshots": "no recurrent state",
    "replay-boundary-retained": "nothing is thinned out: what is cached goes when its memory is needed",
    "interval-sparsity": "there is no retention interval",
}


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the engine for a trace. Raises UsageError for a layout that it does not have."""
    if [group.kind for group in header.layout.groups] != ["full"]:
        raise UsageError(f"layout {header.layout.name!r}: {NAME} has one group of full attention")
    size = header.layout.groups[0].block_size
    pool, group = Pool(id=0, pages=header.pages, eviction=Eviction("lru")), Group(id=0, kind="full", block_size=size, pool=0)
    described = Header("reference", header.height, [pool], [group], Rules(alignment=size), CAPABILITIES, NOT_APPLICABLE)
    return Driver(described, ToyAdapter(PagedCache(header.pages, size), header.pages * size))


def configurations() -> list[Configuration]:
    """Return the configurations of a run: long blocks and short ones."""
    full = layouts.load("full")
    small = replace(full, name="full-4", groups=[GroupSpec(kind="full", block_size=4)])
    return [Configuration(full, {}, NAME), Configuration(small, {}, NAME)]


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
    wrap(engine.adapter.cache, "key", lambda key, *asked: ((), key(*asked)[1]))


@click.command(NAME)
@click.option("--tokens", type=options.SIZE, required=True, help="Tokens of a sequence.")
@click.option("--block-size", type=options.SIZE, default=16, show_default=True, help="Tokens in a block.")
@options.as_json
def plan(tokens: int, block_size: int, as_json: bool) -> None:
    """Count the blocks of a sequence."""
    answer = Plan(NAME, "1")
    answer.add("blocks", -(-tokens // block_size), f"ceil({tokens} / {block_size})")
    options.show(answer, as_json=as_json)


def look_up(question: LookupInput) -> LookupExpected:
    """Answer a question with the cache's own look-up."""
    cache, request = PagedCache(64, question.groups[0].block_size), Request(list(range(question.tokens)))
    cache.pages = {cache.key(request, length): length for length in question.cached[0]}
    return LookupExpected(len(cache.lookup(request)) * cache.block_size)


def cases() -> list[Case]:
    """Ask at a block boundary and one token behind it."""
    groups = [GroupSpec(kind="full", block_size=16)]
    return [
        case("lookup", f"{tokens}-of-48", why, "last-token", LookupInput(groups, tokens, [[16, 32, 48]]))
        for tokens, why in ((48, "all is cached: one block is computed again"), (49, "one token is left"))
    ]


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
    cold_configurations=configurations,
    serve=partial(served_plainly, NAME),
    not_applicable=NOT_APPLICABLE,
    mutants=lambda: (salt_left_out,),
    plan=lambda: plan,
    questions=lambda: Questions(
        {"lookup": cases}, {"last-token": Flag("a whole prompt is taken from the cache")}, lambda options: {"lookup": look_up}
    ),
)
