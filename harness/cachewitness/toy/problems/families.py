"""The families of problems. Each writes a question and the worked answer, which names every fact
before it is used.

An answer restates a looked-up fact right behind its key ("maps 9", "Zoe has 9"), so that a fact is
found in one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from cachewitness.toy.problems.words import RULES

PRICE_MAX, COINS_MAX, RULE_MAX = 12, 15, 12


@dataclass
class World:
    """What a context says: prices that stay; what people have and owe, and rules, of which the
    latest statement holds.
    """

    prices: dict[str, int]
    has: dict[str, int]
    owes: dict[str, int]
    rules: dict[str, int]


@dataclass(frozen=True)
class Problem:
    """A question with its worked answer, the last line of which is `#### n`."""

    family: str
    group: str
    question: str
    answer: str


Family = Callable[[World, Random], tuple[str, str, int]]


def price(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a price."""
    good = rng.choice([*world.prices])
    return f"What do {good} cost?", f"{good} {world.prices[good]}", world.prices[good]


def several(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for the price of several of one thing."""
    good = rng.choice([*world.prices])
    count = rng.randint(2, 4)
    price = world.prices[good]
    return (
        f"What do {count} {good} cost?",
        f"{good} {price}, {count} * {price} = {count * price}",
        count * price,
    )


def both(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for the price of two things together."""
    first, second = rng.sample([*world.prices], 2)
    a = world.prices[first]
    b = world.prices[second]
    return (
        f"What do {first} and {second} cost?",
        f"{first} {a}, {second} {b}, {a} + {b} = {a + b}",
        a + b,
    )


def dearer(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask how much more one thing costs than another."""
    first, second = rng.sample([*world.prices], 2)
    if world.prices[first] < world.prices[second]:
        first, second = second, first
    a = world.prices[first]
    b = world.prices[second]
    return (
        f"How much more are {first} than {second}?",
        f"{first} {a}, {second} {b}, {a} - {b} = {a - b}",
        a - b,
    )


def owned(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask what somebody has."""
    person = rng.choice([*world.has])
    return f"What does {person} have now?", f"{person} has {world.has[person]}", world.has[person]


def finds(world: World, rng: Random) -> tuple[str, str, int]:
    """Let somebody find coins; changes the world."""
    person = rng.choice([*world.has])
    have = world.has[person]
    more = rng.randint(1, 3)
    now = world.has[person] = have + more
    return (
        f"{person} finds {more}. What does {person} have now?",
        f"{person} has {have}, {have} + {more} = {now}, {person} has {now}",
        now,
    )


def loses(world: World, rng: Random) -> tuple[str, str, int]:
    """Let somebody lose coins; changes the world."""
    person = rng.choice([*world.has])
    have = world.has[person]
    less = rng.randint(min(1, have), min(3, have))
    now = world.has[person] = have - less
    return (
        f"{person} loses {less}. What does {person} have now?",
        f"{person} has {have}, {have} - {less} = {now}, {person} has {now}",
        now,
    )


def together(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask what two people have together."""
    one, other = rng.sample([*world.has], 2)
    a = world.has[one]
    b = world.has[other]
    return (
        f"What do {one} and {other} have together?",
        f"{one} has {a}, {other} has {b}, {a} + {b} = {a + b}",
        a + b,
    )


def owed(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask what somebody owes."""
    person = rng.choice([*world.owes])
    return f"What does {person} owe now?", f"{person} owes {world.owes[person]}", world.owes[person]


def borrows(world: World, rng: Random) -> tuple[str, str, int]:
    """Let somebody borrow coins; changes the world."""
    person = rng.choice([*world.owes])
    owe = world.owes[person]
    more = rng.randint(1, 3)
    now = world.owes[person] = owe + more
    return (
        f"{person} borrows {more}. What does {person} owe now?",
        f"{person} owes {owe}, {owe} + {more} = {now}, {person} owes {now}",
        now,
    )


def pays(world: World, rng: Random) -> tuple[str, str, int]:
    """Let somebody pay back coins; changes the world."""
    person = rng.choice([*world.owes])
    owe = world.owes[person]
    less = rng.randint(min(1, owe), min(3, owe))
    now = world.owes[person] = owe - less
    return (
        f"{person} pays {less}. What does {person} owe now?",
        f"{person} owes {owe}, {owe} - {less} = {now}, {person} owes {now}",
        now,
    )


def rule(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a rule."""
    name = rng.choice(RULES)
    return f"What is the {name} now?", f"{name} {world.rules[name]}", world.rules[name]


def added(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a number and a rule together."""
    name = rng.choice(RULES)
    a = rng.randint(1, 12)
    b = world.rules[name]
    return f"What are {a} and the {name}?", f"{name} {b}, {a} + {b} = {a + b}", a + b


def taken(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a number less a rule."""
    name = rng.choice(RULES)
    b = world.rules[name]
    a = rng.randint(b, 15)
    return f"What are {a} without the {name}?", f"{name} {b}, {a} - {b} = {a - b}", a - b


def times(world: World, rng: Random) -> tuple[str, str, int]:
    """Ask for a rule several times."""
    name = rng.choice(RULES)
    a = rng.randint(2, 4)
    b = world.rules[name]
    return f"What are {a} times the {name}?", f"{name} {b}, {a} * {b} = {a * b}", a * b


GROUPS: Mapping[str, tuple[Family, ...]] = {
    "full": (price, several, both, dearer),
    "recurrent": (owned, finds, loses, together, owed, borrows, pays),
    "window": (rule, added, taken, times),
}
"""Families by the cache that the answer needs."""
BY_NAME = {
    family.__name__: (group, family) for group, families in GROUPS.items() for family in families
}
CHANGING = ("finds", "loses", "borrows", "pays")
"""Families that change what somebody has or owes."""
OWING = ("owed", "borrows", "pays")
"""Families about what people owe."""


def pose(world: World, name: str, rng: Random) -> Problem:
    """Return a problem of the family so called, in a world that it may change."""
    group, family = BY_NAME[name]
    question, work, result = family(world, rng)
    return Problem(name, group, question, f"{work}\n#### {result}")


def recital(facts: list[str]) -> Problem:
    """Return facts in the words in which answers state them, asked for at once; made to be
    learnt from.
    """
    return Problem("recital", "recital", "How many of each?", ", ".join(facts))
