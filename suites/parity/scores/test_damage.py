"""Damaged caches, measured: no damage is no difference, each kind of cache has its group of
questions, and nothing lingers.

The same measurement over all damages and more questions is `docs/results/sensitivity.md`.
"""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = [pytest.mark.score, pytest.mark.toy]
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")
if importlib.util.find_spec("benchmarks") is None:
    pytest.skip("benchmarks are not installed: run from a checkout", allow_module_level=True)

from benchmarks.damages import DAMAGES
from benchmarks.sensitivity import Bench
from benchmarks.sensitivity_result import CONDITIONS
from suites.support.sampled import chosen, fewer

QUESTIONS = fewer(48, 24)
BY_NAME = {damage.name: damage for damage in DAMAGES}
NAMED = {
    "all full-attention blocks of another tenant": ("hit", "full"),
    "memory and convolution's state one block stale": ("replay", "recurrent"),
    "recurrent memory zeroed in the first layer alone": ("hit", "recurrent"),
    "recurrent memory zeroed in the last layer alone": ("hit", "recurrent"),
    "recurrent memory zeroed in one head of each layer": ("hit", "recurrent"),
    "recurrent memories of two layers exchanged": ("hit", "recurrent"),
    "window of another tenant": ("hit", "window"),
}
TAKEN = [
    (name, NAMED[name])
    for name in (*NAMED,)
    if name.startswith(("all full", "memory and", "window"))
]
"""One for each group of questions, and one for each condition."""


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(None, QUESTIONS, "cpu")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_cache_without_damage_changes_no_answer_and_no_logit(
    bench: Bench, condition: str
) -> None:
    """The positive control: every answer, and every logit within the tolerance."""
    found = bench.measure(None, condition)
    assert found.judged.verdict == "pass" and found.changed == 0
    assert found.distance.largest <= bench.noise.tolerance and found.distance.rows > 12 * QUESTIONS


@pytest.mark.parametrize(("name", "where"), chosen([*NAMED.items()], *TAKEN))
def test_damage_fails_the_gate_and_its_group_of_questions_is_a_suspect(
    bench: Bench, name: str, where: tuple[str, str]
) -> None:
    condition, group = where
    found = bench.measure(BY_NAME[name], condition)
    assert found.judged.verdict == "fail" and found.blind.verdict != "pass"
    assert group in found.judged.suspects, found.judged.groups
    assert found.distance.largest > bench.noise.tolerance


def test_exchanged_blocks_of_full_attention_are_seen_by_no_number(bench: Bench) -> None:
    """Keys carry their positions, so the sum is the same in another order; only the ledger can
    tell.
    """
    damage = BY_NAME["two full-attention blocks exchanged"]
    found = bench.measure(damage, "hit")
    assert damage.ledger and found.changed == 0 and found.distance.largest <= bench.noise.tolerance


def test_memory_with_fewer_bits_is_seen_by_tensors_alone(bench: Bench) -> None:
    damage = BY_NAME["recurrent memory stored in float16"]
    found = bench.measure(damage, "replay")
    assert (
        not damage.ledger
        and found.judged.verdict == "pass"
        and found.distance.largest > bench.noise.tolerance
    )


def test_damage_is_gone_when_the_next_one_is_measured(bench: Bench) -> None:
    """What is measured does not depend on what was measured before, to the last bit."""
    before = bench.measure(None, "hit").distance
    bench.measure(BY_NAME["whole prefix of another tenant"], "hit")
    assert bench.measure(None, "hit").distance == before


def test_every_damage_is_told_once() -> None:
    assert len(BY_NAME) == len(DAMAGES)
