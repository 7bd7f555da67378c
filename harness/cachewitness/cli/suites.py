"""Every suite that a user can name, in the order in which they run."""

from __future__ import annotations

from typing import get_args

from cachewitness.core.trace_format import Level
from cachewitness.sessions.run.suites import SUITES as WITHOUT_TENSORS
from cachewitness.sessions.run.suites import Suite
from cachewitness.sessions.run.tensor_suite import SUITE as COLD_VS_CACHED

SUITES: tuple[Suite, ...] = (*WITHOUT_TENSORS, COLD_VS_CACHED)

ENDLESS: frozenset[str] = frozenset(
    {suite.name for suite in SUITES if suite.endless}
    | {"fuzz", *(f"fuzz-{level}" for level in get_args(Level))}
)
"""The names of suites that run as many random traces as there is time for, those of `fuzz` among
them; ids of its failures begin with `fuzz` alone."""
