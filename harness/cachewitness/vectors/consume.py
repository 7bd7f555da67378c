"""Consumes vectors: asks an engine what the reference was asked, and compares.

`valid`: the answer is the one expected. `acceptable`: it is that one, or one that the vector allows
(a lawful length, a free choice of the engine's); the number that differ is reported. `invalid`: the
input is refused, in a message that names the field. A trace is run under every checker besides,
since what is equal to the reference by its counts may still read a wrong page.

A question that an engine cannot be asked is reported as not run, with the reason, and never counted
as passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.driving import drive
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Op, Trace
from cachewitness.engines.faults import misfit
from cachewitness.engines.kind import Answer, CannotAsk
from cachewitness.engines.registry import MUTANT, EngineSpec
from cachewitness.vectors.fill import refused_as
from cachewitness.vectors.form import File, LifecycleInput, LifecycleVector, LookupExpected, Vector
from cachewitness.vectors.lifecycle import Comparison, Recorder

VECTORS = "vectors"
"""What an engine may declare as not applicable: that a configuration decides as the reference does.
"""
UNASKED = "the engine says nothing of it: no answers to vectors of {kind}"


@dataclass(frozen=True)
class Failed:
    """A vector that was answered wrongly: what was expected and what came, or why it counts as
    wrong.
    """

    vector: Vector
    expected: str
    got: str


@dataclass
class Consumed:
    """What came of a file: by class how many were asked and how many passed, failures, and what
    was not run, by reason.
    """

    asked: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    differing: int = 0
    unknown: list[str] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    not_run: Counter[str] = field(default_factory=Counter)


def consume(file: File, spec: EngineSpec) -> Consumed:
    """Ask an engine every vector of a file.

    Raises UsageError if the engine itself was named wrongly, EngineMissing if something must be
    installed first.
    """
    out = Consumed()
    policy = file.info.policy
    kind = file.info.kind
    if not spec.kind.follows(policy):
        out.not_run[
            f"engine {spec.kind.name} follows {', '.join(spec.kind.policies or ())}, not {policy}"
        ] += len(file.vectors)
        return out
    fault = spec.options.get(MUTANT)
    if fault and (why := misfit(fault, spec.kind, policy)):
        out.not_run[why] += len(file.vectors)
        return out
    answers: Mapping[str, Answer] = (
        {} if spec.kind.answers is None else spec.kind.answers(policy, spec.options)
    )
    if kind != "lifecycle" and kind not in answers:
        out.not_run[UNASKED.format(kind=kind)] += len(file.vectors)
        return out
    for vector in file.vectors:
        try:
            judged = (
                _lived(vector, spec)
                if isinstance(vector, LifecycleVector)
                else _answered(vector, answers[kind])
            )
        except CannotAsk as reason:
            out.not_run[str(reason)] += 1
            continue
        out.asked[vector.result] += 1
        if isinstance(judged, Failed):
            out.failures.append(judged)
        elif judged == "unknown":
            out.unknown.append(vector.id)
        else:
            out.passed[vector.result] += 1
            out.differing += judged == "differs"
    return out


def lived(vector: LifecycleVector, spec: EngineSpec) -> Result:
    """Run the trace of a vector again and return all that happened. Raises UsageError if the
    engine cannot run it any more.
    """
    try:
        return drive(Trace(vector.input.header, vector.input.ops), _opened(vector.input, spec))
    except CannotAsk as reason:
        raise UsageError(f"{vector.id}: {reason}") from None


def _answered(vector: Vector, answer: Answer) -> Failed | str:
    """Ask a question that one function answers."""
    refused = ""
    try:
        got: Any = answer(vector.input)
    except UsageError as error:
        refused = _refused(error)
    except CannotAsk:
        raise
    except Exception as error:
        return Failed(
            vector,
            _format(vector.expected or vector.refusal),
            f"raised {type(error).__name__}: {error}",
        )
    if vector.result == "invalid":
        assert vector.refusal is not None
        wanted = "a refusal that says " + (vector.refusal.text or " or ".join(vector.refusal.names))
        if not refused:
            return Failed(vector, wanted, _format(got))
        return (
            "passed"
            if refused_as(vector.refusal, refused)
            else Failed(vector, wanted, f"refused: {refused}")
        )
    if refused:
        return Failed(vector, _format(vector.expected), f"refused: {refused}")
    if _equal(vector.expected, got):
        return "passed"
    allowed = vector.result == "acceptable" and _allowed(vector.expected, got)
    return "differs" if allowed else Failed(vector, _format(vector.expected), _format(got))


def _refused(error: UsageError) -> str:
    """Return the message of a refusal; what is wrong with the engine that was named is not one."""
    if isinstance(error, EngineMissing) or str(error).startswith("--engine"):
        raise error
    return str(error)


def _equal(expected: Any, got: Any) -> bool:
    if isinstance(expected, LookupExpected):
        return all(
            getattr(expected, name) == getattr(got, name)
            for name in ("resume", "shared_prefix_boundary", "columns")
        )
    return bool(expected == got)


def _allowed(expected: Any, got: Any) -> bool:
    """Whether another answer is right too. Of a look-up, if the law lets it resume there; of the
    rest, whatever it is.
    """
    return not isinstance(expected, LookupExpected) or got.resume in expected.legal


def _lived(vector: LifecycleVector, spec: EngineSpec) -> Failed | str:
    """Run a trace and compare operation by operation."""
    assert vector.expected is not None
    engine = _opened(vector.input, spec)
    recorder = Recorder()
    comparison = Comparison(vector.expected)

    def beside(index: int, op: Op, events: list[Any]) -> None:
        comparison.compare(index, recorder.facts(index, op, events))

    result = drive(Trace(vector.input.header, vector.input.ops), engine, beside=beside, keep=False)
    if comparison.parted and not comparison.excused:
        return Failed(vector, *comparison.difference)
    if result.findings:
        return Failed(
            vector, "no rule broken", f"{result.findings[0].anomaly}: {result.findings[0].sentence}"
        )
    if result.outcome == "unknown":
        return "unknown"
    return "differs" if comparison.excused else "passed"


def _opened(question: LifecycleInput, spec: EngineSpec) -> Any:
    header = question.header
    kind = spec.kind
    if header.level not in kind.levels:
        raise CannotAsk(
            f"traces for {header.level} level; engine {kind.name} runs at {', '.join(kind.levels)}"
        )
    try:
        engine = spec.open(header)
    except UsageError as error:
        raise CannotAsk(f"refused: {_refused(error)}") from None
    described = engine.describe()
    if why := described.not_applicable.get(VECTORS):
        raise CannotAsk(why)
    for need in header.needs:
        if need not in described.capabilities:
            raise CannotAsk(described.not_applicable.get(need, f"engine {kind.name} cannot {need}"))
    return engine


def _format(value: Any) -> str:
    return msgspec.json.encode(value).decode()
