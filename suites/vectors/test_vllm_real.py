"""A real vLLM answers vLLM's vectors as the reference does: look-ups, masks, splits, sizes by its
own classes, and traces.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import pytest

from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.source import load
from cachewitness.vectors.consume import consume
from cachewitness_reference.vllm.spec import NEWEST
from suites.support.published_vectors import files
from suites.support.real_vllm import REAL, SOURCE

ASKED_MIN = {"sizing": 30, "lookup": 70, "retention": 60, "split": 60, "lifecycle": 70}

pytestmark = REAL


@pytest.mark.parametrize("kind", ASKED_MIN)
def test_the_newest_release_answers_as_the_reference_does(kind: str) -> None:
    release = load(SOURCE).release
    if release is None or "{}.{}".format(*release) != NEWEST:
        pytest.skip(f"the vectors are those of {NEWEST}")
    came = consume(files()["vllm", kind], parse(f"vllm:source={SOURCE}"))
    assert came.failures == [] and came.unknown == []
    assert came.passed.total() == came.asked.total() >= ASKED_MIN[kind]


def test_a_fault_patched_into_it_fails() -> None:
    """The answers are vLLM's own: what is patched there shows in them."""
    for mutant, kind in (
        ("window-looked-up-short", "lookup"),
        ("denser-than-interval", "retention"),
    ):
        assert consume(
            files()["vllm", kind], parse(f"vllm:source={SOURCE},mutant={mutant}")
        ).failures
