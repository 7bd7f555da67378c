"""The best tokens of a position are read in each form that servers send, and compared."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.parity.likelihood.steps import Step, answered, change, cost

VLLM = {
    "choices": [
        {
            "logprobs": {
                "tokens": ["token_id:7"],
                "token_logprobs": [-0.5],
                "top_logprobs": [{"token_id:7": -0.5, "token_id:9": -1.5}],
            }
        }
    ],
    "usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 32}},
}
LLAMA = {
    "choices": [
        {
            "logprobs": {
                "content": [
                    {
                        "id": 7,
                        "logprob": -0.5,
                        "top_logprobs": [{"id": 7, "logprob": -0.5}, {"id": 9, "logprob": -1.5}],
                    }
                ]
            }
        }
    ],
    "timings": {"cache_n": 32},
}


def step(**best: float) -> Step:
    named = {int(name[1:]): math.log(chance) for name, chance in best.items()}
    return Step(max(named, key=named.__getitem__), named)


@pytest.mark.parametrize("body", [VLLM, LLAMA])
def test_both_forms_say_the_same(body: Any) -> None:
    found = answered(body)
    assert found.steps == [Step(7, {7: -0.5, 9: -1.5})] and found.restored == 32


def test_a_count_that_is_left_out_is_none_or_nothing() -> None:
    body = {**VLLM, "usage": {"prompt_tokens": 40}}
    assert answered(body).restored == -1
    assert answered(body, zero_left_out=True).restored == 0


@pytest.mark.parametrize(
    ("logprobs", "why"),
    [
        (None, "sends no `logprobs`"),
        (
            {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}]},
            "by their text",
        ),
        ({"tokens": ["token_id:7"], "token_logprobs": [], "top_logprobs": []}, "1 tokens, 0 log"),
        (
            {"tokens": ["token_id:7"], "token_logprobs": [1000.0], "top_logprobs": [{}]},
            "beyond 1, 1000 as logarithm",
        ),
        (
            {
                "tokens": ["token_id:7"],
                "token_logprobs": [-0.1],
                "top_logprobs": [{"token_id:8": -0.1}],
            },
            "probability of 1.81 together",
        ),
        (
            {"tokens": ["token_id:7"], "token_logprobs": [-700.0], "top_logprobs": [{}]},
            "probability of 9.86e-305 together",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(logprobs: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        answered({"choices": [{"logprobs": logprobs}]})


def test_what_is_no_completion_is_refused() -> None:
    for body in (None, {"choices": 3}, {"choices": []}):
        with pytest.raises(UsageError, match="the server answers"):
            answered(body)


def test_equal_lists_lie_nowhere_apart() -> None:
    one = step(t1=0.6, t2=0.3)
    assert change(one, one) == 0 and cost(one, one) == pytest.approx(0, abs=1e-12)


def test_a_change_is_the_mean_over_the_best_tokens() -> None:
    assert change(step(t1=0.6, t2=0.3), step(t1=0.3, t2=0.6)) == pytest.approx(math.log(2))


def test_a_cost_is_the_divergence_of_what_is_named_and_of_the_rest() -> None:
    cold = step(t1=0.5, t2=0.3)
    other = step(t1=0.25, t2=0.3)
    assert cost(cold, other) == pytest.approx(0.5 * math.log(2) + 0.2 * math.log(0.2 / 0.45))


def test_a_token_that_is_not_named_counts_as_the_last_that_is() -> None:
    """Lists without a token in common are far apart, not equal."""
    cold = step(t1=0.9, t2=0.05)
    other = step(t3=0.9, t4=0.01)
    assert change(cold, other) == pytest.approx((math.log(90) + math.log(5)) / 2)
    assert cost(cold, other) > 3


@pytest.mark.parametrize("value", [None, math.nan, -math.inf])
def test_a_token_without_a_finite_logarithm_names_no_best_ones(value: float | None) -> None:
    logprobs = {
        "tokens": ["token_id:7"],
        "token_logprobs": [value],
        "top_logprobs": [{"token_id:8": -0.1}],
    }
    assert answered({"choices": [{"logprobs": logprobs}]}).steps == [Step(7, {})]
