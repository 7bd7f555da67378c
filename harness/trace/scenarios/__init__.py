"""Hand-written traces: what `cachewitness run` executes, without pytest."""

from __future__ import annotations

from harness.trace.scenarios.shape import Script, Shape
from harness.trace.scenarios.stories import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "Script", "Shape"]
