"""Every policy on tensors: what its cache restores is what a cold run computes, in every group
of its configurations.
"""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.parity.tensors.arms import BY_NAME
from cachewitness.parity.tensors.judge import judged
from cachewitness.parity.tensors.stories import write
from cachewitness.report.compared import Compared
from suites.support.sampled import chosen

OTHERS = [name for name in policies.names() if name != "vllm"]
WHERE = {
    "hit": "siblings",
    "chunked": "prefix-end",
    "preempted": "replay",
    "off-again": "prefix-end",
}


def compared(policy: str, configuration: int, arm: str, engine: str = "toy") -> Compared:
    shape = policies.get(policy).cold_configurations()[configuration].shape("scheduler")
    trace = write(shape, BY_NAME[arm], WHERE.get(arm, "replay"), 0)
    spec = parse(engine)
    return judged(trace, spec.open(trace.header), spec, keep=False)


PAIRS = [(policy, arm) for policy in OTHERS for arm in WHERE]
TAKEN = [
    (policy, [*WHERE][(index + more) % len(WHERE)])
    for index, policy in enumerate(OTHERS)
    for more in range(2)
]
"""Two arms for each policy, so that each arm is that of several."""


@pytest.mark.parametrize(("policy", "arm"), chosen(PAIRS, *TAKEN))
def test_every_arm_passes_and_did_what_it_is_for(policy: str, arm: str) -> None:
    """No row is beyond the floor in float64, bits are held where chunks are alike, and nothing
    is missing.
    """
    row = compared(policy, 0, arm).row
    assert row.verdict == "pass" and not row.missing, row
    assert row.largest <= 1e-12 and row.beyond == row.hard == 0
    assert row.bits_held == row.bits and (row.restored_rows > 0) == (arm != "off-again")


@pytest.mark.parametrize("policy", OTHERS)
def test_every_configuration_is_restored_in_all_groups(policy: str) -> None:
    """The warm arm restores something of each kind of group, on each configuration that is
    compared by default.
    """
    for configuration in range(1, len(policies.get(policy).cold_configurations())):
        row = compared(policy, configuration, "hit").row
        assert row.verdict == "pass" and row.restored and min(row.restored.values()) > 0, row


@pytest.mark.parametrize(
    ("policy", "arm"),
    [("furiosa", "tier"), ("openvino_genai", "async"), ("tensorrt_edge", "drafts")],
)
def test_what_a_policy_has_not_is_refused(policy: str, arm: str) -> None:
    """An arm that the system has no counterpart of is not run, and the message names the option."""
    option = next(iter(BY_NAME[arm].options))
    with pytest.raises(UsageError, match=option):
        compared(policy, 0, arm)
