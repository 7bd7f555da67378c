"""cachewitness from a program: the names here are the public API, whatever the folders behind them are called.

`verify` runs suites on an engine, `check` judges a recorded history, `suite` makes a pytest test of every trace. An engine is
an `EngineKind` that opens an `Engine`; the other names are what these take and return. `python -m cachewitness` is the command
line.
"""

from harness import __version__
from harness._util.errors import UsageError
from harness.api.suite import suite
from harness.api.verify import check, verify
from harness.checkers.finding import Finding, Tally
from harness.engines.driver import Driver
from harness.engines.kind import EngineKind
from harness.engines.protocol import Engine
from harness.history.events import Header, History
from harness.run.execute import drive
from harness.trace.format import GroupSpec, Layout, Trace, TraceHeader
from harness.verdict.result import Activity, Result
from harness.verdict.summary import Failure, Report

__all__ = [
    "Activity",
    "Driver",
    "Engine",
    "EngineKind",
    "Failure",
    "Finding",
    "GroupSpec",
    "Header",
    "History",
    "Layout",
    "Report",
    "Result",
    "Tally",
    "Trace",
    "TraceHeader",
    "UsageError",
    "__version__",
    "check",
    "drive",
    "suite",
    "verify",
]

if __name__ == "__main__":
    from harness.cli import main

    main()
