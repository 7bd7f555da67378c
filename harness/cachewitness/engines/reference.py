"""The engine `reference`: this repository's own policies, each at the levels that it has.

`reference:mutant=NAME` plants a seeded fault into one, `release=NAME` makes it do what that release
of its system does.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import Answer, EngineKind


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build the reference of the policy that a trace names.

    Raises UsageError for a policy that there is not, and for an option that the policy refuses,
    naming it.
    """
    return policies.get(header.policy).open(header, options)


def answer_vectors(policy: str, options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return how the reference of a policy answers vectors, by kind of vector."""
    asked = policies.get(policy).answers
    return {} if asked is None else asked().reference(options)


ENGINE = EngineKind(
    name="reference",
    summary="the executable reference of a policy in this package",
    levels=("manager", "scheduler"),
    open=open_engine,
    options={
        "mutant": "a seeded fault (see `ls mutants`)",
        "release": "the release of the policy's system whose rules apply",
    },
    policies=None,
    replays=False,
    is_reference=True,
    answers=answer_vectors,
)
