"""Above its sentence every finding has one line in the field's words: what a request or a page did,
and what is there instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from cachewitness._util.data import fixtures
from cachewitness.core import validate
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.wording import (
    LINE_MAX,
    all_named,
    key_of,
    named,
    page_list,
    with_detail,
)
from cachewitness.core.driving import drive, judge
from cachewitness.core.events import Answer
from cachewitness.core.trace_format import load
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse

LONG_FORM = re.compile(r"\b(let|however|contradiction)\b", re.IGNORECASE)
"""The words of a sentence, which a line is to do without."""
NAMES = re.compile(r"\b(requests?|pages?|pool|key of|kv_(stored|removed) event,) ?\S")
WIDTH = 100
ENGINE = "engine"
"""In place of a checker, where the engine failed: then there may be neither request nor page."""


def _histories() -> Iterator[tuple[str, Finding]]:
    """Yield every finding of every anomalous history, with the history's name."""
    for path in sorted((fixtures() / "histories" / "anomalous").glob("*.jsonl")):
        yield from ((path.stem, finding) for finding in judge(*validate.events(path)).findings)


def _faults() -> Iterator[tuple[str, Finding]]:
    """Yield every finding of the stored witness of every fault, with the fault's name."""
    for name, mutant in all_mutants().items():
        trace = fixtures() / "traces" / "mutants" / f"{name}.jsonl"
        if "toy" not in mutant.engines[:1] and trace.exists():
            asked = load(trace)
            found = drive(asked, parse(f"reference:mutant={name}").open(asked.header)).findings
            yield from ((name, finding) for finding in found)


@pytest.fixture(scope="module")
def findings() -> list[tuple[str, Finding]]:
    """Return them all."""
    return [*_histories(), *_faults()]


def test_every_finding_has_a_line(findings: list[tuple[str, Finding]]) -> None:
    """It fits a terminal, names the request or the page, and has none of the words of a proof."""
    assert len(findings) > 200
    for name, finding in findings:
        line = finding.line
        assert line and "\n" not in line and len(line) <= WIDTH, (name, finding)
        assert not LONG_FORM.search(line), (name, line)
        assert NAMES.search(line) or finding.checker == ENGINE, (name, line)
        assert not re.search(r"\[\]|\b1 (tokens|references|pages|steps)\b", line), (name, line)


def test_a_line_names_the_request_that_the_finding_is_about(
    findings: list[tuple[str, Finding]],
) -> None:
    """Or the page, of findings about keys, which any request may have published."""
    for name, finding in findings:
        if finding.r and finding.checker not in ("eviction", ENGINE):
            assert re.search(rf"\b{re.escape(finding.r)}(?!\w)", finding.line), (name, finding)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("above-the-watermark", "page 1 lost its key while page 2 was free"),
        (
            "ring-behind-the-window",
            "request r1 wrote tokens [4,5) over page 1; its block tables name the page twice",
        ),
        (
            "drafts-taken-back",
            "request r1 read page 5 as the state after 7 tokens; the page holds that after 8"
            " tokens of r1",
        ),
        (
            "drafts-pass-a-boundary",
            "key of r1 [0,8) names page 5, whose state is after 7 tokens",
        ),
        ("refused-for-a-while", "request r1 could run and was not scheduled for 3 steps"),
        (
            "boundary-state-left-behind",
            "key of c1 [0,16) names page 5, whose state is after 15 tokens",
        ),
    ],
)
def test_lines(name: str, line: str, findings: list[tuple[str, Finding]]) -> None:
    assert line in [finding.line for of, finding in findings if of == name]


def test_words_of_lines() -> None:
    """Copies and captures hold pages and are no requests; long lists and details are cut."""
    assert named("r1") == "request r1" and named("copy:3") == "copy:3"
    assert all_named([]) == "no request" and all_named({"b", "a"}) == "request a and request b"
    assert page_list({7}) == "page 7" and page_list([3, 1]) == "pages 1, 3"
    assert page_list(range(11)) == "pages 0, 1, 2, 3 and 7 more"
    assert key_of("r1", 32) == "key of r1 [0,32)"
    assert with_detail("page 1", "why") == "page 1; why" and with_detail("page 1", "") == "page 1"
    assert with_detail("page 1", "x" * LINE_MAX) == "page 1"


def test_what_is_found_without_recurrent_groups_speaks_of_no_state() -> None:
    """Neither its line, its sentence, its rule nor what follows from it."""
    judged = 0
    for path in sorted((fixtures() / "histories" / "anomalous").glob("*.jsonl")):
        header, events = validate.events(path)
        kinds = {group.kind for group in header.groups}
        if not kinds or "recurrent" in kinds:
            continue
        for finding in judge(header, events).findings:
            anomaly = BY_NAME[finding.anomaly]
            texts = (finding.line, finding.sentence, anomaly.invariant, anomaly.implies)
            assert not re.search(r"\b(state|snapshot)s?\b", " ".join(texts)), path.stem
            judged += 1
    assert judged > 30


def test_what_an_engine_says_at_length_is_cut() -> None:
    """And it steers no terminal."""
    header, events = validate.events(
        fixtures() / "histories" / "anomalous" / "fitting-state-left.jsonl"
    )
    spoken = "\x1b[2J" + "x" * 100_000
    changed = (
        replace(event, unused=spoken) if isinstance(event, Answer) and event.unused else event
        for event in events
    )
    (finding,) = judge(header, changed).findings
    assert "characters)" in finding.line and len(finding.line) < 200
    assert len(finding.sentence) < 400 and "\x1b" not in finding.line + finding.sentence
