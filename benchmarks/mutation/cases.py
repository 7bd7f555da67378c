"""Traces on a real engine under every checker: what came of each, in a form that can be stored."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.mutation.plant import entered
from benchmarks.mutation.source import Place
from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import Stopped, drive
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import parse
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.sessions.run.lockstep import lockstep


@dataclass(frozen=True)
class Case:
    """A trace and the engine that it is run on, in lock-step with the reference if `paired`."""

    engine: str
    trace: Trace
    paired: bool = False

    @property
    def name(self) -> str:
        """The engine's options and the trace's name."""
        header = self.trace.header
        options = ",".join(f"{key}={value}" for key, value in header.options.items())
        on = f"{header.layout.name}[{options}]"
        return " ".join([header.level, *self.engine.split(",")[1:], on, header.name])


class Judged(msgspec.Struct):
    """What came of a case. `finding` is the first, `anomaly (checker)`; `differential` the
    reference's, if it came in front of any other. `stopped` says why the engine or the harness
    could not go on. `digest` is that of all events, `seconds` are CPU seconds.
    """

    finding: str = ""
    differential: str = ""
    stopped: str = ""
    digest: str = ""
    operations: int = 0
    seconds: float = 0.0


class Clean(msgspec.Struct):
    """A case on the engine as it is: what its functions are entered by it, and what is needed to
    see that another run decides otherwise.
    """

    name: str
    seconds: float
    digest: str
    places: frozenset[Place]


def judge(case: Case) -> Judged:
    """Run a case until the first finding of a rule."""
    began = time.process_time()
    judged = Judged()
    try:
        _run(case, judged)
    except Stopped as stopped:
        _read(stopped.result, judged)
        judged.stopped = judged.stopped or f"cannot be followed: {stopped}"[:200]
    except UsageError as error:
        judged.stopped = f"refused: {error}"[:200]
    except Exception as error:
        judged.stopped = f"{type(error).__name__}: {error}"[:200]
    judged.seconds = time.process_time() - began
    return judged


def _run(case: Case, judged: Judged) -> None:
    engine = parse(case.engine).open(case.trace.header)
    run = lockstep if case.paired else drive
    _read(run(case.trace, engine, until=_by_a_rule), judged)


def _by_a_rule(finding: Finding) -> bool:
    return finding.checker != DIFFERENTIAL


def _read(result: Result, judged: Judged) -> None:
    named = [
        (finding.checker, f"{finding.anomaly} ({finding.checker})")
        for finding in sorted(result.findings, key=lambda finding: finding.seq)
    ]
    judged.differential = next((text for checker, text in named if checker == DIFFERENTIAL), "")
    judged.finding = next((text for checker, text in named if checker != DIFFERENTIAL), "")
    judged.operations = result.activity.operations
    judged.digest = hashlib.blake2b(
        msgspec.msgpack.encode(result.history.events), digest_size=8
    ).hexdigest()


def clean(case: Case, folder: Path) -> Clean | None:
    """Run a case on the engine as it is, twice; return None if it is not clean, or does not
    go the same way twice.
    """
    with entered(folder) as places:
        traced = judge(case)
    again = judge(case)
    if any((again.finding, again.differential, again.stopped)):
        return None
    if traced.digest != again.digest:
        return None
    return Clean(case.name, again.seconds, again.digest, frozenset(places))
