"""A campaign runs the reference beside the engine: what no rule can see is found, shrunk, and
replayed in lock-step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import registry
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.fuzz import terminal
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.lockstep import NAME
from cachewitness.workloads.layouts import load

PLAN = Plan("vllm", ("manager",), Restriction([load("full-mamba")], {}), seed=3)
OPERATIONS = 400


def _open(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Return the reference, whose new pages are not zeroed; the ledger knows no bytes."""
    engine: Any = registry.parse("reference").open(header)
    core = engine.adapter.manager.manager
    take = core.take_new_block_ids
    core.take_new_block_ids = lambda: take()[:0]
    opened: Engine = engine
    return opened


def _campaign(*, beside: bool) -> Campaign:
    kind = EngineKind("unzeroed", "the reference, whose pages are not zeroed", ("manager",), _open)
    campaign = Campaign(EngineSpec(kind, {}, "unzeroed"), PLAN, beside=beside)
    campaign.run(operations=OPERATIONS)
    return campaign


def test_what_no_rule_sees_is_found_beside_the_reference() -> None:
    """With the lock-step the campaign fails with a small trace; without it, it passes."""
    (failure,) = [
        failure for suite in _campaign(beside=True).report.suites for failure in suite.failures
    ]
    assert failure.finding.checker == NAME and "pages (zeroed" in failure.finding.sentence
    assert len(failure.shrunk.ops) <= 3
    assert _campaign(beside=False).report.outcome == "pass"


def test_the_same_campaign_does_the_same() -> None:
    """The lock-step draws nothing."""
    one = _campaign(beside=True)
    other = _campaign(beside=True)
    assert one.digest == other.digest and one.operations == other.operations


def test_the_reference_is_not_compared_with_itself_and_says_so() -> None:
    """A plain reference runs without the lock-step, and the report lists that."""
    campaign = Campaign(registry.parse("reference"), PLAN, beside=True)
    campaign.run(operations=60)
    (left_out,) = [
        entry for entry in campaign.report.not_run if entry.what == "lock-step with the reference"
    ]
    assert "is what it compares with" in left_out.why and left_out.count == campaign.traces


def test_the_command_that_runs_it_again_says_whether_the_reference_ran_beside() -> None:
    """The default needs no word."""
    words = (registry.parse("vllm"), "vllm", [], [], 60, 3)
    assert "lockstep" not in terminal.command(*words)
    assert terminal.command(*words, beside=False).endswith("--no-lockstep")
