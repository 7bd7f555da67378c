"""lmdeploy's own scheduler: its traces are clean but for what is listed, faults in its source are
found, and what it cannot do is one line.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import INSIDE_BLOCK, Finding
from cachewitness.core.driving import drive
from cachewitness.core.events import Accept, Acquire, Hit, Preempted, StepBegin
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    GroupSpec,
    Layout,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.systems.lmdeploy import source
from cachewitness.systems.lmdeploy.configurations import configurations
from cachewitness.systems.lmdeploy.declared import CAPABILITIES
from cachewitness.systems.lmdeploy.options import read
from cachewitness.workloads.capabilities import lacking
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.lmdeploy.faults import FAULTS
from suites.support.real_engines import LMDEPLOY_SOURCE as SOURCE
from suites.support.real_engines import needs_lmdeploy as installed

SEEDS = 400
PRESSURE = {"needless-eviction"}
TWICE = {"state-position-skew"}
NOT_KEPT = {"key-owed", "lost-replay-boundary"}
KEPT_BACK = TWICE | NOT_KEPT | {"lost-hit"}
LISTED = {
    "lmdeploy-full": PRESSURE | {"aliased-write", "stale-hit"},
    "lmdeploy-state": KEPT_BACK,
    "lmdeploy-state-scarce": KEPT_BACK,
    "lmdeploy-answer-state": KEPT_BACK | PRESSURE | {"fabricated-snapshot"},
    "lmdeploy-window": set[str](),
}
"""What fixtures/expected/lmdeploy-0.18.txt lists, by layout."""
STATE = (GroupSpec("full", 16), GroupSpec("recurrent", 16))


def engine(**chosen: str) -> str:
    options = [f"{name}={value}" for name, value in {"source": SOURCE, **chosen}.items() if value]
    return f"lmdeploy:{','.join(options)}" if options else "lmdeploy"


def ran(trace: Trace, mutant: str = "", caching: str = "") -> Result:
    return drive(trace, parse(engine(mutant=mutant, caching=caching)).open(trace.header))


def unlisted(result: Result, layout: str) -> list[str]:
    return [one.sentence for one in result.findings if not is_listed(one, layout)]


def is_listed(finding: Finding, layout: str) -> bool:
    """Of what is not kept, that alone is listed which a resume inside a block is behind."""
    caused = finding.anomaly not in NOT_KEPT or finding.cause == INSIDE_BLOCK
    return caused and finding.anomaly in LISTED[layout]


def random_traces(configuration: Configuration) -> list[Trace]:
    return _random_traces(configuration.layout.name)


@cache
def _random_traces(layout: str) -> list[Trace]:
    shape = next(one.shape("scheduler") for one in configurations() if one.layout.name == layout)
    every = [random_trace(shape, seed, withdraw=False) for seed in range(SEEDS)]
    return [trace for trace in every if not lacking(trace, CAPABILITIES)]


def header(*groups: GroupSpec, pages: int = 40, **options: object) -> TraceHeader:
    layout = Layout("t", list(groups) or [GroupSpec("full", 16)])
    return TraceHeader("t", layout, pages, level="scheduler", options=dict(options))


def steps(count: int) -> list[Op]:
    return [Step()] * count


def resumed(result: Result) -> list[tuple[str, int]]:
    """Return where each request was admitted, in order."""
    return [(event.r, event.resume) for event in result.history.events if isinstance(event, Hit)]


def two_adapters() -> Trace:
    """Write one prompt for two adapters."""
    asked = [Submit("r1", "a:40"), *steps(3), Submit("r2", "a:40", adapter="x"), *steps(3)]
    return Trace(header(), asked)


@installed
@pytest.mark.parametrize("configuration", configurations(), ids=lambda one: one.layout.name)
def test_random_traces_are_clean_but_for_what_is_listed(configuration: Configuration) -> None:
    """A cache that never hits would be clean too."""
    activity = Activity()
    for trace in random_traces(configuration):
        result = ran(trace)
        assert unlisted(result, configuration.layout.name) == [], trace.header.name
        activity.add(result.activity)
    window = configuration.layout.name == "lmdeploy-window"
    assert activity.hits == 0 if window else activity.hits > 20


@installed
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_as_named_and_the_same_trace_passes_without_it(fault: Mutant) -> None:
    """Nothing of what is listed counts as found, nor the configuration that is listed for what
    two of the faults do.
    """
    sound = [one for one in configurations() if one.layout.name != "lmdeploy-answer-state"]
    traces = [(one.layout.name, trace) for one in sound for trace in random_traces(one)]
    for name, trace in [("lmdeploy-full", two_adapters()), *traces]:
        found = {(finding.anomaly, finding.checker) for finding in ran(trace, fault.name).findings}
        if (fault.anomaly, fault.checker) in found:
            without = ran(trace)
            assert unlisted(without, name) == []
            assert (fault.anomaly, fault.checker) not in {
                (finding.anomaly, finding.checker) for finding in without.findings
            }
            return
    pytest.fail(f"{fault.name} survived")


@installed
def test_a_history_names_no_address() -> None:
    """Two runs of a trace in which forwards hold checkpoints have the same history."""
    configuration = next(one for one in configurations() if one.layout.name == "lmdeploy-state")
    trace = random_traces(configuration)[0]
    first = ran(trace).history.events
    assert first == ran(trace).history.events
    assert any(isinstance(event, Acquire) and event.holder == "pin:0" for event in first)


@installed
def test_a_forward_is_made_before_the_tokens_of_the_one_before_are_known() -> None:
    """On the device the new one comes behind the old one, which has run when it begins."""
    result = ran(Trace(header(), [Submit("r1", "a:40"), *steps(3)]))
    chunks = [
        (run.start, run.stop)
        for event in result.history.events
        if isinstance(event, StepBegin)
        for run in event.runs
    ]
    accepted = [event.upto for event in result.history.events if isinstance(event, Accept)]
    assert chunks == [(0, 40), (40, 41), (41, 42)] and accepted == [41, 42]
    assert result.findings == []


@installed
def test_who_resumes_inside_a_block_is_given_a_copy_of_it() -> None:
    """State and block are saved behind the step that ends a prompt, and restored before the step
    that resumes there.
    """
    asked = [Submit("r1", "a:20"), *steps(2), Submit("r2", "a:20 b:30"), *steps(2)]
    result = ran(Trace(header(*STATE), asked))
    moved = [
        (len(event.copies), len(event.stores))
        for event in result.history.events
        if isinstance(event, StepBegin)
    ]
    assert resumed(result) == [("r1", 0), ("r2", 20)] and result.findings == []
    assert moved == [(0, 2), (0, 0), (2, 0), (0, 0)]


@installed
def test_a_conversation_stays_where_its_first_prompt_ended() -> None:
    """What is computed behind a resume inside a block is not in the trie, so no state is saved at
    the end of the second prompt, nor at that of the third.
    """
    turns = ["a:100", "b:60", "c:60", "d:60"]
    asked: list[Op] = []
    for turn in range(4):
        name = f"r{turn}"
        asked += [Submit(name, " ".join(turns[: turn + 1])), *steps(4), Finish(name)]
    inside = ran(Trace(header(*STATE, pages=200), asked))
    assert [at for _, at in resumed(inside)] == [0, 100, 100, 100]
    turns[0] = "a:96"
    asked = [
        Submit(op.r, " ".join(turns[: int(op.r[1]) + 1])) if isinstance(op, Submit) else op
        for op in asked
    ]
    at_a_block = ran(Trace(header(*STATE, pages=200), asked))
    assert [at for _, at in resumed(at_a_block)] == [0, 96, 156, 156]


@installed
def test_a_preempted_request_writes_over_a_block_of_the_trie() -> None:
    """It is preempted with whole blocks that the trie has not; another request brings them in
    meanwhile, and it finds them.
    """
    asked: list[Op] = [Submit("r1", "A:15"), *steps(15), Submit("r3", "A:15 @r1:1 r3:49")]
    result = ran(Trace(header(pages=9), [*asked, *steps(9)]))
    assert not any(isinstance(event, Preempted) for event in result.history.events)
    assert result.findings[0].anomaly == "aliased-write"
    others = [Submit("r3", "A:15 b:50") if op == asked[-1] else op for op in asked]
    assert ran(Trace(header(pages=9), [*others, *steps(9)])).findings == []


@installed
@pytest.mark.parametrize(("pages", "found"), [(6, ["state-position-skew"]), (7, [])])
def test_a_preempted_request_applies_a_token_twice_to_its_state(
    pages: int, found: list[str]
) -> None:
    """Preempted while a token of it is computed, which is thrown away; its state stays. With a
    block more nobody is preempted.
    """
    asked = [Submit("r1", "a:12"), Submit("r2", "b:12"), *steps(24), Finish("r2"), *steps(3)]
    result = ran(Trace(header(*STATE, pages=pages), asked), caching="off")
    assert [finding.anomaly for finding in result.findings] == found


@installed
@pytest.mark.parametrize(("interval", "found"), [(16, ["fabricated-snapshot"]), (0, [])])
def test_a_state_of_an_answer_has_seen_a_token_more_than_its_key_says(
    interval: int, found: list[str]
) -> None:
    trace = Trace(
        header(*STATE, decode_state_interval=interval), [Submit("r1", "a:20"), *steps(32)]
    )
    assert [finding.anomaly for finding in ran(trace).findings] == found


@installed
def test_who_ends_while_a_forward_computes_gives_everything_back() -> None:
    asked = [Submit("r1", "a:40"), *steps(2), Abort("r1"), Submit("r2", "b:40"), *steps(3)]
    result = ran(Trace(header(*STATE), asked))
    assert result.findings == [] and resumed(result) == [("r1", 0), ("r2", 0)]


@installed
@pytest.mark.parametrize("configuration", configurations(), ids=lambda one: one.layout.name)
def test_without_its_cache_nothing_is_hit_and_nothing_is_found(
    configuration: Configuration,
) -> None:
    """The control."""
    for trace in random_traces(configuration)[::3]:
        result = ran(trace, caching="off")
        assert {finding.anomaly for finding in result.findings} <= TWICE, trace.header.name
        assert result.activity.hits == 0


def test_caching_is_on_or_off() -> None:
    with pytest.raises(UsageError, match="caching is on or off, not 'no'"):
        parse("lmdeploy:caching=no").open(header())


def test_every_fault_says_in_advance_what_finds_it() -> None:
    assert len(FAULTS) >= 10 and {fault.engines for fault in FAULTS} == {("lmdeploy",)}
    assert {fault.checker for fault in FAULTS} == {
        "commit-order",
        "identity",
        "no-fabricated-snapshots",
        "ownership",
        "replay-boundary-retained",
        "safety-law",
        "window-liveness",
    }


def test_what_is_not_lmdeploy_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no lmdeploy/pytorch/paging there"):
        source.load(str(tmp_path))


@pytest.mark.parametrize(("text", "named"), [("__version__ = '0.19.0'", "0.19.0"), ("", "unknown")])
def test_a_release_that_the_adapter_was_not_written_for_is_named(
    tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "lmdeploy" / "pytorch" / "paging").mkdir(parents=True)
    (tmp_path / "lmdeploy" / "version.py").write_text(text, encoding="utf-8")
    with pytest.raises(
        UsageError, match=rf"lmdeploy {named}: its scheduler is driven in release 0\.18\.0 alone"
    ):
        source.load(str(tmp_path))


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([GroupSpec("recurrent", 8)], {}, "one block table"),
        ([GroupSpec("full", 16), GroupSpec("full", 16)], {}, "one block table"),
        ([*STATE, GroupSpec("recurrent", 16)], {}, "one group of them is enough"),
        (
            [GroupSpec("sliding", 16, window=40), GroupSpec("recurrent", 16)],
            {},
            "the window is driven alone",
        ),
        (list(STATE), {"decode_state_interval": 20}, "a multiple of the block size 16; not 20"),
        (list(STATE), {"max_batches": 0}, "at least 1; not 0"),
        (list(STATE), {"retention_interval": 0}, "no option 'retention_interval'"),
    ],
)
def test_what_lmdeploy_has_not_is_refused(
    groups: list[GroupSpec], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(header(*groups, **options))
