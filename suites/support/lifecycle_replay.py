"""Replays the facts of a lifecycle vector with sets of prefixes alone, to say what a hit can have
been.

A prefix is its content: the identity and the (text, position) of every token. Of an engine, only
what the vector says is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cachewitness.core.trace_format import Submit
from cachewitness.vectors.form import Facts

Content = int
"""A prefix, as a number of its own: equal numbers are equal content, whoever computed it."""

_NUMBERS: dict[tuple[Content, Any], Content] = {}


def _after(prefix: Content, token: Any) -> Content:
    return _NUMBERS.setdefault((prefix, token), len(_NUMBERS) + 1)


@dataclass
class Life:
    """A request: its tokens as (text, position), its identity, and how far it has run since it
    last started.
    """

    prompt: list[tuple[str, int]]
    stream: str
    identity: tuple[Any, ...]
    media: list[Any]
    reached: int | None = None
    _contents: list[Content] = field(default_factory=list)

    def content(self, length: int) -> Content:
        """Return what the first `length` tokens are; tokens behind the prompt are of the
        request's own text.
        """
        if not self._contents:
            self._contents.append(_after(0, self.identity))
        while len(self._contents) <= length:
            position = len(self._contents) - 1
            behind = position - len(self.prompt)
            token = self.prompt[position] if behind < 0 else (self.stream, behind)
            begun = tuple(
                (item.at, item.length, item.hash) for item in self.media if item.at == position
            )
            self._contents.append(_after(self._contents[-1], (token, begun)))
        return self._contents[length]


def born(op: Submit) -> Life:
    """Return a request that has just been submitted."""
    prompt = []
    for term in op.prompt.split():
        text, _, count = term.rpartition(":")
        name, _, start = text.rstrip("]").partition("[")
        first = int(start or 0)
        prompt += [(name, position) for position in range(first, first + int(count))]
    return Life(prompt, op.stream or f"@{op.r}", (op.salt, op.adapter), list(op.media))


class Keys:
    """The prefixes that can be hit, by group; the same one may be there several times."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._live: Counter[tuple[int, Content]] = Counter()

    def publish(self, group: int, content: Content) -> None:
        """Take one in; a group of another tier stands for the local one that it copies."""
        self._live[group % self._groups, content] += 1

    def unpublish(self, group: int, content: Content) -> None:
        """Let one go, which must be there."""
        key = group % self._groups, content
        assert self._live[key] > 0, "what was never published is unpublished"
        self._live[key] -= 1

    def lengths(self, group: int, life: Life, upto: int) -> list[int]:
        """Return the prefixes of a request that a group has, by length."""
        return [
            length for length in range(1, upto + 1) if self._live[group, life.content(length)] > 0
        ]


def story(vector: Any) -> Iterator[tuple[dict[str, Life], Facts]]:
    """Yield the requests known and the facts of every operation that has some."""
    lives: dict[str, Life] = {}
    facts = {fact.op: fact for fact in vector.expected.facts}
    for index, op in enumerate(vector.input.ops):
        if isinstance(op, Submit):
            lives[op.r] = born(op)
        if index in facts:
            yield lives, facts[index]
