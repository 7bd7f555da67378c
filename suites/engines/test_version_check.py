"""An adapter that asks a system for what it does not have says so in one line, and the system is
not said to have died.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness.core.driving import drive
from cachewitness.engines.registry import parse
from cachewitness.engines.version_check import Drift, takes
from cachewitness.systems.vllm.clock import Clock
from cachewitness.systems.vllm.kind import VllmEngine
from cachewitness.systems.vllm.source import KNOWN
from suites.support.mistaken_engine import lively

TRACE = lively(1)


class Renamed:
    """A manager of another release, which has no method of that name."""

    def __init__(self, manager: Any, gone: str) -> None:
        self._manager = manager
        self._gone = gone

    def __getattr__(self, name: str) -> Any:
        if name == self._gone:
            raise AttributeError(f"'KVCacheManager' object has no attribute {name!r}")
        return getattr(self._manager, name)


def adapter_over(change: Any) -> VllmEngine:
    """Return the adapter of real vLLM over the reference's manager, changed."""
    engine: Any = parse("reference").open(TRACE.header)
    observed = engine.adapter.manager
    observed.manager = change(observed.manager)
    return VllmEngine(engine.header, engine.adapter, Clock())


@pytest.mark.parametrize(
    "gone", ["allocate_slots", "get_computed_blocks", "free", "reset_prefix_cache"]
)
def test_a_method_that_is_gone_is_drift(gone: str) -> None:
    """The line names what is missing, the release that is installed and those that the adapter
    was written for.
    """
    with pytest.raises(Drift) as caught:
        drive(TRACE, adapter_over(lambda manager: lookup_in_the_adapter(manager, gone)))
    line = str(caught.value)
    assert gone in line and KNOWN in line and "\n" not in line


def lookup_in_the_adapter(manager: Any, gone: str) -> Any:
    """Return the manager as a plain object without the method, so that the look-up of the name
    itself fails.
    """
    names = {
        name: getattr(manager, name)
        for name in dir(manager)
        if name != gone and not name.startswith("__")
    }
    return SimpleNamespace(**names)


def test_an_argument_that_is_gone_is_drift() -> None:
    def narrowed(manager: Any) -> Any:
        other = lookup_in_the_adapter(manager, "")
        allocate = manager.allocate_slots
        other.allocate_slots = lambda request, num_new_tokens: allocate(request, num_new_tokens)
        return other

    with pytest.raises(Drift, match="unexpected keyword argument"):
        drive(TRACE, adapter_over(narrowed))


def test_what_the_system_raises_itself_is_its_death() -> None:
    """An attribute that its own code lacks is no matter of the adapter's; the finding's line says
    where it raised.
    """
    result = drive(TRACE, adapter_over(lambda manager: Renamed(manager, "allocate_slots")))
    (finding,) = result.findings
    assert finding.anomaly == "engine-crashed"
    assert re.fullmatch(r"the engine failed in operation \d+, at [\w.]+:\d+", finding.line)


def test_a_wrapper_takes_what_it_passes_on() -> None:
    """So that a method somebody wrapped is still given what it can be given."""

    def method(one: int, *, hint: int = 0) -> int:
        return one + hint

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    assert takes(method, "hint") and takes(wrapper, "hint") and not takes(method, "other")
