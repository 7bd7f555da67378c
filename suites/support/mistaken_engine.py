"""An engine whose adapter makes a mistake in the events that it reports; the cache behind it is
the reference's and right.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from typing import Any

from cachewitness.core.engine import Engine
from cachewitness.core.events import Header
from cachewitness.core.trace_format import Abort, Op, Preempt, Reset, Trace, UpdateWeights
from cachewitness.engines.registry import parse
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.layouts import load

Mistake = Callable[[Op, list[Any]], Any]


class Mistaken:
    """Passes the answers of an engine on, each with the mistake in it."""

    def __init__(self, engine: Engine, mistake: Mistake) -> None:
        self._engine = engine
        self._mistake = mistake

    def describe(self) -> Header:
        return self._engine.describe()

    def apply(self, op: Op) -> Any:
        return self._mistake(op, list(self._engine.apply(op)))

    def close(self) -> None:
        self._engine.close()


def lively(seed: int = 3) -> Trace:
    """Return the random trace of this number among those in which requests are preempted and end
    early, and caches end.
    """
    shape = Configuration(load("full-mamba")).shape("manager")
    wanted = {
        Abort,
        Preempt,
        Reset,
        UpdateWeights,
    }
    traces = (random_trace(shape, number, withdraw=False) for number in count())
    return next(
        islice((trace for trace in traces if wanted <= set(map(type, trace.ops))), seed, None)
    )


def mistaken(trace: Trace, mistake: Mistake) -> Mistaken:
    """Return the reference under a trace, with a mistake in its events."""
    return Mistaken(parse("reference").open(trace.header), mistake)
