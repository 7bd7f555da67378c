"""Keys that are owed: a whole block of a request that ended has one, and what excuses that."""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.key_floor import KeysOwed
from cachewitness.core.checkers.reuse import ReuseFloor
from cachewitness.core.driving import check
from cachewitness.workloads.notation import parse

HEADER = """
pool 0: 9 pages, null 0
group 0: full block 4
rules: alignment 4{rules}
submit r1 a:{tokens}
hit r1 0
acquire r1 | 1 2 3 4
"""
RUN = "step 1: r1 0..13 | 1 2 3 4\n"
KEYED = "publish 0/1 r1:4\npublish 0/2 r1:8\n"
ENDS = "finish r1\nrelease r1\n"


def found(text: str, rules: str = "", tokens: int = 13) -> list[str]:
    history = parse(HEADER.format(rules=rules, tokens=tokens) + text)
    result = check(history, [KeysOwed()])
    assert result.tallies[0].crashed == ""
    return [finding.line for finding in result.findings]


def test_the_block_without_a_key_is_named() -> None:
    """Two of three whole blocks have keys; the fourth is not whole, and is owed nothing."""
    assert found(KEYED + RUN + ENDS) == [
        "request r1 ended; page 3 with its first 12 tokens has no key"
    ]


def test_pages_may_be_released_before_the_end_is_reported() -> None:
    assert len(found(KEYED + RUN + "release r1\nfinish r1\n")) == 1


LAWFUL = {
    "keyed when it ends": RUN + ENDS + KEYED.replace("\n", " @1\n") + "publish 0/3 r1:12 @1\n",
    "aborted by its client": KEYED + RUN + "abort r1\nrelease r1\n",
    "preempted": KEYED + RUN + "preempt r1\nrelease r1\n",
    "a reset": KEYED + RUN + "unpublish 0/1 reset\nunpublish 0/2 reset\nreset ok\n" + ENDS,
    "not computed as far": KEYED + "step 1: r1 0..11 | 1 2 3 4\n" + ENDS,
    "its own key was taken": (
        KEYED + "publish 0/3 r1:12\n" + RUN + "unpublish 0/3 evict\nfinish r1\nrelease r1\n"
    ),
}


@pytest.mark.parametrize("why", LAWFUL)
def test_nothing_is_owed(why: str) -> None:
    assert found(LAWFUL[why]) == []


@pytest.mark.parametrize(
    ("rules", "owed"), [("", 1), (", no-keys-of-answers", 0), (", no-caching", 0)]
)
def test_what_the_engine_declares_that_it_does_not_key_is_not_owed(rules: str, owed: int) -> None:
    """The third block is whole with the answer's third token, and two more steps follow."""
    steps = "publish 0/1 r1:4\npublish 0/2 r1:8\nstep 1: r1 0..10 | 1 2 3\n"
    for step, at in enumerate(range(10, 15), start=2):
        steps += f"accept r1 {at + 1} @r1[{at - 10}]:1\nstep {step}: r1 {at}..{at + 1} | 1 2 3 4\n"
    assert len(found(steps + ENDS, rules, tokens=10)) == owed


def test_where_no_hit_can_end_nothing_is_owed() -> None:
    """Hits are multiples of 8, and the request computed no more than 7 tokens of the second 8."""
    text = HEADER.replace("alignment 4", "alignment 8").format(rules="", tokens=13)
    history = parse(text + KEYED + RUN + ENDS)
    assert check(history, [KeysOwed()]).findings == []


HOW = {
    "evicted": "unpublish 0/1 evict\n",
    "reset": "unpublish 0/1 reset\nreset ok\n",
    "unkept": "",
}


@pytest.mark.parametrize("how", HOW)
def test_what_a_look_up_lost_is_counted_by_what_became_of_its_key(how: str) -> None:
    """The first block decides, since nothing can be hit without it."""
    keyed = "" if how == "unkept" else "publish 0/1 r1:4\n"
    ending = HOW[how]
    text = HEADER + keyed + RUN + ENDS + ending + "submit r2 a:13\nhit r2 0\n"
    (tally,) = check(parse(text.format(rules="", tokens=13)), [ReuseFloor()]).tallies
    assert tally.reuse is not None
    lost = {name: getattr(tally.reuse, name) for name in (*HOW, "thinned", "aborted")}
    assert lost == {**dict.fromkeys((*HOW, "thinned", "aborted"), 0), how: 12}


def test_what_aborted_requests_alone_computed_is_counted_apart() -> None:
    """Nothing of it is owed; once another computed the same and ended as intended, it is."""
    aborted = HEADER + RUN + ENDS.replace("finish", "abort") + "submit r2 a:13\nhit r2 0\n"
    again = "acquire r2 | 5 6 7 8\nstep 2: r2 0..13 | 5 6 7 8\nfinish r2\nrelease r2\n"
    again += "submit r3 a:13\nhit r3 0\n"
    for text, unkept in ((aborted, 0), (aborted + again, 12)):
        (tally,) = check(parse(text.format(rules="", tokens=13)), [ReuseFloor()]).tallies
        assert tally.reuse is not None
        assert (tally.reuse.aborted, tally.reuse.unkept) == (12, unkept)


# --- what a request leaves behind while it runs ---------------------------------------------------

BEHIND = """
pool 0: 20 pages, null 0
group 0: sliding block 4 window 4
rules: alignment 4{more}
submit r1 a:13
hit r1 0
acquire r1 | 1 2 3 4
"""
FREES = ", frees-behind"
LEFT = (
    "step 1: r1 0..8 | 1 2 3 4\n{then}release r1 | 1\n{kept}publish 0/2 r1:8\npublish 0/3 r1:12\n"
)
ON = "step 2: r1 8..13 | 0 2 3 4\n"


@pytest.mark.parametrize(
    ("how", "many"),
    [
        ({}, 1),
        ({"more": ""}, 0),
        ({"more": f"{FREES}, retention 0 on 0"}, 0),
        ({"more": f"{FREES}, retention 4 on 0"}, 1),
        ({"more": f"{FREES}, retention 8 on 0"}, 0),
        ({"more": f"{FREES}, no-caching"}, 0),
        ({"then": "publish 0/1 r1:4\n"}, 0),
        ({"then": "publish 0/1 r1:4\n", "kept": "unpublish 0/1 evict\n"}, 0),
        ({"kept": "publish 0/1 r1:4\n"}, 0),
        ({"ends": "abort r1\nrelease r1\n"}, 0),
        ({"ends": "release r1\npreempt r1\nhit r1 0\nfinish r1\n"}, 0),
        ({"ends": "reset ok\nfinish r1\nrelease r1\n"}, 0),
    ],
)
def test_a_block_that_left_its_window_is_owed_when_its_request_has_ended(
    how: dict[str, str], many: int
) -> None:
    """It was whole and committed when it went, and who resumes at a boundary that is kept reads
    it. A key that was there by then is enough, whatever became of it.
    """
    case = {"more": FREES, "then": "", "kept": "", "ends": ENDS, **how}
    history = parse((BEHIND + LEFT + ON + case["ends"]).format_map(case))
    result = check(history, [KeysOwed()])
    assert result.tallies[0].crashed == ""
    assert [finding.line for finding in result.findings] == [
        "request r1 ended; page 1 with its first 4 tokens has no key"
    ] * many


@pytest.mark.parametrize(("keyed", "many"), [("publish 0/5 r2:4\n", 0), ("", 1)])
def test_of_two_pages_with_a_key_that_end_together_each_had_its_own(keyed: str, many: int) -> None:
    """A page that is let go is taken at once, so its key is said to end first; that of the other
    page ends behind it. A page that never had a key is another's alone.
    """
    second = (
        "submit r2 a:13\nhit r2 0\nacquire r2 | 5 6 7 8\n"
        f"{keyed}publish 0/6 r2:8\npublish 0/7 r2:12\nstep 3: r2 0..13 | 5 6 7 8\n"
    )
    gone = "unpublish 0/5 evict\n" if keyed else ""
    gone += "unpublish 0/1 evict\nrelease r2 | 5\naccept r2 14 @r2:1\nstep 4: r2 13..14 | 0 6 7 8\n"
    left = LEFT.format(then="publish 0/1 r1:4\n", kept="") + ON + ENDS
    text = BEHIND.format(more=FREES) + left + second + gone + ENDS.replace("r1", "r2")
    lines = [finding.line for finding in check(parse(text), [KeysOwed()]).findings]
    assert lines == ["request r2 ended; page 5 with its first 4 tokens has no key"] * many
