"""Metamorphic relations on the reference of every policy, and a violation that each of them
catches.

Where a relation does not hold of a configuration, the reason stands beside what is left out.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core import operation_check as what_was_asked
from cachewitness.core.engine import Engine
from cachewitness.core.events import Event, Header, Hit
from cachewitness.core.trace_format import (
    Finish,
    Level,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
    length_of,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.metamorphic import (
    Open,
    capacity_never_lowers_a_hit,
    interleaved,
    names_do_not_matter,
    order_does_not_matter,
    repeats,
    run,
    served_in_turn,
    sparser_adds_nothing,
    splits_agree,
)
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios.shape import Shape
from suites.support.sampled import fewer, sampled

REFERENCE = parse("reference").open
OPERATIONS = 25
EVERYWHERE = [
    (policy, level) for policy in policies.names() for level in policies.get(policy).levels
]
HYBRID = Shape(policies.get("vllm").configurations()[7].layout, {"retention_interval": None})
ROOMY: Mapping[str, dict[str, Any]] = {
    "tensorrt_edge": {"system_prompts": 16, "max_batch_size": 8},
    "lmcache": {"tier_pages": 1024},
}
"""Options that give each policy room for everything that a test runs; the pool is not all of it."""
INTERVALS: Mapping[str, tuple[str, list[tuple[int | None, int | None]]]] = {
    "vllm": ("retention_interval", [(None, 0), (None, 1), (1, 2), (2, 4), (4, 0)]),
    "lmcache": ("retention_interval", [(None, 0), (None, 1), (1, 2), (2, 4), (4, 0)]),
    "openvino_genai": ("cache_interval_multiplier", [(1, 2), (2, 4)]),
}
"""By policy, the option that thins states out and pairs of a denser and a sparser value; vLLM's in
scheduler blocks."""


def configurations(policy: str, level: Level, first: int = 0) -> list[Configuration]:
    """Return some configurations of a policy, other ones for each relation."""
    return sampled(
        [one for one in policies.get(policy).configurations() if one.runs_at(level)], 8, first
    )


def traces(
    policy: str, level: Level, first: int = 0
) -> Iterator[tuple[Configuration, Shape, Trace]]:
    """Yield a random trace for each of these configurations."""
    for seed, configuration in enumerate(configurations(policy, level, first)):
        shape = configuration.shape(level)
        yield configuration, shape, random_trace(shape, seed, withdraw=False, operations=OPERATIONS)


def roomy(trace: Trace, shape: Shape, policy: str) -> Trace:
    """Return the trace with room for several of the longest requests, in whatever the policy has
    to keep them.
    """
    options = trace.header.options | ROOMY.get(policy, {})
    pages = 8 * shape.pages(12 * shape.unit) + 1
    return Trace(
        msgspec.structs.replace(trace.header, pages=pages, options=options, needs=[]), trace.ops
    )


def longest(trace: Trace) -> int:
    return max(length_of(op.prompt) for op in trace.ops if isinstance(op, Submit))


def empty(shape: Shape, policy: str = "vllm") -> Trace:
    header = TraceHeader(
        "made", shape.layout, 1, level=shape.level, policy=policy, options=dict(shape.options)
    )
    return roomy(Trace(header, []), shape, policy)


class Doctored:
    """An engine whose operations are changed on the way to it."""

    def __init__(self, engine: Engine, change: Callable[[Op], Op]) -> None:
        self._engine = engine
        self._change = change

    def describe(self) -> Header:
        return self._engine.describe()

    def apply(self, op: Op) -> list[Event]:
        return self._engine.apply(self._change(op))

    def close(self) -> None:
        self._engine.close()


def doctored(change: Callable[[], Callable[[Op], Op]]) -> Open:
    """Return what builds references that are asked other operations; `change` is made anew for
    each.
    """
    return lambda header: Doctored(REFERENCE(header), change())


@pytest.fixture(autouse=True)
def nobody_compares_what_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a doctored engine report the requests that it was asked for, which are not those of
    the trace.
    """
    monkeypatch.setattr(what_was_asked, "check_submit", lambda op, submits: None)
    monkeypatch.setattr(what_was_asked.Texts, "submit", lambda self, op, tokens: None)
    monkeypatch.setattr(what_was_asked.Texts, "accept", lambda self, event: None)


def salted(op: Op) -> Op:
    return msgspec.structs.replace(op, salt="odd") if isinstance(op, Submit) else op


def every_other() -> Callable[[Op], Op]:
    """Return what salts every other request."""
    submits = count()
    return lambda op: salted(op) if isinstance(op, Submit) and next(submits) % 2 else op


# --- splits ---------------------------------------------------------------------------------------


def split_lengths(tokens: int, unit: int, source: random.Random) -> list[int]:
    """Return chunks that cover a prompt, and some steps more: an engine may stop at boundaries
    before it was asked to.
    """
    chunks = []
    left = tokens
    while left > 0:
        chunks.append(min(left, source.choice((unit, 2 * unit, unit - 1, unit + 1, 3))))
        left -= chunks[-1]
    return [*chunks, *[tokens] * 3]


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
def test_splits_of_a_prompt_publish_the_same_keys_at_common_boundaries(
    policy: str, level: Level
) -> None:
    source = random.Random(1)
    for configuration in configurations(policy, level, first=1):
        shape = configuration.shape(level)
        tokens = shape.unit * source.randint(2, 6) + source.choice((-1, 0, 1))
        submit = Submit("r1", f"A:{tokens // 2} B:{tokens - tokens // 2}")
        trace = empty(shape, policy)
        for _ in range(3):
            split = split_lengths(tokens, shape.unit, source)
            assert splits_agree(REFERENCE, trace, submit, [tokens] * 4, split) == [], (
                configuration.name,
                split,
            )


class Moody:
    """An engine that keeps every boundary if its first chunk is short, and else only those that
    are reachable.
    """

    def __init__(self, header: TraceHeader) -> None:
        sparse = msgspec.structs.replace(header, options=header.options | {"retention_interval": 0})
        self._engines = [REFERENCE(header), REFERENCE(sparse)]

    def describe(self) -> Header:
        described = self._engines[0].describe()
        denied = {"keys": "the sparse one keys fewer blocks than the header says"}
        return msgspec.structs.replace(described, not_applicable=denied)

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Step) and len(self._engines) > 1:
            self._engines = self._engines[1:] if op.run[0][1] > 32 else self._engines[:1]
        events = [engine.apply(op) for engine in self._engines]
        return events[0]

    def close(self) -> None:
        pass


def test_a_key_that_only_one_split_publishes_is_a_difference() -> None:
    trace = empty(HYBRID)
    submit = Submit("r1", "A:64")
    assert splits_agree(REFERENCE, trace, submit, [64] * 2, [32, 32]) == []
    assert splits_agree(Moody, trace, submit, [64] * 2, [32, 32]) != []


# --- capacity -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "level"), [place for place in EVERYWHERE if place[0] != "furiosa"]
)
def test_capacity_never_lowers_a_hit_on_attention(policy: str, level: Level) -> None:
    """Left out: windows and states (so all of Furiosa-LLM), where a longer hit leaves less
    behind.
    """
    hits = 0
    for configuration, shape, trace in traces(policy, level):
        if any(group.kind != "full" for group in configuration.layout.groups):
            continue
        pages = shape.pages(longest(trace) + shape.unit) + 2
        served = served_in_turn(trace, pages, shape.unit)
        for more in (pages + 1, pages * 2, pages * 10):
            assert capacity_never_lowers_a_hit(REFERENCE, served, more) == [], (
                configuration.name,
                pages,
                more,
            )
        hits += sum(
            isinstance(event, Hit) and event.resume > 0 for event in run(REFERENCE, served).events
        )
    assert hits > 0


def test_a_hit_that_more_capacity_shortens_is_a_difference() -> None:
    def shorter(header: TraceHeader) -> Engine:
        return doctored(every_other)(header) if header.pages > 40 else REFERENCE(header)

    trace = Trace(
        TraceHeader("two", HYBRID.layout, 40, options={"retention_interval": None}),
        [Submit("r1", "A:40")],
    )
    served = served_in_turn(trace.with_ops([*trace.ops, Submit("r2", "A:40 B:8")]), 40, 16)
    assert capacity_never_lowers_a_hit(REFERENCE, served, 400) == []
    assert capacity_never_lowers_a_hit(shorter, served, 400) == [
        "r2 resumes at 32 with 40 pages, at 0 with 400"
    ]


# --- names, order, repetition ---------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
def test_names_of_requests_change_nothing(policy: str, level: Level) -> None:
    """The new names are ordered the other way round."""
    for configuration, _, trace in traces(policy, level, first=2):
        assert names_do_not_matter(REFERENCE, trace, backwards(trace)) == [], configuration.name


def backwards(trace: Trace) -> dict[str, str]:
    requests = [op.r for op in trace.ops if isinstance(op, Submit)]
    return {r: f"n{len(requests) - index:03}" for index, r in enumerate(requests)}


def test_a_name_that_matters_is_a_difference() -> None:
    trace = random_trace(HYBRID, 0, withdraw=False)
    by_name = doctored(lambda: lambda op: salted(op) if getattr(op, "r", "") == "n001" else op)
    assert names_do_not_matter(REFERENCE, trace, backwards(trace)) == []
    assert names_do_not_matter(by_name, trace, backwards(trace)) != []


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
def test_the_order_of_requests_that_share_nothing_changes_nothing(
    policy: str, level: Level
) -> None:
    """Left out: budgets that requests share, a batch that waits for its slowest, and states
    without a cache, which are few.
    """
    ran = 0
    for seed, configuration in enumerate(configurations(policy, level, first=1)):
        options = configuration.options
        if "max_num_batched_tokens" in options or options.get("joining") == "static":
            continue
        trace = empty(configuration.shape(level), policy)
        mixed = [
            interleaved(trace, lives(configuration.shape(level), random.Random(seed)), order)
            for order in range(3)
        ]
        for other in mixed[1:]:
            assert order_does_not_matter(REFERENCE, mixed[0], other) == [], configuration.name
            ran += 1
    assert ran > 0


def lives(shape: Shape, source: random.Random) -> list[list[Op]]:
    """Return the lives of three clients that share nothing; at manager level each comes again
    and goes on.
    """
    clients: list[list[Op]] = []
    for client in "abc":
        tokens = shape.unit * source.randint(1, 4) + source.choice((-1, 0, 1))
        clients.append(_life(f"{client}1", f"{client}:{tokens}", tokens))
        if shape.level == "manager":
            clients[-1] += _life(f"{client}2", f"{client}:{tokens} more{client}:3", tokens + 3)
    return clients


def _life(r: str, prompt: str, tokens: int) -> list[Op]:
    return [Submit(r, prompt), *[Step(run=[(r, tokens)])] * 4, Finish(r)]


def test_an_order_that_matters_is_a_difference() -> None:
    """Whether a client finds what it said depends on who else came in between."""
    clients = lives(HYBRID, random.Random(0))
    orders = [interleaved(empty(HYBRID), clients, order) for order in range(5)]
    assert all(order_does_not_matter(REFERENCE, orders[0], other) == [] for other in orders)
    assert any(order_does_not_matter(doctored(every_other), orders[0], other) for other in orders)


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
def test_a_trace_repeats_its_history(policy: str, level: Level) -> None:
    for configuration, _, trace in traces(policy, level):
        assert repeats(REFERENCE, trace) == [], configuration.name


def test_a_history_that_does_not_repeat_is_a_difference() -> None:
    opened = count()
    trace = random_trace(HYBRID, 0, withdraw=False)
    assert repeats(REFERENCE, trace) == []
    assert (
        repeats(
            lambda header: Doctored(
                REFERENCE(header), salted if next(opened) % 2 else lambda op: op
            ),
            trace,
        )
        != []
    )


_DIGEST = """
import sys, hashlib
from cachewitness.engines.registry import parse
from cachewitness.core.driving import drive
from cachewitness.workloads.generate import random_trace
from cachewitness.engines import policy as policies
from cachewitness.core import stored as history
for policy in policies.names():
    for cell in policies.get(policy).configurations()[:: int(sys.argv[1])]:
        if cell.runs_at("scheduler"):
            trace = random_trace(cell.shape("scheduler"), 1, withdraw=False, operations=40)
            happened = drive(trace, parse("reference").open(trace.header)).history
            print(policy, cell.name, hashlib.sha256(b"".join(history.dump(happened))).hexdigest())
"""


def test_histories_do_not_depend_on_how_python_hashes_texts() -> None:
    """Two processes with other seeds of `hash` say the same of configurations of every policy."""
    every = fewer(1, 6)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _DIGEST, str(every)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0]) * every > 50


# --- retention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", INTERVALS)
def test_a_larger_interval_never_adds_a_key(policy: str) -> None:
    """Of several requests where no shared-prefix boundary is kept, and of every request by
    itself.
    """
    level: Level = "scheduler"
    ran = 0
    for configuration, shape, trace in traces(policy, level, first=1):
        option, pairs = INTERVALS[policy]
        if not (
            option in configuration.options
            or (policy == "openvino_genai" and shape.has("recurrent"))
        ):
            continue
        together = served_in_turn(
            roomy(trace, shape, policy), roomy(trace, shape, policy).header.pages, shape.unit
        )
        if policy == "vllm":
            together = Trace(
                msgspec.structs.replace(
                    together.header,
                    options=together.header.options | {"pin_shared_prefix_boundary": False},
                ),
                together.ops,
            )
        alone = [
            together.with_ops(_without_others(together, op.r))
            for op in together.ops
            if isinstance(op, Submit)
        ]
        unit = 1 if policy == "openvino_genai" else shape.unit
        for dense, sparse in pairs:
            values = [value and value * unit for value in (dense, sparse)]
            for asked in (together, *alone[:3]):
                assert sparser_adds_nothing(REFERENCE, asked, option, *values) == [], (
                    configuration.name,
                    dense,
                    sparse,
                )
                ran += 1
    assert ran > 0


def _without_others(trace: Trace, r: str) -> list[Op]:
    ops = trace.ops
    first = next(index for index, op in enumerate(ops) if isinstance(op, Submit) and op.r == r)
    last = next(index for index, op in enumerate(ops) if isinstance(op, Finish) and op.r == r)
    return ops[first : last + 1]


def test_a_key_that_a_larger_interval_adds_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is dense where it was asked to keep reachable boundaries alone, and is not
    refused for what it declares.
    """
    monkeypatch.setattr("cachewitness.core.declared._check_retention", lambda header, trace: None)

    def wrong_way_round(header: TraceHeader) -> Engine:
        interval = None if header.options["retention_interval"] == 0 else 0
        return REFERENCE(
            msgspec.structs.replace(
                header, options=header.options | {"retention_interval": interval}
            )
        )

    trace = served_in_turn(Trace(empty(HYBRID).header, [Submit("r1", "A:80")]), 400, 16)
    assert sparser_adds_nothing(REFERENCE, trace, "retention_interval", None, 0) == []
    different = sparser_adds_nothing(wrong_way_round, trace, "retention_interval", None, 0)
    assert different and "with retention_interval = 0, and none with None" in different[0]


def test_a_run_with_findings_is_not_compared() -> None:
    """What contradicts a rule is told as that, and not as a difference between two runs."""
    faulty = replace(parse("reference"), options={"mutant": "block-leaked"})
    trace = random_trace(HYBRID, 0, withdraw=False)
    with pytest.raises(UsageError, match="runs without findings"):
        run(faulty.open, trace)


@pytest.mark.parametrize("seed", range(fewer(6, 2)))
def test_the_order_of_the_free_queue_decides_victims_alone(seed: int) -> None:
    """While pages are left that were never used, neither order comes to what is cached: they hit
    the same.

    Last in first out evicts at once, however large the pool is.
    """
    hits = []
    for free_list in ("lru", "fifo"):
        shape = replace(HYBRID, options={**HYBRID.options, "free_list": free_list})
        trace = random_trace(shape, seed, withdraw=True, operations=3 * OPERATIONS)
        roomy = Trace(msgspec.structs.replace(trace.header, pages=4000), trace.ops)
        events = run(REFERENCE, roomy).events
        hits.append([(event.r, event.resume) for event in events if isinstance(event, Hit)])
    assert hits[0] == hits[1] and any(resume for _, resume in hits[0])
