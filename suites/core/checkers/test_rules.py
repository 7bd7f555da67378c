"""Single rules at their edges: progress, counts, reuse, retention, hits and writes."""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.reuse import ReuseFloor
from cachewitness.core.driving import check, drive
from cachewitness.core.events import Preempted, Release, Submitted
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import Preempt, Step, Submit, Trace, TraceHeader
from cachewitness.engines import registry
from cachewitness.workloads import layouts
from cachewitness.workloads.notation import parse

FULL = "pool 0: 8 pages, null 0\ngroup 0: full block 4\nrules: alignment 4, progress 2\n"
HYBRID = "pool 0: 12 pages, null 0\ngroup 0: full block 4\ngroup 1: recurrent block 4\n"


def _found(text: str) -> list[str]:
    return [finding.anomaly for finding in check(parse(text)).findings]


def _opportunities(text: str, name: str) -> int:
    return next(
        tally.opportunities for tally in check(parse(text)).tallies if tally.checker == name
    )


# --- progress -------------------------------------------------------------------------------------


def _refused(times: int, line: str = "asks r1 5", first: int = 1) -> str:
    return "".join(f"step {step}: {line}\n" for step in range(first, first + times))


def test_a_feasible_request_may_be_refused_as_often_as_declared() -> None:
    """Twice; the third time it is stuck, and told once."""
    assert _found(FULL + "submit r1 a:5\n" + _refused(2)) == []
    assert _found(FULL + "submit r1 a:5\n" + _refused(6)) == ["no-progress"]


def test_running_starts_the_count_again() -> None:
    """Two refusals, a run, two refusals."""
    run = "acquire r1 | 1 2\npublish 0/1 r1:4\nstep 3: r1 0..5 | 1 2\naccept r1 6 @r1:1\n"
    text = FULL + "submit r1 a:5\n" + _refused(2) + run + _refused(2, "asks r1 1", first=4)
    assert _found(text) == []
    assert _found(text + "step 6: asks r1 1\n") == ["no-progress"]


def test_a_request_for_which_there_is_no_room_may_wait() -> None:
    """Another one holds the pool: nothing is owed, and nothing counted."""
    text = FULL + "submit r0 b:9\nacquire r0 | 1 2 3 4 5\nsubmit r1 a:5\n" + _refused(6)
    assert (_found(text), _opportunities(text, "progress")) == ([], 0)


def test_a_chunk_of_less_than_a_block_may_be_refused() -> None:
    """An engine may wait for a whole block's worth, unless less is left."""
    assert _found(FULL + "submit r1 a:5\n" + _refused(6, "asks r1 3")) == []
    assert _found(FULL + "submit r1 a:3\n" + _refused(6, "asks r1 3")) == ["no-progress"]


def test_where_nobody_is_asked_for_somebody_must_run() -> None:
    """An engine with a scheduler of its own, and steps in which it runs nobody."""
    assert _found(FULL + "submit r1 a:5\nstep 1:\nstep 2:\n") == []
    assert _found(FULL + "submit r1 a:5\nstep 1:\nstep 2:\nstep 3:\nstep 4:\n") == ["no-progress"]
    assert _found(FULL + "step 1:\nstep 2:\nstep 3:\nstep 4:\n") == []


def test_nobody_has_waited_longer_than_since_it_came() -> None:
    """Two steps ran nobody before b came and a went; b has waited for one, and then for three."""
    text = FULL + "submit a a:5\nstep 1:\nstep 2:\nfinish a\nsubmit b b:5\nstep 3:\n"
    assert _found(text) == []
    assert _found(text + "step 4:\nstep 5:\n") == ["no-progress"]


def _again(
    times: int, *, asked: bool = False, by_engine: bool = False, withdraws: bool = False
) -> int:
    """Have r1 compute its five tokens in so many steps, and lose its pages between them; return how
    often it is stuck.

    It loses them in the step that begins next, or, if that was asked for, behind the one that
    ended. The history may say that the engine did it by itself, and that steps can be taken back.
    """
    runs = [
        f"hit r1 0 |\nacquire r1 | 1 2\nstep {step}: r1 0..5 | 1 2\n"
        for step in range(1, times + 1)
    ]
    history = parse(FULL + "submit r1 a:5\n" + "preempt r1\nrelease r1 | 1 2\n".join(runs))
    for event in history.events:
        if isinstance(event, Preempted):
            event.step -= asked
            event.by_engine = by_engine
    history.header.capabilities.extend(["withdraw"] * withdraws)
    return [finding.anomaly for finding in check(history).findings].count("no-progress")


def test_who_computes_the_same_again_and_again_does_not_advance() -> None:
    """Its last token may be computed twice more; not if it loses its pages because somebody asks
    for that.
    """
    assert [_again(3), _again(4), _again(9, asked=True)] == [0, 1, 0]


def test_who_is_taken_out_of_its_step_has_lost_its_pages_as_asked_for() -> None:
    """Where steps can be taken back, who asked is what the history says of a preemption, inside
    of a step and outside.
    """
    assert [_again(9, withdraws=True), _again(4, withdraws=True, by_engine=True)] == [0, 1]


@pytest.mark.parametrize("by_engine", [False, True])
def test_in_steps_in_flight_that_are_taken_back_nobody_is_kept_from_running(
    by_engine: bool,
) -> None:
    """Three are, before the first of them ends and says so; an engine that takes the pages by
    itself runs nobody.
    """
    withdrawn = "".join(
        f"hit r1 0 |\nacquire r1 | 1 2\npreempt r1\nrelease r1\nbegin {step}:\n"
        for step in (1, 2, 3)
    )
    history = parse(f"{FULL}submit r1 a:5\n{withdrawn}end 1 withdraw r1\n")
    history.header.capabilities.append("withdraw")
    for event in history.events:
        if isinstance(event, Preempted):
            event.by_engine = by_engine
    assert [finding.anomaly for finding in check(history).findings] == ["no-progress"] * by_engine


@pytest.mark.parametrize("withdraws", [False, True])
def test_who_has_no_place_is_not_preempted_once_more(withdraws: bool) -> None:
    """An engine that runs nobody any more, and answers every preemption that is asked for, is
    stuck all the same.
    """
    lost = (
        "preempt r1 @1\nrelease r1 @1\n"
        + "step 2:\nstep 3:\npreempt r1 @3\nstep 4:\nstep 5:\npreempt r1 @5\n"
    )
    history = parse(
        f"{FULL}submit r1 a:3\nhit r1 0 |\nacquire r1 | 1\nstep 1: r1 0..3 | 1\n"
        f"accept r1 4 @r1:1\n{lost}"
    )
    history.header.capabilities.extend(["withdraw"] * withdraws)
    assert [finding.anomaly for finding in check(history).findings] == ["no-progress"]


@pytest.mark.parametrize(("lost", "stuck"), [(1, []), (2, ["no-progress"])])
def test_what_was_in_flight_is_computed_again_as_well(lost: int, stuck: list[str]) -> None:
    """r1 has two tokens. A step in flight had computed a third when r1 lost its pages and, with
    them, what it generated.

    So many times it loses them again behind its second token; then two steps take it as far as it
    ever was.
    """
    patient = FULL.replace("progress 2", "progress 4")
    resumed = "hit r1 0 |\nacquire r1 | 1\n"
    text = f"{patient}submit r1 a:3\n{resumed}begin 1: r1 0..2 | 1\nbegin 2: r1 2..3 | 1\n"
    text += "preempt r1 @2\nrelease r1 @2\nend 1\nend 2\n"
    for step in range(3, 3 + lost):
        text += f"{resumed}step {step}: r1 0..2 | 1\npreempt r1\nrelease r1\n"
    history = parse(
        f"{text}{resumed}begin {3 + lost}: r1 0..2 | 1\nbegin {4 + lost}: r1 2..3 | 1\n"
    )
    submitted = history.events[0]
    assert isinstance(submitted, Submitted)
    submitted.tokens.pop()
    assert [finding.anomaly for finding in check(history).findings] == stuck


# --- ownership ------------------------------------------------------------------------------------

HELD = FULL + "submit r1 a:5\nacquire r1 | 1 2\npublish 0/1 r1:4\nstep 1: r1 0..5 | 1 2\n"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("free 5 held 2 cached 0", []),
        ("free 5 held 2 cached 0 refs 1=1 2=1", []),
        ("free 4 held 2 cached 0", ["leak"]),
        ("free 6 held 2 cached 0", ["double-free"]),
        ("free 4 held 3 cached 0", ["leak"]),
        ("free 6 held 1 cached 0", ["double-free"]),
        ("free 5 held 2 cached 0 refs 1=2", ["leak"]),
        ("free 5 held 2 cached 0 refs 1=0", ["double-free"]),
    ],
)
def test_books_add_up_to_what_the_tables_say(counts: str, expected: list[str]) -> None:
    """A page too few or counted too often is lost, one too many or counted too seldom is free
    twice.
    """
    assert _found(HELD + f"counts 0: {counts}\n") == expected


def test_references_to_the_first_page_count_like_all_others() -> None:
    """Where page 0 is no null block, the engine may neither forget nor invent references to it."""
    text = (
        "pool 0: 4 pages\ngroup 0: full block 4\nrules: alignment 4\nsubmit r1 a:3\n"
        "acquire r1 | 0\nstep 1: r1 0..3 | 0\n"
    )
    counts = "counts 0: free 3 held 1 cached 0 refs 0="
    assert _found(f"{text}{counts}1\n") == []
    assert _found(f"{text}{counts}2\n") == ["leak"]
    assert _found(f"{text}{counts}0\n") == ["double-free"]


def test_the_null_block_is_nobodys() -> None:
    """It is in all tables; it is not taken, and not written."""
    assert _found(FULL + "submit r1 a:4\nacquire r1 | 0\n") == ["aliased-write"]
    assert "aliased-write" in _found(FULL + "submit r1 a:4\nstep 1: r1 0..4 | 0\n")


def test_who_ended_holds_nothing_one_step_later() -> None:
    """The pages may come back in the step after the end, and are lost if they do not."""
    later = "submit r2 b:4\nacquire r2 | 3\npublish 0/3 r2:4\n"
    assert _found(HELD + "finish r1\n" + later + "release r1\nstep 2: r2 0..4 | 3\n") == []
    assert _found(HELD + "finish r1\n" + later + "step 2: r2 0..4 | 3\n") == ["leak"]
    assert _found(HELD + "finish r1\n" + later + "step 2: r2 0..4 | 3\nstep 3:\nstep 4:\n") == [
        "leak"
    ]


def test_a_preempted_request_may_hold_pages_once_it_is_back() -> None:
    """Its new pages are not its old ones."""
    assert (
        _found(
            HELD
            + "preempt r1\nrelease r1\nhit r1 4 | 1\nacquire r1 | 1 3\nstep 2: r1 4..5 | 1 3\nstep 3:\n"  # noqa: E501
        )
        == []
    )


def test_one_place_for_two_tokens_is_an_aliased_write() -> None:
    """The same page in two columns of full attention, or in two groups' tables."""
    assert "aliased-write" in _found(
        FULL + "submit r1 a:8\nacquire r1 | 3 3\nstep 1: r1 0..8 | 3 3\n"
    )
    assert "aliased-write" in _found(
        HYBRID + "submit r1 a:4\nacquire r1 | 3 | 3\nstep 1: r1 0..4 | 3 | 3\n"
    )


def test_a_state_may_move_on_in_its_page() -> None:
    """All columns of the recurrent table are one page: a batch row."""
    text = (
        "pool 0: 4 pages\ngroup 0: recurrent block 4\nrules: no-caching\nsubmit r1 a:9\n"
        "acquire r1 | 3 3 3\n"
    )
    assert _found(text + "step 1: r1 0..4 | 3 3 3\nstep 2: r1 4..9 | 3 3 3\n") == []


def test_another_holders_state_may_not_be_moved_on() -> None:
    """r2 was hit on the state that r1 resumes from, and advances it in place."""
    text = (
        "pool 0: 4 pages\ngroup 0: recurrent block 16\nrules: alignment 4\nsubmit r1 a:9\n"
        "acquire r1 | 3\npublish 0/3 r1:8\nstep 1: r1 0..8 | 3\nsubmit r2 a:8 b:1\n"
        "hit r2 8 | 3\nacquire r2 | 3\nstep 2: r2 8..9 | 3\n"
    )
    assert _found(text) == ["aliased-write"]


# --- reuse and retention --------------------------------------------------------------------------

DENSE = HYBRID + "rules: alignment 4, retention dense on 1\n"
SPARSE = HYBRID + "rules: alignment 4, retention 0 on 1\n"
FIRST = "submit r1 a:9\nacquire r1 | 1 2 3 | 4 5 6\npublish 0/1 r1:4\n"
CROSSED = "step 1: r1 0..4 | 1 2 3 | 4 5 6\npublish 0/2 r1:8\nstep 2: r1 4..9 | 1 2 3 | 4 5 6\n"
"""The second chunk runs over the boundary at 8, so the only states are those after 4 and after 9
tokens."""
STOPPED = CROSSED.replace(
    "r1 4..9 | 1 2 3 | 4 5 6\n", "r1 4..8 | 1 2 3 | 4 5 6\nstep 3: r1 8..9 | 1 2 3 | 4 5 6\n"
)
"""A chunk ends at 8."""


@pytest.mark.parametrize(
    ("unpublished", "resume", "expected"),
    [
        ("", 4, []),
        ("", 0, ["lost-hit"]),
        ("unpublish 1/4 evict\n", 0, []),
        ("unpublish 0/1 evict\n", 0, []),
    ],
    ids=["where all groups can", "earlier", "no state", "no first block"],
)
def test_a_request_resumes_where_every_group_can(
    unpublished: str, resume: int, expected: list[str]
) -> None:
    """By the engine's own keys: without the state, or without the first block of attention,
    nothing is owed.
    """
    hit = "hit r2 4 | 1 | 4\n" if resume else "hit r2 0\n"
    assert (
        _found(
            DENSE + FIRST + "publish 1/4 r1:4\n" + CROSSED + unpublished + "submit r2 a:9\n" + hit
        )
        == expected
    )


def test_a_key_of_a_step_in_flight_counts_for_the_reuse_floor() -> None:
    """It may be hit, so whoever does not hit it loses something."""
    text = (
        FULL + "submit r1 a:5\nacquire r1 | 1 2\npublish 0/1 r1:4\nbegin 1: r1 0..5 | 1 2\n"
        "submit r2 a:5\nhit r2 0\n"
    )
    assert _found(text) == ["lost-hit"]


AGAIN = (
    FULL
    + "submit r1 a:5\nacquire r1 | 1 2\npublish 0/1 r1:4\nstep 1: r1 0..5 | 1 2\nsubmit r2 a:5\n"
)


@pytest.mark.parametrize(("reported", "expected"), [(4, []), (5, []), (8, ["lost-hit"])])
def test_what_is_reported_as_cached_is_not_computed(reported: int, expected: list[str]) -> None:
    """All but the last token: of a prompt that is cached whole it is computed for its logits."""
    text = (
        FULL + "submit r1 a:9\nacquire r1 | 1 2 3\npublish 0/1 r1:4\nstep 1: r1 0..9 | 1 2 3\n"
        "publish 0/2 r1:8\n"
    )
    text += (
        f"submit r2 a:4 b:5\nhit r2 {reported} resume 4 | 1\nacquire r2 | 1 4 5\n"
        "step 2: r2 4..9 | 1 4 5\n"
    )
    assert [anomaly for anomaly in _found(text) if anomaly == "lost-hit"] == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [(4, []), (0, ["lost-hit"])],
    ids=["where it was told", "from the beginning"],
)
def test_who_is_told_of_a_hit_begins_behind_it(start: int, expected: list[str]) -> None:
    """A cache that is looked up, counted and never used computes everything again: it is inert."""
    looked_up = "hit r2 4 | 1\n"
    run = f"r2 {start}..5 | 1 3\n"
    assert _found(AGAIN + looked_up + "acquire r2 | 1 3\nstep 2: " + run) == expected
    assert (
        _found(
            AGAIN
            + "acquire r2 | 1 3\nbegin 2: "
            + run
            + looked_up.replace("\n", " @2\n")
            + "end 2\n"
        )
        == expected
    )


def test_who_runs_in_a_later_step_may_have_lost_blocks_meanwhile() -> None:
    text = (
        AGAIN
        + "hit r2 4 | 1\nacquire r2 | 1 3\nsubmit r3 b:2\nacquire r3 | 4\nstep 2: r3 0..2 | 4\n"
    )
    assert _found(text + "step 3: r2 0..5 | 1 3\n") == ["lost-hit"]
    assert _found(text + "release r2 | 1\nacquire r2 | 5\nstep 3: r2 0..5 | 5 3\n") == []


def test_who_gave_pages_back_and_is_no_request_any_more_is_forgotten() -> None:
    """Else a long run would remember every request that it ever had, and every copy."""
    floor = ReuseFloor()
    history = parse(AGAIN + "acquire copy:1 | 5\nrelease copy:1\nrelease r1\n")
    ledger = Ledger(history.header)
    for event in history.events:
        if isinstance(event, Release):
            floor.on_release(ledger, event)
        ledger.apply(event)
    assert floor._dropped == {"copy:1", "r1"}
    del ledger.requests["r1"]
    floor.forget(ledger, ())
    assert floor._dropped == set()


@pytest.mark.parametrize(
    ("interval", "expected"), [("dense", []), ("4", []), ("8", ["over-dense-retention"])]
)
def test_an_interval_allows_its_multiples_and_the_boundary(
    interval: str, expected: list[str]
) -> None:
    """Of the states after 4 and after 8 tokens, an interval of 8 allows the second alone."""
    published = STOPPED.replace("publish 0/2", "publish 1/5 r1:8\npublish 0/2")
    rules = f"rules: alignment 4, retention {interval} on 1\n"
    assert _found(HYBRID + rules + FIRST + "publish 1/4 r1:4\n" + published) == expected


@pytest.mark.parametrize(("alignment", "prompt", "cause"), [(8, 13, "off-grid"), (4, 14, "")])
def test_a_state_where_no_hit_can_end_is_told_apart(
    alignment: int, prompt: int, cause: str
) -> None:
    """Hits are multiples of 8, and a state that nobody needs is at 4; where they are multiples
    of 4, somebody might need it.
    """
    rules = f"rules: alignment {alignment}, retention 0 on 1\n"
    text = (
        HYBRID
        + rules
        + FIRST.replace("a:9", f"a:{prompt}")
        + "publish 1/4 r1:4\nstep 1: r1 0..4 | 1 2 3 | 4 5 6\n"
    )
    (finding,) = check(parse(text)).findings
    assert (finding.anomaly, finding.cause) == ("over-dense-retention", cause)
    assert ("no hit can end: hits are multiples of 8" in finding.sentence) == bool(cause)


@pytest.mark.parametrize(("shared", "expected"), [(8, []), (3, ["over-dense-retention"])])
def test_a_key_that_should_be_gone_makes_a_boundary_all_the_same(
    shared: int, expected: list[str]
) -> None:
    """r1 is taken out of its step and its keys stay. r2 hits none of them, leaves the prefix at
    8, and keeps a state there.
    """
    text = (
        f"{HYBRID}rules: alignment 4, retention 0 on 1, shared-prefix-boundary\nsubmit r1 a:9\n"
        "acquire r1 | 1 2 3 | 4 5 6\npublish 0/1 r1:4\npublish 0/2 r1:8\n"
        "step 1: r1 0..9 | 1 2 3 | 0 0 6; withdraw r1\npreempt r1\nrelease r1\n"
        f"submit r2 a:{shared} b:{17 - shared}\nhit r2 0\nacquire r2 | 7 8 9 | 10 11\n"
        "publish 1/11 r2:8\nstep 2: r2 0..8 | 7 8 | 0 11\n"
    )
    assert _found(text) == expected


@pytest.mark.parametrize(("at", "expected"), [(8, []), (20, ["over-dense-retention"])])
def test_with_eagle_a_window_parts_where_the_block_beyond_it_is_there_too(
    at: int, expected: list[str]
) -> None:
    """Of r0 blocks 0 to 2 are left, of r1 blocks 7 and 8. A block beyond the window, three are
    found at 12, so 8 is kept.
    """
    text = (
        "pool 0: 60 pages, null 0\ngroup 0: sliding block 4 window 8\n"
        "group 1: recurrent block 4\n"
        "rules: alignment 4, eagle-drop 4, retention 0 on 0 1, shared-prefix-boundary\n"
        "submit r0 a:16\nhit r0 0\nacquire r0 | 1 2 3 4 | 5\npublish 0/1 r0:4\n"
        "publish 0/2 r0:8\npublish 0/3 r0:12\nstep 1: r0 0..16 | 1 2 3 4 | 0 0 0 5\nfinish r0\n"
        "release r0\nsubmit r1 a:40\nhit r1 0\nacquire r1 | 6 7 8 9 10 11 12 13 14 15 | 16\n"
        "publish 0/13 r1:32\npublish 0/14 r1:36\n"
        "step 2: r1 0..40 | 6 7 8 9 10 11 12 13 14 15 | 0 0 0 0 0 0 0 0 0 16\nfinish r1\n"
        "release r1\nsubmit r2 a:40 b:20\nhit r2 0\n"
        f"acquire r2 | 20 21 22 23 24 25 26 27 28 29 | 30\npublish 1/30 r2:{at}\n"
        f"step 3: r2 0..{at} | 20 21 22 23 24 25 26 27 28 29 | {'0 ' * (at // 4 - 1)}30\n"
    )
    assert _found(text) == expected


def test_the_boundary_is_owed_only_if_its_state_was_written() -> None:
    """A chunk that runs over the boundary writes no state there, and nothing is lost."""
    assert _found(SPARSE + FIRST + CROSSED) == []
    assert _found(SPARSE + FIRST + STOPPED) == ["lost-replay-boundary"]


@pytest.mark.parametrize("rule", ["lost-hit", "lost-replay-boundary"])
def test_a_group_of_another_tier_takes_no_part(rule: str) -> None:
    """What is cached on the device is judged by the device's groups; a store that has nothing
    excuses nobody.
    """
    tier = "pool 1: 4 pages, tier cpu\ngroup 2: recurrent block 4 pool 1\n"
    if rule == "lost-hit":
        text = DENSE + tier + FIRST + "publish 1/4 r1:4\n" + CROSSED + "submit r2 a:9\nhit r2 0\n"
    else:
        text = SPARSE + tier + FIRST + STOPPED
    assert _found(text) == [rule]


# --- hits -----------------------------------------------------------------------------------------


def test_a_hit_leaves_a_token_to_compute() -> None:
    """Of a prompt that is cached whole, the last one."""
    assert _found(HELD + "submit r2 a:4\nhit r2 4 | 1\n") == ["nothing-to-compute"]


@pytest.mark.parametrize(
    ("line", "expected"), [("reset ok", "stale-hit"), ("version 1", "cross-identity-hit")]
)
def test_a_key_that_was_ended_is_told_once(line: str, expected: str) -> None:
    """At the hit, and not again by the reads that follow from it."""
    rest = "submit r2 a:5\nhit r2 4 | 1\nacquire r2 | 1 3\nstep 2: r2 4..5 | 1 3\n"
    assert _found(HELD + line + "\n" + rest) == [expected]


def test_a_hit_on_a_duplicate_that_still_counts_is_sound() -> None:
    """Under new weights the block was computed and keyed again in the same page: the old key
    beside it harms nobody.
    """
    again = (
        "version 1\nunpublish 0/1 version\nsubmit r2 a:5\nacquire r2 | 3 4\npublish 0/3 r2:4\n"
        "step 2: r2 0..5 | 3 4\n"
    )
    assert (
        _found(
            HELD + again + "submit r3 a:5\nhit r3 4 | 3\nacquire r3 | 3 5\nstep 3: r3 4..5 | 3 5\n"
        )
        == []
    )


def test_a_page_that_changed_groups_is_needed_by_nobody_for_what_it_held() -> None:
    """Two steps are in flight when a page moves from one group to another: its next writer
    destroys nothing that is read.
    """
    ops = [
        Submit("a", "a:1"),
        Submit("b", "B:16"),
        Submit("c", "B:17"),
        Step(budget=16),
        Preempt("b"),
        Step(),
        Step(),
    ]
    header = TraceHeader(
        "moved page",
        layouts.load("full-swa-unequal"),
        pages=10,
        level="scheduler",
        options={"async_depth": 1, "max_num_batched_tokens": 2048, "retention_interval": None},
    )
    engine = registry.parse("reference").open(header)
    assert drive(Trace(header, ops), engine).findings == []


def test_where_keys_are_late_none_is_owed_when_a_prompt_is_complete() -> None:
    """The same history, without the key that a replay of the prompt needs."""
    computed = "submit r1 a:5\nacquire r1 | 1 2\nstep 1: r1 0..5 | 1 2\naccept r1 6 @r1:1\n"
    assert _found(FULL + computed) == ["lost-replay-boundary"]
    assert _found(FULL.replace("progress 2", "progress 2, late-keys") + computed) == []


# --- columns without a page -----------------------------------------------------------------------


def test_a_block_that_is_gone_is_found_where_no_group_has_a_window() -> None:
    """The request computed the block itself; its table has the null block there, and attention
    reads it still.
    """
    computed = (
        FULL + "submit r1 a:5\nacquire r1 | 1 2\npublish 0/1 r1:4\nstep 1: r1 0..5 | 1 2\n"
        "accept r1 6 @r1:1\n"
    )
    assert _found(computed + "step 2: r1 5..6 | 1 2\n") == []
    assert _found(computed + "step 2: r1 5..6 | 0 2\n") == ["use-after-free"]


def test_a_state_that_is_gone_is_found_where_no_group_has_a_window() -> None:
    """A recurrent group that goes on from the null block."""
    begun = HYBRID + "rules: progress 2\nsubmit r1 a:5\nacquire r1 | 1 2 | 3 4\n"
    computed = begun + "step 1: r1 0..5 | 1 2 | 3 4\naccept r1 6 @r1:1\n"
    assert _found(computed + "step 2: r1 5..6 | 1 2 | 3 4\n") == []
    assert "use-after-free" in _found(computed + "step 2: r1 5..6 | 1 2 | 3 0\n")


# --- resets ---------------------------------------------------------------------------------------


def test_what_a_reset_ended_is_not_hit_under_another_key() -> None:
    """The engine keeps the page and keys it anew behind the reset; whoever computes its tokens
    again may key it so.
    """
    computed = (
        FULL
        + "submit r1 a:5\nhit r1 0\nacquire r1 | 1 2\npublish 0/1 r1:4\nstep 1: r1 0..5 | 1 2\n"
        "finish r1\nrelease r1\n"
    )
    hit = "submit r2 a:5\npublish 0/1 r2:4\nhit r2 4 | 1\nacquire r2 | 1 3\nstep 2: r2 4..5 | 1 3\n"
    anew = "submit r2 a:5\nhit r2 0\nacquire r2 | 1 3\npublish 0/1 r2:4\nstep 2: r2 0..5 | 1 3\n"
    assert _found(computed + hit) == []
    assert _found(computed + "reset ok\n" + hit)[0] == "stale-hit"
    assert (
        _found(computed.replace("release r1\n", "reset ok\nrelease r1\n") + hit)[0] == "stale-hit"
    )  # held a little longer
    assert _found(computed + "reset failed\n" + hit) == ["refused-reset"]
    assert _found(computed + "reset ok\n" + anew) == []


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("", []),
        ("acquire r2 | 1 2\nstep 1: r2 0..5 | 1 2\npreempt r2\nrelease r2\n", ["no-progress"]),
    ],
)
def test_who_ran_on_this_rank_stays_on_it(before: str, found: list[str]) -> None:
    """It has lost its pages, and what it computed, when the engine gives it up."""
    text = f"pool 0: 8 pages, null 0\ngroup 0: full block 4\nrules: no-caching, two-ranks\n{before}"
    history = parse(
        text.replace("two-ranks\n", "two-ranks\nsubmit r2 b:5\n") + "abort r2 by engine\n"
    )
    assert [finding.anomaly for finding in check(history).findings] == found
