"""Traces on a real engine under every checker: what came of each, in a form that can be stored."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from random import Random

import msgspec

from benchmarks.mutation.plant import entered
from benchmarks.mutation.source import Place
from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import described
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import parse
from cachewitness.report.expected import Entry
from cachewitness.sessions.run.judging import Way
from cachewitness.sessions.run.judging import judged as judged_on
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.workloads.capabilities import fitting

SHUFFLED = 200_000
"""So many small objects are made before a case is run again, and half of them are let go."""


@dataclass(frozen=True)
class Case:
    """A trace and the engine that it is run on, in lock-step with the reference if `paired`.

    What the release is known for, by `known`, counts as no finding: a run reports it as expected.
    """

    engine: str
    trace: Trace
    paired: bool = False
    known: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        """The engine's options and the trace's name."""
        header = self.trace.header
        options = ",".join(f"{key}={value}" for key, value in header.options.items())
        on = f"{header.layout.name}[{options}]"
        return " ".join([header.level, *self.engine.split(",")[1:], on, header.name])

    def is_new(self, finding: Finding) -> bool:
        """Whether the release is not known for a finding."""
        return not any(entry.excuses(finding) for entry in self.known)


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
    """A case on the engine as it is: which functions it enters, and what is needed to see that
    another run decides otherwise. `digest` is empty if the case does not always go the same way,
    `found` is not if it is not clean: it then enters nothing.
    """

    name: str
    seconds: float
    digest: str
    places: frozenset[Place]
    found: str = ""


def in_turn(kinds: Iterable[Iterable[Case]]) -> list[Case]:
    """Return all cases, those of each kind in turn, so that the first of them are of every kind."""
    return [case for turn in zip_longest(*kinds) for case in turn if case is not None]


def judge(case: Case) -> Judged:
    """Run a case until the first finding of a rule."""
    began = time.process_time()
    judged = Judged()
    try:
        _run(case, judged)
    except UsageError as error:
        judged.stopped = f"refused: {error}"[:200]
    except Exception as error:
        judged.stopped = f"{type(error).__name__}: {error}"[:200]
    judged.seconds = time.process_time() - began
    return judged


def _run(case: Case, judged: Judged) -> None:
    spec = parse(case.engine)
    engine = spec.open(case.trace.header)
    trace = fitting(case.trace, described(engine, case.trace.header).capabilities)

    def ends(finding: Finding) -> bool:
        return finding.checker != DIFFERENTIAL and case.is_new(finding)

    way: Way = "lockstep" if case.paired else "rules"
    result, bad = judged_on(trace, spec, way, engine=engine, until=ends)
    _read(case, result, judged)
    if bad:
        judged.stopped = f"cannot be followed: {bad}"[:200]


def _read(case: Case, result: Result, judged: Judged) -> None:
    named = [
        (finding.checker, f"{finding.anomaly} ({finding.checker})")
        for finding in sorted(result.findings, key=lambda finding: finding.seq)
        if case.is_new(finding)
    ]
    judged.differential = next((text for checker, text in named if checker == DIFFERENTIAL), "")
    judged.finding = next((text for checker, text in named if checker != DIFFERENTIAL), "")
    judged.operations = result.activity.operations
    judged.digest = hashlib.blake2b(
        msgspec.msgpack.encode(result.history.events), digest_size=8
    ).hexdigest()


def clean(case: Case, folder: Path) -> Clean:
    """Run a case on the engine as it is, twice.

    Objects lie elsewhere the second time: the engine may go through a set of them, in the order of
    their addresses, which in another process are others.
    """
    with entered(folder) as places:
        traced = judge(case)
    elsewhere = _shuffled_memory()
    again = judge(case)
    del elsewhere
    if found := again.finding or again.differential or again.stopped:
        return Clean(case.name, again.seconds, "", frozenset(), found)
    digest = again.digest if again.digest == traced.digest else ""
    return Clean(case.name, again.seconds, digest, frozenset(places))


def _shuffled_memory() -> list[bytes]:
    """Return what has to be kept so that new small objects lie in no order."""
    random = Random(0)
    kept = [bytes(random.randrange(8, 500)) for _ in range(SHUFFLED)]
    random.shuffle(kept)
    del kept[::2]
    return kept
