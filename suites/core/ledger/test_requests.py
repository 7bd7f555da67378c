"""Prefixes of requests under changing identities and drafts."""

from __future__ import annotations

from cachewitness.core.events import Aborted, Run, StepBegin, StepEnd, Write
from suites.support.ledger_histories import FULL, R1, keys_of, ledger_after


def test_new_weights_divide_a_request_where_it_stands() -> None:
    """What was computed keeps its prefix, what follows gets another, and a new request shares
    neither.
    """
    cold = "submit r1 a:8\nsubmit r2 a:8\n"
    ledger = ledger_after(
        FULL + cold + "acquire r1 | 1 2\nstep 1: r1 0..4 | 1 2\nversion 1\nsubmit r3 a:8"
    )
    old = ledger_after(FULL + cold)
    one, two, three = (ledger.requests[r].nodes for r in ("r1", "r2", "r3"))
    assert one[:5] == old.requests["r1"].nodes[:5]
    assert set(one[5:]).isdisjoint(old.requests["r1"].nodes + two + three)
    assert two == three


def test_a_new_version_of_an_adapter_concerns_those_who_use_it() -> None:
    """Requests that have not begun are under the new version, those of other adapters stay, and
    keys end by adapter.
    """
    text = (
        FULL + "submit r1 a:8 adapter=one\nacquire r1 | 1 2\npublish 0/1 r1:4\n"
        "step 1: r1 0..8 | 1 2\nsubmit r2 a:8 adapter=two\nacquire r2 | 3 4\n"
        "publish 0/3 r2:4\nstep 2: r2 0..8 | 3 4\nsubmit early a:8 adapter=one\n"
        "version 1 adapter one\nsubmit late a:8 adapter=one\n"
        "submit same a:8 adapter=two\n"
    )
    ledger = ledger_after(text)
    assert {key.r: key.state for key in keys_of(ledger)} == {"r1": "outdated", "r2": "committed"}
    nodes = {r: ledger.requests[r].nodes for r in ("r1", "r2", "early", "late", "same")}
    assert nodes["early"] == nodes["late"] != nodes["r1"]
    assert nodes["same"] == nodes["r2"]


def test_a_preempted_request_begins_under_the_weights_of_now() -> None:
    """It computes everything again, so it shares every prefix with a new request."""
    text = FULL + R1 + "version 1\npreempt r1\nrelease r1\nsubmit r2 a:8"
    requests = ledger_after(text).requests
    assert requests["r1"].nodes == requests["r2"].nodes


def test_rejected_drafts_leave_the_prefix() -> None:
    """Accepting tokens at an earlier length drops those beyond it."""
    ledger = ledger_after(
        FULL + "submit r1 a:4\naccept r1 7 draft:3\naccept r1 5 @r1:1\nsubmit r2 a:4 @r1:1"
    )
    assert ledger.requests["r1"].nodes == ledger.requests["r2"].nodes


def test_drafts_are_a_branch_of_their_own_until_they_stand() -> None:
    """Of three guesses the first is what the request goes on with: a page keeps it, and the rest
    is nobody's prefix.
    """
    step = "acquire r1 | 1 2\nstep 1: r1 0..4 | 1\nstep 2: r1 4..5 ~@r1:1 x:2 | 1 2\n"
    ledger = ledger_after(FULL + "submit r1 a:5\n" + step)
    record = ledger.records[0][2]
    request = ledger.requests["r1"]
    assert (request.computed, request.drafted, len(request.nodes), record.stop) == (5, 8, 6, 8)
    ledger = ledger_after(FULL + "submit r1 a:5\n" + step + "accept r1 7 @r1:2")
    record = ledger.records[0][2]
    request = ledger.requests["r1"]
    assert request.computed == 6
    assert ledger.contents.covers(record, request.nodes[6], 4, 6)
    assert ledger.trie.ancestor(record.node, 7) != request.nodes[7]


def test_a_run_whose_request_ended_before_its_token_was_known_computes_nobody_s_prefix() -> None:
    """A step in flight goes one token past what is known; the request is gone when it runs."""
    ledger = ledger_after(FULL + "submit r1 a:5\nacquire r1 | 1 2\nstep 1: r1 0..4 | 1")
    for event in (
        StepBegin(step=2, runs=[Run("r1", 4, 5, [[1, 2]])]),
        StepBegin(step=3, runs=[Run("r1", 5, 6, [[1, 2]])]),
        StepEnd(step=2),
        Aborted(r="r1", step=3),
        Write(pool=0, group=0, pages=[2], r="r1", start=5, stop=6, step=3),
    ):
        ledger.apply(event)
    record = ledger.records[0][2]
    request = ledger.requests["r1"]
    assert ledger.trie.depth[record.node] == 6
    assert (
        record.node not in request.nodes
        and ledger.trie.ancestor(record.node, 5) == request.nodes[5]
    )
