"""What operators and clients are told of use and hits, where it stands in for pages and look-ups
that a history shows.
"""

from __future__ import annotations

import pytest

from cachewitness.core import validate
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.checkers.statistics import StatisticsTrue
from cachewitness.core.driving import check
from cachewitness.workloads.notation import parse

POOL = "pool 0: 9 pages, null 0\n"
RULES = "group 0: full block 4\nrules: alignment 4, stats\n"
HEADER = POOL + RULES
TIERED = (
    f"{POOL}pool 1: 8 pages, tier cpu\ngroup 0: full block 4\ngroup 1: full block 4 pool 1 of 0\n"
    "rules: alignment 4, stats\n"
)
FIRST = (
    "submit r1 a:9\nhit r1 0 |\nacquire r1 | 1 2 3\npublish 0/1 r1:4\npublish 0/2 r1:8\n"
    "step 1: r1 0..9 | 1 2 3\n"
)
SECOND = "submit r2 a:9\nhit r2 8 | 1 2\nacquire r2 | 1 2 4\nstep 2: r2 8..9 | 1 2 4\n"
EXTENDED = (
    "pause r1\nextend r1 9 b:2\nstep 2: r1 9..11 | 1 2 3\n"
    "stats 0: usage 0.375 admitted 0 of 0 found 0 @2\naccept r1 12 @r1[1]:1 @2\nfinish r1\n"
)
FIRST_STATS = "stats 0: usage 0.375 admitted 1 of 9 found 0 restored r1=0 @1\n"


def judged(text: str) -> tuple[list[Finding], Tally]:
    """Return the findings of the checker alone, and its tally."""
    result = check(parse(text), [StatisticsTrue()])
    assert not result.tallies[0].crashed
    return result.findings, result.tallies[0]


def sentences(text: str) -> list[str]:
    """Return what the checker says."""
    return [finding.sentence for finding in judged(text)[0]]


def test_an_engine_that_declares_nothing_is_not_judged() -> None:
    _, tally = judged(HEADER.replace(", stats", "") + FIRST)
    assert tally.not_applicable == "the engine tells no operator of its use"


def test_what_is_told_is_judged_and_counted() -> None:
    """An event, and what it tells each client, is an occasion each."""
    findings, tally = judged(
        HEADER
        + FIRST
        + FIRST_STATS
        + SECOND
        + "stats 0: usage 0.5 admitted 1 of 9 found 8 restored r2=8 @2\n"
    )
    assert (findings, tally.opportunities) == ([], 4)


@pytest.mark.parametrize(
    ("stats", "why"),
    [
        ("usage 0.25 admitted 1 of 9 found 0", "2.00 of 8 pages; however 3 of them are held"),
        (
            "usage 0.375 admitted 2 of 18 found 0",
            "of 2 look-ups of 18 tokens, of which 0 were found; however",
        ),
        ("usage 0.375 admitted 1 of 8 found 0", "1 look-up of 8 tokens, of which 0 were found"),
        ("usage 0.375 admitted 1 of 9 found 8", "1 look-up of 9 tokens, of which 8 were found"),
        (
            "usage 0.375 admitted 1 of 9 found 0 again 1 of 9 found 0",
            "requests that came back; however there were 0 look-ups",
        ),
        (
            "usage 0.375 admitted 1 of 9 found 0 restored r1=4",
            "Let the client of r1 be told in step 1 that 4 tokens of",
        ),
    ],
)
def test_what_did_not_happen_is_found(stats: str, why: str) -> None:
    (sentence,) = sentences(HEADER + FIRST + f"stats 0: {stats} @1\n")
    assert why in sentence


def decoded(steps: int) -> list[str]:
    """Return so many steps behind the first, each of one token."""
    taken = ["acquire r1 | 4 5 6"]
    return taken + [
        f"accept r1 {n} @r1[{n - 10}]:1\nstep {n - 8}: r1 {n - 1}..{n} | 1 2 3 4 5 6"
        for n in range(10, 10 + steps)
    ]


def test_an_engine_that_tells_operators_no_more_is_found() -> None:
    """Whether it told them something before, or never."""
    for first, until in ((FIRST_STATS, 10), ("", 9)):
        (sentence,) = sentences(HEADER + FIRST + first + "\n".join(decoded(12)))
        assert f"in 9 steps in which somebody ran, up to step {until}, it told nothing" in sentence


def test_operators_may_be_told_every_few_steps() -> None:
    steps = decoded(12)
    stats = "stats 0: usage 0.75 @9"
    assert (
        sentences(HEADER + FIRST + FIRST_STATS + "\n".join([*steps[:9], stats, *steps[9:]])) == []
    )


def test_a_share_alone_may_be_told() -> None:
    assert sentences(HEADER + FIRST + "stats 0: usage 0.375 @1\n") == []


def test_without_caching_nobody_looks_up() -> None:
    """An engine that caches nothing answers a look-up without one, and counts none."""
    text = (
        HEADER.replace("stats", "no-caching, stats")
        + "submit r1 a:9\nhit r1 0 |\nacquire r1 | 1 2 3\nstep 1: r1 0..9 | 1 2 3\n"
    )
    assert sentences(text + "stats 0: usage 0.375 admitted 0 of 0 found 0 @1\n") == []
    assert len(sentences(text + FIRST_STATS)) == 1


def test_clients_are_told_of_the_admission_before_a_request_lost_its_place() -> None:
    """What it hits when it comes back it has computed itself."""
    back = "preempt r1\nrelease r1\nhit r1 8 | 1 2\nacquire r1 | 1 2 4\nstep 2: r1 8..9 | 1 2 4\n"
    stats = "stats 0: usage 0.375 admitted 1 of 9 found 0 again 1 of 9 found 8 restored r1={} @2\n"
    assert sentences(HEADER + FIRST + back + stats.format(0)) == []
    assert len(sentences(HEADER + FIRST + back + stats.format(8))) == 1


def test_what_another_tier_had_is_no_hit_of_the_device() -> None:
    """So the device's share of a hit lies between nothing and all of it."""
    second = SECOND.replace("hit r2 8 | 1 2", "hit r2 8 tier cpu | 1 2 | 4 3")
    for found, findings in ((0, 0), (4, 0), (8, 0), (9, 1)):
        stats = f"stats 0: usage 0.5 admitted 1 of 9 found {found} @2\n"
        assert len(sentences(TIERED + FIRST + FIRST_STATS + second + stats)) == findings


BOTH = SECOND.replace("hit r2 8 | 1 2", "hit r2 8 tier cpu | 1 2 | - 3")
"""A hit of which the device has the first block, and the tier the second."""
OF_BOTH = "stats 0: usage 0.5 admitted 1 of 9 found {} tier {} @2\n"


@pytest.mark.parametrize(
    ("device", "tier", "findings"),
    [
        (4, "1 of 5 found 4", 0),
        (4, "1 of 9 found 4", 1),
        (4, "1 of 5 found 0", 1),
        (4, "1 of 5 found 8", 1),
        (4, "0 of 0 found 0", 1),
        (4, "2 of 10 found 8", 1),
        (0, "1 of 9 found 8", 1),
        (5, "1 of 4 found 3", 0),
    ],
)
def test_what_the_device_had_and_the_tier_is_the_hit(device: int, tier: str, findings: int) -> None:
    """The tier is asked for what the device left, and has what was fetched; the device may fetch
    what it has.
    """
    stats = OF_BOTH.format(device, tier)
    assert len(sentences(TIERED + FIRST + FIRST_STATS + BOTH + stats)) == findings


def test_a_sentence_on_another_tier_says_what_was_left_to_it() -> None:
    stats = OF_BOTH.format(4, "1 of 9 found 4")
    (sentence,) = sentences(TIERED + FIRST + FIRST_STATS + BOTH + stats)
    assert sentence == (
        "Let operators be told in step 2 of 1 look-up of 9 tokens, of which 4 were found in"
        " another tier; however there was 1 look-up of 9 tokens, of which 8 were found, the device"
        " told of 4 of them, and 4 tokens can have been fetched: a contradiction."
    )


def test_of_what_no_page_is_fetched_for_a_tier_is_believed() -> None:
    """Beside windows alone a tier brings a window, and the hit is longer."""
    windows = TIERED.replace("full block 4", "sliding block 4 window 4")
    second = BOTH.replace("| 1 2 |", "| 0 2 |")
    for device, tier in ((0, "1 of 9 found 8"), (4, "1 of 5 found 4")):
        assert (
            sentences(windows + FIRST + FIRST_STATS + second + OF_BOTH.format(device, tier)) == []
        )


def test_who_may_restore_nothing_may_be_looked_up_in_another_tier_or_not() -> None:
    first = FIRST.replace("a:9", "a:9 prompt_logprobs=yes")
    for tier, findings in (("0 of 0", 0), ("1 of 9", 0), ("1 of 4", 1)):
        stats = f"stats 0: usage 0.375 admitted 0 of 0 found 0 tier {tier} found 0 @1\n"
        assert len(sentences(TIERED + first + stats)) == findings


@pytest.mark.parametrize(
    ("load", "as_new"),
    [("copy 1 fail 1/0>0/5\n", 0), ("copy 1 end 1/0>0/5\n", 1)],
    ids=["a load failed", "no load failed"],
)
def test_a_request_whose_load_failed_may_be_new_or_have_come_back(load: str, as_new: int) -> None:
    """And its client may be told of either admission, and of no other number. Where no load failed,
    it has come back.
    """
    back = "preempt r1\nrelease r1\nhit r1 8 | 1 2\nacquire r1 | 1 2 4\nstep 2: r1 8..9 | 1 2 4\n"
    for counts, findings in (
        ("admitted 1 of 9 found 8", as_new),
        ("admitted 0 of 0 found 0 again 1 of 9 found 8", 0),
    ):
        for restored, more in ((0, 0), (8, 0), (4, 1)):
            text = (
                TIERED
                + FIRST
                + FIRST_STATS
                + f"copy 1 begin 1/0>0/5\n{load}"
                + back
                + f"stats 0: usage 0.375 {counts} restored r1={restored} @2\n"
            )
            assert bool(sentences(text)) == bool(findings + more)
            assert len(sentences(text)) >= findings + more


def test_an_event_that_the_header_does_not_announce_makes_no_sense() -> None:
    for text, why in (
        (HEADER.replace(", stats", "") + FIRST + FIRST_STATS, "an event for operators"),
        (
            HEADER + FIRST + FIRST_STATS.replace("restored", "tier 1 of 9 found 0 restored"),
            "another tier",
        ),
        (TIERED + FIRST + "stats 0: usage 0.375 tier 1 of 9 found 0 @1\n", "another tier"),
        (HEADER + FIRST + "stats 3: usage 0.5 @1\n", "pool 3 does not exist"),
        (HEADER + FIRST + "stats 0: usage 0.375 restored r9=0 @1\n", "r9"),
    ):
        (problem,) = validate.problems(parse(text))
        assert why in str(problem)


def test_a_client_who_was_told_nothing_is_missed_where_the_engine_tells_clients() -> None:
    """Where it tells operators alone nothing is owed, nor where there was no answer."""
    told_operators = FIRST_STATS.replace(" restored r1=0", "")
    answered = "accept r1 10 @r1:1 @1\n"
    clients = HEADER.replace(", stats", ", stats, clients")
    silent = FIRST + told_operators
    (sentence,) = sentences(clients + silent + answered + "finish r1\n")
    assert "r1, admitted with 0, is over and its client was told no number" in sentence
    session = FIRST.replace("a:9", "a:9 session=yes") + told_operators + answered + "pause r1\n"
    (sentence,) = sentences(clients + session)
    assert "r1, admitted with 0, is over" in sentence
    again = FIRST_STATS.replace("admitted 1 of 9", "admitted 0 of 0").replace("@1", "@2")
    step = answered + "step 2: r1 9..10 | 1 2 3\n"
    (sentence,) = sentences(clients + FIRST + FIRST_STATS + step + again)
    assert "it had been told before" in sentence
    ((_, problem),) = validate.problems(parse(clients.replace(" stats,", "")))
    assert "clients without stats" in problem
    for lawful in (
        HEADER + silent + answered + "finish r1\n",
        clients + silent + answered + "abort r1\n",
        clients + silent + "finish r1\n",
        clients + FIRST + FIRST_STATS + answered + "finish r1\n",
        clients + FIRST.replace("a:9", "a:9 session=yes") + FIRST_STATS + answered + EXTENDED,
    ):
        assert sentences(lawful) == []


UNCACHED = (
    TIERED.replace("stats", "stats, no-caching")
    + "submit r1 a:9\nhit r1 0 |\nacquire r1 | 1 2 3\nstep 1: r1 0..9 | 1 2 3; store 0/1>1/0\n"
    "publish 1/0 r1:4\nsubmit r2 a:9\nhit r2 4 tier cpu | 4 | 0\nacquire r2 | 4 5 6\n"
    "step 2: r2 4..9 | 4 5 6; copy 1/0>0/4\n"
)


@pytest.mark.parametrize(("restored", "wrong"), [(4, 0), (8, 1)])
def test_another_tier_may_have_what_the_device_does_not_keep(restored: int, wrong: int) -> None:
    """Its hits are in no figure of the device, and clients are told of them."""
    text = f"{UNCACHED}stats 0: usage 0.75 admitted 0 of 0 found 0 restored r2={restored} @2\n"
    findings, tally = judged(text)
    assert (len(findings), tally.opportunities) == (wrong, 2)
    assert [*validate.problems(parse(text))] == []


def test_without_caching_the_device_itself_has_no_keys() -> None:
    ((_, problem),) = validate.problems(parse(UNCACHED.replace("publish 1/0", "publish 0/1")))
    assert "a key in group 0" in problem
