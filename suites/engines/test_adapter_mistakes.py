"""What an adapter shows that cannot be is one line that names the adapter's call, not the field of
an event that its author never wrote; and what is keyed and given back in one `settle` was keyed
first.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli.options import configurations_of
from cachewitness.core.driving import drive
from cachewitness.core.events import Acquire, Publish, Release
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Finish, Step, Submit, Trace, TraceHeader
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness.engines.registry import EngineSpec
from cachewitness.workloads.layouts import load

SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "samples"
TRACE = Trace(
    TraceHeader("served", load("full"), pages=8),
    [Submit("a", "doc:20"), Step(run=[("a", 20)]), Finish("a")],
)


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("paged_adapter", SAMPLES / "paged_adapter.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "paged_adapter", module)
    spec.loader.exec_module(module)
    return module


Mistake = Callable[[Any, Any], Any]
MISTAKES: dict[str, tuple[str, Mistake, str]] = {
    "rows": (
        "tables",
        lambda adapter, r: [[0], [0]],
        "tables('a') has 2 rows; the header declares 1 groups",
    ),
    "page of a table": (
        "tables",
        lambda adapter, r: [[99]],
        "tables('a') has page 99 for group 0; pool 0 has pages 0 to 7",
    ),
    "page of a key": (
        "keys",
        lambda adapter, _: {(0, 8, "k"): Claim(16, "a")} if adapter.admitted else {},
        "keys() has a key of page 8 in group 0; pool 0 has pages 0 to 7",
    ),
    "group of a key": (
        "keys",
        lambda adapter, _: {(3, 1, "k"): Claim(16, "a")} if adapter.admitted else {},
        "keys() has a key of group 3; the header declares groups 0 to 0",
    ),
    "nobody's key": (
        "keys",
        lambda adapter, _: {(0, 1, "k"): Claim(16)} if adapter.admitted else {},
        "name the request by settle(served=r), or in Claim(length, r)",
    ),
    "pool": (
        "counts",
        lambda adapter, _: {5: Count(8, 0, 0)},
        "counts() has pool 5; the header declares [0]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_words_of_the_adapter(
    name: str, paged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, shows, message = MISTAKES[name]
    monkeypatch.setattr(paged.PagedAdapter, method, lambda self, r="": shows(self, r))
    with pytest.raises(BadEvents) as refused:
        drive(TRACE, EngineSpec(paged.ENGINE, {}, "paged").open(TRACE.header))
    assert message in str(refused.value) and "$." not in str(refused.value)
    assert "operation " in str(refused.value)


class OneRequest:
    """A cache of one request: its table, and its keys."""

    def __init__(self) -> None:
        self.rows: Tables = []
        self.named: dict[KeyId, Claim] = {}

    def tables(self, r: str) -> Tables:
        return self.rows

    def keys(self) -> dict[KeyId, Claim]:
        return dict(self.named)

    def counts(self) -> dict[int, Count]:
        return {}

    def references(self, pool: int, page: int) -> None:
        return None


def test_what_is_keyed_and_given_back_is_keyed_first() -> None:
    """The other way round, the page would have no content when its key begins; a page that stays
    is keyed last.
    """
    cache = OneRequest()
    diff = BlockTableDiff(cache, [0], {0: []})
    cache.rows = [[3, 4]]
    diff.settle(["a"])
    diff.events.clear()
    cache.rows = [[-1, 4]]
    cache.named = {(0, 3, "k"): Claim(16), (0, 4, "l"): Claim(32)}
    diff.settle(["a"], served="a")
    assert [(type(event), getattr(event, "page", -1)) for event in diff.events] == [
        (Publish, 3),
        (Release, -1),
        (Publish, 4),
    ]


def test_a_page_that_goes_and_comes_in_one_call_is_keyed_when_it_is_there() -> None:
    cache = OneRequest()
    diff = BlockTableDiff(cache, [0], {0: []})
    cache.rows = [[3]]
    diff.settle(["a"])
    diff.events.clear()
    cache.rows = [[-1, 3]]
    cache.named = {(0, 3, "k"): Claim(32)}
    diff.settle(["a"], served="a")
    assert [type(event) for event in diff.events] == [Release, Acquire, Publish]


def test_named_layouts_alone_are_refused_in_the_engines_words(paged: Any) -> None:
    """The engine says itself what it does not take of what the user names."""
    spec = EngineSpec(paged.ENGINE, {}, "paged")
    named = configurations_of("vllm", ["full-mamba"], (), None, spec).configurations
    assert named and all(one.layout.name == "full-mamba" for one in named)
