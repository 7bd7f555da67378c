"""The systems that can be planned, under every spelling of their names: the policies that have a
plan, and the engines without a policy that register one under the entry-point group
`cachewitness.sizings`.
"""

from __future__ import annotations

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness.engines import policy as policies
from cachewitness.engines.sizing import Sizing

GROUP = "cachewitness.sizings"


def systems() -> list[str]:
    """Return the systems that have a plan, by name: policies first."""
    return [*_policies(), *sorted(plugins.registered(GROUP))]


def sizing_of(name: str) -> Sizing:
    """Return the plan of a system by its name, as `systems` and `system_of` return it.

    Raises UsageError for a registration that cannot be imported.
    """
    found = policies.get(name).sizing if name in policies.names() else None
    if found is not None:
        return found
    entry = plugins.registered(GROUP)[name]
    try:
        sizing = entry.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"plan: {name} ({entry.value}) cannot be imported: {error}") from None
    if not isinstance(sizing, Sizing):
        raise UsageError(f"plan: {name} ({entry.value}) is no Sizing")
    return sizing


def system_of(name: str) -> str:
    """Return the system that a name means; hyphens and capitals do not matter. Raises UsageError
    with the nearest one.
    """
    plain = name.lower().replace("-", "_")
    known = systems()
    if plain not in known:
        plain = _aliases().get(plain, plain)
    if plain not in known:
        from cachewitness.workloads.model import choices

        raise UsageError(f"plan: no system is called {name!r}; {choices(plain, known)}")
    return plain


def _policies() -> list[str]:
    return [kind.name for kind in policies.loadable() if kind.sizing is not None]


def _aliases() -> dict[str, str]:
    return {alias: name for name in systems() for alias in sizing_of(name).aliases}
