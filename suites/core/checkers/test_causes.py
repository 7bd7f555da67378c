"""The cause of a finding, where a checker can tell: a copy that was made before what it copies
was written.
"""

from __future__ import annotations

import msgspec

from cachewitness.core.checkers.finding import EARLY_COPY
from cachewitness.core.driving import check
from cachewitness.report.counterexample import headline
from cachewitness.workloads.notation import parse

START = """pool 0: 8 pages, null 0
group 0: full block 4
rules: alignment 2
submit a x:5
acquire a | 1 2
publish 0/1 a:4
"""
SECOND = """submit b x:3 y:2
hit b 2 | 1
acquire b | 3 4
publish 0/3 b:4
acquire copy:1 | 1 3
"""
EARLY = START + SECOND + "step 1: a 0..5 | 1 2; b 2..5 | 3 4; copy 1>3\nrelease copy:1\n"
IN_TIME = (
    START + "step 1: a 0..5 | 1 2\n" + SECOND + "step 2: b 2..5 | 3 4; copy 1>3\nrelease copy:1\n"
)


def causes(text: str) -> list[tuple[str, str]]:
    """Return what is found, and the cause of each."""
    return [(finding.anomaly, finding.cause) for finding in check(parse(text)).findings]


def test_a_copy_of_what_its_own_step_writes_is_the_cause_of_what_is_read_and_keyed_there() -> None:
    assert causes(EARLY) == [("stale-hit", EARLY_COPY), ("partial-commit", EARLY_COPY)]
    assert causes(IN_TIME) == []


def test_whoever_reads_the_copy_later_has_the_same_cause() -> None:
    later = "finish b\nrelease b\nsubmit c x:3 y:3\nhit c 4 | 3\nacquire c | 3 5\nstep 2: c 4..6 | 3 5\n"  # noqa: E501
    assert causes(EARLY + later)[2:] == [("partial-commit", EARLY_COPY)]


def test_a_page_that_was_written_anew_has_that_cause_no_longer() -> None:
    anew = (
        "finish b\nrelease b\nunpublish 0/3 evict\nsubmit c z:5\nacquire c | 3 5\n"
        "publish 0/3 c:4\nstep 2: c 0..5 | 3 5\n"
    )
    wrong = "submit d w:5\nhit d 4 | 3\nacquire d | 3 6\nstep 3: d 4..5 | 3 6\n"
    assert causes(EARLY + anew)[2:] == []
    assert causes(EARLY + anew + wrong)[2:] == [("stale-hit", "")]


def test_the_cause_is_told() -> None:
    finding = check(parse(EARLY)).findings[0]
    assert any(
        "the cause: early-copy, as the page was copied" in line for line in headline(finding, "t")
    )
    assert not any(
        "the cause" in line for line in headline(msgspec.structs.replace(finding, cause=""), "t")
    )


def test_a_smaller_trace_stands_for_the_same_cause_alone() -> None:
    early = check(parse(EARLY)).findings[0]
    other = msgspec.structs.replace(early, cause="")
    assert (
        early.alike(early)
        and other.alike(other)
        and not early.alike(other)
        and not other.alike(early)
    )
