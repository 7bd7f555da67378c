"""The benchmark of long sequences measures what it says: every policy works, phases do not count
twice, growth is told.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import length_judged, long_sequence
from benchmarks.long_sequence import PHASES, section, table
from benchmarks.long_sequence_subjects import SUBJECTS
from benchmarks.long_sequence_watch import Watch
from benchmarks.sections import headed, placed

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_a_policy_serves_a_sequence_in_every_phase(name: str) -> None:
    """The second request is found in the cache (the subject asserts it), and each phase was
    timed.
    """
    watch = Watch()
    SUBJECTS[name](5000).serve(range(5000), watch)
    assert set(watch.seconds) == set(PHASES)


def test_every_policy_is_measured() -> None:
    """Each package of `reference_impl` that is a system's policy has a subject."""
    packages = {
        path.parent.name
        for path in (ROOT / "reference_impl" / "cachewitness_reference").glob("*/spec.py")
    } - {"vllm_extended"}
    assert packages == set(SUBJECTS)


def test_a_phase_within_another_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds, four of them inside."""
    clock = iter([0.0, 3.0, 7.0, 10.0])
    monkeypatch.setattr(importlib.import_module("time"), "process_time", lambda: next(clock))
    watch = Watch()
    with watch.phase("outer"), watch.phase("inner"):
        pass
    assert watch.seconds == {"inner": 4.0, "outer": 6.0}


@pytest.mark.parametrize(
    ("power", "grown"),
    [(1, []), (2, ["slow, allocate: 10.0 times the time per token at 10,000 tokens"])],
)
def test_what_grows_faster_than_the_sequence_is_told(
    power: int, grown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that takes n seconds a million tokens, and one that takes n squared."""

    def measured(name: str, length: int, repeats: int) -> dict[str, Any]:
        return {"allocate": (length / 1000) ** power}

    monkeypatch.setattr(long_sequence, "measure", measured)
    rows, problems = table(["slow"], [1000, 10_000])
    assert problems == grown
    assert rows[1] == [
        "slow",
        "allocate",
        "1000.00",
        f"{1000 * 10 ** (power - 1):.2f}",
        f"{10 ** (power - 1):.2f}",
    ]


def test_a_section_takes_the_place_of_the_one_before() -> None:
    """Written once or twice, before other sections or after them."""
    text = section([["policy"], ["row"]])
    title = text.splitlines()[0]
    once = placed("# Speed\n\nIntro.\n", text)
    assert once.startswith("# Speed\n\nIntro.\n\n" + title) and placed(once, text).count(title) == 1
    moved = placed(once + "\n## Run it\n\nSo.\n", text.replace("row", "other"))
    assert (
        "| row |" not in moved and moved.count(title) == 1 and moved.endswith("## Run it\n\nSo.\n")
    )


def test_a_new_head_leaves_the_sections_of_others() -> None:
    """The page of speed has sections of several benchmarks; writing the head replaces its own
    sections alone.
    """
    page = "# Speed\n\nOld.\n\n## Mine\n\nOld.\n\n## Another\n\nKept.\n"
    assert (
        headed(page, "# Speed\n\nNew.\n\n## Mine\n\nNew.\n")
        == "# Speed\n\nNew.\n\n## Mine\n\nNew.\n\n## Another\n\nKept.\n"
    )


def test_what_judging_costs_is_measured_on_requests_that_are_served() -> None:
    """Each row has a time for each length, and what grows faster than the sequence is told."""
    (head, *rows), _ = length_judged.table([300, 3000])
    assert (
        head == ["", "300", "3,000"] and [row[0].partition(",")[0] for row in rows][-1] == "the end"
    )
    assert all(float(cell) > 0 for row in rows for cell in row[1:3])


def test_a_prompt_whose_cost_grows_with_its_square_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long, and a hundred times the time for its end."""
    monkeypatch.setattr(
        length_judged,
        "measure",
        lambda length: length_judged.Cost(length * 1e-6, 1e-4, 1e-4, length**2 * 1e-9),
    )
    _, grown = length_judged.table([1000, 10_000])
    assert grown == ["end: 10.0 times the time for a token at 10,000 tokens"]
