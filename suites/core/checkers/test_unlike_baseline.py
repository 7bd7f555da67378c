"""A baseline that is not like itself: what is a finding, and what is left open."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.data import fixtures
from cachewitness.core.checkers.answers import BEYOND, AnswersAgree
from cachewitness.core.driving import check
from cachewitness.core.events import (
    Answer,
    Answering,
    Cold,
    Event,
    Finished,
    Header,
    History,
    Rules,
    Submitted,
)
from cachewitness.core.result import Result
from cachewitness.workloads.notation import parse


def judged(dtype: Any, floor: float, ceiling: float, beside: int) -> Result:
    """Judge two answers that are right, beside a baseline whose answers lie so far apart."""
    header = Header("x", "answers", [], [], rules=Rules(answering=Answering(dtype, 89)))
    events = list[Event]()
    for r in ("a", "b"):
        events += [
            Submitted(r=r, tokens=[7] * 9, generate=1),
            Answer(r=r, tokens=[1], logprobs=[-0.5], restored=0),
            Cold(
                r=r,
                tokens=[1],
                logprobs=[-0.5],
                restored=0,
                dtype=dtype,
                floor=floor,
                tolerance=8 * floor,
                ceiling=ceiling,
                floor_tokens=17,
                floor_beside=beside,
            ),
            Finished(r=r),
        ]
    return check(History(header, events, [*range(len(events))]), [AnswersAgree()])


@pytest.mark.parametrize(
    ("dtype", "floor", "beside", "cause", "says"),
    [
        ("float32", 0.01, 2, "batch", "asked alone and beside 2 others. Nothing else is different"),
        ("float64", 0.01, 0, "again", "several servers may answer at this address"),
        ("bfloat16", BEYOND, 4, "batch", "however it answers with other tokens"),
        ("float16", BEYOND, 0, "again", "a prompt of 17 tokens asked alone and again"),
    ],
)
def test_what_rounding_cannot_be_is_found_once_with_its_cause(
    dtype: str, floor: float, beside: int, cause: str, says: str
) -> None:
    result = judged(dtype, floor, 1e-3, beside)
    (finding,) = result.findings
    assert (finding.anomaly, finding.cause) == ("baseline-differs", cause)
    assert says in finding.sentence and "wider dtype" not in finding.sentence
    assert not result.tallies[0].unjudged


def test_rounding_in_half_precision_is_left_open_with_the_two_answers() -> None:
    result = judged("bfloat16", 0.1, 0.5, 2)
    assert result.findings == [] and result.outcome == "unknown"
    (tally,) = result.tallies
    assert not tally.crashed
    assert "of a prompt of 17 tokens asked alone and beside 2 others" in tally.open
    assert tally.open.endswith("use a wider dtype")


def test_rounding_below_the_ceiling_is_neither() -> None:
    result = judged("float32", 1e-5, 1e-3, 4)
    assert result.findings == [] and not result.tallies[0].unjudged


def test_why_nothing_was_restored_is_counted_without_its_details() -> None:
    """The report names the reason; the numbers in brackets are in the history."""
    text = (fixtures() / "histories/prompt-too-short-to-keep.txt").read_text()
    _, _, body = text.partition("\n\n")
    lawful = "\n".join(line.removeprefix("+") for line in body.splitlines() if line[:1] != "-")
    history = parse(lawful.replace("why evicted", "why evicted (for r9)"))
    (tally,) = check(history, [AnswersAgree()]).tallies
    assert tally.excused == {"nothing restored: evicted": 1}
