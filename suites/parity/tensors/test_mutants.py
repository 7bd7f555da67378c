"""Seeded faults against the comparison of cold and cached runs: every fault that changes what a
page holds is found by numbers.

No ledger is asked. The traces are those of every run, not written for a fault; each fault names the
story in which it shows, so that a test need not run all of them, and shows there on at least one
configuration, where the clean engine passes.
"""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Trace
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse
from cachewitness.parity.tensors.arms import BY_NAME
from cachewitness.parity.tensors.judge import judged
from cachewitness.parity.tensors.stories import write
from cachewitness.report.compared import NAME, Compared
from cachewitness.systems.vllm.reference.policy import cold_configurations
from suites.support.sampled import chosen

FELT = {
    "null-block-published": "tier/alike",
    "skipped-boundary-published": "hit/prefix-end",
    "tail-published-early": "chunked/interrupted",
    "withdrawn-keys-stay": "hit/interrupted",
    "same-step-state-hit": "hit/together",
    "state-donated-without-copy": "hit/prefix-end",
    "hit-is-maximum-over-groups": "hit/prefix-end",
    "window-looked-up-short": "hit/pressure",
    "key-kept-after-eviction": "hit/pressure",
    "reset-keeps-keys": "hit/alike",
    "window-freed-early": "hit/together",
    "touch-after-allocate": "hit/pressure",
    "shared-block-freed-twice": "hit/pressure",
    "stale-table-rows": "preempted/turns",
    "hash-without-parent": "hit/alike",
    "image-left-out": "hit/alike",
    "keys-survive-new-weights": "hit/alike",
    "state-after-last-draft": "drafts/prefix-end",
    "boundary-state-left-behind": "drafts/turns",
    "drafts-published": "drafts/guessed",
    "stored-before-the-step": "tier/prefix-end",
    "load-forgotten": "tier/prefix-end",
    "tier-survives-new-weights": "tier/alike",
    "device-skips-copies": "tier/prefix-end",
    "device-rows-grow": "preempted/prefix-end",
    "conv-state-lost": "hit/prefix-end",
    "memory-restored-without-a-head": "tier/prefix-end",
    "oldest-block-of-window-lost": "hit/prefix-end",
    "layers-exchanged-at-a-hit": "hit/prefix-end",
    "attention-restored-in-fp8": "hit/prefix-end",
    "tail-gate-read-past-the-end": "off/prefix-end",
    "last-gate-left-out-of-the-state": "off/prefix-end",
    "value-sum-not-reset": "off/replay",
    "unwritten-values-times-zero": "hit/together",
    "state-restored-in-bf16": "hit/prefix-end",
    "rotary-positions-restart-at-a-hit": "hit/prefix-end",
    "convolution-begins-anew-in-every-chunk": "off/prefix-end",
    "only-the-first-row-goes-on": "hit/together",
}
"""The faults that touch state, and where each is shown."""

TAKEN = (
    "skipped-boundary-published",
    "tail-published-early",
    "hit-is-maximum-over-groups",
    "stale-table-rows",
    "hash-without-parent",
    "state-after-last-draft",
    "device-skips-copies",
    "oldest-block-of-window-lost",
    "rotary-positions-restart-at-a-hit",
)
"""One of publishing, of each arm that changes how a run goes, of keys, of the device and of
kernels."""

UNFELT = {
    "chunk-ends-off-the-grid": (
        "the engine's own scheduler cuts the chunks, and there is nothing to plant at its level"
    ),
    "replay-boundary-masked": "less is kept; what is found is right",
    "denser-than-interval": "more is kept; what is found is right",
    "lookup-one-unit-short": "less is found; what is found is right",
    "shared-prefix-boundary-forgotten": "less is kept; what is found is right",
    "last-token-hit": (
        "who has nothing left to compute waits for ever, and nothing is computed wrong"
    ),
    "block-leaked": "the pool shrinks; what pages hold is right",
    "salt-left-out": "another tenant's page of the same tokens holds the same numbers",
    "resumed-request-refused": "who is never admitted computes nothing",
    "second-preemption-crashes": "the engine dies before there is a number",
    "freed-while-in-flight": (
        "this device runs steps in order: what is given back is overwritten by later steps alone"
    ),
    "tier-never-asked": "nothing is found in the tier",
}
"""The faults that no number can show, and why: those of the books, which are the ledger's to find.
"""
IDLE = {
    "last-token-hit": "hit/replay",
    "salt-left-out": "miss/replay",
    "resumed-request-refused": "preempted/replay",
    "tier-never-asked": "tier/replay",
}
"""Those among them that keep an arm from happening."""


def traces(story: str) -> list[Trace]:
    arm, _, where = story.partition("/")
    return [
        write(configuration.shape("scheduler"), BY_NAME[arm], where, 0)
        for configuration in cold_configurations()
    ]


def compared(trace: Trace, engine: str) -> Compared:
    spec = parse(engine)
    return judged(trace, spec.open(trace.header), spec, keep=False)


@pytest.mark.parametrize("mutant", chosen([*FELT], *TAKEN))
def test_fault_is_felt_and_the_trace_is_clean_without_it(mutant: str) -> None:
    for trace in traces(FELT[mutant]):
        try:
            result = compared(trace, f"toy:mutant={mutant}")
        except UsageError:
            continue
        if any(finding.checker == NAME for finding in result.findings):
            assert result.row.verdict == "FAIL"
            assert compared(trace, "toy").row.verdict == "pass"
            return
    pytest.fail(f"{mutant} is not felt in {FELT[mutant]}")


def test_every_fault_here_is_felt_or_has_a_reason_not_to_be() -> None:
    """What the numbers say of the others is in docs/results/kill-matrix.md."""
    assert not set(FELT) & set(UNFELT)
    assert set(FELT) | set(UNFELT) <= set(all_mutants())


@pytest.mark.parametrize("mutant", IDLE)
def test_arm_that_a_fault_keeps_from_happening_is_no_pass(mutant: str) -> None:
    row = compared(traces(IDLE[mutant])[0], f"toy:mutant={mutant}").row
    assert row.verdict == "nothing checked"
    assert row.missing


def test_engine_that_dies_fails() -> None:
    results = [
        compared(trace, "toy:mutant=second-preemption-crashes")
        for trace in traces("preempted/replay")
    ]
    assert {finding.anomaly for result in results for finding in result.findings} == {
        "engine-crashed"
    }
