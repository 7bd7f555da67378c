"""Seeded faults fail the score gate, each in the arm that reads what it spoils, with the trained
model, by the command itself.

Sixteen questions are enough: without a cache the toy answers the same twice, so a single answer
that goes another way is a failure. Faults that cost no answer (a leak, a hit that is missed, keys
of images) are for other detectors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.score, pytest.mark.toy]
pytest.importorskip("lm_eval", reason="lm-eval is missing: pip install 'cachewitness[score]'")
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")

from cachewitness.cli import invoke
from suites.support.sampled import chosen, fewer

LIMIT = 24
OF_A_RIGHT_ONE = fewer(24, 16)
FAILS = {
    "window-looked-up-short": "hit",
    "conv-state-lost": "replay",
    "memory-restored-without-a-head": "hit",
    "layers-exchanged-at-a-hit": "hit",
    "oldest-block-of-window-lost": "replay",
    "same-step-state-hit": "replay",
    "hit-is-maximum-over-groups": "replay",
    "stale-table-rows": "preempted",
    "device-rows-grow": "preempted",
    "device-skips-copies": "tier",
    "stored-before-the-step": "tier",
    "state-after-last-draft": "drafts",
    "key-kept-after-eviction": "scarce",
}
TAKEN = [
    (fault, FAILS[fault])
    for fault in (
        "memory-restored-without-a-head",
        "oldest-block-of-window-lost",
        "device-rows-grow",
    )
]
"""A fault of the recurrent memory, of the window and of the tables."""
DIES = ("null-block-published",)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def score(
    capsys: pytest.CaptureFixture[str], engine: str, arms: str, limit: int = LIMIT
) -> tuple[int, dict[str, Any], str]:
    code = invoke(
        [
            "score",
            "--engine",
            engine,
            "--limit",
            str(limit),
            "--arms",
            f"off,off-again,{arms}",
            "--json",
        ]
    )
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else {}, captured.err


def test_engine_without_a_fault_passes_every_arm(capsys: pytest.CaptureFixture[str]) -> None:
    """The positive control: in each arm the mechanism happened, every token is the same, and the
    model answers right.
    """
    arms = dict.fromkeys(["miss", *chosen([*FAILS.values()], "hit", "replay", "tier", "preempted")])
    code, whole, _ = score(capsys, "toy", ",".join(arms), OF_A_RIGHT_ONE)
    verdicts = {arm["arm"]: arm["verdict"] for arm in whole["judged"]}
    assert code == 0 and verdicts == dict.fromkeys(arms, "pass"), whole["judged"]
    assert whole["noise"]["tokens"] == 0
    assert all(arm["right_cold"] >= 0.9 * OF_A_RIGHT_ONE for arm in whole["judged"])


@pytest.mark.parametrize(("fault", "arm"), chosen([*FAILS.items()], *TAKEN))
def test_fault_fails_the_gate(fault: str, arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, whole, err = score(capsys, f"toy:mutant={fault}", arm)
    assert code == 1, (whole.get("judged"), err)
    assert [entry["verdict"] for entry in whole["judged"]] == ["fail"]


def test_a_tier_that_gives_nothing_is_nothing_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """Every answer of `load-forgotten` is wrong, but what was to be compared did not happen:
    exit code 5, not a failure.
    """
    code, whole, _ = score(capsys, "toy:mutant=load-forgotten", "tier", fewer(16, 8))
    assert code == 5 and whole["judged"][0]["reasons"] == [
        "the second tier gave 0.0% of the prompts, less than 50%"
    ]


@pytest.mark.parametrize("fault", DIES)
def test_engine_that_dies_of_its_fault_is_unknown_not_failed(
    fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy's own assertions, or a stall, stop it; nothing was answered that could be
    compared. The exit code is 2.
    """
    code, _, err = score(capsys, f"toy:mutant={fault}", "replay")
    assert code == 2 and len(err.strip().splitlines()) == 1 and "is kept in" in err
