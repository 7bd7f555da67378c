"""What an engine at answers level owes for how long it says that a prompt may be."""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.answers import TOO_LONG, AnswersAgree
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

MOST = 8


def refused(prompt: int, generate: int = 1, *, most: int = MOST, alone: bool = False) -> Result:
    """Judge a request that the engine refuses; `alone`: a fresh engine refuses it as well."""
    answering = Answering("float32", 89)
    header = Header("x", "answers", [], [], rules=Rules(answering=answering, max_prompt=most))
    events: list[Event] = [
        Submitted(r="a", tokens=[7] * prompt, generate=generate),
        Answer(r="a", ended="refused"),
        *([Cold(r="a", tokens=[], refused=True)] if alone else []),
        Finished(r="a"),
    ]
    return check(History(header, events, [*range(len(events))]), [AnswersAgree()])


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("prompt", "generate"), [(MOST, 1), (MOST - 1, 2), (1, MOST)])
def test_what_is_no_longer_than_the_engine_says_is_answered_to_its_end(
    prompt: int, generate: int, alone: bool
) -> None:
    """That a fresh engine fails alike is no excuse."""
    (finding,) = refused(prompt, generate, alone=alone).findings
    assert finding.anomaly == "answer-missing"
    assert finding.line.endswith(f"is no longer than the {MOST} tokens that it says that it takes")


@pytest.mark.parametrize("alone", [True, False])
def test_a_prompt_that_is_longer_may_be_refused_and_is_counted(alone: bool) -> None:
    """By more than the token that suites ask for on purpose, and if a fresh engine answers it."""
    for prompt, counted in ((MOST + 1, False), (MOST + 2, not alone)):
        result = refused(prompt, alone=alone)
        (tally,) = result.tallies
        assert (result.findings, tally.excused) == ([], {TOO_LONG: 1} if counted else {})


@pytest.mark.parametrize("most", [0, MOST])
def test_an_answer_that_outgrows_the_limit_is_judged_by_a_fresh_engine(most: int) -> None:
    """As without a limit."""
    assert not refused(MOST, 2, most=most, alone=True).findings
    (finding,) = refused(MOST, 2, most=most).findings
    assert finding.line == "request a was aborted by the engine, which answers it alone"
