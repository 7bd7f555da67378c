"""Seeded faults: each plants one real bug's mechanism into an engine, to show that it is found.

A mutant changes an engine that was just built, through the names that vLLM's own classes have; so most of them fit the
reference and the installed vLLM alike. Each names in advance the anomaly that must be raised, and the checker that raises it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.engines.manager_height import ManagerHeight
from harness.engines.registry import nearest
from harness.errors import UsageError

Plant = Callable[[ManagerHeight], None]


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


def all_mutants() -> dict[str, Mutant]:
    """Return every mutant by name."""
    from harness.mutants import identity, lookup, ownership, publication, retention, scheduling

    modules = (publication, retention, lookup, ownership, identity, scheduling)
    return {mutant.name: mutant for module in modules for mutant in module.MUTANTS}


def plant(name: str, kind: str, engine: ManagerHeight) -> None:
    """Plant a fault into an engine of a kind.

    Raises UsageError if there is no such fault, or if it does not fit that engine.
    """
    mutants = all_mutants()
    if name not in mutants:
        raise UsageError(f"--engine: no mutant is called {name!r}{nearest(name, mutants)}")
    if kind not in mutants[name].engines:
        raise UsageError(f"--engine: mutant {name!r} fits {', '.join(mutants[name].engines)}, not {kind}")
    mutants[name].plant(engine)
