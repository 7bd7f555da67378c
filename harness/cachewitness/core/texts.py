"""Which token stands at each place of each text: what is shared is the trace's to say.

Every text of a run is kept, since a later prompt may name it. Neighbours in a text are mostly
neighbours as tokens too, so what is kept of a text is a run: a place, a token, and for how many
neighbours that goes on.
"""

from __future__ import annotations

from bisect import bisect_right

from cachewitness.core.events import Accept, Extended
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.trace_format import Extend, Submit, length_of, segments

TEXT = 1 << 40
"""A place is a number: that of the text times this, plus the position in it. No text is as long."""


class Runs:
    """A map from whole numbers to whole numbers. Neighbours that stand for neighbours share an
    entry.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._values: list[int] = []

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._starts)

    def get(self, key: int) -> int | None:
        """Return what a number stands for."""
        at = bisect_right(self._starts, key) - 1
        return (
            self._values[at] + key - self._starts[at] if at >= 0 and key < self._stops[at] else None
        )

    def follows(self, start: int, value: int, count: int) -> bool:
        """Whether `count` numbers share an entry, and stand for the values from `value` on."""
        at = bisect_right(self._starts, start) - 1
        return (
            at >= 0
            and start + count <= self._stops[at]
            and self._values[at] + start - self._starts[at] == value
        )

    def put(self, start: int, value: int, count: int = 1) -> bool:
        """Let `count` numbers stand for as many values; return False, and do nothing, if one of
        them stands for a value already.
        """
        starts = self._starts
        stops = self._stops
        values = self._values
        at = bisect_right(starts, start + count - 1) - 1
        if at >= 0 and stops[at] > start:
            return False
        if at >= 0 and stops[at] == start and values[at] + start - starts[at] == value:
            stops[at] += count
            return True
        starts.insert(at + 1, start)
        stops.insert(at + 1, start + count)
        values.insert(at + 1, value)
        return True


class Texts:
    """Sees that equal segments are equal tokens, and different ones are different."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._token_at = Runs()
        """By place: the token there."""
        self._place_of = Runs()
        """By token: the place that it was seen at first."""
        self._met: dict[tuple[str, int, int], list[int]] = {}
        """Segments that came already and whose tokens are no neighbours."""
        self._stream: dict[str, tuple[int, int]] = {}
        """By request: where the text begins that it generates, and how long its prompt is."""

    def submit(self, op: Submit, tokens: list[int]) -> None:
        """Take in the tokens of a prompt. Raises MalformedHistory if a place of a text is another
        token than before.
        """
        self._stream[op.r] = self._place(op.stream or f"@{op.r}", 0), len(tokens)
        self._read(op.r, op.prompt, tokens)

    def extend(self, op: Extend, event: Extended) -> None:
        """Take in more input of a session. Raises MalformedHistory if it is not what was asked for,
        or as `submit`.
        """
        if len(event.tokens) != length_of(op.prompt):
            raise MalformedHistory(
                f"{len(event.tokens)} tokens of {op.r!r} - at `$.tokens`; its input has"
                f" {length_of(op.prompt)}"
            )
        self._read(op.r, op.prompt, event.tokens)
        self._stream[op.r] = self._stream[op.r][0], event.keep + len(event.tokens)

    def accept(self, event: Accept) -> None:
        """Take in what a request generated. Raises MalformedHistory as `submit`; two texts may
        generate the same token.
        """
        text, prompt = self._stream[event.r]
        first = event.upto - len(event.tokens) - prompt
        if first < 0:
            raise MalformedHistory(
                f"{event.upto} - at `$.upto`; {event.r!r} has a prompt of {prompt} tokens, which"
                " stays as it is"
            )
        for place, token in enumerate(event.tokens, text + first):
            self._learn(event.r, place, token, alone=False)

    def prompt_tokens(self, r: str) -> int:
        """Return the length of a request's prompt."""
        return self._stream[r][1]

    def _place(self, text: str, position: int) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._names)
            self._names.append(text)
        return number * TEXT + position

    def _read(self, r: str, prompt: str, tokens: list[int]) -> None:
        stop = 0
        for segment in segments(prompt):
            text, first, count = segment
            start, stop = stop, stop + count
            part = tokens[start:stop]
            place = self._place(text, first)
            if not part or self._met.get(segment) == part:
                continue
            if part != list(range(part[0], part[0] + count)):
                self._met[segment] = part
            elif self._is_known(place, part[0], count) or self._is_new(place, part[0], count):
                continue
            for index, token in enumerate(part):
                self._learn(r, place + index, token, alone=True)

    def _is_known(self, place: int, token: int, count: int) -> bool:
        """Whether so many neighbours stood there before, and nowhere else."""
        return self._token_at.follows(place, token, count) and self._place_of.follows(
            token, place, count
        )

    def _is_new(self, place: int, token: int, count: int) -> bool:
        """Take in so many neighbours; return whether all of that was new."""
        return self._token_at.put(place, token, count) and self._place_of.put(token, place, count)

    def _learn(self, r: str, place: int, token: int, *, alone: bool) -> None:
        """Take in one token; `alone`: no other place may have it."""
        if not self._token_at.put(place, token) and (before := self._token_at.get(place)) != token:
            raise MalformedHistory(
                f"{self._note_token(r, token, place)}; it was {before} before: equal segments are equal"  # noqa: E501
                " tokens"
            )
        if (
            not self._place_of.put(token, place)
            and alone
            and (other := self._place_of.get(token)) != place
        ):
            assert other is not None
            that = f"that is {self._named(other)} already: different segments are different tokens"
            raise MalformedHistory(f"{self._note_token(r, token, place)}; {that}")

    def _note_token(self, r: str, token: int, place: int) -> str:
        return f"token {token} of {r!r} for {self._named(place)} - at `$.tokens`"

    def _named(self, place: int) -> str:
        return f"{self._names[place // TEXT]}[{place % TEXT}]"
