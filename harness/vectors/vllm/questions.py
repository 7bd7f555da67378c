"""What vLLM is asked, and who answers."""

from __future__ import annotations

from collections.abc import Mapping

from harness.engines.registry import Answer, kinds
from harness.vectors.case import Questions
from harness.vectors.vllm import lifecycle, lookup, retention, sizing, split
from harness.vectors.vllm.answers import answers
from harness.vectors.vllm.flags import FLAGS


def _reference(options: Mapping[str, str]) -> Mapping[str, Answer]:
    return answers(kinds()["reference"].open, options)


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
)
