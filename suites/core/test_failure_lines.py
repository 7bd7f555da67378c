"""The line of a finding says where in the engine it was raised, or else what the engine did."""

from __future__ import annotations

import pytest

from cachewitness.core.driving import judge
from cachewitness.core.events import Died
from cachewitness.engines.registry import parse
from suites.support.mistaken_engine import lively

LINES = {
    "IndexError: list index out of range (job.py:679, in the engine)": ", at job.py:679",
    # The last frame of what a compiled library raises is the adapter's.
    "RuntimeError: Check 'end <= blocks.size()' failed (pipeline.py:153, in the harness)": (
        ": RuntimeError: Check 'end <= blocks.size()' failed (pipeline.py:…"
    ),
    "kept 0 of the 3 tokens of session 'r1', not all but the last": (
        ": kept 0 of the 3 tokens of session 'r1', not all but the last"
    ),
    "ended with SIGSEGV\nthe last words of its process": ": ended with SIGSEGV",
    "\n \n": "",
    "\nwas killed": ": was killed",
    "": "",
}


@pytest.mark.parametrize(("message", "says"), LINES.items())
def test_a_line_says_where_or_what(message: str, says: str) -> None:
    """A long one is cut to what fits."""
    header = parse("reference").open(lively(1).header).describe()
    (finding,) = judge(header, [Died(operation=4, message=message)]).findings
    assert finding.line == f"the engine failed in operation 5{says}"
