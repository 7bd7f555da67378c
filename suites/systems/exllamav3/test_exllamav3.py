"""exllamav3's own generator: its traces are clean but for what is listed, faults in its source are
found, and what it cannot do is one line.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Copy, Hit, Preempted, StepBegin
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
from cachewitness.systems.exllamav3 import source
from cachewitness.systems.exllamav3.configurations import configurations
from cachewitness.systems.exllamav3.declared import CAPABILITIES
from cachewitness.systems.exllamav3.options import read
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.exllamav3.faults import FAULTS
from suites.support.real_engines import EXLLAMAV3_SOURCE as SOURCE
from suites.support.real_engines import needs_exllamav3 as installed

SEEDS = 30
KEPT = {"needless-eviction"}
LISTED = {
    "exllamav3-full": set[str](),
    "exllamav3-chunks": KEPT,
    "exllamav3-state": KEPT,
    "exllamav3-cpu": set[str](),
    "exllamav3-256": set[str](),
}
"""What fixtures/expected/exllamav3-1.6.txt lists, by layout, beside the assertion."""
RAISED = ("AssertionError (job.py:679,", "AssertionError (job.py:1838,")
"""The assertion that a running job makes of a page that another one is to compute."""
STATE = (GroupSpec("full", 16), GroupSpec("recurrent", 16))


def ran(trace: Trace, mutant: str = "") -> Result:
    options = [
        f"{name}={value}" for name, value in {"source": SOURCE, "mutant": mutant}.items() if value
    ]
    engine = f"exllamav3:{','.join(options)}" if options else "exllamav3"
    return drive(trace, parse(engine).open(trace.header))


def unlisted(result: Result, layout: str) -> list[str]:
    return [
        one.sentence
        for one in result.findings
        if one.anomaly not in LISTED[layout] and not any(text in one.sentence for text in RAISED)
    ]


def random_traces(configuration: Configuration) -> list[Trace]:
    return _random_traces(configuration.layout.name)


@cache
def _random_traces(layout: str) -> list[Trace]:
    shape = next(one.shape("scheduler") for one in configurations() if one.layout.name == layout)
    every = [random_trace(shape, seed, withdraw=False) for seed in range(SEEDS)]
    return [fitting(trace, CAPABILITIES) for trace in every]


def traced(*ops: Op | list[Op], groups: tuple[GroupSpec, ...] = (), **options: object) -> Trace:
    layout = Layout("t", list(groups) or [GroupSpec("full", 16)])
    pages = options.pop("pages", 40)
    assert isinstance(pages, int)
    header = TraceHeader("t", layout, pages, level="scheduler", options=dict(options))
    each = [op if isinstance(op, list) else [op] for op in ops]
    return Trace(header, [op for some in each for op in some])


def steps(count: int) -> list[Op]:
    return [Step()] * count


def found(result: Result) -> list[str]:
    return [finding.anomaly for finding in result.findings]


def resumed(result: Result) -> list[tuple[str, int]]:
    """Return where each request was admitted, in order."""
    return [(event.r, event.resume) for event in result.history.events if isinstance(event, Hit)]


def alone(r: str, prompt: str) -> list[Op]:
    return [Submit(r, prompt), *steps(3), Finish(r)]


def pages_alike() -> Trace:
    """Write prompts with pages that are alike, behind pages that are not."""
    prompts = ["a:40", "b:16 a[16]:16 b[16]:4", "a:40", "c:40", "c:16 a[16]:8 d:8"]
    return traced(*[alone(f"r{number}", prompt) for number, prompt in enumerate(prompts)])


@installed
@pytest.mark.parametrize("configuration", configurations(), ids=lambda one: one.layout.name)
def test_random_traces_are_clean_but_for_what_is_listed(configuration: Configuration) -> None:
    """A cache that never hits would be clean too."""
    activity = Activity()
    for trace in random_traces(configuration):
        result = ran(trace)
        assert unlisted(result, configuration.layout.name) == [], trace.header.name
        activity.add(result.activity)
    assert activity.hits > 100
    assert (activity.restored > 100) == (configuration.layout.name == "exllamav3-state")
    assert (activity.from_tier > 20) == (configuration.layout.name == "exllamav3-cpu")


@installed
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_as_named_and_the_same_trace_passes_without_it(fault: Mutant) -> None:
    """Nothing of what is listed counts as found."""
    traces = [(one.layout.name, trace) for one in configurations() for trace in random_traces(one)]
    first = len(traces) // len(configurations())
    in_turn = sorted(range(len(traces)), key=lambda place: place % first)
    for name, trace in [("exllamav3-full", pages_alike()), *[traces[place] for place in in_turn]]:
        kinds = {(finding.anomaly, finding.checker) for finding in ran(trace, fault.name).findings}
        if (fault.anomaly, fault.checker) in kinds:
            without = ran(trace)
            if without.findings:
                assert unlisted(without, name) == []
                continue
            return
    pytest.fail(f"{fault.name} survived")


@installed
def test_an_iteration_prefills_each_job_and_then_decodes_all() -> None:
    result = ran(traced(Submit("r1", "a:40"), Submit("r2", "b:20"), steps(2)))
    runs = [
        [(run.r, run.start, run.stop) for run in event.runs]
        for event in result.history.events
        if isinstance(event, StepBegin)
    ]
    together = [("r1", 39, 40), ("r2", 19, 20)]
    assert runs[:3] == [[("r1", 0, 39)], [("r2", 0, 19)], together]
    assert runs[3:] == [[("r1", 40, 41), ("r2", 20, 21)]] and result.findings == []


@installed
def test_the_beginning_of_a_page_is_copied() -> None:
    result = ran(traced(alone("r1", "a:30"), Submit("r2", "a:24 b:6"), steps(2)))
    copies = [event for event in result.history.events if isinstance(event, Copy)]
    assert resumed(result) == [("r1", 0), ("r2", 24)] and result.findings == []
    assert [len(copy.moves) for copy in copies] == [1]


@installed
def test_a_state_is_kept_at_the_last_page_of_a_prompt() -> None:
    """A prompt resumes there, and nowhere behind."""
    result = ran(traced(alone("r1", "a:40"), Submit("r2", "a:40 b:20"), steps(2), groups=STATE))
    assert resumed(result) == [("r1", 0), ("r2", 32)] and result.findings == []


@installed
def test_a_long_answer_is_queued_again() -> None:
    """It gives its pages back, and finds them."""
    result = ran(traced(Submit("r1", "a:20"), steps(50), max_rq_tokens=16))
    lost = [event for event in result.history.events if isinstance(event, Preempted)]
    assert len(lost) == 2 and resumed(result) == [("r1", 0), ("r1", 48), ("r1", 64)]
    assert result.findings == []


@installed
def test_what_was_evicted_comes_back_from_the_cpu_page_cache() -> None:
    """Page by page, and only what the device has not."""
    fill = [op for number in range(4) for op in alone(f"f{number}", f"{'bcde'[number]}:60")]
    asked = [*alone("r1", "a:40"), *fill, Submit("r2", "a:40"), *steps(2)]
    result = ran(traced(asked, pages=12, cpu_pages=12, max_rq_tokens=16))
    (hit,) = (
        event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
    )
    assert (hit.resume, hit.tier) == (32, "cpu") and result.findings == []
    without = ran(traced(asked, pages=12, max_rq_tokens=16))
    assert resumed(without)[-1] == ("r2", 0)


@installed
@pytest.mark.parametrize(("length", "kinds"), [(17, ["stale-hit"]), (18, [])])
def test_the_second_of_two_twins_leaves_a_page_without_a_parent(
    length: int, kinds: list[str]
) -> None:
    """Its answer is taken for the beginning of a prompt. With a token more it computes its last
    page by itself, which links it.
    """
    prompt = f"a:{length}"
    twins = [Submit("r1", prompt), Submit("r2", prompt), *steps(6)]
    result = ran(traced(twins, Submit("r3", f"a[16]:{length - 16} @r2:4 c:4"), steps(3)))
    assert found(result) == kinds


@installed
def test_a_page_that_gets_its_contents_back_forgets_its_parent() -> None:
    """While it was another's, somebody computed its contents anew, so its hash is that page's."""
    taken = [Submit("r2", "b:36"), *steps(2), Finish("z"), Submit("r3", "a:33"), *steps(3)]
    trace = traced(
        [Submit("z", "z:49"), *steps(2), Submit("r1", "a:33"), *steps(2), Finish("r1")],
        [*taken, Abort("r2"), Submit("r4", "a[16]:10 c:3"), *steps(3)],
        pages=10,
        max_rq_tokens=16,
    )
    assert "stale-hit" in found(ran(trace))


@installed
@pytest.mark.parametrize("page_size", [16, 256])
def test_a_page_holds_as_many_tokens_as_the_layout_says(page_size: int) -> None:
    groups = (GroupSpec("full", page_size),)
    half = page_size // 2
    trace = traced(
        alone("r1", f"a:{3 * page_size}"),
        Submit("r2", f"a:{2 * page_size} b:{half}"),
        steps(2),
        groups=groups,
    )
    result = ran(trace)
    assert resumed(result) == [("r1", 0), ("r2", 2 * page_size)] and result.findings == []


def test_every_fault_says_in_advance_what_finds_it() -> None:
    assert len(FAULTS) >= 10 and {fault.engines for fault in FAULTS} == {("exllamav3",)}
    assert {fault.checker for fault in FAULTS} == {
        "checkpoints",
        "commit-order",
        "eviction",
        "no-fabricated-snapshots",
        "ownership",
        "reuse-floor",
        "safety-law",
    }


def test_what_is_not_exllamav3_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no exllamav3/generator there"):
        source.load(str(tmp_path))


@pytest.mark.parametrize(("text", "named"), [('__version__ = "1.6.4"', "1.6.4"), ("", "unknown")])
def test_a_release_that_the_adapter_was_not_written_for_is_named(
    tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "exllamav3" / "generator").mkdir(parents=True)
    (tmp_path / "exllamav3" / "version.py").write_text(text, encoding="utf-8")
    with pytest.raises(
        UsageError, match=rf"exllamav3 {named}: its generator is driven in release 1\.6\.5 alone"
    ):
        source.load(str(tmp_path))


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ((GroupSpec("recurrent", 8),), {}, "one block table"),
        ((GroupSpec("sliding", 16, window=40),), {}, "one block table"),
        ((*STATE, GroupSpec("recurrent", 16)), {}, "one group of them is enough"),
        (STATE, {"checkpoint_interval": 20}, "a multiple of the page size 16; not 20"),
        (STATE, {"max_batch_size": 0}, "at least 1; not 0"),
        ((), {"cpu_pages": 1}, "0, or at least 2"),
        (STATE, {"retention_interval": 0}, "no option 'retention_interval'"),
    ],
)
def test_what_exllamav3_has_not_is_refused(
    groups: tuple[GroupSpec, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(traced(groups=groups, **options).header)
