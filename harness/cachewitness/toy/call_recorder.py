"""An engine at scheduler level whose steps are carried out on tensors.

The engine decides as it always does; its steps go to the tensors, and its events tell them what
became free. So one class serves every policy that has a scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from cachewitness.core.engine import Stepping
from cachewitness.core.events import Event, Header, StepBegin
from cachewitness.core.trace_format import Op
from cachewitness.toy.tensors import Tensors


class Computed:
    """Puts tensors behind an engine. `follow` sees every event once, before the step that comes
    after it is carried out.
    """

    def __init__(self, engine: Stepping, tensors: Tensors) -> None:
        self.engine = engine
        self.header = engine.header
        self.tensors = tensors
        self._followed = 0
        engine.device = self

    def describe(self) -> Header:
        """Return the header that the engine was built with."""
        return self.header

    def close(self) -> None:
        """Let go of the engine."""
        self.engine.close()

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events."""
        return self.events_of(lambda: self.engine.apply(op))

    def events_of(self, call: Callable[[], list[Event]]) -> list[Event]:
        """Make a call on the engine and return its events, all of them followed."""
        self._followed = 0
        events = call()
        self._catch_up()
        return events

    def execute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        """Carry a step out."""
        self._catch_up()
        self.compute(begin, withdrawn, tokens)
        self.tensors.settle(begin.step)

    def compute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        """Run the tensors, and do with the logits what the engine is for."""
        raise NotImplementedError

    def follow(self, events: list[Event]) -> None:
        """Take in what the engine says."""
        self.tensors.follow(events)

    def _catch_up(self) -> None:
        events = self.engine.events[self._followed :]
        self._followed += len(events)
        self.follow(events)
