"""Seeded faults: each plants one real bug's mechanism into an engine, to show that it is found.

A mutant changes an engine that was just built, through the names that vLLM's own classes have; so most of them fit the
reference and the installed vLLM alike. Each names in advance the anomaly that must be raised, and the checker that raises it.
Faults in drafts, in steps in flight and in the second tier need the engine's own scheduler; elsewhere there is nothing to
plant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from harness import policies
from harness.engines.registry import nearest
from harness.errors import UsageError
from harness.trace import Height

Plant = Callable[[Any], None]

DEFAULT_POLICY = "vllm"

MODULES = (
    "publication",
    "retention",
    "lookup",
    "ownership",
    "identity",
    "scheduling",
    "drafts",
    "tiers",
    "transfers",
    "device",
    "furiosa",
    "tensorrt_edge",
    "openvino_genai",
    "lmcache",
)
"""Where faults are, in the order in which they are listed."""

GROUPS = {
    "A": "snapshot identity: a state is kept under a boundary or a key that it does not represent",
    "B": "publish before write: a key is visible before, or without, the step that writes it",
    "C": "hits of several groups collapsed into one number",
    "D": "speculation and rollback: drafts that fell, states that cannot be rewound",
    "E": "hygiene: the bytes of the tenant before are read",
    "F": "padding and batch indices: pad rows, compaction",
    "G": "windows: what has left them, and what has not",
    "H": "ownership: leaks, double frees, shared content that is written",
    "I": "keys and identity: a missing part, a collision, a stale key",
    "J": "the mathematics of states at the ends of chunks",
    "K": "other tiers and transfers",
    "L": "invalidation: resets, weights, adapters, in every tier",
    "M": "units and capacity: the block size of another group, sums that are wrong",
    "N": "a cache without hits, or with too many keys; answers are right",
    "O": "liveness: whoever can run does not",
    "P": "a prompt that is cached whole, or but for its end",
}
"""The mechanisms of real bugs that faults are sorted by."""


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
    group: str = field(kw_only=True)
    """The mechanism that it belongs to; see `GROUPS`."""

    @property
    def policy(self) -> str:
        """The policy whose reference it is planted into: vLLM's unless it is another's."""
        return next((kind for kind in self.engines if kind in policies.NAMES), DEFAULT_POLICY)

    @property
    def engine(self) -> str:
        """The engine of this package that it is shown on: the reference, or the toy for faults of a device."""
        return "toy" if self.engines == ("toy",) else "reference"


def all_mutants() -> dict[str, Mutant]:
    """Return every mutant by name."""
    modules = (import_module(f"harness.mutants.{name}") for name in MODULES)
    return {mutant.name: mutant for module in modules for mutant in module.MUTANTS}


def plant(name: str, kinds: str | Collection[str], engine: Any, height: Height = "manager") -> None:
    """Plant a fault into an engine of a kind, or of several, that runs at a height.

    Raises UsageError if there is no such fault, or if it does not fit that engine.
    """
    mutants, kinds = all_mutants(), [kinds] if isinstance(kinds, str) else kinds
    if name not in mutants:
        raise UsageError(f"--engine: no mutant is called {name!r}{nearest(name, mutants)}")
    if not set(kinds) & set(mutants[name].engines):
        raise UsageError(f"--engine: mutant {name!r} fits {', '.join(mutants[name].engines)}, not {', '.join(kinds)}")
    if mutants[name].height in ("manager", height):
        mutants[name].plant(engine)
