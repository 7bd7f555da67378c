"""Stores that are owed: what an engine says that it puts into a second tier is found there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness.core.checkers.stores import StoresOwed
from cachewitness.core.driving import check, drive
from cachewitness.core.events import Stores
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.faults import all_mutants
from cachewitness.workloads import layouts
from cachewitness.workloads.notation import parse

HEADER = """
pool 0: 9 pages, null 0
pool 1: {pages} pages, tier cpu
group 0: full block 4
group 1: full block 4 pool 1 of 0
rules: alignment 4, stores
submit r1 a:13
hit r1 0 | |
acquire r1 | 1 2 3 4
publish 0/1 r1:4
publish 0/2 r1:8
publish 0/3 r1:12
publish 1/0 r1:4
"""
RUN = "step 1: r1 0..13 | 1 2 3 4; store 0/1>1/0\n"
ENDS = "finish r1\nrelease r1\n"
AGAIN = "submit r2 a:13\nhit r2 12 | 1 2 3 |\n"


def found(text: str, pages: int = 4, stores: Stores | None = None) -> list[str]:
    history = parse(HEADER.format(pages=pages) + text)
    rules = replace(history.header.rules, stores=stores or Stores())
    history = replace(history, header=replace(history.header, rules=rules))
    result = check(history, [StoresOwed()])
    assert result.tallies[0].crashed == ""
    return [finding.line for finding in result.findings]


def test_what_was_not_stored_is_named_when_it_is_asked_for() -> None:
    """It does not matter that the device has it still."""
    sentence = "request r1 computed its tokens [4,8); the second tier has no copy of them"
    assert found(RUN + ENDS) == []
    assert found(RUN + ENDS + AGAIN) == [sentence]


BEGINS = "begin 1: r1 0..13 | 1 2 3 4; store 0/1>1/0\n"
THERE = "publish 1/1 r1:8\n"
ENDED = "unpublish 1/1 evict\n"


@pytest.mark.parametrize(
    ("text", "owed"),
    [(THERE + BEGINS + ENDED + "end 1\n", False), (THERE + ENDED + BEGINS + "end 1\n", True)],
    ids=["while the step runs", "before"],
)
def test_what_is_there_when_a_step_begins_is_not_stored_again(text: str, owed: bool) -> None:
    """An engine chooses what a step stores before the step begins, and a key may end after that."""
    assert any("tokens [4,8);" in line for line in found(text + ENDS + AGAIN)) is owed


@pytest.mark.parametrize(("alignment", "many"), [(4, 1), (8, 1), (16, 0)])
def test_behind_the_last_boundary_that_a_request_computed_nothing_is_owed(
    alignment: int, many: int
) -> None:
    """Hits end at common multiples of all groups' blocks, and nothing is keyed up to there. Of 13
    tokens [4,8) is owed where hits end at multiples of 8, and not where they end at 16.
    """
    header = HEADER.format(pages=4).replace("alignment 4", f"alignment {alignment}")
    result = check(parse(header + RUN + ENDS + AGAIN), [StoresOwed()])
    assert len(result.findings) == many and result.tallies[0].crashed == ""


LAWFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "aborted by its client": (RUN + ENDS.replace("finish", "abort") + AGAIN, {}),
    "not ended": (RUN + AGAIN, {}),
    "room for one page less": (RUN + ENDS + AGAIN, {"pages": 2}),
    "the tier was reset": (RUN + ENDS + "unpublish 1/0 reset\nreset ok tier cpu\n" + AGAIN, {}),
    "new weights": (RUN + ENDS + "reset ok\nversion 1\n" + AGAIN, {}),
    "asked for too early": (RUN + ENDS + AGAIN, {"stores": Stores(steps=1)}),
    "too short": (RUN + ENDS + AGAIN, {"stores": Stores(shortest=14)}),
    "the store failed": (
        RUN.replace("; store", "; begun 7 0/2>1/1; begun 8 0/3>1/2; failed 7; failed 8; store")
        + ENDS
        + AGAIN,
        {},
    ),
}


@pytest.mark.parametrize("why", LAWFUL)
def test_nothing_is_owed(why: str) -> None:
    text, how = LAWFUL[why]
    assert found(text, **how) == []


def test_an_engine_that_does_not_say_what_it_stores_owes_nothing() -> None:
    history = parse(HEADER.format(pages=4).replace(", stores", "") + RUN + ENDS + AGAIN)
    (tally,) = check(history, [StoresOwed()]).tallies
    assert "does not say what it stores" in tally.not_applicable


# --- a request that is looked up again and again --------------------------------------------------


def asked_while_it_waits() -> Trace:
    """Return a trace in which c finds 4 blocks in the second tier, waits for room, is looked up in
    each step, and computes 4 blocks more, which d asks for.
    """
    options = {"tier_pages": 48, "max_num_batched_tokens": 64}
    header = TraceHeader(
        "t", layouts.load("full"), 12, level="scheduler", policy="lmcache", options=options
    )
    steps: list[Op] = [Step()]
    ops = [Submit("a", "A:65"), *steps * 2, Finish("a"), *steps, Reset(tier="local")]
    ops += [Submit("b", "B:140"), *steps * 4, Submit("c", "A:64 c:65"), *steps * 4, Finish("b")]
    ops += [*steps * 4, Finish("c"), *steps, Reset(tier="local")]
    return Trace(header, [*ops, Submit("d", "A:64 c:64 d:5"), *steps * 2])


def test_a_mark_that_advances_with_each_look_up_loses_stores() -> None:
    """LMCache's connector sets what is stored to what a look-up finds; a fault adds it."""
    trace = asked_while_it_waits()

    def anomalies(plant: Callable[[Any], None] | None) -> set[str]:
        engine = policies.get("lmcache").open(trace.header, {})
        if plant:
            plant(engine)
        result = drive(trace, engine, [StoresOwed()])
        assert result.tallies[0].opportunities > 0
        return {finding.anomaly for finding in result.findings}

    assert anomalies(None) == set()
    fault = all_mutants()["lmcache-watermark-advances-twice"]
    assert anomalies(fault.plant) == {"lost-store"}


# --- a store that is on its way -------------------------------------------------------------------


def test_what_is_computed_again_while_its_store_is_on_its_way_is_not_stored_again() -> None:
    """That store fails when the step has begun, in which its request, preempted meanwhile, computes
    the block again.
    """
    groups = [GroupSpec("sliding", 4, window=8), GroupSpec("sliding", 4, window=9)]
    layout = Layout("windows", [*groups, GroupSpec("full", 4)])
    options = {"async_depth": 1, "tier_pages": 96, "tier_delay": 1}
    header = TraceHeader("t", layout, 13, level="scheduler", options=options)
    media = [Media(0, 8, "dog")]
    ops: list[Op] = [Submit("a", "A:12", media=media), Step(fail=[6]), Preempt("a"), Step(), Step()]
    trace = Trace(header, [*ops, Finish("a"), Submit("b", "A:12", media=media), Step()])
    result = drive(trace, policies.get("vllm").open(header, {}), [StoresOwed()])
    assert result.findings == [] and result.tallies[0].crashed == ""


STATES = """pool 0: 9 pages, null 0
pool 1: 8 pages, tier cpu
group 0: full block 4
group 1: recurrent block 8
group 2: full block 4 pool 1 of 0
group 3: recurrent block 8 pool 1 of 1
rules: alignment 4, {rule}
submit r1 a:9
hit r1 0
acquire r1 | 1 2 3 | 4 5
publish 0/1 r1:4
publish 0/2 r1:8
{keyed}publish 2/0 r1:4
publish 2/1 r1:8
{stored}step 1: r1 0..8 | 1 2 | 4; store 0/1>1/0 0/2>1/1 0/4>1/2
step 2: r1 8..9 | 1 2 3 | 4 5
finish r1
release r1
submit r2 a:9
hit r2 8 | 1 2 | 4
"""


@pytest.mark.parametrize(
    ("rule", "keyed", "stored", "lost"),
    [
        ("stores-keyed", "publish 1/4 r1:8\n", "", [(0, 8)]),
        ("stores-keyed", "publish 1/4 r1:8\n", "publish 3/2 r1:8\n", []),
        ("stores-keyed", "", "", []),
        ("stores", "", "", [(0, 8)]),
    ],
    ids=["not stored", "stored", "not kept on the device either", "all states are stored"],
)
def test_a_state_that_the_device_kept_is_stored(
    rule: str, keyed: str, stored: str, lost: list[tuple[int, int]]
) -> None:
    result = check(parse(STATES.format(rule=rule, keyed=keyed, stored=stored)), [StoresOwed()])
    assert [finding.line for finding in result.findings] == [
        f"request r1 computed its tokens [{start},{stop}); the second tier has no copy of them"
        for start, stop in lost
    ]
    assert result.tallies[0].opportunities > 0
