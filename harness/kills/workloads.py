"""The traces that faults are hunted with: what any engine of a policy gets, in the same order for every fault.

First the scenarios on the policy's configurations, one configuration after another; then random work on them; then what the
fuzzer draws, without end. Which fault is planted decides the policy and the height, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from harness import policies
from harness.errors import UsageError
from harness.fuzz.campaign import Plan
from harness.fuzz.draw import Restriction
from harness.generate import random_trace
from harness.mutants import Mutant
from harness.scenarios import SCENARIOS
from harness.trace import Height, Trace

ROUNDS = 2
"""Random traces for each configuration before configurations are drawn, too."""


def height_of(mutant: Mutant) -> Height:
    """Return the lowest height at which a fault shows and its policy runs."""
    heights = policies.get(mutant.policy).heights
    return mutant.height if mutant.height in heights else heights[-1]


def workloads(mutant: Mutant, seed: int = 0) -> Iterator[Trace]:
    """Yield traces without end. Whoever runs them has to leave out those that an engine refuses (UsageError)."""
    height, policy = height_of(mutant), policies.get(mutant.policy)
    cells = [cell for cell in policy.cells() if cell.runs_at(height)]
    if height == "scheduler":
        cells.sort(key=lambda cell: cell.runs_at("manager"))  # what only a scheduler has comes first
    for cell in cells:
        shape = cell.shape(height)
        yield from (story.trace(shape) for story in SCENARIOS if story.applies(shape))
    for number in range(ROUNDS):
        for cell in cells:
            yield random_trace(cell.shape(height), seed * ROUNDS + number, withdraw=number % 2 == 1)
    plan = Plan(mutant.policy, (height,), Restriction([], {}, historic=False), seed, stream="kills")
    for number in count():
        try:
            yield plan.draw(number)[1]
        except UsageError:
            continue
