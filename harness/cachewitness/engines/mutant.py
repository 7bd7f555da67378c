"""A seeded fault: one real bug's mechanism, planted into an engine to show that it is found.

A mutant changes an engine that was just built, through the names that the system's own classes
have; so most of those of vLLM's policy fit the reference and the installed vLLM alike. Each names
in advance the anomaly that must be reported, and the checker that reports it. Faults in drafts, in
steps in flight and in the second tier need the engine's own scheduler; elsewhere there is nothing
to plant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import Level

Plant = Callable[[Any], None]

DEFAULT_POLICY = "vllm"
VLLM_SHAPE = "reference"
"""What a mutant names that fits every cache of vLLM's shape (`PolicyKind.plants_as`)."""
KINDS = (VLLM_SHAPE, "toy", "vllm")
"""The kinds of engine that a mutant may name beside policies."""

GROUPS = {
    "A": "snapshot identity: a state is kept under a boundary or a key that it does not represent",
    "B": "publish before write: a key is visible before, or without, the step that writes it",
    "C": "hits of several groups collapsed into one number",
    "D": "speculation and rollback: drafts that fell, states that cannot be rewound",
    "E": "hygiene: bytes of the page's previous tenant are read",
    "F": "padding and batch indices: pad rows, compaction",
    "G": "windows: tokens that have left them, and tokens that have not",
    "H": "ownership: leaks, double frees, shared content that is written",
    "I": "keys and identity: a missing part, a collision, a stale key",
    "J": "the mathematics of states at the ends of chunks",
    "K": "other tiers and transfers",
    "L": "invalidation: resets, weights, adapters, in every tier",
    "M": "units and capacity: the block size of another group, sums that are wrong",
    "N": "a cache without hits, or with too many keys; answers are right",
    "O": "liveness: a request that can run does not",
    "P": "a prompt that is cached whole, or but for its end",
}
"""The mechanisms of real bugs that faults are sorted by."""


@dataclass(frozen=True)
class Mutant:
    """A seeded fault: what it does, which public bug it mirrors, the anomaly and the checker
    that must find it.
    """

    name: str
    summary: str
    mirrors: str
    anomaly: str
    checker: str
    plant: Plant
    engines: tuple[str, ...]
    level: Level = "manager"
    """The lowest level at which there is something to plant it into."""
    group: str = field(kw_only=True)
    """The mechanism that it belongs to; see `GROUPS`."""

    @property
    def policy(self) -> str:
        """The policy whose reference it is planted into: vLLM's unless it is another's."""
        return next((name for name in self.engines if name not in KINDS), DEFAULT_POLICY)

    @property
    def engine(self) -> str:
        """The engine of this package that it is shown on: the reference, or the toy for faults
        of a device.
        """
        return "toy" if self.engines == ("toy",) else "reference"

    def names(self, finding: Finding) -> bool:
        """Whether a finding is the one that it names in advance."""
        return (finding.anomaly, finding.checker) == (self.anomaly, self.checker)


def mutant(
    *,
    name: str,
    mirrors: str,
    anomaly: str,
    checker: str,
    group: str,
    engines: tuple[str, ...],
    level: Level = "manager",
) -> Callable[[Plant], Mutant]:
    """Make a mutant of the function that plants it; the first paragraph of its docstring is the
    summary.
    """

    def made(plant: Plant) -> Mutant:
        assert plant.__doc__, f"mutant {name!r} says in its docstring what goes wrong"
        first = " ".join(inspect.cleandoc(plant.__doc__).partition("\n\n")[0].split()).removesuffix(
            "."
        )
        summary = first if first[1:2].isupper() else first[:1].lower() + first[1:]
        return Mutant(name, summary, mirrors, anomaly, checker, plant, engines, level, group=group)

    return made


def declared(namespace: Mapping[str, object]) -> tuple[Mutant, ...]:
    """Return the mutants among the names of a module (`globals()`), in the order in which they
    were written.
    """
    return tuple(value for value in namespace.values() if isinstance(value, Mutant))
