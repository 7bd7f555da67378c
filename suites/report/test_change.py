"""What a report says of a change: which parts of it were entered, and what that is worth."""

from __future__ import annotations

import pytest

from cachewitness.report.change import Beside, Change, ChangedFunction
from cachewitness.report.summary import Report

KERNEL = Beside("kernels and other native code", ["csrc/a.cu", "csrc/b.cu", "csrc/c.cu"])
TEXT = Beside("documentation", ["docs/a.md"], code=False)
WHOLE = ChangedFunction(
    name="m:whole", file="m.py", lines=[1, 2], entered=[1, 2], called=True, by=["s@c"], by_count=1
)
PART = ChangedFunction(
    name="m:part",
    file="m.py",
    lines=[3, 4],
    entered=[3],
    called=True,
    by=["s@c", "t@c"],
    by_count=9,
)
CALLED = ChangedFunction(
    name="m:called", file="m.py", lines=[7], called=True, by=["s@c"], by_count=1
)
NEVER = ChangedFunction(name="m:never", file="m.py", lines=[9])
GONE = ChangedFunction(name="m:gone", file="m.py", deleted=True)
IMPORTED = ChangedFunction(name="m", file="m.py", imports=True, lines=[1], imported=[1])


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (WHOLE, "m:whole  2 of 2 changed lines entered, by s@c"),
        (
            PART,
            "m:part  1 of 2 changed lines entered, by s@c, t@c and 7 more; no suite enters line 4"
            " of m.py",
        ),
        (
            CALLED,
            "m:called  entered by s@c, but no suite enters what changed in it: line 7 of m.py",
        ),
        (NEVER, "m:never  no suite enters it"),
        (GONE, "m:gone  is gone: nothing of it is left to enter"),
        (
            IMPORTED,
            "m  run by importing the module alone, which says nothing of what uses it",
        ),
    ],
)
def test_each_function_is_told_in_a_line(one: ChangedFunction, line: str) -> None:
    assert one.line == line


def test_what_no_suite_enters_comes_first() -> None:
    """And files that are not driven come last, one line for each kind."""
    change = Change(base="b", functions=[WHOLE, PART, NEVER], beside=[KERNEL, TEXT])
    lines = [line.partition("  ")[0] for line in change.lines]
    assert lines == [
        "m:never",
        "m:part",
        "m:whole",
        "kernels and other native code: csrc/a.cu, csrc/b.cu and 1 more: not driven",
        "documentation: docs/a.md: no code",
    ]


@pytest.mark.parametrize(
    ("functions", "beside", "why"),
    [
        ([], [], "nothing changed since b"),
        ([], [KERNEL, TEXT], "no suite can enter what changed since b"),
        ([NEVER, CALLED, GONE, IMPORTED], [], "no suite enters a line that changed since b"),
        ([IMPORTED], [TEXT], "no suite enters a line that changed since b"),
    ],
)
def test_a_change_of_which_nothing_is_entered_is_no_pass(
    functions: list[ChangedFunction], beside: list[Beside], why: str
) -> None:
    change = Change(base="b", functions=functions, beside=beside)
    assert change.unchecked == [why]
    assert Report(engine="e", change=change, vacuous=change.unchecked).exit_code == 5


@pytest.mark.parametrize(
    ("functions", "beside", "verdict"),
    [
        ([WHOLE], [TEXT], "suites enter every line that changed since b"),
        ([], [TEXT], "what changed since b is no code"),
        (
            [WHOLE, PART],
            [KERNEL],
            "not all that changed since b was tested: m:part is entered in part, kernels and other"
            " native code are not driven",
        ),
        (
            [NEVER, GONE, PART],
            [],
            "not all that changed since b was tested: m:never is not entered, m:gone is not entered"
            " and 1 more",
        ),
    ],
)
def test_a_pass_says_what_of_the_change_was_not_tested(
    functions: list[ChangedFunction], beside: list[Beside], verdict: str
) -> None:
    assert Change(base="b", functions=functions, beside=beside).verdict == verdict
