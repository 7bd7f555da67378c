"""Differences of answers that are no contradiction, since the batch may be at fault, and not the cache."""

from __future__ import annotations

from harness.checkers.answers import DIFFERS, AnswersAgree
from harness.trace.avoided import BATCH, DECODING, told
from harness.verdict.result import Result

UNASKED = (
    "the answers of this engine may depend on who shares the batch, and this history does not say whether the engine differs "
    "without its cache as well (`cause` of `cold`), which only the engine can tell: `replay` the trace on it"
)
"""What a history lacks of which nobody looked for the cause."""


def leave_open(result: Result) -> None:
    """Of an engine whose answers may depend on the batch, take findings that may come without the cache for no contradiction.

    The checker then says what it cannot judge, as one does that crashed: the verdict is unknown.
    """
    answering = result.history.header.rules.answering
    noise = [found for found in result.findings if found.anomaly == DIFFERS and found.cause in ("", BATCH, DECODING)]
    if answering is None or not answering.inexact or not noise:
        return
    result.findings = [found for found in result.findings if found not in noise]
    tally = next(tally for tally in result.tallies if tally.checker == AnswersAgree.name)
    tally.findings -= len(noise)
    cause = noise[0].cause
    says = noise[0].sentence.removesuffix(": a contradiction.")
    tally.crashed = f"{f'{cause}: {told(cause)}' if cause else UNASKED}; so no contradiction is shown: {says}"
