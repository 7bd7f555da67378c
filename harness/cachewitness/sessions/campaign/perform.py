"""Carries out a unit of work, in whichever process. Whatever the engine does is an outcome, and
never a pass.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import Trace
from cachewitness.engines.isolation.engine import begin_afresh
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.summary import Failure, Report, SuiteReport
from cachewitness.sessions.campaign.findings import class_of, kinds_of, signature
from cachewitness.sessions.campaign.store import Store, digest_of
from cachewitness.sessions.campaign.unit import Fuzzed, Met, Outcome, Shrunk, SuiteUnit, Unit
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.run.judging import way_of
from cachewitness.sessions.run.minimize import shrink
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES as WITHOUT_TENSORS
from cachewitness.sessions.run.suites import Suite
from cachewitness.sessions.run.tensor_suite import SUITE as COLD_VS_CACHED

SUITES: dict[str, Suite] = {suite.name: suite for suite in (*WITHOUT_TENSORS, COLD_VS_CACHED)}
TRACES_KEPT = 3
"""Of each class of findings a unit keeps so many traces; the others are counted."""


def perform(unit: Unit, store: Store) -> Outcome:
    """Carry out a unit and return what came of it, which depends on no unit before: it begins with
    new processes of the engine.

    A finding whose trace the store does not take is told without it. Raises UsageError if the store
    does not have the trace that is to be shrunk, or does not take the minimal one or the
    self-test's.
    """
    began = time.perf_counter()
    begin_afresh()
    try:
        spec = unit.engine.spec()
        if isinstance(unit, Fuzzed):
            outcome = _fuzzed(unit, spec, store)
        elif isinstance(unit, SuiteUnit):
            outcome = _run_unit(unit, spec, store)
        else:
            outcome = _shrunk(unit, spec, store)
    except _StoreFailed as failed:
        raise UsageError(str(failed)) from None
    except UsageError as error:
        outcome = Outcome(wrong=str(error))
    except Exception as error:  # ours; the campaign goes on, and says so
        outcome = Outcome(crashed=_failed(error))
    if outcome.unkept and isinstance(unit, Fuzzed) and unit.self_test:
        raise UsageError(outcome.unkept)
    outcome.digest = _digest(outcome)
    outcome.seconds = time.perf_counter() - began
    return outcome


def with_those_before(outcome: Outcome, before: Outcome) -> Outcome:
    """Return what came of a unit with what was found when it was done before, where nothing of
    the class was found now.
    """
    if not outcome.met:
        return before
    again = {met.of_class for met in outcome.met}
    if kept := [met for met in before.met if met.of_class not in again]:
        outcome.met += kept
        outcome.unkept = outcome.unkept or before.unkept
        outcome.digest = _digest(outcome)
    return outcome


def combined(outcome: Outcome, before: Outcome) -> Outcome:
    """Return what counts of a unit that was done twice: what was found either time stays, and
    nothing that was judged gives way to what came to nothing.
    """
    if before.met:
        return with_those_before(outcome, before)
    return before if before.judged and not (outcome.judged or outcome.met) else outcome


def _failed(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


class _StoreFailed(Exception):
    """The store of traces failed, which is no engine's doing."""


@contextmanager
def _store_asked() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise _StoreFailed(str(error)) from None


def _fuzzed(unit: Fuzzed, spec: EngineSpec, store: Store) -> Outcome:
    campaign = Campaign(spec, unit.plan, beside=unit.beside, shrinks=False)
    wrong = crashed = ""
    try:
        campaign.only(unit.first, unit.last)
    except UsageError as error:
        wrong = str(error)
    except Exception as error:  # ours; what was found before stays
        crashed = _failed(error)
    outcome = _reported(campaign.report, store)
    outcome.wrong = wrong or ("" if campaign.traces else campaign.missing)
    outcome.crashed = crashed
    outcome.refused = campaign.refused
    outcome.marks = dict(sorted(campaign.marks.items()))
    outcome.digest = campaign.digest
    return outcome


def _run_unit(unit: SuiteUnit, spec: EngineSpec, store: Store) -> Outcome:
    failures: list[Failure] = []
    runner = Runner(
        spec,
        [chosen.configuration for chosen in unit.configurations],
        seed=unit.seed,
        policy=unit.policy,
        chosen_configurations=unit.named,
        exact_configurations=unit.exact,
        alone=True,
        shrunk=0,
        on_failure=lambda failure, final: failures.append(failure) if final else None,
    )
    try:
        report = runner.run([SUITES[unit.suite]])
    except UsageError:
        raise
    except Exception as error:  # ours; what was found before stays
        outcome = Outcome(crashed=_failed(error))
        _meet(outcome, failures, store)
        return outcome
    outcome = _reported(report, store)
    outcome.vacuous = runner.changed
    outcome.refused = len(runner.refusals)
    outcome.ran_on = sorted(runner.ran)
    outcome.refused_on = sorted(runner.refusals)
    outcome.wrong = "" if outcome.traces else runner.missing
    return outcome


def _shrunk(unit: Shrunk, spec: EngineSpec, store: Store) -> Outcome:
    with _store_asked():
        content = store.get(unit.trace)
    trace = traces.parse(content.splitlines(), unit.trace)
    failure = Failure.of(unit.name, trace, unit.finding)
    shrink(failure, spec, SUITES[unit.suite].way if unit.suite else way_of(unit.finding))
    with _store_asked():
        small = _met(failure, failure.shrunk, store.put(traces.dump(failure.shrunk)))
    return Outcome(
        small=small, signature=signature(failure.finding, failure.shrunk), why_long=failure.why_long
    )


def _reported(report: Report, store: Store) -> Outcome:
    """Return the outcome of a report, whose failing traces go to the store. A report of half the
    unit is none.
    """
    if report.interrupted:
        raise KeyboardInterrupt
    outcome = Outcome(not_run=report.not_run, version=report.engine_version)
    outcome.startup_seconds = report.startup_seconds
    outcome.engine_seconds = report.engine_seconds
    for suite in report.suites:
        _meet(outcome, suite.failures, store)
        suite.failures = []
    outcome.suites = report.suites
    return outcome


def _meet(outcome: Outcome, failures: Iterable[Failure], store: Store) -> None:
    """Add findings to an outcome, of each class the first few with their traces; further ones
    are counted by the first.
    """
    kept: dict[Any, list[Met]] = {}
    for failure in failures:
        header = failure.trace.header
        alike = kept.setdefault(class_of(failure.finding, header.level, kinds_of(header)), [])
        if len(alike) < TRACES_KEPT:
            try:
                digest = store.put(traces.dump(failure.trace))
            except UsageError as error:
                digest = ""
                outcome.unkept = str(error)
            alike.append(_met(failure, failure.trace, digest))
        else:
            alike[0].count += 1
    outcome.met += [met for alike in kept.values() for met in alike]


def _met(failure: Failure, trace: Trace, digest: str) -> Met:
    header = trace.header
    return Met(
        id=failure.id,
        finding=failure.finding,
        trace=digest,
        level=header.level,
        kinds=kinds_of(header),
    )


def _digest(outcome: Outcome) -> str:
    """Return the digest of an outcome: of all but times and what an engine printed before it
    died.
    """
    suites = [_timeless(suite) for suite in outcome.suites]
    met = [(one.id, _essence(one.finding), one.trace, one.count) for one in outcome.met]
    small = outcome.small and (_essence(outcome.small.finding), outcome.small.trace)
    ends = [
        outcome.digest,
        outcome.refused,
        outcome.version,
        outcome.marks,
        bool(outcome.wrong),
        bool(outcome.crashed),
    ]
    content = [suites, outcome.not_run, met, small, outcome.signature, ends, outcome.vacuous]
    content += [outcome.ran_on, outcome.refused_on]
    return digest_of(msgspec.json.encode(content, order="deterministic"))[:16]


def _timeless(suite: SuiteReport) -> list[Any]:
    tallies = sorted((tally for tally in suite.tallies), key=lambda tally: tally.checker)
    return [
        suite.name,
        suite.traces,
        suite.activity,
        tallies,
        suite.crashed,
        suite.bad_events,
        suite.arms,
        suite.controls,
    ]


def _essence(finding: Finding) -> list[Any]:
    return [
        finding.anomaly,
        finding.checker,
        finding.cause,
        finding.r,
        finding.seq,
        finding.op,
        finding.owed,
    ]


def stamp(digests: Iterable[tuple[str, str]]) -> str:
    """Return one digest of the keys of units and the digests of what came of them, in their
    order.
    """
    total = sha256()
    for key, digest in digests:
        total.update(f"{key} {digest}\n".encode())
    return total.hexdigest()[:16]
