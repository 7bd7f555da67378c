"""Hand-written traces: what `cachewitness run` executes, without pytest."""

from __future__ import annotations

from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness.workloads.scenarios.stories import LARGE, SCENARIOS, Scenario

__all__ = ["LARGE", "SCENARIOS", "Scenario", "Script", "Shape"]
