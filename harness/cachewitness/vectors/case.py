"""A question of a vector, before the reference has answered it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.kind import Answer, CannotAsk, Derived
from cachewitness.vectors.form import Flag, Kind


@dataclass(frozen=True)
class Case:
    """One question.

    `refused` are the names of the field, in one string, one of which the refusal of an invalid
    input has; `words` are the system's own text of it. `acceptable`: another answer may be right as
    well, for the reason that the comment gives; `legal` are the lengths at which the safety law
    lets an engine resume, of a look-up.
    """

    id: str
    comment: str
    flags: Sequence[str]
    input: Any
    refused: str = ""
    words: str = ""
    acceptable: bool = False
    legal: Sequence[int] = field(default=())


def case(kind: Kind, name: str, comment: str, flags: str, asked: Any, **more: Any) -> Case:
    """Return a question of a kind; its flags are named in one string, `more` are further fields
    of `Case`.
    """
    return Case(f"{kind}/{name}", comment, flags.split(), asked, **more)


@dataclass(frozen=True)
class Questions:
    """What a policy is asked: the cases of each kind, and what the flags mean. It is registered by
    the policy's name, under the entry-point group `cachewitness.questions`.
    """

    cases: Mapping[Kind, Callable[[], list[Case]]]
    flags: Mapping[str, Flag]


@dataclass(frozen=True)
class PolicyAnswers:
    """Who answers the questions about a policy: a function from input to answer, by kind of
    question. Lifecycles need none: a trace is run on the engine.
    """

    reference: Callable[[Mapping[str, str]], Mapping[str, Answer]]
    """Given the options of the engine `reference`: how the policy's reference answers."""
    of_shape: Callable[[Callable[[TraceHeader], Engine]], Mapping[str, Answer]] | None = None
    """Given how an engine of the policy's shape is opened for a trace: how that engine answers."""
    derived: Callable[[Derived], Mapping[str, Answer]] | None = None
    """Given what an engine makes of a configuration: how that engine answers."""


def rules_alone(
    answers: Mapping[str, Answer], options: Mapping[str, str], by_release: Sequence[str] = ()
) -> Mapping[str, Answer]:
    """Return the answers of a reference's rules; with a seeded fault, which is planted into an
    engine, they cannot be asked.

    A question of a kind in `by_release` that names no release is one about the release in
    `options`, if that names one. Other kinds are answered alike by all releases.
    """

    def cannot(question: Any) -> Any:
        raise CannotAsk("faults are planted into an engine that runs traces, not into a rule")

    if "mutant" in options:
        return dict.fromkeys(answers, cannot)
    if not (release := options.get("release")):
        return answers
    return {
        kind: _of_release(answer, release) if kind in by_release else answer
        for kind, answer in answers.items()
    }


def _of_release(answer: Answer, release: str) -> Answer:
    def answered(question: Any) -> Any:
        return answer(
            msgspec.structs.replace(question, config={"release": release, **question.config})
        )

    return answered
