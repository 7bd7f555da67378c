"""Pages that no run reads any more, where runs begin behind drafts that may fall."""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.timely_release import TimelyRelease
from cachewitness.core.driving import check
from cachewitness.workloads.notation import parse

DRAFTED = """pool 0: 20 pages, null 0
group 0: recurrent block 4
rules: alignment 4, frees-behind
submit r1 a:5
acquire r1 | 1 2 3 4 5 6 7
step 1: r1 0..5 | 1 2
accept r1 6 @r1:1
begin 2: r1 5..6 ~x:3 | 0 2 ~ 3 4 5
"""


@pytest.mark.parametrize(("table", "found"), [("0 2 6", []), ("1 2 6", ["late-release"])])
def test_a_run_behind_drafts_in_flight_may_begin_anew_where_they_fall(
    table: str, found: list[str]
) -> None:
    """Step 3 begins at token 9 if all three stand, and at token 6 if none does: then it reads the
    state of the second block, and never that of the first.
    """
    text = f"{DRAFTED}begin 3: r1 9..10 ~y:1 | {table} ~ 7\n"
    result = check(parse(text), [TimelyRelease()])
    assert [finding.anomaly for finding in result.findings] == found
    assert not result.tallies[0].crashed and result.tallies[0].opportunities
