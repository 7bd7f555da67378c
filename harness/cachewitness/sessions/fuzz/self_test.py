"""The self-test: a known fault that every fuzz run plants first, to prove that the harness is able
to report one.

The seed chooses a fault that the drawn configurations can express; a short campaign of its own must
report it, as the anomaly and by the checker that the fault names in advance. If it does not, the
harness is blind, whatever the campaign itself finds.

Faults are planted into the reference of the policy `vllm`, whatever engine is fuzzed: generator,
ledger and checkers are the same, and the engine under test is not to be changed. An exhaustive
search draws nothing, so its fault is always the same, in the smallest of its searches that can show
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import Trace
from cachewitness.engines.faults import fitting
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.explore import explore
from cachewitness.sessions.fuzz.scope import CONFIGURATIONS, Bound, Scope
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Seeded

POLICY = "vllm"
OPERATIONS_MAX = 12_000
"""A self-test that is not reported in so many operations is missed; most are in some hundred."""
DRAWN_MAX = 100
"""Among so many drawn configurations one must express the fault, or another fault is chosen."""
TRIED_MAX = 12
"""In one of so many traces on such configurations the engine must do otherwise with the fault, or
another fault is chosen."""

SOUGHT = "reset-keeps-keys"
"""The fault of an exhaustive search."""

Fits = Callable[[Configuration], bool]


def _has(kind: str) -> Fits:
    return lambda configuration: any(group.kind == kind for group in configuration.layout.groups)


def _option(name: str) -> Fits:
    return lambda configuration: bool(configuration.options.get(name))


def _pruned(configuration: Configuration) -> bool:
    """Whether retention drops something, as it does by default in the newest releases."""
    if (
        "release" in configuration.options
        or configuration.options.get("retention_interval", 0) is None
    ):
        return False
    return any(group.kind in ("sliding", "recurrent") for group in configuration.layout.groups)


def _any(configuration: Configuration) -> bool:
    return True


CANARIES: Mapping[str, Fits] = {
    "null-block-published": _has("recurrent"),
    "skipped-boundary-published": _has("recurrent"),
    "window-freed-early": _has("sliding"),
    "window-looked-up-short": _has("sliding"),
    "replay-boundary-masked": (
        lambda configuration: _pruned(configuration) and _has("sliding")(configuration)
    ),
    "denser-than-interval": _pruned,
    "hit-is-maximum-over-groups": lambda configuration: len(configuration.layout.groups) > 1,
    "tail-published-early": _any,
    "lookup-one-unit-short": _any,
    "block-leaked": _any,
    "stale-table-rows": _any,
    "shared-block-freed-twice": _any,
    "image-left-out": _any,
    "reset-keeps-keys": _any,
    "drafts-published": _option("num_speculative_tokens"),
    "freed-while-in-flight": _option("async_depth"),
    "stored-before-the-step": _option("tier_pages"),
}
"""Faults to choose from, and whether a configuration can express them; all do nothing where nothing
is cached."""


@dataclass(frozen=True)
class CanaryResult:
    """What became of the self-test: the fault, the anomaly that it was to raise, and the operations
    until it was reported.
    """

    mutant: str
    anomaly: str
    checker: str
    reported: bool
    operations: int


def run_self_test(plan: Plan) -> CanaryResult | None:
    """Plant the fault that the plan's seed chooses and say whether it was reported; None if no
    configuration expresses one.
    """
    plan = replace(plan, stream="self_test")
    source = Seeded(f"canary/{plan.seed}")
    names = sorted(CANARIES)
    drawn = [_drawn(plan, number) for number in range(DRAWN_MAX)]
    while names:
        names.remove(name := source.choice(names))
        expressing = filter(None, (_expresses(name, one) for one in drawn))
        if any(_acts(name, trace) for trace in islice(expressing, TRIED_MAX)):
            return planted(plan, name)
    return None


def planted(plan: Plan, name: str) -> CanaryResult:
    """Plant one fault, and run what can express it until it is reported or the self-test's
    operations are spent.
    """
    mutant = fitting(POLICY)[name]
    operations = 0
    expressing = filter(None, (_expresses(name, _drawn(plan, number)) for number in count()))
    for trace in islice(expressing, OPERATIONS_MAX):
        engine = parse(f"reference:mutant={name}").open(trace.header)
        result = drive(trace, engine, until=mutant.names, keep=False)
        operations += result.activity.operations
        if any(map(mutant.names, result.findings)):
            return CanaryResult(name, mutant.anomaly, mutant.checker, True, operations)
        if operations >= OPERATIONS_MAX:
            break
    return CanaryResult(name, mutant.anomaly, mutant.checker, False, operations)


def sought() -> CanaryResult:
    """Plant the fault of an exhaustive search, and search until it is reported or everything was
    seen.
    """
    mutant = fitting(POLICY)[SOUGHT]
    scope = Scope(CONFIGURATIONS[0], "scheduler", Bound(requests=1, blocks=1, pages=4, generated=2))
    found = explore(parse(f"reference:mutant={SOUGHT}"), scope)
    reported = found.failure is not None and mutant.names(found.failure[1])
    return CanaryResult(SOUGHT, mutant.anomaly, mutant.checker, reported, found.operations)


def _acts(name: str, trace: Trace) -> bool:
    """Whether the engine does otherwise with the fault: a window that no prompt outgrows is
    never freed early.
    """
    try:
        clean, faulty = (
            drive(trace, parse(engine).open(trace.header), [])
            for engine in ("reference", f"reference:mutant={name}")
        )
    except UsageError:  # what the user chose does not fit the trace, which the campaign itself says
        return False
    return clean.history.events != faulty.history.events


def _drawn(plan: Plan, number: int) -> tuple[Configuration, Trace] | None:
    """Return what the plan draws; None if the policy refuses it."""
    try:
        return plan.draw(number)
    except UsageError:
        return None


def _expresses(name: str, drawn: tuple[Configuration, Trace] | None) -> Trace | None:
    """Return the trace if the fault can show in it."""
    if drawn is None:
        return None
    configuration, trace = drawn
    fits = configuration.options.get("enable_caching", True) and CANARIES[name](configuration)
    return (
        trace if fits and fitting(POLICY)[name].level in ("manager", trace.header.level) else None
    )
