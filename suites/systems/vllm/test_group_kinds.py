"""Kinds of groups that no model of the layouts has, on a real vLLM: rings, and what cannot be
built.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Acquire, Hit, Publish
from cachewitness.core.trace_format import Level
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.build import is_ring
from cachewitness.systems.vllm.configurations import CHUNKED, RING, further_configurations
from cachewitness.systems.vllm.source import load
from cachewitness.workloads.generate import random_trace
from suites.support.real_vllm import REAL, SOURCE

SINK = fixtures() / "findings" / "vllm_0_33_sink.py"


def test_a_ring_is_chunked_attention_with_a_block_for_many_chunks() -> None:
    assert [is_ring(group) for group in (*RING, *CHUNKED)] == [False, True, False, False]


@pytest.mark.parametrize(
    "level", [pytest.param("manager", marks=REAL), pytest.param("scheduler", marks=REAL)]
)
def test_a_ring_is_one_block_that_nobody_hits(level: Level) -> None:
    """Whatever a request computes; and others hit what it left in the other group."""
    configuration = next(
        one for one in further_configurations() if one.name.startswith("full-ring")
    )
    hits = 0
    for seed in range(3):
        trace = random_trace(configuration.shape(level), seed, withdraw=False)
        result = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
        assert not result.findings
        events = result.history.events
        assert not [event for event in events if isinstance(event, Publish) and event.group == 1]
        taken = [event for event in events if isinstance(event, Acquire) and event.group == 1]
        assert taken and all(len(event.pages) == 1 for event in taken)
        hits += sum(event.resume > 0 for event in events if isinstance(event, Hit))
    assert hits > 0


@pytest.mark.parametrize("level", [pytest.param("manager", marks=REAL)])
def test_a_release_without_rings_is_told_in_one_line(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration is left out there, and the others run."""
    monkeypatch.delattr(load(SOURCE).interface, "CircularBufferSpec")
    configuration = next(
        one for one in further_configurations() if one.name.startswith("full-ring")
    )
    trace = random_trace(configuration.shape(level), 0, withdraw=False)
    with pytest.raises(UsageError, match=r"vllm\.v1\.kv_cache_interface has no CircularBufferSpec"):
        parse(f"vllm:source={SOURCE}").open(trace.header)


@pytest.mark.parametrize("script", [pytest.param(SINK, marks=REAL, id="sink")])
def test_what_cannot_be_built_is_told_by_vllm_alone(script: os.PathLike[str]) -> None:
    """The day that it is built, the page on engines has to say so, and a configuration can have
    it.
    """
    command = [sys.executable, "-P", str(script)]
    path = {"PYTHONPATH": SOURCE}
    ran = subprocess.run(
        command,
        env=os.environ | path,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (
        ran.stdout
        == "TypeError: SinkFullAttentionManager.__init__() got an unexpected keyword argument"
        " 'needs_kv_cache_zeroing'\n"
    )
