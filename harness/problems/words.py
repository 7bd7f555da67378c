"""The words that problems are made of; each is one token."""

from __future__ import annotations

from collections.abc import Iterator

PEOPLE = tuple("Ann Ben Cal Dan Eve Fay Gus Ida Jim Kay Leo Mia Ned Oda Pam Ray Sue Tom Una Vic Wes Zoe Abe Bea".split())
GOODS = tuple(
    "rings shells maps cups hats pens bells books coats drums flags gems jars keys lamps masks nets oars "
    "pots rugs saws tents urns vests wigs boots cards dolls forks kites".split()
)
CREATURES = tuple("dogs cats birds cows ducks foxes frogs goats hens mice".split())
NUMBERS = range(100)


def pieces() -> Iterator[str]:
    """Yield every piece of text that is to be one token."""
    yield from ("Prices", "Coins", "Question", "Answer", "####")
    yield from (f" {word}" for word in (*PEOPLE, *GOODS, *CREATURES))
    yield from (f" {number}" for number in NUMBERS)
    yield from (f" {mark}" for mark in "*+-=")
    sentence = (
        "How much do cost are one of the and together more than is much many coins does have has now finds loses "
        "run stay away go in rows each of there all come then left On hill In yard Of There that are"
    )
    yield from (f" {word}" for word in dict.fromkeys(sentence.split()))
