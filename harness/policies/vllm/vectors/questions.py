"""What vLLM is asked, and who answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness.engines.kind import Answer
from harness.engines.registry import EngineSpec, kinds
from harness.policies.vllm.vectors import lifecycle, lookup, retention, sizing, split
from harness.policies.vllm.vectors.answers import answers
from harness.policies.vllm.vectors.flags import FLAGS
from harness.vectors.case import Questions


def _reference(options: Mapping[str, str]) -> Mapping[str, Answer]:
    return answers(EngineSpec(kinds()["reference"], dict(options), "reference").open)


QUESTIONS = Questions(
    cases={
        "sizing": sizing.cases,
        "lookup": lookup.cases,
        "retention": retention.cases,
        "split": split.cases,
        "lifecycle": lifecycle.cases,
    },
    flags=FLAGS,
    answers=_reference,
    answers_of=partial(answers, one_release=True),
)
