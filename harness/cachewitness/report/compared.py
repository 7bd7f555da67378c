"""The result of a trace of an arm: a result like any other, with its row of the table."""

from __future__ import annotations

from cachewitness.core.result import Result
from cachewitness.report.arm_row import ArmRow

NAME = "cold-vs-cached"
"""How findings and tallies name who compared."""


class Compared(Result, kw_only=True):
    """A judged trace and what comparing it came to."""

    row: ArmRow
