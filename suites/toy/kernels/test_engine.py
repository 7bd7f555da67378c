"""The engine `toy` with kernels in Triton: clean runs pass, and what it cannot do is refused in
one line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.engines.registry import parse
from suites.support.paged_by_hand import WITHOUT_MAMBA
from suites.support.random_checkpoint import random_checkpoint
from suites.support.sampled import chosen
from suites.support.toy_questions import asks, tokens
from suites.support.toy_runs import DENSE, measured_in, story

pytestmark = pytest.mark.toy


SHORT = [("float64", "abort-and-retry"), ("bf16-state", "siblings-in-one-step")]
CLEAN = [*SHORT, ("float64", "preempt-and-resume"), ("bf16-state", "preempt-and-resume")]


@pytest.mark.parametrize(("precision", "name"), chosen(CLEAN, *SHORT))
def test_clean_run_with_hits_passes(precision: str, name: str) -> None:
    trace = story("full-swa-mamba", DENSE, name)
    result = drive(trace, parse(f"toy:kernels=triton,dtype={precision}").open(trace.header))
    assert result.outcome == "pass", result.findings[:1]
    assert measured_in(result).restored_rows > 0


def test_interpreter_is_no_gpu() -> None:
    from cachewitness.toy.engine import check_kernels
    from suites.support.toy_models import model

    with pytest.raises(UsageError, match="on device cuda: unset TRITON_INTERPRET"):
        check_kernels("triton", "cuda", model("full_attention"))
    with pytest.raises(UsageError, match="none for layers of type mamba2; use kernels=torch"):
        check_kernels("triton", "cpu", model("mamba2"))


def test_answers_are_those_of_plain_kernels(tmp_path: Path) -> None:
    from cachewitness.toy.service import ToyService

    folder = random_checkpoint(tmp_path, layers=WITHOUT_MAMBA)
    answers = []
    for kernels in ("triton", "torch"):
        service = ToyService(folder, pages=600, dtype="float64", kernels=kernels)
        answers.append(tokens(service.answer(asks(max_tokens=2, ends=("the cat ran",)))))
        answers.append(
            tokens(again := service.answer(asks(max_tokens=2, ends=("the", "on on on"))))
        )
        assert all(answer.restored["recurrent"] >= 64 for answer in again)
    assert answers[:2] == answers[2:]
