"""Seeded faults: each plants one real bug's mechanism into an engine, to show that it is found.

A mutant changes an engine that was just built, through the names that vLLM's own classes have; so most of them fit the
reference and the installed vLLM alike. Each names in advance the anomaly that must be raised, and the checker that raises it.
Faults in drafts, in steps in flight and in the second tier need the engine's own scheduler; elsewhere there is nothing to
plant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.engines.registry import nearest
from harness.errors import UsageError
from harness.trace import Height

Plant = Callable[[Any], None]


@dataclass(frozen=True)
class Mutant:
    """A seeded fault: what it does, which public bug it mirrors, which anomaly betrays it to which checker."""

    name: str
    summary: str
    mirrors: str
    anomaly: str
    checker: str
    plant: Plant
    engines: tuple[str, ...]
    height: Height = "manager"
    """The lowest height at which there is something to plant it into."""


def all_mutants() -> dict[str, Mutant]:
    """Return every mutant by name."""
    from harness.mutants import device, drafts, identity, lookup, ownership, publication, retention, scheduling, tiers

    modules = (publication, retention, lookup, ownership, identity, scheduling, drafts, tiers, device)
    return {mutant.name: mutant for module in modules for mutant in module.MUTANTS}


def plant(name: str, kind: str, engine: Any, height: Height = "manager") -> None:
    """Plant a fault into an engine of a kind that runs at a height.

    Raises UsageError if there is no such fault, or if it does not fit that engine.
    """
    mutants = all_mutants()
    if name not in mutants:
        raise UsageError(f"--engine: no mutant is called {name!r}{nearest(name, mutants)}")
    if kind not in mutants[name].engines:
        raise UsageError(f"--engine: mutant {name!r} fits {', '.join(mutants[name].engines)}, not {kind}")
    if mutants[name].height in ("manager", height):
        mutants[name].plant(engine)
