"""What a request says, and as whom; and requests that differ from it in one bit, one place or one
part.

A cache must tell two prefixes apart however little they differ. A mistake in its keys shows in
pairs that the mistake makes equal: a salt that is called like an adapter, parts whose texts join to
the same text, a token that differs above its 16 lowest bits alone, two tokens that a polynomial of
base 31 confuses, an image that lies a token further, one image of many that is another.

Sources: vllm-project/vllm#3263, #44701 (adapter and salt), #36622 (places of images);
NVIDIA/Megatron-LM#4158 (polynomial); LMCache/LMCache#4086 (images whose names are cut to 16 bits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cachewitness.core.trace_format import Media, length_of
from cachewitness.workloads.source import Source

BASE = 31
"""The base of the polynomial whose collisions are drawn."""
_IMAGES_MAX = 6
_ANOTHER = "b"
"""What the name of every second image of a prompt ends with: one comes again behind another."""


@dataclass(frozen=True)
class SentPrompt:
    """A prompt in segments, and the parts of a request's identity that are not tokens. Images
    are in order.
    """

    prompt: str
    salt: str = ""
    adapter: str = ""
    media: tuple[Media, ...] = ()
    kernels: str = ""

    @property
    def length(self) -> int:
        """How many tokens the prompt has."""
        return length_of(self.prompt)

    def with_prompt(self, prompt: str) -> SentPrompt:
        """Return the same identity with another prompt, and of the images those that end inside
        it.
        """
        length = length_of(prompt)
        return replace(
            self,
            prompt=prompt,
            media=tuple(item for item in self.media if item.at + item.length <= length),
        )


def near_miss(source: Source, sent: SentPrompt, edges: Sequence[int], fresh: str) -> SentPrompt:
    """Return what differs from something that was said in one place or part; the same if it has
    none to change.

    `edges` are lengths in tokens around which a token is changed, `fresh` is a text that nobody has
    used.
    """
    places = [
        at for edge in edges for at in (edge - 1, edge, edge + 1) if 0 <= at < sent.length - 1
    ]
    tokens = (
        [sent.with_prompt(source.choice(_TOKENS)(sent.prompt, source.choice(places), fresh))]
        if places
        else []
    )
    kinds = [kind for kind in (tokens, _of_parts(sent), _of_images(source, sent)) if kind]
    return source.choice(source.choice(kinds)) if kinds else sent


# --- parts of an identity -------------------------------------------------------------------------


def _of_parts(sent: SentPrompt) -> list[SentPrompt]:
    salt = sent.salt
    adapter = sent.adapter
    if not salt and not adapter:
        return []
    found = [
        replace(sent, salt=adapter, adapter=salt),
        replace(sent, salt="", adapter=adapter + salt),
        replace(sent, salt=salt + adapter, adapter=""),
    ]
    if salt:
        found += [replace(sent, salt=""), replace(sent, salt=_one_bit(salt))]
    if adapter:
        found.append(replace(sent, adapter=""))
        found += [replace(sent, adapter=name) for name in _near_names(adapter)]
    return [other for other in found if other != sent]


def _near_names(name: str) -> tuple[str, ...]:
    """Return names that share a beginning with one, differ from it in case, or in one letter."""
    return f"{name}-b", name[:-1] or f"{name}{name}", name.swapcase(), _one_bit(name)


def _one_bit(text: str) -> str:
    return text[:-1] + chr(ord(text[-1]) ^ 1)


# --- images ---------------------------------------------------------------------------------------


def _of_images(source: Source, sent: SentPrompt) -> list[SentPrompt]:
    if not sent.media:
        return []
    index = max(source.integer(0, len(sent.media) - 1), source.integer(0, len(sent.media) - 1))
    item = sent.media[index]
    others = [*sent.media[:index], *sent.media[index + 1 :]]
    changed = [
        Media(item.at - 1, item.length, item.hash),
        Media(item.at + 1, item.length, item.hash),
        Media(item.at, item.length, f"other-{item.hash}"),
    ]
    found = [_with(sent, [*others, media]) for media in changed] + [
        replace(sent, media=tuple(others))
    ]
    if len(sent.media) > 1:
        found.append(replace(sent, media=_exchanged(sent.media)))
    return [other for other in found if other is not None and other != sent]


def _with(sent: SentPrompt, media: Sequence[Media]) -> SentPrompt | None:
    """Return what was said with other images; None if they overlap or leave the prompt."""
    ordered = sorted(media, key=lambda item: item.at)
    ends = [0, *(item.at + item.length for item in ordered)]
    fits = (
        all(end <= item.at for end, item in zip(ends, ordered, strict=False))
        and ends[-1] <= sent.length
    )
    return replace(sent, media=tuple(ordered)) if fits else None


def _exchanged(media: tuple[Media, ...]) -> tuple[Media, ...]:
    """Give the last image the content of the one before it, and the reverse, if they are of one
    length.
    """
    *front, one, other = media
    if one.length != other.length:
        return media
    return (*front, Media(one.at, one.length, other.hash), Media(other.at, other.length, one.hash))


def images(source: Source, tokens: int, name: Callable[[int], str]) -> tuple[Media, ...]:
    """Draw one image, or several one behind the other, over a prompt of so many tokens; every
    second of these is another one than the first. A name is made for each length.
    """
    at = source.integer(0, tokens - 1)
    several = source.chance(50)
    length = (
        source.integer(1, max(1, min(tokens - at, tokens // 3)))
        if several
        else source.integer(1, tokens - at)
    )
    count = source.integer(2, _IMAGES_MAX) if several else 1
    found: list[Media] = []
    while len(found) < count and at + length <= tokens:
        found.append(Media(at, length, name(length) + _ANOTHER * (len(found) % 2)))
        at += length + source.choice((0, 0, 1))
    return tuple(found)


# --- tokens ---------------------------------------------------------------------------------------


def _another_text(prompt: str, at: int, fresh: str) -> str:
    """Let one token be another text's at the same place of it: only bits above the 16 lowest
    differ.
    """
    _, position = token_at(prompt, at)
    return spliced(prompt, at, (f"{fresh}[{position}]:1",))


def _one_bit_off(prompt: str, at: int, fresh: str) -> str:
    """Let one token differ in its lowest bit."""
    text, position = token_at(prompt, at)
    return spliced(prompt, at, (f"{text}[{position ^ 1}]:1",))


def _same_polynomial(prompt: str, at: int, fresh: str) -> str:
    """Add the base to one token and take one from the next, which a sum of tokens times powers
    of the base does not see.
    """
    (text, position) = token_at(prompt, at)
    (following, after) = token_at(prompt, at + 1)
    if not after:
        return _another_text(prompt, at, fresh)
    return spliced(prompt, at, (f"{text}[{position + BASE}]:1", f"{following}[{after - 1}]:1"))


def _neighbours(prompt: str, at: int, fresh: str) -> str:
    """Let two tokens change places."""
    (text, position) = token_at(prompt, at)
    (following, after) = token_at(prompt, at + 1)
    return spliced(prompt, at, (f"{following}[{after}]:1", f"{text}[{position}]:1"))


_TOKENS = (_another_text, _another_text, _one_bit_off, _same_polynomial, _neighbours)


def _terms(prompt: str) -> Iterator[tuple[str, int, int]]:
    """Yield the segments of a prompt: text, where in it they start, how many tokens they have."""
    for term in prompt.split():
        name, _, count = term.rpartition(":")
        text, _, start = name.removesuffix("]").partition("[")
        yield text, int(start or 0), int(count)


def token_at(prompt: str, at: int) -> tuple[str, int]:
    """Return text and position of one token of a prompt."""
    for text, start, count in _terms(prompt):
        if at < count:
            return text, start + at
        at -= count
    raise AssertionError(f"{prompt!r} has no token {at} tokens beyond its end")


def spliced(prompt: str, at: int, instead: Sequence[str]) -> str:
    """Return a prompt with segments of one token each instead of as many tokens from `at` on."""
    front: list[str] = []
    back: list[str] = []
    passed = 0
    for text, start, count in _terms(prompt):
        before = min(max(at - passed, 0), count)
        behind = min(max(passed + count - at - len(instead), 0), count)
        front += _segment(text, start, before)
        back += _segment(text, start + count - behind, behind)
        passed += count
    return " ".join((*front, *instead, *back))


def _segment(text: str, start: int, count: int) -> list[str]:
    return [f"{text}[{start}]:{count}" if start else f"{text}:{count}"] if count else []
