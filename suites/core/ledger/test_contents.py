"""What the ledger says of a page is what a list of its places says, whatever was written over
what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cachewitness.core.events import (
    Acquire,
    Copy,
    Group,
    Header,
    Move,
    Pool,
    Read,
    Submitted,
    Write,
)
from cachewitness.core.ledger.ledger import Ledger

SIZE = 4
TEXTS = [tuple(int(bit) for bit in f"{number:03b}") for number in range(8)]
"""Three choices of which tokens a text has in its columns: texts that share columns share a prefix.
"""
ZERO = TEXTS[0]
ONE = TEXTS[4]
"""Two texts that share nothing."""
TOKENS = 3 * SIZE
PAGE = 1


def _tokens(text: tuple[int, ...]) -> list[int]:
    return [100 * text[position // SIZE] + position for position in range(TOKENS)]


HEADER = Header(
    "test",
    "manager",
    [Pool(0, 4, [0])],
    [
        Group(0, "full", SIZE),
        Group(1, "recurrent", SIZE),
        Group(2, "sliding", SIZE, window=2 * SIZE),
    ],
)


@dataclass
class NaivePage:
    """Remembers, for every place of a page, whose token of which prefix lies there, and which
    group's.
    """

    places: list[object] = field(default_factory=lambda: [None] * SIZE)
    state: object = None

    def write(self, group: int, tokens: list[int], start: int, stop: int) -> None:
        """Overwrite places one by one; another group's content is of another layout and goes
        altogether.
        """
        if self.state is not None or any(
            place is not None and place[0] != group for place in self.places
        ):  # type: ignore[index]
            self.places = [None] * SIZE
            self.state = None
        if group == 1:
            self.state = (tuple(tokens[:stop]), stop)
        else:
            for position in range(start, stop):
                self.places[position % SIZE] = (group, position, tuple(tokens[: position + 1]))

    def reads(self, group: int, tokens: list[int], start: int, stop: int) -> bool:
        """Whether tokens [start, stop), or the state after stop tokens, are there."""
        if group == 1:
            return self.state == (tuple(tokens[:stop]), stop)
        wanted = [
            (group, position, tuple(tokens[: position + 1])) for position in range(start, stop)
        ]
        return all(
            self.places[position % SIZE] == token
            for position, token in zip(range(start, stop), wanted, strict=True)
        )

    def held(self) -> dict[tuple[int, int], object]:
        """Return what is there, by group and position."""
        return {(place[0], place[1]): place for place in self.places if place is not None}  # type: ignore[index]


def _ledger() -> Ledger:
    ledger = Ledger(HEADER)
    for text in TEXTS:
        r = _name(text)
        ledger.apply(Submitted(r=r, tokens=_tokens(text)))
        for group in HEADER.groups:
            ledger.apply(Acquire(pool=0, group=group.id, pages=[PAGE, 2], holder=r))
    return ledger


def _name(text: tuple[int, ...]) -> str:
    return "".join(map(str, text))


@st.composite
def writes(draw: st.DrawFn) -> tuple[int, tuple[int, ...], int, int]:
    """Draw (group, text, start, stop) of a write inside one column."""
    column = draw(st.integers(0, 2))
    start = column * SIZE + draw(st.integers(0, SIZE - 1))
    return (
        draw(st.sampled_from([0, 0, 0, 2, 1])),
        draw(st.sampled_from(TEXTS)),
        start,
        draw(st.integers(start + 1, (column + 1) * SIZE)),
    )


RANGES = [
    (start, stop)
    for column in range(3)
    for start, stop in product(
        range(column * SIZE, (column + 1) * SIZE), range(column * SIZE + 1, (column + 1) * SIZE + 1)
    )
    if start < stop
]


def _write(group: int, text: tuple[int, ...], start: int, stop: int) -> Write:
    return Write(pool=0, group=group, pages=[PAGE], r=_name(text), start=start, stop=stop)


@settings(max_examples=150, deadline=None)
@given(st.lists(writes(), max_size=7))
@example([(0, ZERO, 0, 4), (0, ONE, 0, 2), (0, ONE, 2, 4)])
@example([(0, ZERO, 0, 4), (0, ONE, 2, 3), (0, ONE, 0, 2), (0, ZERO, 4, 6)])
def test_a_page_holds_what_its_places_hold(
    script: list[tuple[int, tuple[int, ...], int, int]],
) -> None:
    """After any writes, a read of any range, by any text and group, is right if and only if
    every place is.
    """
    ledger = _ledger()
    naive = NaivePage()
    for group, text, start, stop in script:
        ledger.apply(_write(group, text, start, stop))
        naive.write(group, _tokens(text), start, stop)
    for group, text, (start, stop) in product(range(3), TEXTS, RANGES):
        read = Read(pool=0, group=group, pages=[PAGE], r=_name(text), start=start, stop=stop)
        right = naive.reads(group, _tokens(text), start, stop)
        assert (not ledger.before(read).invalid) == right, (group, text, start, stop)


@settings(max_examples=150, deadline=None)
@given(st.lists(writes(), min_size=1, max_size=7))
def test_destroyed_is_what_the_write_changes(
    script: list[tuple[int, tuple[int, ...], int, int]],
) -> None:
    """The spans that a write destroys are exactly the positions whose content is no longer there
    afterwards.
    """
    ledger = _ledger()
    naive = NaivePage()
    for group, text, start, stop in script:
        event = _write(group, text, start, stop)
        record = ledger.records[0][PAGE]
        spans = ledger.before(event).destroyed(record, start, stop)
        lost = [position for span in spans for position in range(span.start, span.stop)]
        was_state = naive.state
        before = naive.held()
        naive.write(group, _tokens(text), start, stop)
        if was_state is None:
            after = naive.held()
            expected = [
                position
                for (owner, position), token in before.items()
                if after.get((owner, position)) != token
            ]
            assert sorted(lost) == sorted(expected)
        else:
            unchanged = group == 1 and naive.state == was_state
            assert bool(spans) != unchanged
        ledger.apply(event)


@settings(max_examples=40, deadline=None)
@given(st.lists(writes(), max_size=5))
def test_a_copy_holds_what_its_source_holds(
    script: list[tuple[int, tuple[int, ...], int, int]],
) -> None:
    """Copied pages answer every read as their source does."""
    ledger = _ledger()
    for group, text, start, stop in script:
        ledger.apply(_write(group, text, start, stop))
    ledger.apply(Copy(id=1, moves=[Move(PAGE, 2)]))
    for group, text, (start, stop) in product(range(3), TEXTS, RANGES):
        answers = [
            ledger.before(
                Read(pool=0, group=group, pages=[page], r=_name(text), start=start, stop=stop)
            ).invalid
            for page in (PAGE, 2)
        ]
        assert answers[0] == answers[1]
