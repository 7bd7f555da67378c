"""Every suite that a user can name, in the order in which they run."""

from __future__ import annotations

from cachewitness.sessions.run.suites import SUITES as WITHOUT_TENSORS
from cachewitness.sessions.run.suites import Suite
from cachewitness.sessions.run.tensor_suite import SUITE as COLD_VS_CACHED

SUITES: tuple[Suite, ...] = (*WITHOUT_TENSORS, COLD_VS_CACHED)
