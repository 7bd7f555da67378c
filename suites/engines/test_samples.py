"""The sample adapters in docs/samples work with `run` and `fuzz`: lawful as they are, and a
fault in either is found.
"""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachewitness.cli.options import configurations_of
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads import layouts
from suites.support.sampled import sampled

SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "samples"
NAMES = ("paged", "radix", "hybrid", "slots")
LINES_MAX = {"paged": 200, "radix": 210, "hybrid": 260, "slots": 220}


@pytest.fixture
def sample(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a sample as a module of its own, so that a fault planted into it is gone with the
    test.
    """
    name = f"{request.param}_adapter"
    spec = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def engine(sample: ModuleType) -> EngineSpec:
    return EngineSpec(sample.ENGINE, {}, sample.ENGINE.name)


def fuzzed(sample: ModuleType, seed: int, operations: int = 1000) -> Campaign:
    accepts = sample.ENGINE.accepts
    layout = layouts.load("full-mamba" if "recurrent" in accepts.kinds else "full")
    chosen = Restriction([layout], {}, historic=False, accepts=accepts)
    campaign = Campaign(engine(sample), Plan("vllm", sample.ENGINE.levels, chosen, seed))
    campaign.run(operations=operations)
    return campaign


def anomalies(campaign: Campaign) -> list[str]:
    return [
        failure.finding.anomaly for suite in campaign.report.suites for failure in suite.failures
    ]


@pytest.mark.parametrize("sample", NAMES, indirect=True)
def test_run_passes_and_is_not_vacuous(sample: ModuleType) -> None:
    """The default suites at the sample's levels find nothing, and every rule that applies had
    something to judge.
    """
    spec = engine(sample)
    configurations = configurations_of("vllm", (), (), None, spec).configurations
    report = Runner(spec, configurations).run(list(SUITES))
    levels = {suite.name: suite.level for suite in SUITES if not suite.paired}
    assert {suite.name for suite in report.suites} == {
        n for n, level in levels.items() if level in sample.ENGINE.levels
    }
    assert (report.exit_code, report.vacuous) == (0, [])
    for suite in report.suites:
        assert (
            suite.activity.hits > 0
            and suite.activity.evictions > 0
            and suite.activity.preemptions > 0
        )


@pytest.mark.parametrize("seed", sampled(range(3)))
@pytest.mark.parametrize("sample", NAMES, indirect=True)
def test_a_thousand_operations_of_fuzz_pass(sample: ModuleType, seed: int) -> None:
    """Random work finds nothing, and it hit and evicted."""
    campaign = fuzzed(sample, seed)
    assert (
        campaign.operations >= 1000 and anomalies(campaign) == [] and campaign.report.vacuous == []
    )
    activities = [suite.activity for suite in campaign.report.suites]
    assert (
        sum(activity.hits for activity in activities) > 0
        and sum(activity.evictions for activity in activities) > 0
    )


def inert_paged(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is ever given a key."""
    monkeypatch.setattr(module.PagedCache, "publish", lambda cache, key, page: None)


def inert_radix(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of requests that run are in no tree."""
    monkeypatch.setattr(module.RadixCache, "insert", lambda cache, row, places: list(places))


@pytest.mark.parametrize(
    ("sample", "plant"), [("paged", inert_paged), ("radix", inert_radix)], indirect=["sample"]
)
def test_a_sample_that_keeps_nothing_fails(
    sample: ModuleType, plant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended as vacuous: there were no keys to judge by."""
    plant(sample, monkeypatch)
    report = Runner(engine(sample), policies.get("vllm").configurations()).run(SUITES[:1])
    assert report.exit_code == 1
    assert anomalies(fuzzed(sample, 0))[0] in ("lost-replay-boundary", "forgotten-prefix")


@pytest.mark.parametrize("sample", ["paged"], indirect=True)
def test_publication_before_the_write_is_found(
    sample: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paged cache that keys every page of a prompt as soon as it runs lets others hit what
    nobody has written.
    """
    compute = sample.PagedAdapter.compute

    def publish_early(adapter: Any, r: str, tokens: int) -> tuple[int, int] | None:
        given: tuple[int, int] | None = compute(adapter, r, tokens)
        request = adapter.requests[r]
        size = adapter.size
        keys = request.keys(size, 0, len(request.content) // size * size)
        for key, page in zip(keys, request.pages, strict=False):
            adapter.cache.publish(key, page)
        adapter.diff.settle(served=r)
        return given

    monkeypatch.setattr(sample.PagedAdapter, "compute", publish_early)
    assert anomalies(fuzzed(sample, 0)) == ["partial-commit"]


@pytest.mark.parametrize("sample", ["radix"], indirect=True)
def test_a_hit_on_a_stale_row_is_found(sample: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A radix tree that remembers where a row was put, whatever was evicted since, lets others
    read overwritten places.
    """
    compute = sample.RadixAdapter._compute
    insert = sample.RadixCache.insert

    def insert_and_remember(cache: Any, row: list[Any], places: list[int]) -> list[int]:
        kept: list[int] = insert(cache, row, places)
        rows = cache.__dict__.setdefault("rows", {})
        rows.update((tuple(row[:length]), kept[:length]) for length in range(1, len(row) + 1))
        return kept

    def match_from_memory(cache: Any, row: list[Any]) -> tuple[Any, list[int]]:
        rows = cache.__dict__.setdefault("rows", {})
        return None, max(
            (rows.get(tuple(row[:length]), []) for length in range(len(row) + 1)), key=len
        )

    def compute_from_memory(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as looking_up:
            looking_up.setattr(sample.RadixCache, "match", match_from_memory)
            compute(*args)

    monkeypatch.setattr(sample.RadixCache, "insert", insert_and_remember)
    monkeypatch.setattr(sample.RadixAdapter, "_compute", compute_from_memory)
    assert anomalies(fuzzed(sample, 0)) == ["stale-hit"]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_read_in_minutes(name: str) -> None:
    """A sample, cache and adapter and all, stays under so many lines."""
    assert (
        len((SAMPLES / f"{name}_adapter.py").read_text(encoding="utf-8").splitlines())
        < LINES_MAX[name]
    )


def test_the_guide_quotes_the_sample() -> None:
    """The methods that docs/engines.md shows are the paged sample's, to the letter."""
    guide = (SAMPLES.parent / "engines.md").read_text(encoding="utf-8")
    quoted = guide.split("```python\n", 1)[1].split("```", 1)[0].replace("\n\n\n", "\n\n")
    assert textwrap.indent(quoted, "    ") in (SAMPLES / "paged_adapter.py").read_text(
        encoding="utf-8"
    )
