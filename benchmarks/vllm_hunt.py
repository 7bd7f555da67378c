"""Faults in a real vLLM's own code against this harness: what kills each, and after how much work.

The workloads are those of every engine, in turn: random traces on every configuration, each
scenario once, the large ones among them, each scenario on every configuration, and what the fuzzer
draws. A kill is the anomaly that the fault names in advance, raised by the checker that it names,
on a trace that the same vLLM passes without the fault. What the lists of the release excuse
(`fixtures/expected`) is no kill: a fault must not hide behind them. Seconds are CPU seconds of this
process from the first operation to the kill, and leave out the import of vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.report.expected import Entry, shipped
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.systems.vllm.configurations import (
    connector_configurations,
    further_configurations,
)
from cachewitness.systems.vllm.reference.policy import (
    default_configurations,
    scheduler_configurations,
)
from cachewitness.systems.vllm.source import load
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import LARGE, SCENARIOS, Scenario, Shape
from cachewitness_faults.vllm.faults import TELL_HITS, needs

ROUNDS = 2
ASKED_FOR = frozenset({"prompt_logprobs"})
"""What a scenario may need beside what every engine can do."""
LARGE_ON = 2
"""On so many configurations the large scenarios come early: a fault that begins with a size need
not show on every one."""
LEAST, MOST = 45_000, 10
"""On a slow machine a hunt goes on for so many operations, within so many times its budget."""


@dataclass(frozen=True)
class Hunt:
    """What came of it: the killing trace's name, None if the fault survived; `others` are
    anomalies found on the way.
    """

    trace: str | None
    operations: int
    traces: int
    seconds: float
    others: tuple[str, ...]
    alarms: tuple[str, ...]


def workloads(level: Level, seed: int = 0, *, large: bool = False) -> Iterator[Trace]:
    """Yield traces without end, none of which withdraws a request.

    A random trace on every configuration; each scenario on one, and `large` ones on several, so
    that none of them waits for another to be through with all; random traces again; then a
    scenario on every one, and so on. After each trace comes what the fuzzer draws.
    """
    shapes = [configuration.shape(level) for configuration in early(_configurations(level))]
    drawn = _drawn(level, seed)
    for number in range(seed * ROUNDS, (seed + 1) * ROUNDS):
        yield from _in_turn(
            (random_trace(shape, number, withdraw=False) for shape in shapes), drawn
        )
        if number % ROUNDS == 0:
            once = [*_stories(), *(LARGE * LARGE_ON if large else ())]
            yield from _in_turn(_each_once(once, shapes), drawn)
    for story in _stories():
        yield from _in_turn((story.trace(shape) for shape in shapes if story.applies(shape)), drawn)
    yield from drawn


def _stories() -> list[Scenario]:
    return [story for story in SCENARIOS if set(story.needs) <= ASKED_FOR]


def _each_once(stories: Sequence[Scenario], shapes: Sequence[Shape]) -> Iterator[Trace]:
    """Yield each scenario once for each time that it is listed, the next one on the next of the
    configurations that it applies to.
    """
    for place, story in enumerate(stories):
        fitting = [shape for shape in shapes if story.applies(shape)]
        if fitting:
            yield story.trace(fitting[place % len(fitting)])


def early(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return configurations in an order in which each option, and each two together, come early:
    what is newest is next.
    """
    left = [*configurations]
    seen = set[frozenset[str]]()
    ordered: list[Configuration] = []
    while left:
        following = max(left, key=lambda configuration: len(_traits(configuration) - seen))
        left.remove(following)
        seen |= _traits(following)
        ordered.append(following)
    return ordered


def _traits(configuration: Configuration) -> set[frozenset[str]]:
    """Return the layout and the options of a configuration, and every two of them."""
    traits = [configuration.layout.name, *configuration.options]
    return {frozenset(pair) for pair in product(traits, traits)}


def behind_a_connector(seed: int = 0) -> Iterator[Trace]:
    """Yield traces without end on configurations with a second tier: scenarios about one, after
    each a random trace.
    """
    shapes = [
        configuration.shape("scheduler") for configuration in early(connector_configurations())
    ]
    drawn = (
        random_trace(shape, number, withdraw=False)
        for number in count(seed * ROUNDS)
        for shape in shapes
    )
    for story in SCENARIOS:
        if story.tiered and not story.needs:
            yield from _in_turn(
                (story.trace(shape) for shape in shapes if story.applies(shape)), drawn
            )
    yield from drawn


def workloads_for(mutant: Mutant, seed: int = 0) -> Iterator[Trace]:
    """Yield what a fault is hunted with: behind a connector if it is in one, on full attention
    alone if it is in hits told.

    Large scenarios come for the reference's faults, of which some begin with a size; they take as
    long as hundreds of traces. Of groups that are pruned vLLM tells hits wrongly as it is
    (vllm-project/vllm#57358).
    """
    if mutant.name in TELL_HITS:
        traces = workloads(mutant.level, seed)
        return (
            trace
            for trace in traces
            if all(group.kind == "full" for group in trace.header.layout.groups)
        )
    return (
        behind_a_connector(seed)
        if "connector=" in needs(mutant)
        else workloads(mutant.level, seed, large="reference" in mutant.engines)
    )


def _in_turn(listed: Iterable[Trace], drawn: Iterator[Trace]) -> Iterator[Trace]:
    for trace in listed:
        yield trace
        yield next(drawn)


def _drawn(level: Level, seed: int) -> Iterator[Trace]:
    """Yield what the fuzzer draws, without end."""
    plan = Plan("vllm", (level,), Restriction([], {}, historic=False), seed, stream="kills")
    for number in count():
        try:
            trace = plan.draw(number)[1]
        except UsageError:
            continue
        if not trace.header.needs:
            yield trace


def _configurations(level: Level) -> list[Configuration]:
    further = (
        [*scheduler_configurations(), *further_configurations()] if level == "scheduler" else []
    )
    return [
        configuration
        for configuration in [*default_configurations(), *further]
        if configuration.runs_at(level)
    ]


def listed_by(entries: Sequence[Entry], trace: Trace, finding: Finding) -> bool:
    """Whether one of the entries excuses a finding where the fuzzer meets it."""
    name = Configuration(trace.header.layout, trace.header.options).name
    place = f"fuzz:{trace.header.name}@{name}"
    return any(entry.fits(place) and entry.excuses(finding) for entry in entries)


def hunt(mutant: Mutant, source: str, budget: float, seed: int = 0) -> Hunt:
    """Run workloads on a faulty vLLM until the kill, or until so many CPU seconds are spent, and
    `LEAST` operations.
    """
    clean = parse(f"vllm:source={source}{needs(mutant)}")
    faulty = parse(f"vllm:source={source}{needs(mutant)},mutant={mutant.name}")
    known = shipped("", clean.known_lists(load(source).version) or ()).entries
    started = time.process_time()
    operations = 0
    traces = 0
    others: dict[str, None] = {}
    alarms: list[str] = []
    for trace in workloads_for(mutant, seed):
        spent = time.process_time() - started
        if spent > MOST * budget or (spent > budget and operations >= LEAST):
            break
        try:
            result = drive(trace, faulty.open(trace.header), until=mutant.names, keep=False)
        except UsageError:
            continue
        operations, traces = operations + result.activity.operations, traces + 1
        others.update(
            dict.fromkeys(f"{finding.anomaly} ({finding.checker})" for finding in result.findings)
        )
        if not any(
            mutant.names(finding) and not listed_by(known, trace, finding)
            for finding in result.findings
        ):
            continue
        seconds = time.process_time() - started
        if not drive(trace, clean.open(trace.header), keep=False).findings:
            return Hunt(
                trace.header.name, operations, traces, seconds, tuple(others), tuple(alarms)
            )
        alarms.append(trace.header.name)
    return Hunt(
        None, operations, traces, time.process_time() - started, tuple(others), tuple(alarms)
    )
