"""The words that problems are made of; each is one token. `VOCABULARY` is what a tokenizer of
theirs knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachewitness_reference.toy_model.tokenizer import vocabulary


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    "Ann Ben Cal Dan Eve Fay Gus Ida Jim Kay Leo Mia Ned Oda Pam Ray Sue Tom Una Vic Wes Zoe"
    " Abe Bea"
)
GOODS = _words(
    "rings shells maps cups hats pens bells books coats drums flags gems jars keys lamps masks nets"
    " oars pots rugs saws tents urns vests wigs boots cards dolls forks kites"
)
RULES = ("toll", "gift")
NUMBERS = range(100)
_SENTENCES = _words(
    "What is do does cost How many much more are than and have has owes owe now together of each"
    " the times without finds loses borrows pays"
)


def _pieces() -> Iterator[str]:
    """Yield every piece of text that is to be one token."""
    yield from ("Prices", "Coins", "Now", "Question", "Answer", "####")
    yield from (f" {word}" for word in (*PEOPLE, *GOODS, *RULES))
    yield from (f" {number}" for number in NUMBERS)
    yield from (f" {mark}" for mark in "*+-=")
    yield from (f" {word}" for word in dict.fromkeys(_SENTENCES))


VOCABULARY = vocabulary(_pieces())
