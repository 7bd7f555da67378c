"""Fills vectors: asks the references every question and writes their answers.

A case that its reference refuses must have been meant to be refused, and the other way round;
anything else is a mistake of the harness's, not of the user's, and stops the filling.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachewitness._util import data, plugins
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import Answer
from cachewitness.engines.registry import kinds
from cachewitness.vectors import store
from cachewitness.vectors.case import Case, Questions
from cachewitness.vectors.form import (
    VECTORS,
    File,
    Kind,
    LifecycleExpected,
    LifecycleInput,
    Refusal,
    Source,
    Vector,
)
from cachewitness.vectors.lifecycle import Recorder

GROUP = "cachewitness.questions"
"""The entry-point group of what policies are asked, by a policy's name."""


def asked_policies() -> list[str]:
    """Return the policies that are asked anything, by name.

    Raises UsageError for a policy that cannot be loaded, EngineMissing if the questions of this
    repository are not installed: a list that left them out would be taken for a whole one.
    """
    if missing := data.faults_missing("--policy: the list of all would not be whole"):
        raise missing
    return _with_questions()


def _with_questions() -> list[str]:
    registered = plugins.registered(GROUP)
    return [name for name in policies.names() if policies.get(name).name in registered]


def questions(policy: str) -> Questions:
    """Return what a policy is asked. Raises UsageError for a policy that there is not, and if it
    has no questions, EngineMissing if they may be in what is not installed.
    """
    entry = plugins.registered(GROUP).get(policies.get(policy).name)
    if entry is None:
        if missing := data.faults_missing(f"--policy: no questions about {policy} are here"):
            raise missing
        raise UsageError(
            f"--policy: there are no vectors of {policy}; there are of"
            f" {', '.join(_with_questions())}"
        )
    found: Questions = entry.load()
    return found


def fill(policy: str) -> Iterator[tuple[Kind, File]]:
    """Yield a policy's files, one for each kind of question that it is asked."""
    asked = questions(policy)
    kind_of_policy = policies.get(policy)
    source = Source(kind_of_policy.source, kind_of_policy.pinned)
    answering = kind_of_policy.answers
    answers: dict[str, Answer] = {} if answering is None else dict(answering().reference({}))
    answers["lifecycle"] = lifecycle
    for kind, cases in asked.cases.items():
        vectors = [answered(kind, case, answers[kind]) for case in cases()]
        yield kind, store.file_of(kind, policy, source, dict(asked.flags), vectors)


def write(policy: str, folder: Path) -> list[tuple[Path, File]]:
    """Write a policy's files below a folder, as `<policy>/<kind>.json`, and return them."""
    written = []
    for kind, file in fill(policy):
        path = folder / policy / f"{kind}.json"
        store.write(file, path)
        written.append((path, file))
    return written


def answered(kind: str, case: Case, answer: Answer) -> Vector:
    """Return the vector of a case."""
    known: dict[str, Any] = {
        "id": case.id,
        "comment": case.comment,
        "flags": list(case.flags),
        "input": case.input,
    }
    try:
        expected = answer(case.input)
    except UsageError as error:
        refusal = Refusal(case.refused.split(), case.words)
        assert case.refused, f"{case.id}: refused, and not meant to be: {error}"
        assert refused_as(refusal, str(error)), f"{case.id}: not refused as {refusal}: {error}"
        return VECTORS[kind](**known, result="invalid", refusal=refusal)
    assert not case.refused, f"{case.id}: answered, and meant to be refused"
    free = isinstance(expected, LifecycleExpected) and expected.free_from is not None
    if case.legal:
        expected = type(expected)(
            **{name: getattr(expected, name) for name in expected.__struct_fields__}
            | {"legal": list(case.legal)}
        )
    return VECTORS[kind](
        **known, result="acceptable" if case.acceptable or free else "valid", expected=expected
    )


def refused_as(refusal: Refusal, message: str) -> bool:
    """Whether a message refuses an input as it should be."""
    return any(name in message for name in refusal.names) and refusal.text in message


def lifecycle(question: LifecycleInput) -> LifecycleExpected:
    """Run a trace on the reference, under every checker, and return what must be equal of it."""
    engine = kinds()["reference"].open(question.header, {})
    recorder = Recorder()
    result = drive(Trace(question.header, question.ops), engine, beside=recorder.see, keep=False)
    assert not result.findings, (
        f"{question.header.name}: the reference breaks a rule: {result.findings[0].sentence}"
    )
    return recorder.expected()
