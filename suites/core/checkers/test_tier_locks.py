"""What a look-up, a load or a store holds of another tier is let go of when nobody is left for
whom it was held.
"""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.locks import WAITED
from cachewitness.core.driving import check
from cachewitness.workloads.notation import parse

PATIENCE = 3
STORED = f"""
pool 0: 16 pages, null 0
pool 1: 8 pages, tier cpu
group 0: full block 4
group 1: full block 4 pool 1 of 0
rules: alignment 4, progress {PATIENCE}
submit r1 a:5
acquire r1 | 1 2
publish 0/1 r1:4
step 1: r1 0..5 | 1 2; store 0/1>1/0
publish 1/0 r1:4 @1
submit r2 a:6
acquire copy:tier-1 | | 0
"""
RUNS = "acquire r2 | 3 4\nstep 2: r2 0..6 | 3 4\n"
ENDS = {"r1": "finish r1\nrelease r1\n", "r2": "finish r2\nrelease r2\n"}
LET_GO = "release copy:tier-1\n"


def steps(count: int, first: int = 3) -> str:
    """Tell of so many steps in which nobody runs."""
    return "".join(f"step {number}:\n" for number in range(first, first + count))


def leaks(text: str) -> list[str]:
    return [
        one.sentence
        for one in check(parse(STORED + text)).findings
        if one.anomaly == "leak" and "tier" in one.line
    ]


def test_a_lock_that_outlives_all_who_came_before_it_is_found_once() -> None:
    (found,) = leaks(RUNS + ENDS["r1"] + ENDS["r2"] + steps(PATIENCE + 4))
    assert "be held since step 2" in found and WAITED not in found


@pytest.mark.parametrize(
    "text",
    [
        RUNS + ENDS["r1"] + ENDS["r2"] + steps(PATIENCE),
        RUNS + ENDS["r1"] + ENDS["r2"] + steps(PATIENCE) + LET_GO + steps(4, 10),
        RUNS + ENDS["r1"] + steps(PATIENCE + 4),
        RUNS + ENDS["r2"] + steps(PATIENCE + 4),
    ],
    ids=["patience", "let go of in time", "r2 lives", "r1 lives"],
)
def test_a_lock_that_somebody_may_need_is_lawful(text: str) -> None:
    assert leaks(text) == []


def test_a_request_that_comes_later_holds_no_lock_up() -> None:
    later = "submit r3 b:5\nacquire r3 | 5 6\nstep 3: r3 0..5 | 5 6\n"
    assert len(leaks(RUNS + ENDS["r1"] + ENDS["r2"] + later + steps(PATIENCE, 4))) == 1


def test_who_ended_while_it_waited_is_named() -> None:
    (found,) = leaks("abort r2\n" + ENDS["r1"] + steps(PATIENCE + 1, 2))
    assert f"r2 {WAITED}" in found
