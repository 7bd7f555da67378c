"""The engine `toy`: what it computes over pages is what the dense model computes, whenever the
policy is right.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import (
    Acquire,
    Compare,
    Group,
    Header,
    Pool,
    Publish,
    Release,
    Submitted,
    Unpublish,
)
from cachewitness.core.result import Result
from cachewitness.core.trace_format import GroupSpec, Layout, Media, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.toy.holdings import Holdings
from cachewitness.toy.model import made_for
from cachewitness.toy.noise import FLOAT64_TOLERANCE, floors
from cachewitness.toy.oracle import Oracle
from cachewitness.toy.spelling import Spelling
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.sampled import chosen
from suites.support.toy_runs import DENSE, measured_in, story

pytestmark = pytest.mark.toy

CONFIGURATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("full", {}, "exact-replay"),
    ("full-swa-unequal", DENSE, "siblings-in-a-block"),
    ("full-swa-mamba", DENSE, "preempt-and-resume"),
    ("full-mamba", {"retention_interval": 0, "hash_block_size": 4}, "exact-replay"),
    ("full-mamba", {"retention_interval": 64, "pages_per_snapshot": 3}, "multi-turn"),
    ("full-mamba", {"retention_interval": 64, "pages_per_snapshot": 3}, "exact-replay"),
    ("full-swa-mamba", DENSE | {"num_speculative_tokens": 4}, "generated-and-shared"),
    ("full-swa-mamba", DENSE | {"async_depth": 1}, "siblings-at-a-block"),
    (
        "full-mamba",
        {"retention_interval": 0, "hash_block_size": 4, "async_depth": 1},
        "preempt-and-resume",
    ),
    ("full-swa-mamba", DENSE | {"tier_pages": 40}, "second-tier"),
]


def run(trace: Trace, engine: str = "toy") -> Result:
    return drive(trace, parse(engine).open(trace.header))


LONG = [CONFIGURATIONS[4], CONFIGURATIONS[7]]
"""Of the two with snapshots of several pages, and of the two with steps in flight, the longer one.
"""
TAKEN = [one for one in CONFIGURATIONS if one not in LONG]


@pytest.mark.parametrize(
    ("layout", "options", "name"),
    chosen(CONFIGURATIONS, *TAKEN),
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_logits_over_pages_are_those_of_a_cold_run_also_after_hits(
    layout: str, options: dict[str, Any], name: str
) -> None:
    result = run(story(layout, options, name))
    assert result.outcome == "pass", result.findings[:1]
    numbers = measured_in(result)
    assert numbers.beyond == 0 and numbers.largest <= numbers.tolerance == FLOAT64_TOLERANCE
    assert 0 < numbers.floor < FLOAT64_TOLERANCE
    assert numbers.restored_rows > 0 and numbers.restored > 0


@pytest.mark.parametrize("precision", ["float32", "bf16-state", "bfloat16"])
def test_other_precisions_pass_within_a_multiple_of_their_own_noise(precision: str) -> None:
    result = run(story("full-swa-mamba", DENSE, "exact-replay"), f"toy:dtype={precision}")
    numbers = measured_in(result)
    assert result.outcome == "pass", (numbers, result.findings[:1])
    assert numbers.tolerance == pytest.approx(4 * numbers.floor)
    assert numbers.floor > 1e-9


@pytest.mark.parametrize(
    ("fault", "outcome"), [("conv-state-lost", "fail"), ("state-restored-in-bf16", "pass")]
)
def test_bfloat16_finds_gross_faults_and_no_rounding(fault: str, outcome: str) -> None:
    assert (
        run(
            story("full-swa-mamba", DENSE, "preempt-and-resume"),
            f"toy:dtype=bfloat16,mutant={fault}",
        ).outcome
        == outcome
    )


def test_rows_that_only_fill_a_batch_change_nothing() -> None:
    trace = random_trace(
        Configuration(layouts.load("full-swa-mamba"), DENSE).shape("scheduler"), 3, withdraw=False
    )
    assert run(trace, "toy:pad_rows=1").outcome == run(trace, "toy").outcome == "pass"


def test_every_run_of_a_step_is_compared() -> None:
    """One comparison for each request that ran, of all tokens that it computed; none for others."""
    history = run(story("full", {}, "exact-replay")).history
    begun = [
        (e.step, run.r, run.start, run.stop)
        for e in history.events
        if hasattr(e, "runs")
        for run in e.runs
    ]
    compared = [(e.step, e.r, e.start, e.stop) for e in history.events if isinstance(e, Compare)]
    assert begun and begun == compared


def test_engine_says_the_same_events_as_the_reference() -> None:
    """The device adds comparisons and takes nothing away, so what the ledger judges is the
    reference's own behaviour.
    """
    trace = story("full-mamba", DENSE, "preempt-and-resume")
    ours = [(type(e), e.step) for e in run(trace).history.events if not isinstance(e, Compare)]
    assert ours == [(type(e), e.step) for e in run(trace, "reference").history.events]


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (
            "toy:dtype=float16",
            "dtype 'float16' is unknown; known are float64, float32, bf16-state, bfloat16",
        ),
        ("toy:device=tpu", "device 'tpu' is unknown"),
        ("toy:seed=x", "seed 'x' is not a whole number"),
        ("toy:pad_rows=0", "pad_rows '0' is not a whole number, at least 1"),
        ("toy:batch=4", "batch is for prompts"),
        ("toy:kernels=cuda", "kernels 'cuda' are unknown; known are torch, triton"),
        ("toy:checkpoint=nowhere", "nowhere"),
        ("toy:mutant=no-such", "no mutant is called 'no-such'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(engine: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        parse(engine).open(story("full", {}, "exact-replay").header)
    assert "\n" not in str(raised.value)


def test_windows_of_two_sizes_and_chunked_groups_are_refused() -> None:
    for groups, says in (
        ([Group(0, "sliding", 4, window=8), Group(1, "sliding", 4, window=16)], "one window"),
        ([Group(0, "chunked", 4, chunk=8)], "no layers for a chunked group"),
    ):
        with pytest.raises(UsageError, match=says):
            made_for(groups, seed=0, precision="float64", device="cpu")


def test_gpu_asked_for_and_absent_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        parse("toy:device=cuda").open(story("full", {}, "exact-replay").header)


def test_comparison_ends_at_the_first_draft_that_the_request_does_not_go_on_with() -> None:
    model = made_for([Group(0, "full", 4)], seed=0, precision="float64", device="cpu")
    oracle = Oracle(model, lambda r, n: [i % 7 for i in range(n)])
    oracle.prepare([("r", 6)], 0)
    cold = oracle._cold["r", 0][3:6]
    event = oracle.compare("r", 3, [3, 4, 99], cold, 0, step=1)
    assert (event.start, event.stop, event.beyond) == (3, 5, 0)
    assert oracle.compare("r", 3, [3, 4, 5], cold + 1e-6, 0, step=1).beyond == 3
    poisoned = oracle.compare("r", 3, [3, 4, 5], cold * float("nan"), 0, step=1)
    assert (poisoned.beyond, poisoned.nan, poisoned.infinite, poisoned.chose) == (3, 3, 0, -1)
    overflown = oracle.compare("r", 3, [3, 4, 5], cold / 0.0, 0, step=1)
    assert (overflown.beyond, overflown.nan, overflown.infinite) == (3, 0, 3)


def test_noise_is_measured_once_for_each_model() -> None:
    model = made_for([Group(0, "full", 4)], seed=5, precision="float32", device="cpu")
    assert floors(model) is floors(model)
    assert floors(model).logits.floor > 0


def test_identity_that_changes_results_changes_the_tokens_and_a_salt_does_not() -> None:
    spelling = Spelling(1009)
    symbols = list(range(65536, 65556))
    for r, extra in {"plain": {}, "salted": {"salt": "x"}, "tuned": {"adapter": "a"}}.items():
        spelling.submitted(Submitted(r=r, tokens=symbols, **extra))
    spelling.submitted(Submitted(r="seen", tokens=symbols, media=[Media(5, 3, "cat")]))
    plain = spelling.spell("plain", symbols)
    assert spelling.spell("salted", symbols) == plain
    assert all(a != b for a, b in zip(spelling.spell("tuned", symbols), plain, strict=True))
    seen = spelling.spell("seen", symbols)
    assert [i for i in range(20) if seen[i] != plain[i]] == [5, 6, 7]
    assert spelling.spell("plain", [*symbols[:4], 1]) != plain[:5]


def test_page_is_free_when_nobody_holds_it_and_no_key_names_it() -> None:
    holdings = Holdings(Header("e", "scheduler", [Pool(0, 9, [0])], [Group(0, "full", 4)]))

    def freed(*events: Any) -> list[tuple[int, int]]:
        for event in events:
            holdings.follow(event)
        pages, holdings.freed = holdings.freed, []
        return pages

    take = Acquire(pool=0, group=0, pages=[3], holder="a")
    drop = Release(pool=0, group=0, pages=[3], holder="a")
    assert freed(take, take, drop) == [] and freed(drop) == [(0, 3)]
    key = Publish(group=0, page=3, r="a", length=4, extra_pages=[5])
    assert freed(take, key, drop) == []
    assert freed(Unpublish(group=0, page=3, length=8)) == []
    assert freed(Unpublish(group=0, page=3, length=4)) == [(0, 3), (0, 5)]


def test_model_gets_a_second_attention_layer_where_none_stands_before_it() -> None:
    layout = Layout("l", [GroupSpec("full", 4), GroupSpec("sliding", 4, window=8)])
    engine = parse("toy").open(TraceHeader(name="t", layout=layout, pages=20, level="scheduler"))
    types = engine.tensors.model.config.layer_types  # type: ignore[attr-defined]
    assert types == ("sliding_attention", "full_attention", "sliding_attention")
