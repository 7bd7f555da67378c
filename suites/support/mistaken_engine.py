"""An engine whose adapter makes a mistake in the events that it reports; the cache behind it is the reference's and right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.engines.protocol import Engine
from harness.engines.registry import parse
from harness.history.events import Header
from harness.trace.configurations import Configuration
from harness.trace.format import Op, Trace
from harness.trace.generate import random_trace
from harness.trace.layouts import load

Mistake = Callable[[Op, list[Any]], Any]


class Mistaken:
    """Passes the answers of an engine on, each with the mistake in it."""

    def __init__(self, engine: Engine, mistake: Mistake) -> None:
        self._engine, self._mistake = engine, mistake

    def describe(self) -> Header:
        return self._engine.describe()

    def apply(self, op: Op) -> Any:
        return self._mistake(op, list(self._engine.apply(op)))

    def close(self) -> None:
        self._engine.close()


def lively(seed: int = 3) -> Trace:
    """Return a trace in which requests hit, are preempted, end early, and after which weights are new."""
    return random_trace(Configuration(load("full-mamba")).shape("manager"), seed, withdraw=False)


def mistaken(trace: Trace, mistake: Mistake) -> Mistaken:
    """Return the reference under a trace, with a mistake in its events."""
    return Mistaken(parse("reference").open(trace.header), mistake)
