"""What a run says of itself: drafts, steps in flight and loads are counted, each only where it
happened.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cachewitness.core.driving import drive, judge
from cachewitness.core.events import Hit
from cachewitness.core.result import Activity
from cachewitness.engines.registry import parse
from cachewitness.report.summary import Report, SuiteReport
from cachewitness.report.terminal import print_report
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.notation import parse as history

DRAFTED = """
pool 0: 9 pages, null 0
group 0: full block 4
rules: drafts 2
submit r1 a:5
hit r1 0 |
acquire r1 | 1 2
step 1: r1 0..5 | 1 2
accept r1 6 @r1:1
"""
TIER = """
pool 0: 9 pages, null 0
pool 1: 9 pages, tier cpu
group 0: full block 4
group 1: full block 4
group 2: full block 4 pool 1 of 0
group 3: full block 4 pool 1 of 1
"""


RANKS = """
pool 0: 9 pages, null 0
group 0: full block 4
rules: no-caching, two-ranks
submit r1 a:5
acquire r1 | 1 2
step 1: r1 0..5 | 1 2
submit r2 b:5
"""


def counted(text: str) -> Activity:
    return judge((parsed := history(text)).header, parsed.events).activity


@pytest.mark.parametrize(
    ("accepted", "standing"), [("x:2 y:1", 2), ("x:1 y:1", 1), ("y:1", 0), ("x:2", 2)]
)
def test_drafts_stand_up_to_the_first_that_was_not_sampled(accepted: str, standing: int) -> None:
    """The token behind them, if there is one, is no draft."""
    tokens = 6 + sum(int(part.partition(":")[2]) for part in accepted.split())
    activity = counted(f"{DRAFTED}step 2: r1 5..6 ~x:2 | 1 2\naccept r1 {tokens} {accepted}")
    assert (activity.drafts, activity.drafts_accepted) == (2, standing)


@pytest.mark.parametrize(
    ("begun", "there"), [("", (1, 0)), ("acquire r2 | 3 4\nstep 2: r2 0..5 | 3 4\n", (2, 1))]
)
def test_requests_of_another_rank_are_nobody_s(begun: str, there: tuple[int, int]) -> None:
    activity = counted(f"{RANKS}{begun}abort r2 by engine")
    assert (activity.requests, activity.aborted_by_engine) == there


def test_drafts_that_nobody_verified_are_not_counted() -> None:
    """The request ended while the step was in flight, so nothing was sampled from it."""
    activity = counted(f"{DRAFTED}begin 2: r1 5..6 ~x:2 | 1 2\nabort r1\nend 2")
    assert (activity.drafts, activity.drafts_accepted) == (0, 0)


def test_drafts_count_as_the_step_that_verified_them_turned_out() -> None:
    """When it was scheduled they were other ones."""
    settled = (
        "begin 2: r1 5..6 ~y:2 | 1 2\nsettle 2: r1 5..6 ~x:2 | 1 2\nend 2\naccept r1 9 x:2 y:1"
    )
    assert counted(DRAFTED + settled).drafts_accepted == 2


def test_steps_count_that_are_scheduled_while_another_is_in_flight() -> None:
    steps = (
        "submit r2 b:3\nacquire r2 | 3\nbegin 2: r1 5..6 | 1 2\nbegin 3: r2 0..3 | 3\nend 2\n"
        "begin 4:\nend 3\nend 4\nstep 5:"
    )
    assert counted(DRAFTED).overlapped_steps == 0 and counted(DRAFTED + steps).overlapped_steps == 2


@pytest.mark.parametrize(
    ("resume", "tier", "from_there", "tokens"),
    [
        (8, "local", [[-1, -1], [-1, -1]], 0),
        (8, "cpu", [[-1, 5], [-1, -1]], 4),
        (8, "cpu", [[-1, 5], [6, 7]], 8),
        (7, "cpu", [[-1, 5], [-1, 7]], 3),
    ],
)
def test_tokens_count_that_some_group_has_from_another_tier(
    resume: int, tier: str, from_there: list[list[int]], tokens: int
) -> None:
    """Those of one block count once, and the last of a hit that is computed again does not."""
    asked = history(f"{TIER}submit r1 a:9")
    hit = Hit(r="r1", reported=8, resume=resume, pages=[[1, 2], [3, 4], *from_there], tier=tier)
    assert judge(asked.header, [*asked.events, hit]).activity.loaded_tokens == tokens


def run(options: dict[str, object], layout: str = "full") -> Activity:
    total = Activity()
    for seed in range(3):
        trace = random_trace(
            Configuration(layouts.load(layout), options).shape("scheduler"), seed, withdraw=False
        )
        total.add(drive(trace, parse("reference").open(trace.header)).activity)
    return total


def test_each_is_counted_where_an_option_makes_it_happen_and_nowhere_else() -> None:
    plain = run({})
    assert (plain.drafts, plain.drafts_accepted, plain.overlapped_steps, plain.loaded_tokens) == (
        0,
        0,
        0,
        0,
    )
    drafts = run({"num_speculative_tokens": 3})
    assert 0 < drafts.drafts_accepted < drafts.drafts and drafts.overlapped_steps == 0
    assert run({"async_depth": 1}).overlapped_steps > 0
    assert 0 < (tier := run({"tier_pages": 32, "tier_delay": 2})).loaded_tokens <= tier.hit_tokens


def printed(activity: Activity) -> str:
    out = Console(width=120, record=True, file=io.StringIO())
    print_report(
        Report(engine="mine", suites=[SuiteReport(name="s", traces=1, activity=activity)]), {}, out
    )
    return out.export_text()


def test_a_run_says_what_happened_and_is_silent_of_what_did_not() -> None:
    busy = Activity(drafts=4000, drafts_accepted=2310, overlapped_steps=1, loaded_tokens=12)
    line = (
        "2,310 of 4,000 drafts accepted, 1 step scheduled while another was in flight, 12 tokens"
        " loaded from another tier"
    )
    assert line in printed(busy)
    assert not [word for word in ("draft", "in flight", "loaded") if word in printed(Activity())]
