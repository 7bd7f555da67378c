"""The systems that can be planned, under every spelling of their names."""

from __future__ import annotations

from cachewitness._util.errors import UsageError
from cachewitness.engines import policy as policies


def systems() -> list[str]:
    """Return the policies that have a plan, by name."""
    return [kind.name for kind in policies.loadable() if kind.sizing is not None]


def system_of(name: str) -> str:
    """Return the policy that a name means; hyphens and capitals do not matter. Raises UsageError
    with the nearest one.
    """
    plain = name.lower().replace("-", "_")
    registered = policies.names()
    if plain not in registered:
        plain = _aliases().get(plain, plain)
    if plain not in registered or policies.get(plain).sizing is None:
        from cachewitness.workloads.model import choices

        raise UsageError(f"plan: no system is called {name!r}; {choices(plain, systems())}")
    return plain


def _aliases() -> dict[str, str]:
    return {
        alias: kind.name
        for kind in policies.loadable()
        if kind.sizing is not None
        for alias in kind.sizing.aliases
    }
