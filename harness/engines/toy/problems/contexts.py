"""Contexts: the long prefix that the questions of one tenant share, and what is asked behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from harness.engines.toy.problems.families import COINS_MAX, GROUPS, PRICE_MAX, Problem, World, pose
from harness.engines.toy.problems.words import GOODS, PEOPLE


@dataclass(frozen=True)
class Size:
    """How much a context tells: prices, people, and statements about people (at least one each)."""

    goods: int = 16
    people: int = 6
    statements: int = 12


FULL_SIZE = Size()


@dataclass(frozen=True)
class Context:
    """The text before a question, and the world as it is at its end."""

    text: str
    world: World
    examples: list[Problem]


def new_world(rng: Random, size: Size) -> World:
    """Return prices and coins; of several statements about one person the latest holds."""
    prices = {good: rng.randint(1, PRICE_MAX) for good in rng.sample(GOODS, size.goods)}
    people = rng.sample(PEOPLE, size.people)
    told = people + [rng.choice(people) for _ in range(size.statements - size.people)]
    rng.shuffle(told)
    statements = [(person, rng.randint(1, COINS_MAX)) for person in told]
    return World(prices, dict(statements), statements)


def header(world: World) -> str:
    """Return the facts as text."""
    prices = ", ".join(f"{good} {price}" for good, price in world.prices.items())
    coins = ", ".join(f"{person} has {count}" for person, count in world.statements)
    return f"Prices: {prices}.\nCoins: {coins}.\n\n"


def worked(problem: Problem) -> str:
    """Return a problem with its answer, as an example."""
    return f"Question: {problem.question}\nAnswer: {problem.answer}\n\n"


def new_context(rng: Random, enough: Callable[[str, int], bool], size: Size = FULL_SIZE) -> Context:
    """Return a context with as many examples as it takes until `enough(text, examples)` holds."""
    world = new_world(rng, size)
    text, examples = header(world), list[Problem]()
    while not enough(text, len(examples)):
        examples.append(pose(world, rng.choice([*GROUPS]), rng))
        text += worked(examples[-1])
    return Context(text, world, examples)
