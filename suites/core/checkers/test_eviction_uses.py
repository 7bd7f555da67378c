"""What a finding says of the pages that it names: who used them last, and which may be counted
wrong.
"""

from __future__ import annotations

from pathlib import Path

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import judge
from cachewitness.core.validate import events
from cachewitness.workloads.notation import parse

HISTORIES = Path(__file__).resolve().parents[3] / "fixtures" / "histories" / "anomalous"
TWO = """
pool 0: 5 pages
group 0: full block 4
rules: alignment 4
submit r1 a:5
hit r1 0
acquire r1 | 1 3
publish 0/1 r1:4
step 1: r1 0..5 | 1 3
counts 0: free 3 held 2 cached 0
submit r2 a:6
"""


def found(text: str) -> Finding:
    history = parse(text)
    (finding,) = judge(history.header, history.events).findings
    return finding


def test_a_wrong_victim_is_told_with_the_last_uses_of_both_pages() -> None:
    """And belongs to the request that got the page, not to one that ended long ago."""
    finding = judge(*events(HISTORIES / "hit-renews-a-page.jsonl")).findings[0]
    assert finding.line == (
        "page 1 (r3, step 4) was evicted before page 2 (r2, step 3), which goes first: lru"
    )
    assert finding.r == "r4"
    uses = "page 2 was last given back by r2 in step 3, page 1 given back by r3 in step 4"
    assert uses in finding.sentence


def test_totals_that_are_wrong_name_the_pages_that_may_be_the_one() -> None:
    """Of pages with a key that are counted as cached, one that a waiting request begins with; of
    pages that changed hands in the step, these.
    """
    other = "submit r3 b:5\nhit r3 0\nacquire r3 | 2 4\n"
    waits = found(TWO + other + "counts 0: free 1 held 3 cached 1")
    assert waits.line.endswith("the engine counts 3 and 1 (page 1?)")
    assert "it may be page 1, which r1 holds and r2, which waits, begins with" in waits.sentence
    took = found(TWO + "hit r2 4 | 1\nacquire r2 | 1 2\ncounts 0: free 3 held 2 cached 0")
    assert took.line.endswith("the engine counts 2 and 0 (pages 1, 2?)")
    assert "it may be page 1, which r2 took in step 2 or page 2, which r2" in took.sentence
