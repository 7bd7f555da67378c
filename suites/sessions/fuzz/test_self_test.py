"""The self-test is reported wherever it is planted, and a harness that no longer sees it says that
it is blind.
"""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_INTERNAL, EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.core.trace_format import Level
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import Mutant
from cachewitness.sessions.fuzz import self_test
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.self_test import (
    CANARIES,
    OPERATIONS_MAX,
    SOUGHT,
    planted,
    run_self_test,
)
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads import layouts
from suites.support.sampled import fewer

SEEDS = fewer(12, 5)
BOTH = Plan("vllm", ("manager", "scheduler"), Restriction(), seed=0)


@pytest.mark.parametrize("name", CANARIES)
def test_canary_is_reported_long_before_its_operations_are_spent(name: str) -> None:
    """As the anomaly, and by the checker, that the fault names in advance."""
    self_test = planted(BOTH, name)
    mutant = all_mutants()[name]
    assert (self_test.reported, self_test.anomaly, self_test.checker) == (
        True,
        mutant.anomaly,
        mutant.checker,
    )
    assert self_test.operations < OPERATIONS_MAX // 4


def test_the_seed_chooses_the_canary() -> None:
    """The same seed plants the same fault; some seeds plant another one."""
    names = [
        self_test.mutant
        for seed in range(SEEDS)
        if (self_test := run_self_test(Plan("vllm", BOTH.levels, Restriction(), seed)))
    ]
    assert len(names) == SEEDS and len(set(names)) > 2
    assert run_self_test(BOTH) == run_self_test(BOTH)


def test_only_what_the_configurations_express_is_planted() -> None:
    """On full attention alone no fault of a window, of a state or of retention; without a cache
    none at all.
    """
    plain = Restriction([layouts.load("full")], {})
    needing = {
        "null-block-published",
        "window-freed-early",
        "denser-than-interval",
        "hit-is-maximum-over-groups",
    }
    for seed in range(4):
        self_test = run_self_test(Plan("vllm", ("manager",), plain, seed))
        assert self_test is not None and self_test.reported and self_test.mutant not in needing
    uncached = Restriction([layouts.load("full")], {"enable_caching": False})
    assert run_self_test(Plan("vllm", ("manager",), uncached, seed=0)) is None


@pytest.mark.parametrize(
    ("layout", "levels", "fault"),
    [
        ("full", ("manager", "scheduler"), "freed-while-in-flight"),
        ("full-mamba", ("manager", "scheduler"), "replay-boundary-masked"),
        ("gemma-3-27b", ("manager",), "window-freed-early"),
    ],
)
def test_a_fault_that_changes_nothing_is_not_chosen(
    layout: str, levels: tuple[Level, ...], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that the kinds of groups allow and these lengths never show; planted, it would be
    missed on a sound harness.
    """
    monkeypatch.setattr(self_test, "CANARIES", {fault: CANARIES[fault]})
    assert (
        run_self_test(Plan("vllm", levels, Restriction([layouts.load(layout)], {}), seed=0)) is None
    )


def test_a_blind_harness_fails_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If nobody recognises the planted fault, no pass is printed: exit 3, and the reason."""
    monkeypatch.setattr(Mutant, "names", lambda mutant, finding: False)
    monkeypatch.setattr(self_test, "OPERATIONS_MAX", 300)
    code = invoke(["fuzz", "--operations", "300"])
    output = capsys.readouterr().out
    assert code == EXIT_INTERNAL
    assert "NOT reported" in output and "the harness is blind" in output


def test_a_blind_search_fails_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault of an exhaustive search is reported; if nobody recognises it, the search cannot
    be complete: exit 3.
    """
    words = ["fuzz", "--exhaustive", "--bound", "requests=1,blocks=1,pages=4"]
    assert invoke(words) == EXIT_PASS
    assert (
        f"self-test: {SOUGHT}, planted in the reference, was reported as stale-hit"
        in capsys.readouterr().out
    )
    monkeypatch.setattr(Mutant, "names", lambda mutant, finding: False)
    assert invoke(words) == EXIT_INTERNAL
    assert "NOT reported" in capsys.readouterr().out


def test_without_a_canary_nothing_was_proved(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no fault can be planted the run says so, and is not a pass."""
    code = invoke(
        ["fuzz", "--layout", "full", "--option", "enable_caching=false", "--operations", "200"]
    )
    assert code == EXIT_NOTHING_CHECKED
    assert "express no fault" in capsys.readouterr().out


def test_a_refused_choice_is_an_error() -> None:
    """What the policy refuses of the user's own choice is not skipped over."""
    with pytest.raises(UsageError):
        Plan(
            "vllm", ("manager",), Restriction([layouts.load("full")], {"retention_interval": 7}), 0
        ).draw(0)
