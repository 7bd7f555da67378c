"""The causes of findings behind another tier, each with a look-alike that is another fault: a list
that has the one must not excuse the other.
"""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.finding import EARLY_COPY, FAILED_LOAD, ROUNDED_UP
from cachewitness.core.driving import check
from cachewitness.core.ledger.records import GIVEN_BACK, NOT_RUN, OFFERED_AGAIN, RUN_PAST
from cachewitness.workloads.notation import parse

STATES = """pool 0: 12 pages, null 0
pool 1: 8 pages, tier cpu, evicts lru
group 0: full block 4
group 1: recurrent block 8
group 2: full block 4 pool 1 of 0
group 3: recurrent block 8 pool 1 of 1
rules: alignment 4
submit a x:16
hit a 0
acquire a | 1 2 3 4 | 5 6
publish 0/1 a:4
publish 1/5 a:8
publish 1/6 a:16
step 1: a 0..8 | 1 2 | 5; store 0/1>1/0 0/2>1/1
step 2: a 8..16 | 1 2 3 4 | 5 6; store 0/3>1/2 0/6>1/3
publish 2/0 a:4
publish 2/1 a:8
publish 2/2 a:12
publish 3/3 a:16
finish a
release a
submit b x:17
acquire b | 7 8 9 10 11 | 2 4
"""
"""Of 16 tokens another tier has the first three blocks of attention, and the state after all."""


def causes(text: str, *anomalies: str) -> list[tuple[str, str]]:
    """Return what is found of some anomalies, and the cause of each."""
    found = check(parse(text)).findings
    return [(one.anomaly, one.cause) for one in found if one.anomaly in anomalies]


@pytest.mark.parametrize(
    ("end", "loaded", "cause"),
    [
        (12, "1/0>0/7 1/1>0/8 1/2>0/9 1/3>0/2", ROUNDED_UP),
        (15, "1/0>0/7 1/1>0/8 1/2>0/9 1/3>0/2", ""),
    ],
    ids=["with a block of attention", "a token before the end"],
)
def test_a_state_of_the_end_of_its_block_is_rounded_up(end: int, loaded: str, cause: str) -> None:
    """A hit of attention that ends inside a block of states; a hit that is a token short of the
    block is another fault.
    """
    hit = f"hit b {end} tier cpu | 7 8 9 | 0 2 | 0 1 2 | 5 3\n"
    run = f"step 3: b {end}..17 | 7 8 9 10 11 | 0 2 4; copy {loaded}\n"
    assert ("state-position-skew", cause) in causes(STATES + hit + run, "state-position-skew")


def test_a_state_that_nobody_kept_is_rounded_up_to_nothing() -> None:
    """A hit that ends with the block of a state asks for one that was kept."""
    for end, state, cause in ((12, "5 4", ROUNDED_UP), (16, "5 4", "")):
        blocks = "7 8 9 10" if end == 16 else "7 8 9"
        loaded = "1/0>0/7 1/1>0/8 1/2>0/9 1/4>0/2"
        hit = f"hit b {end} tier cpu | {blocks} | 0 2 | 0 1 2{' 6' * (end == 16)} | {state}\n"
        run = f"step 3: b {end}..17 | 7 8 9 10 11 | 0 2 4; copy {loaded}\n"
        found = causes(STATES + hit + run, "stale-hit")
        assert (cause == ROUNDED_UP) == (("stale-hit", ROUNDED_UP) in found) and found


UNLIKE = """pool 0: 14 pages, null 0
pool 1: 8 pages, tier cpu, evicts lru
group 0: full block 4
group 1: full block 6
group 2: recurrent block 8
group 3: full block 4 pool 1 of 0
group 4: full block 6 pool 1 of 1
group 5: recurrent block 8 pool 1 of 2
rules: alignment 2
submit a x:8
hit a 0
acquire a | 1 2 | 3 4 | 5
publish 0/1 a:4
publish 1/3 a:6
publish 2/5 a:8
step 1: a 0..8 | 1 2 | 3 4 | 5; store 0/1>1/0 0/3>1/2 0/5>1/1
publish 3/0 a:4
publish 4/2 a:6
publish 5/1 a:8
finish a
release a
submit b x:9
acquire b | 6 7 8 | 9 10 | 11 12
"""


def test_of_full_groups_with_unlike_blocks_the_hit_ends_with_one_s() -> None:
    hit = "hit b 4 tier cpu | 6 | 9 | 11 | 0 | 2 | 1\n"
    run = "step 2: b 4..9 | 6 7 8 | 9 10 | 11 12; copy 1/0>0/6 1/2>0/9 1/1>0/11\n"
    found = causes(UNLIKE + hit + run, "state-position-skew")
    assert ("state-position-skew", ROUNDED_UP) in found


WINDOW = """pool 0: 12 pages, null 0
pool 1: 8 pages, tier cpu, evicts lru
group 0: sliding block 4 window 4
group 1: sliding block 4 window 4 pool 1 of 0
rules: alignment 4
submit a x:8
hit a 0
acquire a | 1 2
step 1: a 0..8 | 1 2
"""
LEFT = """release a | 1
submit b y:4
hit b 0
acquire b | 1
step 2: b 0..4 | 1
"""
STORE = "step 4: ; store 0/1>1/0\npublish 1/0 a:4\nstep 5: \n"


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (LEFT, GIVEN_BACK),
        (LEFT + "reset ok tier cpu\n", OFFERED_AGAIN),
        ("reset ok tier cpu\n" + LEFT, GIVEN_BACK),
        (LEFT + "reset ok tier cpu\nfinish a\nrelease a\n", OFFERED_AGAIN),
        (LEFT + "finish a\nrelease a\nstep 3: \n", ""),
    ],
    ids=[
        "given back",
        "and then a reset",
        "a reset before that",
        "by the step behind its end",
        "by a later step",
    ],
)
def test_a_block_that_its_request_had_given_back_is_stored_for_it(before: str, cause: str) -> None:
    assert causes(WINDOW + before + STORE, "partial-commit") == [("partial-commit", cause)]


def test_a_wrong_page_that_its_request_never_had_is_another_fault() -> None:
    """Also behind a reset: a list that has `offered-again` does not excuse it."""
    others = "submit b y:4\nhit b 0\nacquire b | 3\nstep 2: b 0..4 | 3\nrelease a | 1\n"
    store = "reset ok tier cpu\n" + STORE.replace("0/1", "0/3")
    assert causes(WINDOW + others + store, "partial-commit") == [("partial-commit", "")]


AGAIN = """release a | 1
acquire a | 1
step 2: a 8..12 | 0 2 1
"""
TWICE = """release a | 1
acquire a | 1
step 3: a 12..16 | 0 0 2 1
"""


@pytest.mark.parametrize("times", [AGAIN, AGAIN + TWICE], ids=["again", "and again"])
@pytest.mark.parametrize(("key", "cause"), [("a:4", OFFERED_AGAIN), ("a:8", "")])
def test_a_block_that_its_request_has_again_is_stored_for_what_it_held_then(
    key: str, cause: str, times: str
) -> None:
    """And not under any other key of the request."""
    window = WINDOW.replace("submit a x:8", "submit a x:16")
    store = "reset ok tier cpu\n" + STORE.replace("a:4", key)
    assert causes(window + times + store, "partial-commit") == [("partial-commit", cause)]


@pytest.mark.parametrize(("key", "cause"), [("a:4", OFFERED_AGAIN), ("a:12", GIVEN_BACK)])
def test_of_a_block_that_was_given_back_twice_the_time_counts_at_which_it_held_what_is_named(
    key: str, cause: str
) -> None:
    """Once in front of a reset, and once behind it."""
    window = WINDOW.replace("submit a x:8", "submit a x:16")
    store = LEFT.replace("step 2", "step 3") + STORE.replace("a:4", key)
    found = causes(window + AGAIN + "reset ok tier cpu\n" + store, "partial-commit")
    assert found == [("partial-commit", cause)]


@pytest.mark.parametrize(
    ("load", "cause"),
    [
        ("step 4: failed 9\nacquire b | 6\nstep 5: b 4..12 | 0 5 6\n", FAILED_LOAD),
        ("step 4: ended 9\nacquire b | 6\nstep 5: b 8..12 | 0 0 6\n", ""),
        ("step 4: ended 9\nacquire b | 6\nstep 5: b 4..12 | 0 5 6\n", ""),
    ],
    ids=["computed again", "not loaded", "computed again for nothing"],
)
def test_a_window_is_computed_again_behind_a_load_that_failed(load: str, cause: str) -> None:
    """In front of what failed there is nothing, since a hit loads the end of its prompt alone."""
    stored = "step 2: ; store 0/2>1/0\npublish 1/0 a:8\nfinish a\nrelease a\n"
    hit = "submit b x:12\nhit b 8 tier cpu | 0 5 | 3 0\nacquire b | 5\nstep 3: begun 9 1/0>0/5\n"
    found = causes(WINDOW + stored + hit + load, "window-hole", "premature-release")
    assert found and found[0][1] == cause


def test_a_store_into_a_pool_that_has_no_blocks_of_the_group_has_no_cause() -> None:
    window = WINDOW.replace("submit a x:8", "submit a x:16").replace(
        "group 1: sliding block 4 window 4 pool 1 of 0\n",
        "pool 2: 4 pages, tier disk\ngroup 1: sliding block 4 window 4 pool 1 of 0\n",
    )
    store = "reset ok tier cpu\nstep 4: ; store 0/1>2/0\nstep 5: \n"
    assert causes(window + AGAIN + store, "partial-commit", "stale-hit") == []


def test_whoever_loads_what_was_stored_so_has_the_same_cause() -> None:
    load = (
        "submit c x:5\nhit c 4 tier cpu | 5 | 0\nacquire c | 5 6\n"
        "step 6: c 4..5 | 5 6; copy 1/0>0/5\n"
    )
    assert ("stale-hit", GIVEN_BACK) in causes(WINDOW + LEFT + STORE + load, "stale-hit")


PAST = """pool 0: 16 pages, null 0
pool 1: 8 pages, tier cpu, evicts lru
group 0: full block 4
group 1: recurrent block 8
group 2: full block 4 pool 1 of 0
group 3: recurrent block 8 pool 1 of 1
rules: alignment 4
submit a x:4
hit a 0
acquire a | 1 | 2
publish 0/1 a:4
publish 1/2 a:4
step 1: a 0..4 | 1 | 2
finish a
release a
submit b x:4 y:16
hit b 4 | 1 | 2
acquire b | 1 3 4 5 6 | 2 7 8
publish 1/2 b:8
step 2: b 4..20 | 1 3 4 5 6 | 2 7 8; saves b 1/7:16; store 0/2>1/0 0/7>1/1
publish 3/0 b:8
"""
"""A chunk runs past a key and saves a later state on its way; both blocks are stored behind it."""


@pytest.mark.parametrize(
    ("keyed", "cause"),
    [("3/0 b:8", RUN_PAST), ("3/0 b:16", ""), ("3/1 b:8", "")],
    ids=["as it is keyed", "under a later key", "another state under that key"],
)
def test_a_store_of_a_wrong_key_s_block_has_the_cause_of_that_key(keyed: str, cause: str) -> None:
    """The store begins behind the runs of its step: it is no early copy. A wrong store of the same
    state is another fault.
    """
    text = PAST.replace("3/0 b:8", keyed) + "step 3: \n"
    found = causes(text, "fabricated-snapshot")
    assert found == [("fabricated-snapshot", RUN_PAST), ("fabricated-snapshot", cause)]


def test_whoever_loads_the_state_of_a_wrong_key_has_its_cause() -> None:
    load = (
        "publish 2/2 b:8\nsubmit c x:4 y:8\nhit c 8 tier cpu | 9 10 | 11 | 2 2 | 0\n"
        "acquire c | 9 10 12 | 11 13\n"
        "step 3: c 8..12 | 9 10 12 | 11 13; copy 1/0>0/11\n"
    )
    found = causes(PAST + load, "fabricated-snapshot", "state-position-skew", "stale-hit")
    assert ("state-position-skew", RUN_PAST) in found


PRIORITY = """pool 0: 8 pages, null 0
group 0: full block 4
rules: alignment 4
submit a x:8
submit b y:4
hit a 0
hit b 0
acquire a | 1 2
acquire b | 3
"""


def test_a_key_of_a_request_that_did_not_run_in_its_step_is_told_from_one_without_content() -> None:
    """The step runs the other request alone; a key over too little, of one that ran, is another
    fault.
    """
    keyed = "publish 0/1 a:4\n"
    taken_out = PRIORITY + keyed + "step 1: b 0..4 | 3\n"
    too_little = PRIORITY + keyed + "step 1: a 0..3 | 1 2; b 0..4 | 3\n"
    assert causes(taken_out, "partial-commit") == [("partial-commit", NOT_RUN)]
    assert causes(too_little, "partial-commit") == [("partial-commit", "")]


STORED = PRIORITY.replace("rules:", "group 1: full block 4 pool 1 of 0\nrules:").replace(
    "group 0", "pool 1: 4 pages, tier cpu, evicts lru\ngroup 0", 1
)


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        ("b 0..4 | 3; store 0/1>1/0", NOT_RUN),
        ("a 0..3 | 1 2; b 0..4 | 3; store 0/1>1/0", ""),
        ("a 0..8 | 1 2; b 0..4 | 3; copy 0/1>1/0", EARLY_COPY),
    ],
    ids=["of who did not run", "of too little", "in front of the run"],
)
def test_a_store_of_a_key_without_content_is_early_in_front_of_the_run_alone(
    step: str, cause: str
) -> None:
    text = STORED + f"publish 0/1 a:4\nstep 1: {step}\npublish 1/0 a:4\nstep 2: \n"
    assert causes(text, "partial-commit")[-1] == ("partial-commit", cause)


WAITS = """pool 0: 8 pages, null 0
pool 1: 4 pages, tier cpu, evicts lru
group 0: full block 4
group 1: full block 4 pool 1 of 0
rules: alignment 4, progress 2
submit a x:8
"""


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ("acquire copy:1 | 3\nstep 1: begun 7 1/0>0/3\nstep 2: failed 7\n", FAILED_LOAD),
        ("acquire copy:1 | 3\nstep 1: begun 7 1/0>0/3\nstep 2: ended 7\n", ""),
        ("acquire copy:1 | 3\nstep 1: begun 7 0/3>1/0\nstep 2: failed 7\n", ""),
    ],
    ids=["failed", "ended", "a store failed"],
)
def test_nobody_runs_behind_a_load_that_failed(before: str, cause: str) -> None:
    idle = "".join(f"step {step}: \n" for step in range(3, 8))
    found = causes(WAITS + before + "release copy:1 | 3\n" + idle, "no-progress")
    assert found == [("no-progress", cause)]


@pytest.mark.parametrize(
    ("loads", "steps", "found"),
    [
        (" begun 7 1/0>0/3", 4, []),
        (" begun 7 1/0>0/3", 5, ["no-progress"]),
        ("", 3, ["no-progress"]),
    ],
    ids=["the wait begins anew", "and is found in its turn", "nothing was loaded"],
)
def test_who_waited_for_a_load_whose_client_goes_away_waits_anew(
    loads: str, steps: int, found: list[str]
) -> None:
    """Nobody runs in two steps while c is loaded; a may wait for what is loaded for c."""
    text = WAITS + "submit c y:4\nacquire c | 3\nacquire copy:1 | 3\n"
    text += f"step 1:{loads}\nstep 2: \nabort c\nrelease c\n"
    text += "".join(f"step {step}: \n" for step in range(3, steps + 1))
    assert [anomaly for anomaly, _ in causes(text, "no-progress")] == found
