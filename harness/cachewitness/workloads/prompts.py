"""Draws what requests say: what was said before, a part of it, more, what differs from it in one
place, or something new.

Lengths are a multiple of a measure of the layout plus −1, 0 or +1. What was said before keeps its
salt, adapter and images more often than not, since only then can a cache take one prefix for the
other.
"""

from __future__ import annotations

from dataclasses import replace

from cachewitness.core.trace_format import Media, length_of
from cachewitness.workloads.near_misses import SentPrompt, images, near_miss, token_at
from cachewitness.workloads.scenarios.shape import Shape
from cachewitness.workloads.source import Source

ADAPTERS = ("tuned", "other")
PATH_MARK = "@"
"""Behind it, in an adapter of a trace, stands which of several of one name it is."""
NEAR_ADAPTERS = ("tuned-b", "Tuned", "tunee")
"""Names that share a beginning with one of the others, differ in case or in one letter."""
_TENANT = "tenant-of-a-name-longer-than-a-digest-and-than-a-block-of-sixteen-tokens-"
_SALTS = ("one", "one", "two", *ADAPTERS, *[f"{_TENANT}a", f"{_TENANT}b"] * 2)
_KERNELS = ("flash:16", "flash:16", "flash:64", "triton:16")
RECENT = 6
"""From so many of the latest prompts a new one is made."""
_LONGEST = 40
"""So many lengths of a hundred lie around the longest that is taken, if that is known."""
_INHERITED, _NEAR_MISSES = 70, 30
"""So many of a hundred that say something again keep its identity, and so many change one place or
part of it."""


class Talk:
    """What was said so far, by whom, and what may be said next. `longest` is in tokens.

    `most` is the longest prompt that the engine declares that it takes, 0 if that is not known: as
    many tokens, one less and one more are then said often.
    """

    def __init__(self, shape: Shape, source: Source, longest: int, most: int = 0) -> None:
        self._shape = shape
        self._source = source
        self.longest = longest
        self._most = most
        self._around = [most, most + 1, max(most - 1, 1)] if most else []
        self.sent: list[tuple[str, SentPrompt]] = []
        """Requests and what they said, the latest at the end."""
        self._adapted = source.choice((4, 4, 40))
        """So many new requests of a hundred have an adapter: few, or in some traces many."""
        self._covered: dict[tuple[str, int], tuple[tuple[str, int], ...]] = {}
        """By content and place of an image: the tokens that it lies over."""

    def length(self, least: int = 1) -> int:
        """Draw a length: a multiple of a measure of the layout, or the longest that is taken; one
        less or one more.
        """
        source = self._source
        if self._most and source.chance(_LONGEST):
            return max(least, self._most + source.integer(-1, 1))
        measure = source.choice(self._measures())
        times = source.integer(1, max(1, self.longest // measure))
        return max(least, min(times * measure + source.integer(-1, 1), self.longest))

    def _measures(self) -> list[int]:
        shape = self._shape
        measures = [shape.unit, *(group.block_size for group in shape.layout.groups)]
        return measures + [measure for measure in (shape.window, shape.interval) if measure]

    def say(self, r: str, sent: SentPrompt) -> SentPrompt:
        """Take note of what a request says, and return it. An image has one content for each text
        that it lies over at a place.

        Placeholders of real prompts are all alike, so an engine may name them by their image alone,
        as LMCache does.
        """
        sent = replace(sent, media=tuple(self._named(sent.prompt, item) for item in sent.media))
        self.sent.append((r, sent))
        return sent

    def _named(self, prompt: str, item: Media) -> Media:
        covered = tuple(token_at(prompt, at) for at in range(item.at, item.at + item.length))
        name = item.hash
        while self._covered.setdefault((name, item.at), covered) != covered:
            name += "'"
        return Media(item.at, item.length, name)

    def anything(self, r: str) -> SentPrompt:
        """Return what a request says that may say what it likes."""
        source = self._source
        if self.sent and source.chance(64):
            before, sent = source.choice(self.sent[-RECENT:])
            draw = source.integer(0, 63)
            if draw < 24:
                return self.again(sent, r)
            if draw < 32:
                return self.again(sent.with_prompt(cut(sent.prompt, self.length())), r)
            return self.again(sent.with_prompt(self.continued(before, sent.prompt, r)), r)
        return self._anew(r, self._new(r))

    def again(self, sent: SentPrompt, r: str) -> SentPrompt:
        """Return what was said before as the same or another client says it, now and then with
        one thing changed.
        """
        source = self._source
        if not source.chance(_INHERITED):
            return self._anew(r, sent.prompt, sent.adapter if source.chance(50) else "")
        return (
            near_miss(source, sent, self._edges(sent.length), f"x{r}")
            if source.chance(_NEAR_MISSES)
            else sent
        )

    def _edges(self, length: int) -> list[int]:
        measure = self._source.choice(self._measures())
        return [self._source.integer(0, length // measure) * measure]

    def _anew(self, r: str, prompt: str, adapter: str = "") -> SentPrompt:
        """Return a prompt under an identity of its own; one image may be in many prompts, and
        has one length.
        """
        source = self._source
        salt = source.choice(_SALTS) if source.chance(18) else ""
        adapter = source.choice(ADAPTERS) if source.chance(self._adapted) else adapter
        kernels = source.choice(_KERNELS) if self._shape.engines > 1 else ""
        sent = SentPrompt(prompt, salt, adapter, kernels=kernels)
        if not source.chance(16):
            return sent
        content = source.choice(("cat", "dog", r))
        return replace(
            sent, media=images(source, sent.length, lambda length: f"{content}-{length}")
        )

    def _new(self, r: str) -> str:
        """Return a prompt of which others may share the beginning."""
        source = self._source
        whole = self._around.pop() if self._around else self.length()
        shared = min(self.length(), whole)
        rest = f"{r}:{whole - shared}"
        if source.chance(
            15
        ):  # the same tokens behind another beginning, at the same or at another place
            rest = f"{source.choice('AB')}[{source.choice((0, shared))}]:{whole - shared}"
        return joined(f"{source.choice('AB')}:{shared}", rest)

    def continued(self, before: str, prompt: str, r: str) -> str:
        """Go on after a prompt, perhaps with what was generated from it; the whole ends at a
        boundary as often as not.

        Now and then the next prompt is the last one and its answer, and no more.
        """
        source = self._source
        length = length_of(prompt)
        generated = source.integer(1, self._shape.unit + 1) if source.chance(40) else 0
        prompt = joined(prompt, f"@{before}:{max(min(generated, self.longest - length), 0)}")
        left = self.longest - length_of(prompt)
        if left <= 0 or (generated and source.chance(25)):
            return prompt
        more = self.length() - length_of(prompt) if source.chance(60) else 0
        return joined(
            prompt,
            f"{r}:{more if 0 < more <= left else source.integer(1, min(left, self._shape.unit + 1))}",  # noqa: E501
        )


def cut(prompt: str, length: int) -> str:
    """Return the first tokens of a prompt, or all of it if it has no more."""
    terms: list[str] = []
    for term in prompt.split():
        text, _, count = term.rpartition(":")
        taken = min(int(count), length)
        if taken <= 0:
            break
        terms.append(f"{text}:{taken}")
        length -= taken
    return " ".join(terms)


def joined(*terms: str) -> str:
    """Return segments as one prompt, without those of no token."""
    return " ".join(term for term in terms if not term.endswith(":0"))
