"""The answers of a history side by side: with the cache, and without it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cachewitness.core.checkers.answers import compare
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.events import Answer, Cold, Event, Submitted

ROWS_MAX, TOKENS_MAX = 24, 16
"""Requests that are shown, and tokens of each: those around the first that differs."""


class Token(msgspec.Struct, kw_only=True):
    """A position of an answer, counted from 1: the token (logprob) with the cache and without
    it; empty where there is none.
    """

    at: int
    answered: str
    cold: str
    differs: bool


class Spoken(msgspec.Struct, kw_only=True):
    """What one request was answered; `failing` marks the one that the finding names, `left_out`
    counts tokens not shown.
    """

    r: str
    prompt: int
    restored: str
    ended: str
    tokens: list[Token]
    left_out: int
    failing: bool


def spoken(events: Sequence[Event], finding: Finding | None) -> tuple[list[Spoken], int]:
    """Return what each request was answered, in the order in which they came, and how many of
    them are left out.
    """
    submits = {event.r: event for event in events if isinstance(event, Submitted)}
    answers = {event.r: event for event in events if isinstance(event, Answer)}
    colds: dict[str, list[Cold]] = {}
    for event in events:
        if isinstance(event, Cold):
            colds.setdefault(event.r, []).append(event)
    failing = finding.r if finding else ""
    names = list(submits)
    middle = names.index(failing) if failing in submits else 0
    first = max(0, min(middle - ROWS_MAX // 2, len(names) - ROWS_MAX))
    shown = names[first : first + ROWS_MAX]
    rows = [_row(submits[r], answers.get(r), colds.get(r, []), failing == r) for r in shown]
    return rows, len(names) - len(shown)


def _row(submitted: Submitted, answer: Answer | None, colds: list[Cold], failing: bool) -> Spoken:
    row = Spoken(
        r=submitted.r,
        prompt=len(submitted.tokens),
        restored="" if answer is None or answer.restored < 0 else f"{answer.restored:,}",
        ended="no answer" if answer is None else answer.ended,
        tokens=[],
        left_out=0,
        failing=failing,
    )
    if answer is None:
        return row
    right: dict[int, str] = {}
    wrong: set[int] = set()
    for cold in colds:
        right |= {cold.start + index: _text(cold, index) for index in range(len(cold.tokens))}
        if (compared := compare(answer, cold)).kind not in ("", "near-tie"):
            wrong.add(compared.at)
    length = max([len(answer.tokens), *(at + 1 for at in right)])
    first = max(0, min(min(wrong, default=0) - TOKENS_MAX // 2, length - TOKENS_MAX))
    for at in range(first, min(first + TOKENS_MAX, length)):
        answered = _text(answer, at) if at < len(answer.tokens) else ""
        row.tokens.append(
            Token(at=at + 1, answered=answered, cold=right.get(at, ""), differs=at in wrong)
        )
    row.left_out = length - len(row.tokens)
    return row


def _text(answer: Answer | Cold, index: int) -> str:
    """Return a token with its logprob."""
    token = str(answer.tokens[index])
    logprob = answer.logprobs[index] if answer.logprobs else None
    return token if logprob is None else f"{token} ({logprob:.6g})"
