"""What vLLM is asked, by kind of question."""

from __future__ import annotations

from cachewitness.vectors.case import Questions
from cachewitness_faults.vllm.reference.vectors import cases
from cachewitness_faults.vllm.reference.vectors.lookup_cases import lookup_cases

QUESTIONS = Questions(
    cases={
        "sizing": cases.sizing_cases,
        "lookup": lookup_cases,
        "retention": cases.retention_cases,
        "split": cases.split_cases,
        "lifecycle": cases.lifecycle_cases,
    },
    flags=cases.FLAGS,
)
