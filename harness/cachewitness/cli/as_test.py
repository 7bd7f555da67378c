"""What `replay --export pytest` does: write the failure as a test, run the test, and say whether
it fails as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cachewitness._util import files
from cachewitness._util.errors import UsageError
from cachewitness._util.names import identifier
from cachewitness.engines.export import Failed
from cachewitness.engines.isolation.child_env import passed

if TYPE_CHECKING:
    from cachewitness.core.result import Result
    from cachewitness.core.trace_format import Trace
    from cachewitness.engines.export import Exported
    from cachewitness.engines.registry import EngineSpec

SECONDS = 300
"""How long a test may run before it is given up; most of it is the import of the engine."""
FAILED = 1
"""pytest's exit status if a test failed."""


def ready(spec: EngineSpec, trace: Trace, output: Path | None) -> Path:
    """Return the file to write, before anything is run.

    Raises UsageError if the engine cannot be exported, or the file cannot be written or is there.
    """
    from cachewitness.sessions.run import store

    if spec.kind.export is None:
        raise UsageError(
            f"--export pytest: engine {spec.kind.name} cannot be told in a test of its own;"
            " vllm can"
        )
    path = output or Path(f"test_{identifier(trace.header.name)}.py")
    if path.exists():
        raise UsageError(f"--output: {path} is there already; name another file, or remove it")
    store.ready(path, "--output")
    return path


def export(spec: EngineSpec, result: Result, path: Path) -> list[str]:
    """Write the first finding of a result as a test, run it, and return the outcome in lines.

    That it cannot be written, or not be told so, is one of these lines: what was found stays what
    was found.
    """
    if not result.findings or result.trace is None or spec.kind.export is None:
        return ["no test was written: nothing failed"]
    first = result.findings[0]
    failed = Failed(first.anomaly, first.r, first.seq, first.owed)
    try:
        made = spec.kind.export(result.trace, result.history, failed, spec.options)
        files.write(path, [made.text.encode()])
    except UsageError as error:
        return [f"no test was written: {error}"]
    lines = made.text.count("\n")
    outcome = _outcome(path, made)
    if outcome == "fails":
        return [
            f"test: {path} ({lines} lines) fails here as the trace does: python -m pytest {path}"
        ]
    return [
        f"test: {path} ({lines} lines) {outcome} here, so it does not show this failure; attach the"
        " trace instead"
    ]


def _outcome(path: Path, made: Exported) -> str:
    """Run a test; return `fails` if the assertion did that is about the failure."""
    surroundings = passed() | ({"PYTHONPATH": str(Path(made.path).resolve())} if made.path else {})
    argv = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "-p",
        "no:cacheprovider",
        "--tb=line",
        str(path.resolve()),
    ]
    try:
        ran = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env=surroundings,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} s"
    if ran.returncode == FAILED:
        own = re.search(rf"{re.escape(path.name)}:\d+: AssertionError: .*{made.says}", ran.stdout)
        return "fails" if own else "fails otherwise"
    return "passes" if ran.returncode == 0 else "does not run"
