"""Scenarios as traces for the engine `toy`, and what its tensors checker measured in a run of
one.
"""

from __future__ import annotations

from typing import Any

from cachewitness.core.checkers.finding import Measured
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.scenarios import SCENARIOS

DENSE = {"retention_interval": None}


def story(layout: str, options: dict[str, Any], name: str) -> Trace:
    """Return a scenario's trace on a configuration, at scheduler level."""
    shape = Configuration(layouts.load(layout), options).shape("scheduler")
    return next(s for s in SCENARIOS if s.name == name).trace(shape)


def measured_in(result: Result) -> Measured:
    """Return what the checker of tensors measured of logits in a run."""
    (found,) = next(tally.measured for tally in result.tallies if tally.checker == "tensors")
    return found
