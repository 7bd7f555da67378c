"""What LMCache's faults are planted with: the connector behind the scheduler, and the names of
its objects.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import Plant


def where_there_is_a_store(plant: Plant) -> Plant:
    """Plant a fault if prefix caching is on; without it nothing is behind the scheduler."""

    @wraps(plant)
    def where_there_is_one(engine: Any) -> None:
        if hasattr(engine.adapter, "connector"):
            plant(engine)

    return where_there_is_one


def connector_of(engine: Any) -> Any:
    """Return LMCache's connector."""
    return engine.adapter.connector.lmcache


def name_objects(engine: Any, named: Callable[[str, str, str], tuple[str, str, str]]) -> None:
    """Let objects be named by what `named` makes of a request's salt, adapter and kernels."""

    def start_session(
        original: Any, r: str, salt: str = "", adapter: str = "", kernels: str = ""
    ) -> None:
        original(r, *named(salt, adapter, kernels))

    wrap(connector_of(engine).server, "start_session", start_session)
