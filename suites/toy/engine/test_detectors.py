"""Ledger and tensors check each other: each finds what the other is silent about, and neither
accuses falsely.
"""

from __future__ import annotations

import pytest

from cachewitness.cli import invoke
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.checkers.protocol import CheckerSet
from cachewitness.core.checkers.tensors import SILENT, UNFELT, TensorsAgree, unfelt
from cachewitness.core.driving import drive
from cachewitness.core.events import Compare, Event, Read, Release, StepEnd
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import Trace
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse
from cachewitness.report.summary import Failure, Report, SuiteReport
from cachewitness.workloads.notation import parse as history_of
from suites.support.toy_runs import DENSE, measured_in, story

pytestmark = pytest.mark.toy

PARTIAL = {"retention_interval": 0, "hash_block_size": 4}
STORIES: dict[str, Trace] = {
    "device-skips-copies": story("full-mamba", PARTIAL, "exact-replay"),
    "device-rows-grow": story("full", {}, "preempt-and-resume"),
    "conv-state-lost": story("full-mamba", DENSE, "siblings-in-a-block"),
    "memory-restored-without-a-head": story("full-mamba", DENSE, "siblings-in-a-block"),
    "oldest-block-of-window-lost": story("full-swa-mamba", DENSE, "siblings-in-a-block"),
    "layers-exchanged-at-a-hit": story("full", {}, "siblings-in-a-block"),
    "attention-restored-in-fp8": story("full", {}, "siblings-in-a-block"),
}
FULL = "pool 0: 12 pages, null 0\ngroup 0: full block 4\nrules: alignment 4\n"
STATE = "pool 0: 12 pages, null 0\ngroup 0: recurrent block 4\nrules: alignment 4\n"


@pytest.mark.parametrize("mutant", STORIES)
def test_fault_of_the_device_is_a_silent_divergence_and_the_trace_is_clean_without_it(
    mutant: str,
) -> None:
    trace = STORIES[mutant]
    result = drive(trace, parse(f"toy:mutant={mutant}").open(trace.header), keep=False)
    assert {finding.anomaly for finding in result.findings} == {SILENT}
    assert drive(trace, parse("toy").open(trace.header), keep=False).findings == []


@pytest.mark.parametrize(
    ("mutant", "layout", "name"),
    [
        ("stale-table-rows", "full", "preempt-and-resume"),
        ("state-donated-without-copy", "full-mamba", "exact-replay"),
        ("same-step-state-hit", "full-mamba", "siblings-in-one-step"),
        ("skipped-boundary-published", "full-mamba", "preempt-and-resume"),
    ],
)
def test_fault_of_the_policy_is_found_by_both(mutant: str, layout: str, name: str) -> None:
    trace = story(layout, DENSE if "mamba" in layout else {}, name)
    result = drive(trace, parse(f"toy:mutant={mutant}").open(trace.header), keep=False)
    anomalies = {finding.anomaly for finding in result.findings}
    assert all_mutants()[mutant].anomaly in anomalies and not anomalies & {SILENT, UNFELT}
    assert measured_in(result).beyond > 0


def test_page_given_back_while_a_step_reads_it_is_the_ledgers_alone_to_find() -> None:
    trace = story("full-mamba", DENSE | {"async_depth": 1}, "crowded")
    result = drive(trace, parse("toy:mutant=freed-while-in-flight").open(trace.header), keep=False)
    assert "use-after-free" in {finding.anomaly for finding in result.findings}
    assert not {finding.anomaly for finding in result.findings} & {SILENT, UNFELT}


def test_fault_of_the_device_fails_the_engine_and_names_the_layer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [
        "--engine",
        "toy:mutant=conv-state-lost",
        "--layout",
        "full-mamba",
        "--suite",
        "scheduler",
        "--fail-fast",
    ]
    assert invoke(["run", *arguments]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "silent-divergence" in output and "HARNESS FAILS" not in output
    assert "the first that is wrong is the convolution's state after 16 tokens" in output
    assert "that layer 0 (linear_attention, group 0) read (block 0), which is off by" in output


def test_read_that_the_ledger_wrongly_calls_wrong_is_a_failure_of_the_harness() -> None:
    finding = judged(NULL_READ)[0]
    failure = Failure(
        id="x", finding=finding, trace=STORIES["conv-state-lost"], shrunk=STORIES["conv-state-lost"]
    )
    assert (
        Report(engine="toy", suites=[SuiteReport(name="scheduler", failures=[failure])]).exit_code
        == 3
    )


def judged(text: str, **compared: float) -> list[Finding]:
    """Judge a history whose device reports the same comparison for every run."""
    found, tally = _judged(text, compared)
    assert not tally.crashed, tally.crashed
    return found


def tallied(text: str, **compared: float) -> Tally:
    """Return what the checker said of itself."""
    return _judged(text, compared)[1]


def _judged(text: str, compared: dict[str, float]) -> tuple[list[Finding], Tally]:
    history = history_of(text)
    history.header.capabilities.append("compare")
    panel = CheckerSet(history.header, [TensorsAgree()])
    found: list[Finding] = []
    for event in _with_comparisons(history.events, compared):
        found += panel.observe(event)
    return found, panel.tallies["tensors"]


def _with_comparisons(events: list[Event], compared: dict[str, float]) -> list[Event]:
    out: list[Event] = []
    runs = []
    for event in events:
        out.append(event)
        runs = getattr(event, "runs", runs)
        if isinstance(event, StepEnd):
            out += [
                Compare(r=run.r, start=run.start, stop=run.stop, step=event.step, **compared)
                for run in runs
            ]
    return out


CLEAN = FULL + "submit r1 a:5\nacquire r1 | 1 2\nstep 1: r1 0..5 | 1 2\n"
NULL_READ = FULL + "submit r1 a:6\nacquire r1 | 1 2\nstep 1: r1 0..5 | 1 2\nstep 2: r1 5..6 | 0 2\n"


def test_right_reads_and_right_logits_agree() -> None:
    assert judged(CLEAN) == []


def test_wrong_read_and_wrong_logits_agree() -> None:
    assert [f.anomaly for f in judged(NULL_READ, beyond=1)] == [
        SILENT
    ]  # of step 1 alone, whose reads are right
    assert judged(FULL + "submit r1 a:6\nacquire r1 | 1 2\nstep 1: r1 4..6 | 0 2\n", beyond=1) == []


def test_wrong_logits_after_right_reads_are_silent_divergence() -> None:
    (finding,) = judged(CLEAN, beyond=1, largest=0.5)
    assert finding.anomaly == SILENT
    assert "differ from those of the definition by up to 5.0e-01" in finding.sentence
    assert finding.sentence.startswith("Let r1 ") and finding.sentence.endswith(
        ": a contradiction."
    )


def test_right_logits_after_a_read_of_poison_are_an_unfelt_fault() -> None:
    (finding,) = judged(NULL_READ)
    assert finding.anomaly == UNFELT
    assert finding.sentence.startswith("Let r1 ") and finding.sentence.endswith(
        ": a contradiction."
    )


def test_coarse_comparison_accuses_nobody() -> None:
    assert judged(NULL_READ, tolerance=1e-3, ceiling=1.0) == []


def test_tolerance_above_its_ceiling_is_no_pass() -> None:
    tally = tallied(CLEAN, tolerance=1e-3, ceiling=1e-4)
    assert "exceed its ceiling" in tally.open
    assert tallied(CLEAN, tolerance=1e-4, ceiling=1e-4).open == ""


def test_tolerance_that_is_no_number_is_no_pass() -> None:
    assert tallied(CLEAN, tolerance=float("nan"), ceiling=1e-4).open


def classes(text: str) -> list[str]:
    """Return the class of every wrong read of a history."""
    history = history_of(text)
    checker = TensorsAgree()
    found = []
    ledger = Ledger(history.header)
    for event in history.events:
        if isinstance(event, Read) and ledger.before(event).invalid:
            found.append(unfelt(ledger, event, checker._given_back))
        if isinstance(event, Release):
            checker.on_release(ledger, event)
        ledger.apply(event)
    return found


TWO = "submit r1 a:9\nacquire r1 | 1 2 3\nstep 1: r1 0..8 | 1 2\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FULL + TWO + "step 2: r1 8..9 | 2 1 3\n", ["exchanged"]),
        (
            FULL.replace("full", "sliding").replace("block 4", "block 4 window 9")
            + TWO
            + "step 2: r1 8..9 | 2 1 3\n",
            [""],
        ),
        (
            FULL + TWO + "submit r2 a:9 salt=x\nacquire r2 | 1 2 4\nstep 2: r2 8..9 | 1 2 4\n",
            ["same-content"],
        ),
        (
            FULL + TWO + "submit r2 a:9 adapter=x\nacquire r2 | 1 2 4\nstep 2: r2 8..9 | 1 2 4\n",
            [""],
        ),
        (FULL + TWO + "submit r2 b:9\nacquire r2 | 1 2 4\nstep 2: r2 8..9 | 1 2 4\n", [""]),
        (FULL + TWO + "submit r2 a:9\nacquire r2 | 4\nstep 2: r2 8..9 | 1 2 4\n", ["not-held"]),
        (FULL + TWO + "begin 2: r1 8..9 | 1 2 3\nrelease r1 | 1\nend 2\n", ["freed-in-flight"]),
        (FULL + TWO + "release r1 | 1\nstep 2: r1 8..9 | 1 2 3\n", [""]),
        (FULL + TWO + "step 2: r1 8..9 | 0 2 3\n", [""]),
        (
            STATE
            + "submit r1 a:9\nacquire r1 | 1 2\nstep 1: r1 0..4 | 1\nstep 2: r1 6..9 | 1 1 2\n",
            [""],
        ),
    ],
)
def test_wrong_reads_that_leave_the_logits_alone_are_of_the_listed_classes(
    text: str, expected: list[str]
) -> None:
    assert classes(text) == expected
