"""What a speculative look-up gives back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cachewitness.core.checkers.speculative import SpeculativeDrop
from cachewitness.core.driving import check
from cachewitness.core.events import TierRules
from cachewitness.core.result import Result
from cachewitness.workloads.notation import parse

ONE = """
pool 0: 12 pages, null 0
group 0: full block 4
rules: alignment 4, eagle-drop 4
submit r1 a:13
hit r1 0
acquire r1 | 1 2 3 4
publish 0/1 r1:4
publish 0/2 r1:8
publish 0/3 r1:12
step 1: r1 0..13 | 1 2 3 4
finish r1
release r1
submit r2 a:13
"""
TIERED = """
pool 0: 12 pages, null 0
pool 1: 4 pages, tier cpu
group 0: full block 4
group 1: full block 4 pool 1 of 0
rules: alignment 4, eagle-drop 4
submit r1 a:13
hit r1 0 | |
acquire r1 | 1 2 3 4
publish 0/1 r1:4
publish 0/2 r1:8
publish 1/0 r1:4
publish 1/1 r1:8
step 1: r1 0..13 | 1 2 3 4; store 0/1>1/0 0/2>1/1
finish r1
release r1
unpublish 0/1 reset
unpublish 0/2 reset
reset ok
submit r2 a:13
"""


def judged(text: str, tier: TierRules | None = None) -> Result:
    history = parse(text)
    rules = replace(history.header.rules, tier=tier)
    result = check(
        replace(history, header=replace(history.header, rules=rules)), [SpeculativeDrop()]
    )
    assert result.tallies[0].crashed == ""
    return result


def test_the_finding_names_what_was_not_given_back() -> None:
    (finding,) = judged(ONE + "hit r2 12 | 1 2 3\n").findings
    assert (finding.anomaly, finding.r) == ("undropped-hit", "r2")
    assert finding.line == (
        "request r2 resumed at 12, which leaves none of the 4 tokens that a speculative look-up"
        " gives back"
    )


@pytest.mark.parametrize("hit", ["hit r2 8 | 1 2\n", "hit r2 4 | 1\n", "hit r2 0\n"])
def test_a_hit_in_front_of_what_was_matched_is_lawful(hit: str) -> None:
    """Also one that is shorter than it need be, which other rules judge."""
    assert judged(ONE + hit).findings == []


def test_inside_a_block_the_key_of_the_whole_block_is_enough() -> None:
    """Hits end at multiples of 2, so 2 tokens are given back of a block that was matched whole."""
    finer = ONE.replace("alignment 4, eagle-drop 4", "alignment 2, eagle-drop 2")
    assert judged(finer + "hit r2 8 | 1 2\n").findings == []
    assert judged(finer + "hit r2 10 | 1 2 3\n").findings == []
    assert len(judged(finer + "hit r2 12 | 1 2 3\n").findings) == 1


def test_what_was_given_back_may_be_evicted_at_once() -> None:
    """The block behind the hit is nobody's, and the request itself may need its page."""
    evicted = "unpublish 0/3 evict @2\nhit r2 8 | 1 2 @2\n"
    assert judged(ONE + evicted).findings == []
    before = "unpublish 0/3 evict @1\nhit r2 8 | 1 2 @2\n"
    assert len(judged(ONE + before).findings) == 1


@pytest.mark.parametrize(
    ("tier", "many"),
    [
        (None, 1),
        (TierRules(4, drops=True), 1),
        (TierRules(4), 0),
    ],
)
def test_a_tier_that_is_asked_apart_gives_back_what_it_declares(
    tier: TierRules | None, many: int
) -> None:
    """One that is asked key by key does so as the device does."""
    result = judged(TIERED + "hit r2 8 tier cpu | 5 6 | 0 1\n", tier)
    assert len(result.findings) == many
    assert result.tallies[0].opportunities == 1 + many, "the first look-up finds nothing"
    shorter = judged(TIERED + "hit r2 4 tier cpu | 5 | 0\n", tier)
    assert shorter.findings == []


def test_without_a_speculative_look_up_there_is_nothing_to_give_back() -> None:
    (tally,) = judged(ONE.replace(", eagle-drop 4", "")).tallies
    assert "no look-up gives tokens back" in tally.not_applicable
