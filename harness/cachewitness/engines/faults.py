"""The seeded faults by name, and how one is planted into an engine that was just opened.

Every policy brings the faults of its own; the faults of a device, which belong to no policy, are
registered under the entry-point group `cachewitness.mutants`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.mutant import DEFAULT_POLICY, VLLM_SHAPE, Mutant
from cachewitness.engines.policy import PolicyKind

GROUP = "cachewitness.mutants"


def all_mutants() -> dict[str, Mutant]:
    """Return every mutant by name: those of each policy, then those that belong to none.

    Raises UsageError for a policy that cannot be loaded: a list that left it out would be taken for
    a whole one.
    """
    return _of(policies.get(name) for name in policies.names()) | _of_devices()


def fitting(policy: str) -> dict[str, Mutant]:
    """Return by name the mutants that an engine following a policy may take: its own, the default
    policy's, a device's.

    No other policy is loaded for it. Raises UsageError for a policy that there is not.
    """
    return (
        _of(policies.get(name) for name in dict.fromkeys((policy, DEFAULT_POLICY))) | _of_devices()
    )


def _of(kinds: Iterable[PolicyKind]) -> dict[str, Mutant]:
    return _by_name(mutant for kind in kinds for mutant in kind.mutants())


def _of_devices() -> dict[str, Mutant]:
    return _by_name(
        mutant for entry in plugins.registered(GROUP).values() for mutant in entry.load()
    )


def _by_name(mutants: Iterable[Mutant]) -> dict[str, Mutant]:
    return {mutant.name: mutant for mutant in mutants}


def misfit(name: str, kind: EngineKind, policy: str) -> str:
    """Return why a fault cannot be planted into an engine of a kind that follows a policy; empty if
    it can.

    Raises UsageError if there is no such fault.
    """
    return _misfit(_named(name, kind, policy), kind, policy)


def _misfit(mutant: Mutant, kind: EngineKind, policy: str) -> str:
    """Return why the fault does not fit: it names neither the kind of engine nor, if that
    follows any policy, this one.
    """
    followed = policies.get(policy)
    called = [followed.name, *filter(None, [followed.plants_as])]
    named = kind.name in mutant.engines and kind.name != VLLM_SHAPE
    if named or (kind.policies is None and not set(called).isdisjoint(mutant.engines)):
        return ""
    return f"mutant {mutant.name!r} fits {', '.join(mutant.engines)}, not {', '.join(called)}"


def plant(name: str, kind: EngineKind, engine: Any, header: TraceHeader) -> None:
    """Plant a fault into an engine of a kind, just opened for a trace; at a level where there is
    nothing to plant, do nothing.

    Raises UsageError if there is no such fault, or if it does not fit that engine.
    """
    policy = header.policy or DEFAULT_POLICY
    mutant = _named(name, kind, policy)
    if why := _misfit(mutant, kind, policy):
        raise UsageError(f"--engine: {why}")
    target = engine if kind.name in mutant.engines else getattr(engine, "engine", engine)
    if mutant.level in ("manager", header.level):
        mutant.plant(target)


def _named(name: str, kind: EngineKind, policy: str) -> Mutant:
    mutants = fitting(policy) | dict(kind.faults())
    if name not in mutants:
        mutants |= _of(policies.loadable())
    if name not in mutants:
        raise UsageError(
            f"--engine: no mutant is called {name!r}{nearest(name, mutants, 'ls mutants')}"
        )
    return mutants[name]
