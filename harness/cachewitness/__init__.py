"""cachewitness from a program: the names here are the public API, whatever the folders behind them
are called.

`verify` runs suites on an engine, `check` judges a recorded history, `suite` makes a pytest test of
every trace. An engine is an `EngineKind` that opens an `Engine`; the other names are what these
take and return. `python -m cachewitness` is the command line.

A name is imported when it is first asked for, so that `cachewitness.core`, which judges, imports
nothing but itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachewitness._util.errors import UsageError as UsageError
    from cachewitness.api.suite import suite as suite
    from cachewitness.api.verify import check as check
    from cachewitness.api.verify import verify as verify
    from cachewitness.core.checkers.finding import Finding as Finding
    from cachewitness.core.checkers.finding import Tally as Tally
    from cachewitness.core.driving import drive as drive
    from cachewitness.core.engine import Engine as Engine
    from cachewitness.core.events import Header as Header
    from cachewitness.core.events import History as History
    from cachewitness.core.result import Activity as Activity
    from cachewitness.core.result import Result as Result
    from cachewitness.core.trace_format import GroupSpec as GroupSpec
    from cachewitness.core.trace_format import Layout as Layout
    from cachewitness.core.trace_format import Trace as Trace
    from cachewitness.core.trace_format import TraceHeader as TraceHeader
    from cachewitness.engines.driver import Driver as Driver
    from cachewitness.engines.kind import EngineKind as EngineKind
    from cachewitness.report.summary import Failure as Failure
    from cachewitness.report.summary import Report as Report

__version__ = "0.1.0"

_HOMES = {
    "_util.errors": ("UsageError",),
    "api.suite": ("suite",),
    "api.verify": ("check", "verify"),
    "core.checkers.finding": ("Finding", "Tally"),
    "core.driving": ("drive",),
    "core.engine": ("Engine",),
    "core.events": ("Header", "History"),
    "core.result": ("Activity", "Result"),
    "core.trace_format": ("GroupSpec", "Layout", "Trace", "TraceHeader"),
    "engines.driver": ("Driver",),
    "engines.kind": ("EngineKind",),
    "report.summary": ("Failure", "Report"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
