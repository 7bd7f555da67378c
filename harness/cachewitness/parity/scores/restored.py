"""How much of the prompts an arm took from its cache, and whether that is what the arm was to do.

An equal score proves nothing about a cache that was never read: the two most used gates of this
kind accept one restored block in three hundred requests, or a cold run that was warm from its
second question on. So each arm states what it needs (cold: next to nothing restored; restored:
much, of every cache group, and some of it in every request; the others alike), and an arm that did
not get it has checked nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from cachewitness.engines.answers import Answer
from cachewitness.parity.scores.turns import FirstTurn

Need = Literal[
    "cold", "restored", "tier", "preempted", "drafted", "evicted", "turns", "drafted turns"
]

MIN_SHARE = 0.5
"""The share of prompt tokens that an arm with a warm cache restores at least, overall and of each
cache group; in an arm of turns, that of the questions whose hits reach into an answer."""
COLD_SHARE = 0.01
"""What a cold arm may restore: a preempted request may find what it wrote itself."""
HAPPENED_SHARE = 0.1
"""The share of requests that lose their place at least, in an arm under preemption; of other
mechanisms alike."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm restored, in tokens; `least` by the request that restored least, `groups…` by
    cache group.

    `preempted`, `drafted` and `evicted` count the requests to which it happened: that lost their
    place, that went on with a guessed token (of turns: whose first one did), and while which a
    cached block made room. `reached` and `ended` count the hits that read of the first turn's
    answer, and all of it.
    """

    requests: int
    prompt_tokens: int
    tokens: int
    least: int
    least_doc: int
    groups: Mapping[str, int]
    groups_least: Mapping[str, int]
    from_tier: int
    preempted: int
    drafted: int = 0
    evicted: int = 0
    reached: int = 0
    ended: int = 0

    def share(self, tokens: int) -> float:
        """Return a number of tokens as a share of those of the prompts."""
        return tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def measure(answers: Mapping[int, Answer], first: Mapping[int, FirstTurn] = {}) -> Restored:
    """Count what the answers say was restored, behind these first turns if there are any; a group
    that a request does not name restored nothing in it.
    """
    names = sorted({name for answer in answers.values() for name in answer.restored if name})
    least_doc = min(answers, key=lambda doc: (answers[doc].restored.get("", 0), doc), default=-1)
    return Restored(
        requests=len(answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers.values()),
        tokens=_sum(answers.values(), ""),
        least=answers[least_doc].restored.get("", 0) if answers else 0,
        least_doc=least_doc,
        groups={name: _sum(answers.values(), name) for name in names},
        groups_least={
            name: min(answer.restored.get(name, 0) for answer in answers.values()) for name in names
        },
        from_tier=sum(answer.from_tier for answer in answers.values()),
        preempted=sum(answer.preemptions > 0 for answer in answers.values()),
        drafted=sum((first or answers)[doc].drafted > 0 for doc in answers),
        evicted=sum(answer.evictions > 0 for answer in answers.values()),
        reached=sum(turn.reached_by(answers[doc]) for doc, turn in first.items()),
        ended=sum(turn.ended_by(answers[doc]) for doc, turn in first.items()),
    )


def shortfalls(found: Restored, need: Need, min_share: float = MIN_SHARE) -> list[str]:
    """Return, one line each, in what an arm did not get what it needs; empty if it did."""
    if not found.requests or not found.prompt_tokens:
        return ["no prompt was answered, or the backend does not count the tokens of prompts"]
    if need == "cold":
        return _too_warm(found)
    if need in ("preempted", "evicted"):
        return _rare(found, need)
    if need in ("turns", "drafted turns"):
        return _unreached(found, min_share) + (_rare(found, need) if "drafted" in need else [])
    short = [_below("restored", found.share(found.tokens), min_share)]
    short += [
        _below(f"group {name} restored", found.share(tokens), min_share)
        for name, tokens in found.groups.items()
    ]
    if need == "tier":
        short.append(_below("the second tier gave", found.share(found.from_tier), min_share))
    if need == "drafted":
        short += _rare(found, need)
    if not found.least:
        short.append(f"question {found.least_doc} restored nothing")
    short += [
        f"group {name} restored nothing in some request"
        for name, least in found.groups_least.items()
        if not least
    ]
    return [line for line in short if line]


def _unreached(found: Restored, min_share: float) -> list[str]:
    if found.reached >= min_share * found.requests and found.reached:
        return []
    line = (
        f"{found.reached} of {found.requests} hits ended in the answer of the first turn or shortly"
        f" behind it, less than {min_share:.0%}"
    )
    if found.reached:
        return [line]
    return [
        f"{line}: the cache keeps nothing of answers, or blocks longer than these, or had the whole"
        " question before"
    ]


def _rare(found: Restored, need: Need) -> list[str]:
    happened, what = {
        "preempted": (found.preempted, "requests were preempted"),
        "drafted": (found.drafted, "requests went on with a guessed token"),
        "drafted turns": (found.drafted, "first turns went on with a guessed token"),
        "evicted": (found.evicted, "requests saw a cached block make room"),
    }[need]
    return (
        []
        if happened / found.requests >= HAPPENED_SHARE
        else [f"{happened} of {found.requests} {what}"]
    )


def _too_warm(found: Restored) -> list[str]:
    share = found.share(found.tokens)
    if share <= COLD_SHARE:
        return []
    return [
        f"a cold arm restored {share:.1%} of its prompts: caching was not off, or salts are ignored"
    ]


def _below(what: str, share: float, least: float) -> str:
    return "" if share >= least else f"{what} {share:.1%} of the prompts, less than {least:.0%}"


def _sum(answers: Iterable[Answer], name: str) -> int:
    return sum(answer.restored.get(name, 0) for answer in answers)
