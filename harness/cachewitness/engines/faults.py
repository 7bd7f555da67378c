"""The seeded faults by name, and how one is planted into an engine that was just opened.

They are registered under two entry-point groups. Under `cachewitness.mutants` a name is a policy's,
into whose engine the faults are planted, or that of no policy: faults of a device. Under
`cachewitness.engine_mutants` it is the name of an engine that has faults of its own beside those.
What is registered is a sequence of `Mutant`s. Several distributions may register one name: most
faults of this repository are in the distribution cachewitness-faults, and here are only those that
the self-test and the documentation plant.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from typing import Any

from cachewitness._util import data, plugins
from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.mutant import DEFAULT_POLICY, VLLM_SHAPE, Mutant

GROUP = "cachewitness.mutants"
ENGINE_GROUP = "cachewitness.engine_mutants"
_OWN = "cachewitness."
"""How the registrations of this package begin."""


def all_mutants() -> dict[str, Mutant]:
    """Return every mutant that is installed, by name: those of each policy, then those that belong
    to none.

    Raises UsageError for a policy, or for faults, that cannot be loaded: a list that left them out
    would be taken for a whole one.
    """
    names = policies.names()
    for name in names:
        policies.get(name)
    entries = plugins.every(GROUP)
    return _of(sorted(entries, key=lambda entry: _place(entry.name, names)))


def need_all(what: str, policy: str = "") -> None:
    """Raise EngineMissing, saying that `what` needs them, if the faults of this repository are not
    installed, or those of one of its policies. Another package's policy brings its own.
    """
    another = policy and not plugins.registered(policies.GROUP)[policy].value.startswith(_OWN)
    if not another and (missing := data.faults_missing(what)):
        raise missing


def fitting(policy: str) -> dict[str, Mutant]:
    """Return by name the mutants that an engine following a policy may take: its own, the default
    policy's, a device's.

    No other policy's are loaded for it. Raises UsageError for a policy that there is not.
    """
    policies.get(policy)
    asked = list(dict.fromkeys((policy, DEFAULT_POLICY)))
    others = set(policies.names()).difference(asked)
    entries = [entry for entry in plugins.every(GROUP) if entry.name not in others]
    return _of(sorted(entries, key=lambda entry: _place(entry.name, asked)))


def of_engine(name: str) -> dict[str, Mutant]:
    """Return by name the faults that an engine has of its own."""
    return _of(entry for entry in plugins.every(ENGINE_GROUP) if entry.name == name)


def _place(name: str, names: list[str]) -> int:
    return names.index(name) if name in names else len(names)


def _of(entries: Iterable[EntryPoint]) -> dict[str, Mutant]:
    return {mutant.name: mutant for entry in entries for mutant in _loaded(entry)}


def _loaded(entry: EntryPoint) -> Iterable[Mutant]:
    try:
        mutants: Iterable[Mutant] = entry.load()
    except Exception as error:
        raise UsageError(
            f"--engine: the seeded faults of {entry.name} ({entry.value}) cannot be imported:"
            f" {type(error).__name__}: {error}; install their package again"
        ) from None
    return mutants


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
    mutants = fitting(policy) | of_engine(kind.name)
    if name not in mutants:
        mutants |= _of(entry for entry in plugins.every(GROUP) if _has_policy(entry.name))
    if name not in mutants:
        if missing := data.faults_missing(f"--engine: no mutant is called {name!r} here"):
            raise missing
        raise UsageError(
            f"--engine: no mutant is called {name!r}{nearest(name, mutants, 'ls mutants')}"
        )
    return mutants[name]


def _has_policy(name: str) -> bool:
    return any(kind.name == name for kind in policies.loadable())
