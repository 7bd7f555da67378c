"""What Furiosa-LLM is asked, by kind of question."""

from __future__ import annotations

from cachewitness.vectors.case import Questions
from cachewitness_faults.furiosa.reference.vectors import cases

QUESTIONS = Questions(
    cases={
        "sizing": cases.sizing_cases,
        "lookup": cases.lookup_cases,
        "retention": cases.retention_cases,
        "lifecycle": cases.lifecycle_cases,
    },
    flags=cases.FLAGS,
)
