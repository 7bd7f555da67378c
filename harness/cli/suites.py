"""Every suite that a user can name, in the order in which they run."""

from __future__ import annotations

from harness.cold.suite import SUITE as COLD_VS_CACHED
from harness.run.suites import SUITES as WITHOUT_TENSORS
from harness.run.suites import Suite

SUITES: tuple[Suite, ...] = (*WITHOUT_TENSORS, COLD_VS_CACHED)
