"""Leaves out of a trace what an engine says it cannot do.

A capability that an engine does not declare is not asked of it, so an engine that can little is fuzzed with what it can. A
request that cannot be aborted finishes; whatever else cannot be done is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from harness.trace.format import Abort, Finish, Op, Preempt, Reset, Step, Submit, Trace, UpdateWeights

_OF_OPERATION = {Abort: "abort", Preempt: "preempt", Reset: "reset", UpdateWeights: "update_weights"}
_OF_FIELD = {Submit: ("salt", "adapter", "media"), Step: ("withdraw",)}


def lacking(trace: Trace, capabilities: Collection[str]) -> list[str]:
    """Return the capabilities that a trace asks for and that are not there, in order."""
    asked = {need for op in trace.ops for need in _needs(op)} | set(trace.header.needs)
    return sorted(asked.difference(capabilities))


def within(trace: Trace, capabilities: Collection[str]) -> Trace:
    """Return a trace of what can be done of another."""
    header = replace(trace.header, needs=[need for need in trace.header.needs if need in capabilities])
    return Trace(header, [kept for op in trace.ops for kept in _within(op, capabilities)])


def _needs(op: Op) -> Iterator[str]:
    if type(op) in _OF_OPERATION:
        yield _OF_OPERATION[type(op)]
    yield from (name for name in _OF_FIELD.get(type(op), ()) if getattr(op, name))


def _within(op: Op, capabilities: Collection[str]) -> Iterator[Op]:
    missing = [need for need in _needs(op) if need not in capabilities]
    if not missing:
        yield op
    elif isinstance(op, Abort):
        yield Finish(op.r)
    elif isinstance(op, Submit | Step):
        yield replace(op, **{name: type(getattr(op, name))() for name in missing})
