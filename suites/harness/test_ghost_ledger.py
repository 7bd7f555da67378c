"""The ledger's books: poison, holders, keys, copies, taint, identity, and runs that outlive their request."""

from __future__ import annotations

import pytest

from harness.checkers import fresh
from harness.checkers.protocol import Panel
from harness.engines import registry
from harness.history.events import Aborted, Counts, Run, StepBegin, StepEnd, Write
from harness.history.notation import parse
from harness.ledger.ledger import Ledger
from harness.ledger.records import NOTHING, Key
from harness.run.execute import check, drive
from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.trace.generate import random_trace

FULL = """\
pool 0: 10 pages, null 0
group 0: full block 4
rules: alignment 4
"""
HYBRID = """\
pool 0: 12 pages, null 0
group 0: full block 4
group 1: recurrent block 4
rules: alignment 4
"""
R1 = """\
submit r1 a:8
take r1 | 1 2
publish 0/1 r1:4
step 1: r1 0..8 | 1 2
"""


def _ledger(text: str) -> Ledger:
    history = parse(text)
    ledger = Ledger(history.header)
    for event in history.events:
        ledger.apply(event)
    return ledger


def _found(text: str) -> list[str]:
    return [finding.anomaly for finding in check(parse(text)).findings]


def _keys(ledger: Ledger, group: int = 0) -> list[Key]:
    return [key for pages in ledger.keys[group].values() for key in pages.values()]


# --- poison and holders -------------------------------------------------------------------------------------------------------


def test_a_page_without_holder_and_key_is_poisoned() -> None:
    """Of two pages given back, the one with a key keeps its content."""
    records = _ledger(FULL + R1 + "drop r1").records[0]
    assert records[2].node == NOTHING
    assert (records[1].node != NOTHING, records[1].stop) == (True, 4)


@pytest.mark.parametrize(("before", "after"), [("drop r1", ""), ("", "drop r1")], ids=["key last", "holder last"])
def test_the_last_of_key_and_holder_poisons(before: str, after: str) -> None:
    """The order in which a page loses its key and its holder does not matter."""
    text = f"{FULL}{R1}{before}\nunpublish 0/1 evict\n"
    held = _ledger(text)
    assert (held.records[0][1].node == NOTHING) == (not after)
    assert _ledger(text + after).records[0][1].node == NOTHING


def test_zeros_are_not_content() -> None:
    """A page that was zeroed holds nothing, and says that it is zeroed."""
    record = _ledger(FULL + R1 + "zero 0/1").records[0][1]
    assert (record.node, record.zeroed) == (NOTHING, True)


def test_holders_are_counted_with_multiplicity() -> None:
    """A page that a request takes twice is given back after the second drop, and counts once."""
    twice = _ledger(FULL + "submit r1 a:4\ntake r1 | 3 3\ndrop r1 | 3")
    assert (twice.records[0][3].holders, twice.held[0], twice.holdings["r1"]) == ({"r1": 1}, 1, 1)
    none = _ledger(FULL + "submit r1 a:4\ntake r1 | 3 3\ndrop r1")
    assert (none.records[0][3].holders, none.held[0], none.holdings["r1"]) == ({}, 0, 0)


@pytest.mark.parametrize("name", ["full", "full-mamba", "full-swa-mamba", "full-mamba-unequal"])
def test_counts_are_those_of_a_recount(name: str) -> None:
    """Held pages, and pages kept for a key alone, are at every count what counting all pages gives."""
    trace = random_trace(Configuration(layouts.load(name)).shape("manager"), 7, withdraw=True)
    history = drive(trace, registry.parse("reference").open(trace.header), []).history
    ledger, counts = Ledger(history.header), 0
    for event in history.events:
        ledger.apply(event)
        if isinstance(event, Counts):
            counts += 1
            records = ledger.records[0]
            assert ledger.held[0] == sum(bool(record.holders) for record in records)
            assert ledger.idle_keyed[0] == sum(bool(record.keys) and not record.holders for record in records)
            assert all(record.node == NOTHING for record in records if not record.holders and not record.keys)
    assert counts > 20


# --- copies -------------------------------------------------------------------------------------------------------------------


def test_a_copy_is_one_permutation() -> None:
    """Two pages that are copied onto each other change places."""
    ledger = _ledger(FULL + R1 + "copy 1 whole 1>2 2>1")
    one, two = ledger.records[0][1:3]
    assert (one.start, one.stop, two.start, two.stop) == (4, 8, 0, 4)


@pytest.mark.parametrize(
    ("lines", "arrived"),
    [
        ("copy 1 begin 1>5", False),
        ("copy 1 begin 1>5\ncopy 1 end 1>5", True),
        ("copy 1 begin 1>5\ncopy 1 fail 1>5", False),
        ("copy 1 begin 1>5\nsubmit r2 b:4\nwrite 0 r2 0..4 | 1\ncopy 1 end 1>5", False),
        ("copy 1 begin 1>5\nwrite 0 r1 0..4 | 1\ncopy 1 end 1>5", True),
        ("copy 1 begin 3>5\nwrite 0 r1 0..4 | 3\ncopy 1 end 3>5", False),
    ],
    ids=["under way", "ended", "failed", "source overwritten", "source written again", "source written after the begin"],
)
def test_an_asynchronous_copy_arrives_when_it_ends_and_its_source_stayed(lines: str, arrived: bool) -> None:
    """Nothing is there before the end, after a failure, or if the source changed in between."""
    assert (_ledger(FULL + R1 + "take copy:1 | 5\n" + lines).records[0][5].node != NOTHING) == arrived


def test_tokens_behind_those_that_were_there_do_not_disturb_a_copy() -> None:
    """What has arrived is what the source held at the begin, and no more."""
    grown = "submit r2 b:4\ntake r2 | 4\nwrite 0 r2 0..2 | 4\ncopy 1 begin 4>5\nwrite 0 r2 2..4 | 4\ncopy 1 end 4>5"
    record = _ledger(FULL + "take copy:1 | 5\n" + grown).records[0][5]
    assert (record.start, record.stop) == (0, 2)


def test_what_a_copy_fills_holds_nothing_until_it_ends() -> None:
    record = _ledger(FULL + R1 + "copy 1 begin 1>2").records[0][2]
    assert record.node == NOTHING


def test_a_failed_copy_leaves_nothing_behind() -> None:
    """Whatever the destination held may be half overwritten."""
    assert _ledger(FULL + R1 + "copy 1 begin 1>2\ncopy 1 fail 1>2").records[0][2].node == NOTHING


# --- keys ---------------------------------------------------------------------------------------------------------------------


def test_a_key_is_pending_until_its_step_ends() -> None:
    """Pending, then committed; withdrawn if its request was."""
    begun = FULL + "submit r1 a:8\ntake r1 | 1 2\npublish 0/1 r1:4\nbegin 1: r1 0..8 | 1 2\n"
    states = [_keys(_ledger(begun + end))[0].state for end in ("", "end 1", "end 1 withdraw r1")]
    assert states == ["pending", "committed", "withdrawn"]


@pytest.mark.parametrize(("length", "state"), [(4, "committed"), (8, "hollow")])
def test_a_key_published_afterwards_is_committed_if_its_content_is_there(length: int, state: str) -> None:
    """Page 1 holds the first block, and not the second."""
    ledger = _ledger(FULL + R1.replace("publish 0/1 r1:4\n", "") + f"publish 0/1 r1:{length} @1")
    assert [key.state for key in _keys(ledger)] == [state]


def test_a_key_is_backed_by_its_own_groups_content() -> None:
    """What the layers of another group wrote, of the same tokens, is not what the key names."""
    window = HYBRID.replace("recurrent block 4", "sliding block 4 window 8")
    ledger = _ledger(window + "submit r1 a:8\ntake r1 | 1 2 | 3 4\npublish 1/1 r1:4\nstep 1: r1 0..8 | 1 2 | 3 4")
    assert [key.state for key in _keys(ledger, 1)] == ["hollow"]


def test_of_two_pages_with_one_key_either_is_left() -> None:
    """Unpublishing one duplicate leaves the other; unpublishing both remembers why the last went."""
    text = f"{FULL}{R1}submit r2 a:5\ntake r2 | 3 4\npublish 0/3 r2:4\nstep 2: r2 0..5 | 3 4\nunpublish 0/1 evict\n"
    one = _ledger(text)
    assert [key.page for key in _keys(one)] == [3]
    none = _ledger(text + "unpublish 0/3 reset")
    assert (_keys(none), list(none.ended[0].values())) == ([], ["reset"])


@pytest.mark.parametrize(
    ("line", "state"), [("reset ok", "reset"), ("reset failed", "committed"), ("reset ok tier cpu", "committed")]
)
def test_a_reset_ends_the_keys_of_its_tier_if_it_succeeded(line: str, state: str) -> None:
    """A reset that was refused, or that names another tier, ends none."""
    assert [key.state for key in _keys(_ledger(FULL + R1 + line))] == [state]


# --- identity -----------------------------------------------------------------------------------------------------------------


def test_new_weights_divide_a_request_where_it_stands() -> None:
    """What was computed keeps its prefix, what follows gets another, and a new request shares neither."""
    cold = "submit r1 a:8\nsubmit r2 a:8\n"
    ledger = _ledger(FULL + cold + "take r1 | 1 2\nstep 1: r1 0..4 | 1 2\nversion 1\nsubmit r3 a:8")
    old = _ledger(FULL + cold)
    one, two, three = (ledger.requests[r].nodes for r in ("r1", "r2", "r3"))
    assert one[:5] == old.requests["r1"].nodes[:5]
    assert set(one[5:]).isdisjoint(old.requests["r1"].nodes + two + three)
    assert two == three


def test_a_new_version_of_an_adapter_concerns_those_who_use_it() -> None:
    """Requests that have not begun are under the new version, those of other adapters stay, and keys end by adapter."""
    text = (
        FULL + "submit r1 a:8 adapter=one\ntake r1 | 1 2\npublish 0/1 r1:4\nstep 1: r1 0..8 | 1 2\n"
        "submit r2 a:8 adapter=two\ntake r2 | 3 4\npublish 0/3 r2:4\nstep 2: r2 0..8 | 3 4\n"
        "submit early a:8 adapter=one\nversion 1 adapter one\nsubmit late a:8 adapter=one\nsubmit same a:8 adapter=two\n"
    )
    ledger = _ledger(text)
    assert {key.r: key.state for key in _keys(ledger)} == {"r1": "outdated", "r2": "committed"}
    nodes = {r: ledger.requests[r].nodes for r in ("r1", "r2", "early", "late", "same")}
    assert nodes["early"] == nodes["late"] != nodes["r1"]
    assert nodes["same"] == nodes["r2"]


def test_a_preempted_request_begins_under_the_weights_of_now() -> None:
    """It computes everything again, so it shares every prefix with a new request."""
    text = FULL + R1 + "version 1\npreempt r1\ndrop r1\nsubmit r2 a:8"
    requests = _ledger(text).requests
    assert requests["r1"].nodes == requests["r2"].nodes


def test_rejected_drafts_leave_the_prefix() -> None:
    """Accepting tokens at an earlier length drops those beyond it."""
    ledger = _ledger(FULL + "submit r1 a:4\naccept r1 7 draft:3\naccept r1 5 @r1:1\nsubmit r2 a:4 @r1:1")
    assert ledger.requests["r1"].nodes == ledger.requests["r2"].nodes


def test_drafts_are_a_branch_of_their_own_until_they_stand() -> None:
    """Of three guesses the first is what the request goes on with: a page keeps it, and the rest is nobody's prefix."""
    step = "take r1 | 1 2\nstep 1: r1 0..4 | 1\nstep 2: r1 4..5 ~@r1:1 x:2 | 1 2\n"
    ledger = _ledger(FULL + "submit r1 a:5\n" + step)
    record, request = ledger.records[0][2], ledger.requests["r1"]
    assert (request.computed, request.drafted, len(request.nodes), record.stop) == (5, 8, 6, 8)
    ledger = _ledger(FULL + "submit r1 a:5\n" + step + "accept r1 7 @r1:2")
    record, request = ledger.records[0][2], ledger.requests["r1"]
    assert request.computed == 6
    assert ledger.covers(record, request.nodes[6], 4, 6)
    assert ledger.trie.ancestor(record.node, 7) != request.nodes[7]


def test_a_run_whose_request_ended_before_its_token_was_known_computes_nobody_s_prefix() -> None:
    """A step in flight goes one token past what is known; the request is gone when it runs."""
    ledger = _ledger(FULL + "submit r1 a:5\ntake r1 | 1 2\nstep 1: r1 0..4 | 1")
    for event in (
        StepBegin(step=2, runs=[Run("r1", 4, 5, [[1, 2]])]),
        StepBegin(step=3, runs=[Run("r1", 5, 6, [[1, 2]])]),
        StepEnd(step=2),
        Aborted(r="r1", step=3),
        Write(pool=0, group=0, pages=[2], r="r1", start=5, stop=6, step=3),
    ):
        ledger.apply(event)
    record, request = ledger.records[0][2], ledger.requests["r1"]
    assert ledger.trie.depth[record.node] == 6
    assert record.node not in request.nodes and ledger.trie.ancestor(record.node, 5) == request.nodes[5]


# --- taint --------------------------------------------------------------------------------------------------------------------

FAULT = """\
submit r1 a:8
take r1 | 1 2
publish 0/1 r1:4
publish 0/2 r1:8
step 1: r1 0..8 | 1 2
submit r2 b:4 c:8
hit r2 4 | 1
take r2 | 1 3 4
publish 0/3 r2:8
step 2: r2 4..9 | 1 3 4
"""


def test_a_fault_is_reported_once_and_not_by_what_follows() -> None:
    """r2 reads r1's block in two steps, and r3 is hit on what r2 wrote meanwhile: one finding."""
    later = "step 3: r2 9..12 | 1 3 4\nsubmit r3 b:4 c:8\nhit r3 8 | 1 3\ntake r3 | 1 3 5\n"
    assert _found(FULL + FAULT + later + "step 4: r2 11..12 | 1 3 4") == ["stale-hit"]
    ledger = _ledger(FULL + FAULT)
    assert [ledger.records[0][page].tainted for page in (1, 2, 3, 4)] == [False, False, True, True]


def test_what_was_written_before_the_fault_is_sound() -> None:
    """A step taints what it writes itself, not the pages of earlier steps."""
    ledger = _ledger(FULL + "submit r1 a:8\ntake r1 | 1 2\nstep 1: r1 0..4 | 1\nstep 2: r1 4..8 | 0 2")
    assert [ledger.records[0][page].tainted for page in (1, 2)] == [False, True]


def test_whoever_reads_tainted_content_is_tainted() -> None:
    """The taint goes on to a reader of the page, and to what it writes."""
    reader = "submit r3 b:4 c:5\nhit r3 8 | 1 3\ntake r3 | 1 3 5\nstep 3: r3 8..9 | 1 3 5"
    ledger = _ledger(FULL + FAULT + reader)
    assert (ledger.requests["r1"].tainted, ledger.requests["r3"].tainted, ledger.records[0][5].tainted) == (False, True, True)


def test_another_request_over_sound_pages_is_judged_as_ever() -> None:
    """One request's fault does not excuse another's."""
    other = "submit r3 d:8\nhit r3 4 | 2\ntake r3 | 2 6\nstep 3: r3 4..8 | 2 6"
    assert _found(FULL + FAULT + other) == ["stale-hit", "stale-hit"]


def test_a_request_that_starts_again_is_judged_again() -> None:
    """Preempted, it has lost its pages and its taint; the second fault is told as well."""
    again = "preempt r2\ndrop r2\nunpublish 0/3 evict\nhit r2 4 | 2\ntake r2 | 2 6\nstep 3: r2 4..8 | 2 6"
    assert _found(FULL + FAULT + again) == ["stale-hit", "stale-hit"]


def test_content_written_anew_is_sound() -> None:
    """A tainted page that somebody else gets is clean once it is written."""
    ledger = _ledger(FULL + FAULT + "finish r2\ndrop r2\nsubmit r3 d:4\ntake r3 | 4\nstep 3: r3 0..4 | 4")
    assert not ledger.records[0][4].tainted


# --- runs that outlive their request ------------------------------------------------------------------------------------------

IN_FLIGHT = FULL + R1 + "accept r1 9 @r1:1\ntake r1 | 3\nbegin 2: r1 8..9 | 1 2 3\n"


@pytest.mark.parametrize("line", ["abort r1", "finish r1", "preempt r1"])
def test_a_run_in_flight_may_finish_over_pages_that_were_given_back(line: str) -> None:
    """Also if somebody else has the page meanwhile: that one writes it in a later step."""
    rest = f"{line}\ndrop r1\nsubmit r2 b:4\ntake r2 | 3\nbegin 3: r2 0..4 | 3\nend 2\nend 3\n"
    assert _found(IN_FLIGHT + rest) == []


def test_a_run_that_nobody_ended_may_not() -> None:
    """The same without a word about the request: its pages are gone under it."""
    assert "use-after-free" in _found(IN_FLIGHT + "drop r1\nend 2\n")


def test_a_preempted_request_is_not_advanced_by_the_run_it_left_behind() -> None:
    """It starts again from nothing, whatever the step in flight computed."""
    assert _ledger(IN_FLIGHT + "preempt r1\ndrop r1\nend 2").requests["r1"].computed == 0


def test_a_state_that_a_run_left_behind_is_not_the_requests() -> None:
    """The run in flight stops at the boundary, the second attempt runs over it: no replay boundary is owed."""
    left = "submit r1 a:9\ntake r1 | 1 2 | 4 5\nbegin 1: r1 0..8 | 1 2 | 4 5\npreempt r1\ndrop r1\n"
    again = (
        "hit r1 0\ntake r1 | 6 7 8 | 9 10 11\npublish 0/6 r1:4\npublish 0/7 r1:8\nend 1\nstep 2: r1 0..9 | 6 7 8 | 9 10 11\n"
    )
    assert _found(HYBRID + left + again) == []


def test_a_run_in_flight_may_not_overwrite_what_somebody_else_has_computed() -> None:
    """Steps execute in order; if the new owner's step came first, its content is lost."""
    rest = "abort r1\ndrop r1\nsubmit r2 b:5\ntake r2 | 3 4\nbegin 3: r2 0..4 | 3 4\nend 3\nend 2\n"
    assert _found(IN_FLIGHT + rest) == ["aliased-write"]


STRAY = FULL + "submit r1 a:4\ntake r1 | 1\nbegin 1: r1 0..4 | 1\nabort r1\ndrop r1\n"


@pytest.mark.parametrize(("tables", "found"), [("2 1 3", []), ("1 2 3", ["aliased-write"])])
def test_what_a_run_left_behind_in_another_column_is_nobody_s_loss(tables: str, found: list[str]) -> None:
    """The first block of everybody's prefix lies where r2 is to write its second, and r3 is hit on it: r3 reads it elsewhere.

    Were it the first block of r3 as well, r2 in the wrong place would destroy what r3 reads.
    """
    writer = "submit r2 a:8\ntake r2 | 2 1\npublish 0/2 r2:4\npublish 0/1 r2:8\nbegin 2: r2 0..8 | 2 1\nend 1\n"
    first, second, _ = tables.split()
    reader = f"submit r3 a:9\nhit r3 8 | {first} {second}\ntake r3 | {tables}\nbegin 3: r3 8..9 | {tables}\nend 2\n"
    assert [name for name in _found(STRAY + writer + reader) if name == "aliased-write"] == found


def test_a_state_that_two_runs_left_behind_in_another_column_is_nobody_s_loss() -> None:
    """r2 goes on from its state after three tokens in page 4; page 3, which it took for what comes, had been r1's."""
    records = "pool 0: 9 pages, null 0\ngroup 0: recurrent block 4\n"
    both = "submit r1 a:6\nsubmit r2 a:6\ntake r1 | 3\ntake r2 | 4\nbegin 1: r1 0..3 | 3; r2 0..3 | 4\n"
    again = "begin 2: r1 3..4 | 3; r2 3..4 | 4\nabort r1\ndrop r1\ntake r2 | 3\nbegin 3: r2 4..5 | 4 3\n"
    assert _found(records + both + again + "end 1\nend 2\nend 3\n") == []


def test_what_a_copy_fills_before_its_reader_runs_is_nobody_s_loss() -> None:
    """r2's first attempt has page 2 filled, r1 writes into it, and both are gone; r2 comes back, and it is filled anew."""
    records = "pool 0: 9 pages, null 0\ngroup 0: full block 4\nsubmit r0 a:4\ntake r0 | 1\nstep 1: r0 0..4 | 1\n"
    reader = "hit r2 4 | 2\ntake r2 | 2 3\nbegin {}: r2 4..5 | 2 3; copy 1>2\n"
    between = "preempt r2\ndrop r2\nsubmit r1 b:4\ntake r1 | 2\nbegin 3: r1 0..4 | 2\nabort r1\ndrop r1\n"
    ends = "end 2\nend 3\nend 4\n"
    filled = records + "submit r2 a:5\n" + reader.format(2) + between + reader.format(4)
    assert "aliased-write" not in _found(filled + ends)
    assert "aliased-write" in _found(filled.replace("begin 4: r2 4..5 | 2 3; copy 1>2", "begin 4: r2 4..5 | 2 3") + ends)


def test_every_checker_sees_the_ledger_before_the_event() -> None:
    """A panel moves the ledger once, after all its checkers were asked."""
    history = parse(FULL + R1)
    panel = Panel(history.header, fresh())
    for event in history.events:
        panel.observe(event)
    assert panel.ledger.requests["r1"].computed == 8
