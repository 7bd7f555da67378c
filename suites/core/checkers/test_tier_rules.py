"""What is owed of a second tier that is asked for itself, and who may be given up when a load
from it fails.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cachewitness.core.driving import check
from cachewitness.core.events import Aborted, Copy, History, Read, TierRules, Write
from cachewitness.core.worker import Worker
from cachewitness.workloads.notation import parse

STORED = """
pool 0: 16 pages, null 0
pool 1: 8 pages, tier cpu
group 0: full block 4
group 1: full block 4 pool 1 of 0
rules: alignment 4, eagle-drop {drop}
submit r1 a:13
acquire r1 | 1 2 3 4
publish 0/1 r1:4
publish 0/2 r1:8
publish 0/3 r1:12
step 1: r1 0..13 | 1 2 3 4; store 0/1>1/0 0/2>1/1 0/3>1/2
publish 1/0 r1:4 @1
publish 1/1 r1:8 @1
publish 1/2 r1:12 @1
finish r1
release r1
unpublish 0/1 reset
unpublish 0/2 reset
unpublish 0/3 reset
reset ok
"""


def found(text: str, tier: TierRules, stored: str = STORED.format(drop=0)) -> list[str]:
    history = parse(stored + text)
    rules = replace(history.header.rules, tier=tier)
    return [
        finding.anomaly
        for finding in check(replace(history, header=replace(history.header, rules=rules))).findings
    ]


def resumed(at: int) -> str:
    """Tell of a request that resumes at so many tokens, all of them from the tier."""
    blocks = at // 4
    mine = range(5, 5 + blocks)
    theirs = range(blocks)
    row = " ".join(map(str, mine))
    places = " ".join(map(str, theirs))
    moved = " ".join(f"1/{src}>0/{dst}" for src, dst in zip(theirs, mine, strict=True))
    hit = f"hit r2 {at} tier cpu | {row} | {places}\n" if blocks else "hit r2 0 | |\n"
    copied = f"; copy {moved}" if blocks else ""
    table = " ".join(map(str, range(5, 9)))
    return f"submit r2 a:13\n{hit}acquire r2 | {table}\nstep 2: r2 {at}..13 | {table}{copied}\n"


@pytest.mark.parametrize(("at", "anomalies"), [(4, []), (0, ["lost-hit"])])
def test_a_look_up_in_the_tier_gives_back_what_one_on_the_device_does(
    at: int, anomalies: list[str]
) -> None:
    """With EAGLE a look-up returns the last block that it finds unused.

    The tier has the first 8 tokens, so it serves 4, and the device alone has what ends the first
    12: together they would serve 8, which an engine that asks them apart does not owe. What the
    tier serves by itself it owes.
    """
    stored = STORED.format(drop=4).replace(" 0/3>1/2", "").replace("publish 1/2 r1:12 @1\n", "")
    kept = stored.replace("unpublish 0/3 reset\nreset ok\n", "").replace(" reset", " evict")
    assert found(resumed(at), TierRules(chunk=4), kept) == anomalies


def test_less_than_a_chunk_beside_what_the_device_has_is_not_owed_if_the_engine_says_so() -> None:
    """The device holds 8 of the 12 tokens that the tier has; a connector that loads whole chunks
    of 8 leaves the last 4.
    """
    kept = (
        "submit r3 a:9\nacquire r3 | 9 10 11\npublish 0/9 r3:4\npublish 0/10 r3:8\n"
        "step 2: r3 0..9 | 9 10 11\n"
    )
    short = (
        kept + "submit r2 a:13\nhit r2 8 | 9 10 |\nacquire r2 | 9 10 5 6\npublish 0/5 r2:12\n"
        "step 3: r2 8..13 | 9 10 5 6\n"
    )
    assert found(short, TierRules(chunk=4, least=8)) == []
    assert found(short, TierRules(chunk=4, least=4)) == ["lost-hit"]
    assert found(resumed(0), TierRules(chunk=4, least=8)) == ["lost-hit"]


@pytest.mark.parametrize(
    ("engine_aborts", "over", "anomalies"),
    [
        pytest.param(True, "failed 7", [], id="declared"),
        pytest.param(False, "failed 7", ["no-progress"], id="not declared"),
        pytest.param(True, "ended 7", ["no-progress"], id="nothing failed"),
    ],
)
def test_who_waits_for_a_load_that_fails_may_be_given_up_if_the_engine_says_so(
    engine_aborts: bool, over: str, anomalies: list[str]
) -> None:
    loading = (
        "submit r2 a:13\nhit r2 4 tier cpu | 5 | 0\nacquire r2 | 5 6 7 8\nstep 2: begun 7 1/0>0/5\n"
    )
    history = parse(
        STORED.format(drop=0) + loading + f"step 3: {over}\nrelease r2\nabort r2 by engine\n"
    )
    assert isinstance(history.events[-1], Aborted) and history.events[-1].by_engine
    rules = replace(history.header.rules, tier=TierRules(chunk=16, engine_aborts=engine_aborts))
    judged = check(replace(history, header=replace(history.header, rules=rules)))
    assert [finding.anomaly for finding in judged.findings] == anomalies


ABORTED = """
submit r2 b:5
acquire r2 | 9
begin 2: r2 0..4 | 9
{before}
abort r2
release r2
acquire copy:1 | 9
begin 3: begun 1 1/0>0/9
{after}
end 3
step 4: ended 1
"""


def carried_out(text: str, tier: TierRules) -> list[str]:
    """Have a device with such a tier carry out what happens, and return the anomalies."""
    history = parse(STORED.format(drop=0) + text)
    header = replace(history.header, rules=replace(history.header.rules, tier=tier))
    events = [event for event in history.events if not isinstance(event, Copy | Read | Write)]
    return [
        finding.anomaly
        for finding in check(History(header, Worker(header).extend(events))).findings
    ]


def test_a_load_that_waits_for_no_step_has_its_page_to_itself() -> None:
    """One that waits, or is asked for when the step has ended, may have the page of a request
    that was aborted in flight.
    """
    in_flight = ABORTED.format(before="", after="end 2")
    ended = ABORTED.format(before="end 2", after="")
    assert carried_out(in_flight, TierRules(chunk=4, unordered=True)) == ["aliased-write"]
    assert carried_out(ended, TierRules(chunk=4, unordered=True)) == []
    assert carried_out(in_flight, TierRules(chunk=4)) == []


BEHIND = STORED.format(drop=0).replace("publish 1/2 r1:12 @1\n", "")
"""The tier has the first 8 tokens."""
LATE = """submit r3 a:13
acquire r3 | 12 13 14 15
publish 0/14 r3:12
step 2: r3 0..13 | 12 13 14 15; store 0/14>1/2
publish 1/2 r3:12 @2
"""
"""Somebody computes the prompt again, and its third block is stored."""


@pytest.mark.parametrize(("once", "anomalies"), [(True, []), (False, ["lost-hit"])])
def test_what_is_stored_while_a_request_waits_is_not_owed_if_it_is_looked_up_once(
    once: bool, anomalies: list[str]
) -> None:
    """r2 comes when the tier has 8 tokens and is admitted when it has 12."""
    gone = "finish r3\nrelease r3\nunpublish 0/14 reset\nreset ok\n"
    rest = resumed(8).removeprefix("submit r2 a:13\n").replace("step 2:", "step 3:")
    assert (
        found(f"submit r2 a:13\n{LATE}{gone}{rest}", TierRules(chunk=4, once=once), BEHIND)
        == anomalies
    )


@pytest.mark.parametrize("once", [True, False])
def test_nothing_is_owed_behind_a_load_that_failed_if_a_request_is_looked_up_once(
    once: bool,
) -> None:
    loading = (
        "submit r2 a:13\nhit r2 4 tier cpu | 5 | 0\nacquire r2 | 5 6 7 8\n"
        "step 2: begun 7 1/0>0/5\nstep 3: failed 7\n"
    )
    again = (
        "preempt r2\nrelease r2\nhit r2 0 | |\nacquire r2 | 5 6 7 8\nstep 4: r2 0..13 | 5 6 7 8\n"
    )
    assert ("lost-hit" in found(loading + again, TierRules(chunk=4, once=once))) == (not once)


UNLIKE = """
pool 0: 24 pages, null 0
pool 1: 8 pages, tier cpu
group 0: full block 4
group 1: {kind}
group 2: full block 4 pool 1 of 0
group 3: {kind} pool 1 of 1
rules: alignment 4
submit r1 a:13
acquire r1 | 1 2 3 4 | 5 6 7 8
publish 0/1 r1:4
publish 0/2 r1:8
publish 0/3 r1:12
publish 1/5 r1:4
publish 1/6 r1:8
publish 1/7 r1:12
step 1: r1 0..13 | 1 2 3 4 | 5 6 7 8; store {stored}
publish 2/0 r1:4 @1
publish 2/1 r1:8 @1
publish 2/2 r1:12 @1
{keyed}
finish r1
release r1
{lost}
"""
OF_FULL = "0/1>1/0 0/2>1/1 0/3>1/2"


def beside(kind: str, blocks: dict[int, int], *lost: str) -> str:
    """Return what is stored of full attention and of another group beside it, by block: the pages
    in the tier; `lost` are keys that the device has no longer.
    """
    ends = {5: 4, 6: 8, 7: 12}
    stored = " ".join([OF_FULL, *(f"0/{src}>1/{dst}" for src, dst in blocks.items())])
    keyed = "\n".join(f"publish 3/{dst} r1:{ends[src]} @1" for src, dst in blocks.items())
    gone = "\n".join(f"unpublish {key} evict" for key in lost)
    return UNLIKE.format(kind=kind, stored=stored, keyed=keyed, lost=gone)


NOTHING = "submit r2 a:13\nhit r2 0 | |\nacquire r2 | 9 10 11 12 | 13 14 15 16\n"


@pytest.mark.parametrize(
    ("blocks", "anomalies"),
    [({7: 3}, ["lost-hit"]), ({6: 3}, ["lost-hit"]), ({5: 3}, ["lost-hit"]), ({}, [])],
)
def test_a_window_narrower_than_its_blocks_is_asked_for_its_last_block(
    blocks: dict[int, int], anomalies: list[str]
) -> None:
    """Where the tier has no block of the window, it serves nothing, though the window begins inside
    a block.
    """
    stored = beside("sliding block 4 window 3", blocks, "0/1", "0/2", "0/3")
    assert found(NOTHING, TierRules(chunk=4), stored) == anomalies


HALVES = "chunked block 4 chunk 8"
INSIDE = "submit r2 a:13\nhit r2 4 | 1 | 5\nacquire r2 | 1 10 11 12 | 5 14 15 16\n"


@pytest.mark.parametrize(("whole", "anomalies"), [(True, []), (False, ["lost-hit"])])
def test_nothing_is_owed_behind_a_hit_that_ends_inside_a_chunk(
    whole: bool, anomalies: list[str]
) -> None:
    """The device has 4 tokens, half a chunk; the tier has 12."""
    stored = beside(HALVES, {5: 3, 6: 4, 7: 5}, "0/2", "0/3")
    assert found(INSIDE, TierRules(chunk=4, whole_chunks=whole), stored) == anomalies


def test_what_is_behind_a_hit_that_ends_with_a_chunk_is_owed() -> None:
    """Who declares that chunks are whole is judged behind a whole one, and where the device has
    nothing.
    """
    stored = beside(HALVES, {5: 3, 6: 4, 7: 5}, "0/1", "0/2", "0/3")
    assert found(NOTHING, TierRules(chunk=4, whole_chunks=True), stored) == ["lost-hit"]
