"""What an engine is free in, the reference follows: it never diverges from itself, whatever blocks the other hands out."""

from __future__ import annotations

import random

import pytest

from harness.engines import registry
from harness.engines.manager_height import ManagerHeight
from harness.engines.protocol import Engine
from harness.history.events import Take
from harness.policies.vllm.engine import assemble, configure
from harness.policies.vllm.policy import default_configurations
from harness.policies.vllm.reporting_pool import observable_manager
from harness.run.lockstep import NAME, lockstep
from harness.trace.configurations import Configuration
from harness.trace.format import Trace
from harness.trace.generate import random_trace
from harness.verdict.result import Result

CONFIGURATIONS = default_configurations()
SEEDS = (11, 12)


def _trace(configuration: Configuration, seed: int) -> Trace:
    return random_trace(configuration.shape("manager"), seed, withdraw=True)


def _shuffled(trace: Trace, seed: int) -> Engine:
    """Return the reference with its free queue in another order: other block ids, other victims."""
    config = configure(trace.header)
    manager = observable_manager(config)
    queue = manager.block_pool.free_block_queue
    pages = list(queue)
    random.Random(seed).shuffle(pages)
    for page in pages:
        queue.move_to_end(page)
    return assemble(trace.header, config, manager, "reference")


def _diverged(result: Result) -> list[str]:
    return [finding.sentence for finding in result.findings]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_the_reference_does_what_the_reference_does(configuration: Configuration) -> None:
    """Beside itself, operation by operation."""
    for seed in SEEDS:
        trace = _trace(configuration, seed)
        result = lockstep(trace, registry.parse("reference").open(trace.header))
        assert _diverged(result) == []
        assert next(tally for tally in result.tallies if tally.checker == NAME).opportunities > 20


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_other_blocks_and_victims_are_no_divergence(configuration: Configuration) -> None:
    """The look-alike of `divergence`: the queue of free blocks begins in another order, so ids and victims differ."""
    for seed in SEEDS:
        trace = _trace(configuration, seed)
        plain = lockstep(trace, registry.parse("reference").open(trace.header)).history
        result = lockstep(trace, _shuffled(trace, seed))
        assert _diverged(result) == []
        taken = [[event.pages for event in happened.events if isinstance(event, Take)] for happened in (plain, result.history)]
        assert taken[0] != taken[1]


def test_one_key_more_is_a_divergence() -> None:
    """The anomaly itself: the engine keeps what its release would not."""
    configuration = next(
        configuration for configuration in CONFIGURATIONS if configuration.name == "full-mamba[retention_interval=0]"
    )
    trace = _trace(configuration, SEEDS[0])
    mutant = registry.parse("reference:mutant=denser-than-interval").open(trace.header)
    result = lockstep(trace, mutant)
    assert "divergence" in [finding.anomaly for finding in result.findings]


def test_pages_that_are_not_zeroed_are_a_divergence() -> None:
    """What the ledger cannot see: a kernel reads whole pages, so leftovers of another group's layers must be wiped."""
    trace = _trace(
        next(configuration for configuration in CONFIGURATIONS if configuration.layout.name == "full-mamba"), SEEDS[0]
    )
    engine = registry.parse("reference").open(trace.header)
    assert isinstance(engine, ManagerHeight)
    core = engine.manager.manager
    take = core.take_new_block_ids
    core.take_new_block_ids = lambda: take()[:0]
    (finding,) = lockstep(trace, engine).findings
    assert "pages (zeroed, copied)" in finding.sentence
