"""Differences of answers that are no contradiction, since the batch may be at fault, and not the
cache.
"""

from __future__ import annotations

from cachewitness.core.checkers.answers import BATCH, DIFFERS, AnswersAgree
from cachewitness.core.result import Result

DECODING = "decoding"
NOISE = {
    DECODING: (
        "passes if no prompt goes on after an answer, and uncached decoding and prefill round"
        " differently as well"
    ),
    BATCH: "fails without the cache as well: the model's doing, or the batch's",
}
"""The causes that do not need a cache, and what each says of the trace."""

UNASKED = (
    "the answers of this engine may depend on who shares the batch, and this history does not say"
    " whether the engine differs without its cache as well (`cause` of `cold`), which only the"
    " engine can tell: `replay` the trace on it"
)
"""What a history lacks of which nobody looked for the cause."""


def leave_open(result: Result) -> None:
    """Of an engine whose answers may depend on the batch, take findings that may come without the
    cache for no contradiction.

    The checker then says what it leaves open: the verdict is unknown.
    """
    answering = result.history.header.rules.answering
    noise = [
        found
        for found in result.findings
        if found.anomaly == DIFFERS and found.cause in ("", BATCH, DECODING)
    ]
    if answering is None or not answering.inexact or not noise:
        return
    result.findings = [found for found in result.findings if found not in noise]
    tally = next(tally for tally in result.tallies if tally.checker == AnswersAgree.name)
    tally.findings -= len(noise)
    cause = noise[0].cause
    says = noise[0].sentence.removesuffix(": a contradiction.")
    tally.open = (
        f"{f'{cause}: it {NOISE[cause]}' if cause else UNASKED}; so no contradiction is shown:"
        f" {says}"
    )
