"""Runs of a step in flight that turn out otherwise than they were scheduled."""

from __future__ import annotations

import pytest

from cachewitness.core.driving import check
from cachewitness.core.events import Accept, Header, Pool, Run, Settled, StepBegin, Submitted
from cachewitness.core.events import Group as CacheGroup
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.well_formed import WellFormedness
from cachewitness.workloads.notation import parse
from suites.support.ledger_histories import FULL, found, ledger_after

PREFILL = "submit r1 a:5\nacquire r1 | 1 2 3\npublish 0/1 r1:4\nstep 1: r1 0..5 | 1 2 3\naccept r1 6 @r1:1\n"  # noqa: E501
DRAFTED = FULL + PREFILL + "begin 2: r1 5..6 ~x:2 | 1 2 3\n"
"""Step 2 computes token 5 and two drafts."""
BEHIND = "begin 3: r1 5..6 | 1 2 3\nend 2\naccept r1 7 @r1[1]:1\n"
"""Step 3 begins while step 2 is in flight; both its drafts fall."""


def test_a_run_starts_where_the_drafts_that_stood_end() -> None:
    """Step 3 computes token 6, which step 2 brought, and so does the ledger."""
    text = DRAFTED + BEHIND + "settle 3: r1 6..7 | 1 2 3\nend 3\naccept r1 8 @r1[2]:1\n"
    assert found(text) == []
    assert ledger_after(text).requests["r1"].computed == 7


def test_a_token_that_nobody_computed_is_found_by_who_reads_it() -> None:
    """Were step 3 not settled, token 6 would never be computed: a rejected draft lies there when
    the step after reads it.
    """
    left_out = DRAFTED + BEHIND + "end 3\naccept r1 8 @r1[2]:1\nstep 4: r1 7..8 | 1 2 3\n"
    assert found(left_out) == ["stale-hit"]


def test_what_a_settled_run_is_fed_is_what_it_computes() -> None:
    """Step 3 is fed another token than its own, which step 4 reads; fed its own, nothing is
    wrong.
    """
    text = DRAFTED + BEHIND + "settle 3: r1 6..7 | 1 2 3\nend 3\naccept r1 8 @r1[2]:1\n"
    history = parse(text + "step 4: r1 7..8 | 1 2 3\n")
    settled = next(event for event in history.events if isinstance(event, Settled))
    own = next(event for event in history.events if isinstance(event, Accept) and event.upto == 7)
    for token, anomalies in ((own.tokens[-1], []), (own.tokens[-1] + 1, ["stale-hit"])):
        settled.runs[0].fed = [token]
        assert [finding.anomaly for finding in check(history).findings] == anomalies


HEADER = Header("test", "scheduler", [Pool(0, 10, [0])], [CacheGroup(0, "full", 4)])
NONSENSE = {
    "a step that is not in flight": (Settled(step=2), "step 2 has not begun"),
    "somebody else's run": (
        Settled(step=1, runs=[Run("r2", 0, 4, [[1]])]),
        "'r2' is not in step 1",
    ),
    "tokens that nobody knows": (
        Settled(step=1, runs=[Run("r1", 3, 5, [[1, 2]])]),
        r"tokens \[3, 5\) of 'r1'",
    ),
    "a page that is not there": (Settled(step=1, after=[]), ""),
}


@pytest.mark.parametrize("mistake", NONSENSE)
def test_what_cannot_become_of_a_step_is_refused(mistake: str) -> None:
    """By the name of the step, the request or its tokens; an empty one says nothing, and is
    taken.
    """
    event, message = NONSENSE[mistake]
    sense = WellFormedness(HEADER, live=True)
    for first in (Submitted(r="r1", tokens=[1, 2, 3, 4]), Submitted(r="r2", tokens=[5, 6, 7, 8])):
        sense.follow(first)
    sense.follow(StepBegin(step=1, runs=[Run("r1", 0, 4, [[1]])]))
    if message:
        with pytest.raises(MalformedHistory, match=message):
            sense.follow(event)
    else:
        sense.follow(event)
