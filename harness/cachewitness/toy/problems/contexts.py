"""Contexts: the long prefix that the questions of one tenant share, and what is asked behind it.

What a question needs is said where one cache alone is trained to carry it
(`harness/cachewitness_training`): prices once, at the very start; what people have and owe all
along, the latest statement holding, and never again without a change; the rules in the last
sentence, within the last 20 tokens, where a window still sees them from the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from cachewitness.toy.problems.families import (
    BY_NAME,
    CHANGING,
    COINS_MAX,
    GROUPS,
    PRICE_MAX,
    RULE_MAX,
    Problem,
    World,
    pose,
)
from cachewitness.toy.problems.words import GOODS, PEOPLE, RULES

EXAMPLES = (*(family.__name__ for family in (*GROUPS["full"], *GROUPS["window"])), *CHANGING)
"""Families of worked examples: none tells again what somebody has or owes without changing it."""
LAST_STATEMENTS = 3
"""So many statements about people stand between the two rules of the last sentence."""


@dataclass(frozen=True)
class Size:
    """How much a context tells: prices, people, and how often what somebody has or owes is told
    again at the start.
    """

    goods: int = 16
    people: int = 6
    again: int = 2


FULL_SIZE = Size()


@dataclass(frozen=True)
class Names:
    """What a context is about."""

    goods: Sequence[str]
    people: Sequence[str]


@dataclass(frozen=True)
class Context:
    """The text before a question, and the world as it is at its end."""

    text: str
    world: World


def draw_names(rng: Random, size: Size = FULL_SIZE) -> Names:
    """Return so many goods and people."""
    return Names(rng.sample(GOODS, size.goods), rng.sample(PEOPLE, size.people))


def draw_examples(rng: Random, count: int) -> list[str]:
    """Return families for so many worked examples, each group as often as the others."""
    by_group = [[name for name in EXAMPLES if BY_NAME[name][0] == group] for group in GROUPS]
    return [rng.choice(by_group[i % len(by_group)]) for i in rng.sample(range(count), count)]


def new_context(
    rng: Random, names: Names, examples: Sequence[str], again: int = FULL_SIZE.again
) -> Context:
    """Return a context with worked examples of the given families. Families and the number of
    names decide its length.
    """
    goods = rng.sample(names.goods, len(names.goods))
    world = World({good: rng.randint(1, PRICE_MAX) for good in goods}, {}, {}, {})
    statements = [(person, verb) for person in names.people for verb in ("has", "owes")]
    statements += rng.sample(statements, again)
    rng.shuffle(statements)
    coins = ", ".join(_tell(world, person, verb, rng) for person, verb in statements)
    prices = ", ".join(f"{good} {price}" for good, price in world.prices.items())
    text = f"Prices: {prices}.\nCoins: {coins}.\n\n"
    for name in examples:
        if BY_NAME[name][0] == "window":
            text += f"Now: {', '.join(_rule(world, rule, rng) for rule in RULES)}.\n"
        text += worked(pose(world, name, rng))
    first, second = RULES
    last = rng.sample(
        [(person, verb) for person in names.people for verb in ("has", "owes")], LAST_STATEMENTS
    )
    between = ", ".join(_tell(world, person, verb, rng) for person, verb in last)
    return Context(
        f"{text}Now: {_rule(world, first, rng)}, {between}, {_rule(world, second, rng)}.\n\n",
        world,
    )


def worked(problem: Problem) -> str:
    """Return a problem with its answer, as an example."""
    return f"Question: {problem.question}\nAnswer: {problem.answer}\n\n"


def _tell(world: World, person: str, verb: str, rng: Random) -> str:
    coins: dict[str, int] = getattr(world, verb)
    coins[person] = rng.randint(1, COINS_MAX)
    return f"{person} {verb} {coins[person]}"


def _rule(world: World, rule: str, rng: Random) -> str:
    world.rules[rule] = rng.randint(1, RULE_MAX)
    return f"{rule} {world.rules[rule]}"
