"""Every trained checkpoint needs each of its caches for the questions that are meant for it, and
for no others.

Without that a score says nothing of the cache that nobody needs. The same over more questions is
`docs/results/sensitivity.md`.
"""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = [pytest.mark.score, pytest.mark.toy]
pytest.importorskip("torch", reason="torch is missing: pip install 'cachewitness[toy]'")
if importlib.util.find_spec("benchmarks") is None:
    pytest.skip("benchmarks are not installed: run from a checkout", allow_module_level=True)

from benchmarks.damages import DAMAGES, WHOLE
from benchmarks.needed import Row, caches, in_transformers, paged, taught
from suites.support.sampled import chosen, fewer

QUESTIONS = fewer(72, 24)
FOLDERS = {folder.name: folder for folder in taught()}
HAS = {
    "toy": {"full", "recurrent", "window"},
    "qwen3_5": {"full", "recurrent"},
    "window": {"full", "window"},
}
KNOWS = 0.95
"""Of 24 questions of a group one may be wrong, of 8 none; over all it is 98 % (`test_trained.py`).
"""


def hold(rows: list[Row], groups: set[str]) -> None:
    """Require that nothing lost costs nothing, and that each loss costs its own group alone."""
    nothing, *losses = rows
    assert {row.cache for row in losses} == groups and len(losses) == 2 * len(groups)
    assert min(nothing.right[group] for group in groups) >= KNOWS, nothing
    assert [row for row in losses if not row.alone(sorted(groups))] == []


@pytest.mark.parametrize("name", chosen(sorted(FOLDERS), "toy"))
def test_each_cache_is_needed_by_its_own_questions_alone_in_the_paged_execution(name: str) -> None:
    assert set(caches(FOLDERS[name])) == HAS[name]
    hold(paged(FOLDERS[name], QUESTIONS), HAS[name])


@pytest.mark.parametrize("name", chosen(["qwen3_5", "window"], "qwen3_5"))
def test_each_cache_is_needed_by_its_own_questions_alone_in_transformers(name: str) -> None:
    hold(in_transformers(FOLDERS[name], QUESTIONS), HAS[name])


def test_a_group_that_does_without_its_cache_or_falls_with_another_is_told() -> None:
    groups = ("full", "recurrent", "window")
    assert Row("", "full", {"full": 0.30, "recurrent": 0.95, "window": 1.0}).alone(groups)
    assert not Row("", "full", {"full": 0.31, "recurrent": 1.0, "window": 1.0}).alone(groups)
    assert not Row("", "full", {"full": 0.0, "recurrent": 0.94, "window": 1.0}).alone(groups)


def test_damages_that_take_a_whole_cache_are_known() -> None:
    assert {name for names in WHOLE.values() for name in names} <= {
        damage.name for damage in DAMAGES
    }
