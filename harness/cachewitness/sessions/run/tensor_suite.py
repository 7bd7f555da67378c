"""The suite `cold-vs-cached`, for engines that compute: which traces it compares, on which
configurations, in which precision.

Every arm at every place in float64, where faults have nowhere to hide; what rounds is then tried on
fewer. Nothing here imports torch until a trace is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cachewitness.core.events import Header
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.tensors.arms import ARMS, BY_NAME, EVERYWHERE, Arm, arm_of
from cachewitness.parity.tensors.stories import write
from cachewitness.report.compared import NAME
from cachewitness.sessions.run.suites import Stream, Suite, Tensors, scenario_traces
from cachewitness.workloads.configurations import Configuration

EXACT = "float64"
ROUNDED = ("float32", "bf16-state")
ROUNDED_ARMS = tuple(BY_NAME[name] for name in ("off-again", "hit", "tier", "preempted"))
DTYPE = "dtype"


def streams(engine: EngineSpec, configurations: Sequence[Configuration], seed: int) -> list[Stream]:
    """Return the traces of a seed: in the precision that the user named, or in all of them."""
    if engine.options.get(DTYPE) or DTYPE not in engine.kind.options:
        return [
            Stream(configuration, engine, traces(configuration, seed))
            for configuration in configurations
        ]
    exact = [
        Stream(configuration, _in(engine, EXACT), traces(configuration, seed))
        for configuration in configurations
    ]
    return exact + [
        Stream(
            configuration, _in(engine, dtype), traces(configuration, seed, ROUNDED_ARMS, EVERYWHERE)
        )
        for dtype in ROUNDED
        for configuration in configurations[:1]
    ]


def traces(
    configuration: Configuration, seed: int, arms: Sequence[Arm] = ARMS, places: Sequence[str] = ()
) -> Iterator[Trace]:
    """Yield a trace for each arm at each of its places, or at the places named."""
    shape = configuration.shape("scheduler")
    for arm in arms:
        for where in places or arm.places:
            yield write(shape, arm, where, seed)


def _in(engine: EngineSpec, dtype: str) -> EngineSpec:
    """Return the engine in a precision, by a name that opens it again."""
    separator = "," if ":" in engine.text else ":"
    text = f"{engine.text}{separator}{DTYPE}={dtype}"
    return replace(engine, options={**engine.options, DTYPE: dtype}, text=text)


def _inapplicable(trace: Trace, header: Header) -> str:
    """Return why an arm is not run: without prefix caching there is nothing for a warm one to
    hit.
    """
    arm = arm_of(trace.header.name)
    warm = arm is not None and arm.options.get("enable_caching", True)
    return "prefix caching is off" if warm and not header.rules.caching else ""


SUITE = Suite(
    NAME,
    "the same requests without a cache and with one, by their tensors",
    "scheduler",
    scenario_traces,
    tensors=Tensors(streams, _inapplicable),
    sampled=2,
)
