"""Where a device goes on from whatever a state's page holds, it is zeroed before a text begins."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cachewitness.core.driving import check
from cachewitness.workloads.notation import parse

USED = """
pool 0: 4 pages, null 0
group 0: recurrent block 16
submit r1 a:5
acquire r1 | 1
step 1: r1 0..5 | 1
finish r1
release r1
submit r2 b:6
acquire r2 | {page}
step 2: r2 0..3 | {page}{zeros}
step 3: r2 3..6 | {page}
"""


def found(page: int, zeros: str = "", *, cleared: bool = True) -> list[str]:
    history = parse(USED.format(page=page, zeros=zeros))
    (group,) = history.header.groups
    header = replace(history.header, groups=[replace(group, cleared=cleared)])
    return [one.anomaly for one in check(replace(history, header=header)).findings]


def test_a_state_that_another_text_left_is_found() -> None:
    assert found(1) == ["state-position-skew"]


@pytest.mark.parametrize(
    ("page", "zeros", "cleared"),
    [(1, "; zero 0/1", True), (2, "", True), (1, "", False)],
    ids=["zeroed", "nobody had it", "the device reads nothing where a text begins"],
)
def test_a_state_that_nothing_is_read_of_is_lawful(page: int, zeros: str, cleared: bool) -> None:
    assert found(page, zeros, cleared=cleared) == []
