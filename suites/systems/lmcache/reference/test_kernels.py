"""Two engines with other attention backends or kernel block sizes on one store: what a key must
carry for it.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit, Submitted
from cachewitness.core.trace_format import Trace
from cachewitness.engines.driver import Driver
from cachewitness.engines.faults import plant
from cachewitness.engines.registry import kinds
from cachewitness.systems.lmcache.reference.engine import open_engine
from cachewitness.workloads import layouts
from cachewitness.workloads.capabilities import fitting, lacking
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness_reference.lmcache.keys import KeyRefused, name_with_kernels
from suites.support.sampled import fewer

LAYOUTS = ("full", "full-swa", "full-mamba", "full-swa-mamba")
OPTIONS: dict[str, Any] = {
    "tier_pages": 400,
    "engines": 3,
    "separate_object_groups": True,
    "retention_interval": None,
}
FAULTS = ("lmcache-kernels-left-out-of-objects", "lmcache-kernel-block-left-out-of-objects")


def shape(layout: str, **options: Any) -> Shape:
    return Shape(layouts.load(layout), {**OPTIONS, **options}, "scheduler", "lmcache")


def story(layout: str, **options: Any) -> Trace:
    """Return the scenario."""
    (scenario,) = [each for each in SCENARIOS if each.name == "engines-share-a-tier"]
    return scenario.trace(shape(layout, **options))


def engine(trace: Trace, fault: str = "") -> Driver:
    opened = open_engine(trace.header, {})
    if fault:
        plant(fault, kinds()["reference"], opened, trace.header)
    return opened


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_engine_is_served_its_own_and_those_of_its_kernels(layout: str) -> None:
    """Cold for each although the others stored the same tokens; again, and for one that joins,
    from the tier.
    """
    result = drive(story(layout), engine(story(layout)))
    assert result.findings == []
    unit = shape(layout).unit
    hits = {
        event.r: (event.resume, event.tier)
        for event in result.history.events
        if isinstance(event, Hit)
    }
    assert [hits[f"cold{index}"] for index in range(3)] == [(0, "local")] * 3
    assert {hits[r] for r in ("again0", "again1", "again2", "joins")} == {(3 * unit, "cpu")}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_key_without_the_kernels_or_without_their_block_is_found(layout: str, fault: str) -> None:
    findings = drive(story(layout), engine(story(layout), fault)).findings
    assert [(finding.anomaly, finding.checker) for finding in findings][:1] == [
        ("cross-identity-hit", "identity")
    ]
    assert (
        "whose set of kernels is 'flash:64', where the page has 'flash:16'" in findings[0].sentence
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_random_work_of_several_engines_finds_it_too(fault: str) -> None:
    """And is lawful without the fault."""
    found = set()
    for number in range(fewer(6, 3)):
        trace = random_trace(shape("full-swa-mamba"), number, withdraw=False)
        assert drive(trace, engine(trace)).findings == []
        found |= {finding.anomaly for finding in drive(trace, engine(trace, fault)).findings}
    assert "cross-identity-hit" in found


def test_random_work_of_one_engine_says_nothing_of_kernels() -> None:
    trace = random_trace(shape("full", engines=1), 0, withdraw=False)
    assert not any(getattr(op, "kernels", "") for op in trace.ops)


def test_an_engine_that_is_alone_is_asked_without_kernels() -> None:
    """The capability is that of an engine that knows of others; elsewhere the scenario is left
    out and the field taken off.
    """
    alone = open_engine(story("full", engines=1).header, {}).header.capabilities
    assert lacking(story("full"), alone) == ["kernels"]
    assert lacking(story("full"), open_engine(story("full").header, {}).header.capabilities) == []
    assert not any(getattr(op, "kernels", "") for op in fitting(story("full"), alone).ops)


def test_kernels_are_told_with_the_request_and_refused_if_no_key_can_carry_them() -> None:
    s = Script(shape("full"), "by-hand", "", "")
    s.serve("a", "doc:20", kernels="flash:16")
    events = drive(s.trace(), engine(s.trace())).history.events
    assert [event.kernels for event in events if isinstance(event, Submitted)] == ["flash:16"]
    s.serve("b", "doc:20", kernels="flash@16")
    with pytest.raises(UsageError, match="request 'b': model_name must not contain '@'"):
        drive(s.trace(), engine(s.trace()))
    with pytest.raises(KeyRefused, match="must not contain '@'"):
        name_with_kernels("model", "flash@16")


def test_names_differ_by_backend_and_by_block() -> None:
    """And a model's own name stays what it is where nobody says anything."""
    names = [
        name_with_kernels("model", kernels) for kernels in ("", "flash:16", "flash:64", "triton:16")
    ]
    assert names[0] == "model" and len(set(names)) == 4


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_number_of_engines_that_is_none_is_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(
        ["run", "--policy", "lmcache", "--layout", "full", "--option", f"engines={value}"]
    )
    err = capsys.readouterr().err
    assert code == 4 and "engines" in err and err.count("\n") == 1
