"""Reduces a trace to the capabilities that an engine declares.

An operation that needs an undeclared capability is left out, so an engine with few capabilities can
still be fuzzed. Where abort is not declared, an aborted request finishes instead; where `cancel` is
not, it is aborted after the step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    UpdateWeights,
)

_OF_OPERATION = {
    Abort: "abort",
    Extend: "session",
    Preempt: "preempt",
    Reset: "reset",
    UpdateWeights: "update_weights",
}
_OF_FIELD = {
    Submit: (
        *("salt", "adapter", "media", "kernels"),
        *("priority", "grammar", "session", "prompt_logprobs"),
    ),
    Step: ("withdraw", "cancel"),
}


def lacking(trace: Trace, capabilities: Collection[str]) -> list[str]:
    """Return the capabilities that a trace needs and the engine does not declare, in order."""
    asked = {need for op in trace.ops for need in _needs(op)} | set(trace.header.needs)
    return sorted(asked.difference(capabilities))


def fitting(trace: Trace, capabilities: Collection[str]) -> Trace:
    """Return the trace without what needs other capabilities."""
    header = replace(
        trace.header, needs=[need for need in trace.header.needs if need in capabilities]
    )
    return Trace(header, [kept for op in trace.ops for kept in _fits(op, capabilities)])


def _needs(op: Op) -> Iterator[str]:
    if type(op) in _OF_OPERATION:
        yield _OF_OPERATION[type(op)]
    yield from (name for name in _OF_FIELD.get(type(op), ()) if getattr(op, name))


def _fits(op: Op, capabilities: Collection[str]) -> Iterator[Op]:
    missing = [need for need in _needs(op) if need not in capabilities]
    if not missing:
        yield op
    elif isinstance(op, Abort):
        yield Finish(op.r)
    elif isinstance(op, Submit | Step):
        if "session" in missing:
            missing.append("generate")
        yield replace(op, **{name: type(getattr(op, name))() for name in missing})
        if isinstance(op, Step) and "cancel" in missing:
            yield from (kept for r in op.cancel for kept in _fits(Abort(r), capabilities))
