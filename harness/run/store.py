"""Stores failing traces, histories and reports.

A file is written whole or not at all, so the folder of an interrupted run holds no half-written file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shlex import quote

from harness._util import files
from harness._util.errors import UsageError
from harness.engines.registry import EngineSpec, parse
from harness.history import events as history
from harness.run.execute import drive
from harness.run.lockstep import NAME as DIFFERENTIAL
from harness.run.lockstep import lockstep
from harness.trace import format as trace
from harness.verdict.compared import NAME as COLD
from harness.verdict.summary import Failure, Report, Stored, shown

DEFAULT_FOLDER = Path(".cachewitness") / "failures"


def ready(path: Path, option: str) -> None:
    """Make sure, before a long run, that a file can be written there.

    Raises UsageError if its folder is missing or it is a folder itself.
    """
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: {path.parent} is no folder; make it first")


def ready_folder(path: Path, option: str) -> None:
    """Make a folder. Raises UsageError if that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be made ({error.strerror})") from None


def keep_failures(report: Report, engine: EngineSpec, folder: Path, *, everything: bool) -> dict[str, Stored]:
    """Write the traces of failures into a folder and return where, by the failure's id.

    `everything` writes every failure, with the trace before it was shrunk and the history of the shrunk one; otherwise the
    shrunk traces of those that a report shows in full (`shown`).
    """
    wanted = [failure for suite in report.suites for failure in suite.failures] if everything else shown(report)
    if wanted:
        ready_folder(folder, "--report" if everything else "failing traces")
    return {failure.id: _keep(failure, engine, folder, everything=everything) for failure in wanted}


def replay_command(path: Path, engine: str, *, differential: bool = False, cold: bool = False) -> str:
    """Return the command that replays a stored trace, ready to be pasted into a shell."""
    beside = (" --differential" if differential else "") + (" --cold" if cold else "")
    return f"cachewitness replay {quote(str(path))} --engine {quote(engine)}{beside}"


def _keep(failure: Failure, engine: EngineSpec, folder: Path, *, everything: bool) -> Stored:
    if failure.engine:
        engine = replace(parse(failure.engine), isolation=engine.isolation)
    content = trace.dump(failure.shrunk)
    digest = sha256(engine.text.encode() + content).hexdigest()[:8]
    stem = f"{re.sub(r'[^A-Za-z0-9._=-]+', '_', failure.id).strip('_')}-{digest}"
    path = folder / f"{stem}.trace.jsonl"
    files.write(path, [content])
    paired, cold = failure.finding.checker == DIFFERENTIAL, failure.id.startswith(f"{COLD}:")
    stored = Stored(trace=str(path), replay=replay_command(path, engine.text, differential=paired, cold=cold))
    if failure.finding.output:
        printed = folder / f"{stem}.output.txt"
        files.write(printed, [failure.finding.output.encode()])
        stored.output = str(printed)
    if everything:
        whole, happened = folder / f"{stem}.whole.trace.jsonl", folder / f"{stem}.history.jsonl"
        trace.save(failure.trace, whole)
        run = lockstep if paired else drive
        result = run(failure.shrunk, engine.open(failure.shrunk.header))
        history.save(result.history, happened)
        stored.whole_trace, stored.history = str(whole), str(happened)
    return stored
