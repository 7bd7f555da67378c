"""A sentence about content names what tells it from what was wanted, and never says of one thing
that it is and is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from cachewitness._util.data import fixtures
from cachewitness.core import validate
from cachewitness.core.checkers.wording import describe_retention
from cachewitness.core.driving import drive, judge
from cachewitness.core.trace_format import load
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse

HOLDS = re.compile(
    r"holds (?P<what>the state after \d+ tokens?|tokens \[\d+, \d+\)) of (?P<of>\S+?), written"
)
READ = re.compile(
    r"however (?P<r>\S+) read it as its (?P<what>state after \d+ tokens?|tokens \[\d+,"
    r" \d+\))(?P<why>[^:]*):"
)
OWN = ("cross-identity-hit", "stale-hit")


def _sentences() -> Iterator[tuple[str, str, str]]:
    """Yield what is said of every stored witness of a fault and of every anomalous history: its
    name, anomaly, sentence.
    """
    for name, mutant in all_mutants().items():
        trace = fixtures() / "traces" / "mutants" / f"{name}.jsonl"
        if "toy" not in mutant.engines[:1] and trace.exists():
            asked = load(trace)
            found = drive(asked, parse(f"reference:mutant={name}").open(asked.header)).findings
            yield from ((name, finding.anomaly, finding.sentence) for finding in found[:1])
    for path in sorted((fixtures() / "histories" / "anomalous").glob("*.jsonl")):
        found = judge(*validate.events(path)).findings
        yield from ((path.stem, finding.anomaly, finding.sentence) for finding in found)


@pytest.fixture(scope="module")
def sentences() -> list[tuple[str, str, str]]:
    """Return them all."""
    return list(_sentences())


def test_a_read_of_the_same_tokens_names_what_differs(
    sentences: list[tuple[str, str, str]],
) -> None:
    """Where page and request are told alike, "tokens [0, 16)" of both, the sentence goes on with
    the difference.
    """
    alike = 0
    for name, anomaly, sentence in sentences:
        holds = HOLDS.search(sentence)
        read = READ.search(sentence)
        if (
            anomaly in OWN
            and holds
            and read
            and holds["what"].removeprefix("the ") == read["what"]
            and "for group" not in sentence
        ):
            alike += 1
            assert re.match(
                r", whose (token \d+|salt|adapter|set of kernels|version of the"
                r" (weights|adapter)) ",
                read["why"],
            ), (name, sentence)
    assert alike > 10


def test_a_key_over_the_same_tokens_says_what_is_missing(
    sentences: list[tuple[str, str, str]],
) -> None:
    """A block of drafts looks whole; the sentence says how many tokens the request really has."""
    by_name = {
        name: sentence for name, anomaly, sentence in sentences if anomaly == "partial-commit"
    }
    assert "b1 has 13 tokens; what lies behind them are drafts" in by_name["drafts-published"]
    assert "token 1 is not in the page" in by_name["tail-published-early"]
    assert "token 0 is not in the page" in by_name["stores-share-a-place"]


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("adapter-left-out", "whose adapter is 'tuned', where the page has none"),
        ("salt-left-out", "whose salt is none, where the page has 'one'"),
        ("image-left-out", "whose token 3 is of image 'dog-3', where the page has no image"),
        (
            "edge-captures-survive-new-weights",
            "whose version of the weights is 1, where the page has 0",
        ),
        ("hash-without-parent", "whose token 0 is 196608, where the page has 65536"),
    ],
)
def test_the_part_that_differs_is_named(
    fault: str, part: str, sentences: list[tuple[str, str, str]]
) -> None:
    assert part in next(sentence for name, _, sentence in sentences if name == fault)


def test_nothing_is_told_as_a_list_or_counted_wrong(sentences: list[tuple[str, str, str]]) -> None:
    """No empty list, no "1 tokens", no page that is no page."""
    for name, _, sentence in sentences:
        assert not re.search(r"\[\]|\b1 (tokens|references)\b|no page of", sentence), (
            name,
            sentence,
        )


def test_what_an_interval_keeps_is_told_in_words() -> None:
    assert describe_retention(0, ()) == describe_retention(0, {0}) == "nothing of it"
    assert (
        describe_retention(64, {48, 0, 32})
        == "multiples of 64 and what a request needs to resume at 32 or 48"
    )
