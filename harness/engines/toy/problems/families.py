"""The families of problems. Each writes a question and the worked answer, which names every fact before it is used.

An answer restates a looked-up fact right behind its key ("maps 9", "Zoe has 9"), so that a fact is found in one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from harness.engines.toy.problems.words import CREATURES

PRICE_MAX, COINS_MAX = 12, 15


@dataclass
class World:
    """What a context says: prices that stay, and coins that the worked examples change."""

    prices: dict[str, int]
    coins: dict[str, int]
    statements: list[tuple[str, int]]


@dataclass(frozen=True)
class Problem:
    """A question with its worked answer, the last line of which is `#### n`."""

    family: str
    group: str
    question: str
    answer: str


Family = Callable[[World, Random], tuple[str, str, int]]


def several(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for the price of several of one thing."""
    good, count = rng.choice([*world.prices]), rng.randint(2, 4)
    price = world.prices[good]
    total = count * price
    return f"How much do {count} {good} cost?", f"{good} {price}, {count} * {price} = {total}", total


def both(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for the price of two things together."""
    first, second = rng.sample([*world.prices], 2)
    a, b = world.prices[first], world.prices[second]
    return (
        f"How much are one of the {first} and one of the {second} together?",
        f"{first} {a}, {second} {b}, {a} + {b} = {a + b}",
        a + b,
    )


def dearer(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask how much more one thing costs than another."""
    first, second = rng.sample([*world.prices], 2)
    if world.prices[first] < world.prices[second]:
        first, second = second, first
    a, b = world.prices[first], world.prices[second]
    return f"How much more are {first} than {second}?", f"{first} {a}, {second} {b}, {a} - {b} = {a - b}", a - b


def price(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a price."""
    good = rng.choice([*world.prices])
    return f"How much is one of the {good}?", f"{good} {world.prices[good]}", world.prices[good]


def owned(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask what somebody owns."""
    person = rng.choice([*world.coins])
    return f"How many coins does {person} have now?", f"{person} has {world.coins[person]}", world.coins[person]


def finds(world: World, rng: Random) -> tuple[str, str, int]:
    """Let somebody find coins; changes the world."""
    person = rng.choice([*world.coins])
    have, more = world.coins[person], rng.randint(1, 3)
    now = world.coins[person] = have + more
    return (
        f"{person} finds {more} coins. How many coins does {person} have now?",
        f"{person} has {have}, {have} + {more} = {now}, {person} has {now}",
        now,
    )


def loses(world: World, rng: Random) -> tuple[str, str, int]:
    """Let somebody lose coins; changes the world."""
    person = rng.choice([*world.coins])
    have = world.coins[person]
    less = rng.randint(min(1, have), min(3, have))
    now = world.coins[person] = have - less
    return (
        f"{person} loses {less} coins. How many coins does {person} have now?",
        f"{person} has {have}, {have} - {less} = {now}, {person} has {now}",
        now,
    )


def together(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask what two people own together."""
    one, other = rng.sample([*world.coins], 2)
    a, b = world.coins[one], world.coins[other]
    return (
        f"How many coins do {one} and {other} have together?",
        f"{one} has {a}, {other} has {b}, {a} + {b} = {a + b}",
        a + b,
    )


def herd(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a sum of two numbers in the question."""
    one, other = rng.sample(CREATURES, 2)
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    return f"In the yard {a} {one} and {b} {other} run. How many is that?", f"{a} + {b} = {a + b}", a + b


def flight(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a difference of two numbers in the question."""
    a = rng.randint(3, 15)
    b = rng.randint(1, a - 1)
    return f"Of {a} {rng.choice(CREATURES)} {b} run away. How many stay?", f"{a} - {b} = {a - b}", a - b


def rows(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a product of two numbers in the question."""
    a, b = rng.randint(2, 4), rng.randint(1, 12)
    return f"There are {a} rows of {b} {rng.choice(CREATURES)} each. How many is that?", f"{a} * {b} = {a * b}", a * b


def comings(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for two steps on numbers in the question."""
    a, b, c = rng.randint(1, 12), rng.randint(1, 12), rng.randint(1, 3)
    c = min(c, a + b)
    return (
        f"On the hill there are {a} {rng.choice(CREATURES)}, then {b} come and {c} go. How many stay?",
        f"{a} + {b} = {a + b}, {a + b} - {c} = {a + b - c}",
        a + b - c,
    )


def recital(world: World, facts: int, rng: Random, *, repeats: bool) -> Problem:
    """Return up to so many facts in any order, each in the words in which an answer states it; made to be learnt from.

    With `repeats`, what people own may be told more than once, so that it can also be recalled from near by.
    """
    prices = [(f"{good} {price}", price) for good, price in world.prices.items()]
    coins = [(f"{person} has {count}", count) for person, count in world.coins.items()]
    if repeats:
        told = rng.sample(prices, min(facts // 2, len(prices))) + rng.choices(coins, k=facts // 2)
        rng.shuffle(told)
    else:
        told = rng.sample(prices + coins, min(facts, len(prices) + len(coins)))
    return Problem("recital", "recital", "How many of each are there?", f"{', '.join(t for t, _ in told)}\n#### {told[-1][1]}")


GROUPS: Mapping[str, tuple[Family, ...]] = {
    "full": (price, several, both, dearer),
    "recurrent": (owned, finds, loses, together),
    "window": (herd, flight, rows, comings),
}
"""Families by the cache that the answer needs most."""


def pose(world: World, group: str, rng: Random) -> Problem:
    """Return a problem of a group, in a world that it may change."""
    family = rng.choice(GROUPS[group])
    question, work, result = family(world, rng)
    return Problem(family.__name__, group, question, f"{work}\n#### {result}")
