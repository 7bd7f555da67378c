"""The lists of the newest release excuse one thing each: a cause, or what a rule says, and never
whatever happens on a layout. They cover what the fuzzer meets.
"""

from __future__ import annotations

import pytest

from cachewitness._util import data
from cachewitness.core.checkers.finding import FAILED_LOAD, KEPT_HASH, LEFT_WINDOW, Finding
from cachewitness.core.ledger.records import GIVEN_BACK, OFFERED_AGAIN
from cachewitness.report.expected import Entry, shipped
from cachewitness.systems.vllm.known import known_lists

CONNECTORS = ["", "simple", "offloading", "offloading-outputs", "offloading-sync", "multi"]
NOT_RUN_HERE = {"vllm-0.33-lmcache-chunks.txt", "vllm-0.33-lmcache-strict.txt"}
"""What LMCache's connector does in these is not told from other faults yet."""
NEWEST = [
    entry
    for path in sorted((data.fixtures() / "expected").glob("vllm-0.33*.txt"))
    if path.name not in NOT_RUN_HERE
    for entry in shipped("0.33", [path.name]).entries
]


def entries(connector: str) -> tuple[Entry, ...]:
    """Return what the newest release is known for behind a connector."""
    return shipped("0.33", known_lists("0.33.0", {"connector": connector})).entries


def excused(connector: str, finding: Finding, name: str = "full-swa[tier_delay=2]") -> bool:
    """Whether the lists of a connector excuse what the fuzzer meets on a configuration."""
    return any(
        entry.fits(f"fuzz:random-1@{name}") and entry.excuses(finding)
        for entry in entries(connector)
    )


@pytest.mark.parametrize("entry", NEWEST, ids=lambda entry: entry.text)
def test_an_entry_names_a_cause_or_what_the_rule_says_or_one_trace(entry: Entry) -> None:
    assert entry.cause or entry.says or "*" not in entry.pattern


@pytest.mark.parametrize("entry", NEWEST, ids=lambda entry: entry.text)
def test_an_entry_of_many_traces_covers_those_of_the_fuzzer(entry: Entry) -> None:
    suite = entry.pattern.partition(":")[0]
    assert suite == "*" or "*" not in entry.pattern


LINES = {
    "partial-commit": "key of r1 [0,32) names page 4, which holds [16,32) of r2",
    "stale-hit": "request r3 read page 11 as tokens [17,32); the page holds [16,32) of r2",
    "no-progress": "request r1 could run and no request was scheduled for 9 steps",
    "fabricated-snapshot": "key of r9 [0,64) names page 42, which holds [68,71) of r9; for group 0",
    "false-key-event": (
        "wrong kv_stored event, step 12, group 0; 'h20' was stored before with other tokens"
    ),
}
"""Lines of findings on vLLM 0.33.0, each of which is known by its cause below."""


@pytest.mark.parametrize(
    ("connector", "anomaly", "cause"),
    [
        ("offloading", "partial-commit", OFFERED_AGAIN),
        ("multi", "stale-hit", OFFERED_AGAIN),
        ("offloading-outputs", "fabricated-snapshot", GIVEN_BACK),
        ("simple", "no-progress", FAILED_LOAD),
        ("simple", "false-key-event", LEFT_WINDOW),
    ],
)
def test_a_known_anomaly_of_another_cause_is_not_excused(
    connector: str, anomaly: str, cause: str
) -> None:
    """A store that is dropped, of a wrong page or without its fence is none of these causes; nor
    is the same anomaly without a connector.
    """
    finding = Finding(anomaly=anomaly, sentence="", line=LINES[anomaly], cause=cause)
    assert excused(connector, finding)
    assert not excused("", finding)
    for other in CONNECTORS:
        assert not excused(other, Finding(anomaly=anomaly, sentence="", line=LINES[anomaly]))


def test_a_window_s_block_that_is_stored_without_a_reset_is_not_excused() -> None:
    """That would be the fault `vllm-offload-stale-window-block`."""
    finding = Finding(
        anomaly="partial-commit", sentence="", line=LINES["partial-commit"], cause=GIVEN_BACK
    )
    assert not any(excused(connector, finding) for connector in CONNECTORS)


def test_a_wrong_salt_is_not_excused_where_wrong_tokens_are() -> None:
    line = LINES["false-key-event"].replace("tokens", "salt")
    finding = Finding(anomaly="false-key-event", sentence="", line=line, cause=LEFT_WINDOW)
    assert not excused("simple", finding)


@pytest.mark.parametrize("release", ["0.30", "0.31"])
@pytest.mark.parametrize(
    ("anomaly", "line"),
    [
        ("stale-hit", LINES["stale-hit"]),
        (
            "aliased-write",
            "request r8 wrote tokens [63,64) over page 10; request r10 still needs what it held",
        ),
    ],
)
def test_what_a_session_does_is_excused_where_its_block_kept_its_hash(
    release: str, anomaly: str, line: str
) -> None:
    """Reads of other tokens, and writes over another's block, are no finding of sessions as
    such.
    """
    listed = shipped(release, [f"vllm-{release}.txt"]).entries
    name = "scheduler-random:random-1@full[sessions=True,async_depth=1]"
    for cause in (KEPT_HASH, ""):
        finding = Finding(anomaly=anomaly, sentence="", line=line, cause=cause)
        excuses = any(entry.fits(name) and entry.excuses(finding) for entry in listed)
        assert excuses == (cause == KEPT_HASH)
