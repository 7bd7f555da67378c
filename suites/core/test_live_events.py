"""What a live engine reports is input: a mistake in it ends the trace with one line, exit code 4,
never a pass or a crash.

Each mistake is planted into the events of the reference, whose cache is right, so whatever is said
is about the events.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness.core.driving import Stopped, attempt, drive
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Copy,
    Counts,
    Died,
    Event,
    Finished,
    Hit,
    Move,
    Preempted,
    Publish,
    Read,
    Release,
    ResetDone,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
    Version,
    Write,
    Zero,
)
from cachewitness.core.intake import BadEvents, taken_in
from cachewitness.core.result import exit_code
from cachewitness.core.trace_format import Op, Step, TraceHeader
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.report import github, jsonreport, junit
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.lockstep import lockstep
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from suites.support.mistaken_engine import Mistake, Mistaken, lively, mistaken

Change = Callable[[Any], Any]


def each(kind: type[Event], change: Change) -> Mistake:
    """Change every event of a kind: into another event, into several, or into none."""

    def mistake(op: Op, events: list[Event]) -> list[Any]:
        out: list[Any] = []
        for event in events:
            changed = change(event) if type(event) is kind else event
            out += changed if isinstance(changed, list) else [changed]
        return out

    return mistake


def every(**fields: Any) -> Mistake:
    """Give every event the same value in a field."""
    return lambda op, events: [replace(event, **fields) for event in events]


def put(event: Callable[[], Any]) -> Mistake:
    """Report one more event with every step."""
    return lambda op, events: [*events, event()] if isinstance(op, Step) else events


def runs(change: Change) -> Mistake:
    """Change every run of every step."""
    return each(StepBegin, lambda begin: replace(begin, runs=[change(run) for run in begin.runs]))


def with_(**fields: Any) -> Change:
    return lambda event: replace(event, **fields)


MISTAKES: dict[str, tuple[Mistake, str]] = {
    # what is no list of events
    "nothing": (lambda op, events: None, "apply() returned a NoneType; return a list"),
    "a generator": (lambda op, events: (event for event in events), "a generator"),
    "a text": (lambda op, events: "events", "a str"),
    "a list of texts": (lambda op, events: ["take"], "Expected `object`, got `str`"),
    "None among the events": (lambda op, events: [*events, None], "got `None`"),
    "an object of its own": (put(object), "(a object): Encoding objects of type object"),
    "a class": (put(lambda: Acquire), "unsupported"),
    # what does not exist
    "a group that is not there": (
        each(Acquire, with_(group=7)),
        "group 7 does not exist - at `$.group`",
    ),
    "a negative group": (each(Publish, with_(group=-1)), "group -1 does not exist"),
    "a pool that is not there": (each(Counts, with_(pool=3)), "pool 3 does not exist"),
    "a page beyond the pool": (
        each(Publish, with_(page=10**6)),
        "page 1000000 does not exist - at `$.page`",
    ),
    "a negative page": (each(Acquire, with_(pages=[-1])), "page -1 does not exist - at `$.pages`"),
    "a page of a table beyond the pool": (
        runs(lambda run: replace(run, tables=[[10**9]] * 2)),
        "at `$.runs`",
    ),
    "a reference count of no page": (each(Counts, with_(refs=[(10**6, 1)])), "at `$.refs`"),
    "a tier that is not there": (each(Hit, with_(tier="moon")), "tier 'moon' does not exist"),
    "a holder that is nobody": (
        each(Acquire, with_(holder="")),
        "request '' was never submitted - at `$.holder`",
    ),
    "a key of a stranger": (
        each(Publish, with_(r="zoe")),
        "request 'zoe' was never submitted - at `$.r`",
    ),
    "a key of nobody": (each(Publish, with_(r="")), "request '' was never submitted - at `$.r`"),
    "a run of a stranger": (runs(lambda run: replace(run, r="zoe")), "at `$.runs`"),
    # what is of another shape
    "a hit without tables": (
        each(Hit, with_(pages=[])),
        "0 tables - at `$.pages`; the header has 2 groups",
    ),
    "a hit with more rows than groups": (
        each(Hit, lambda hit: replace(hit, pages=[*hit.pages, []])),
        "3 tables",
    ),
    "a hit that names no page": (
        each(Hit, with_(pages=[[], []], resume=16, reported=16)),
        "no page in any group",
    ),
    "a run without tables": (runs(lambda run: replace(run, tables=[])), "0 tables - at `$.runs`"),
    "a run backwards": (
        runs(lambda run: replace(run, start=run.stop, stop=run.start)),
        "at `$.runs`",
    ),
    "a run of no token": (runs(lambda run: replace(run, stop=run.start)), "at `$.runs`"),
    "a run beyond its request": (
        runs(lambda run: replace(run, stop=10**12)),
        "at `$.runs`; it has",
    ),
    "a request twice in a step": (
        each(StepBegin, lambda b: replace(b, runs=b.runs * 2)),
        "twice - at `$.runs`",
    ),
    "a state saved behind its chunk": (
        runs(lambda run: replace(run, checkpoints=[(0, 1, 10**6)])),
        "at `$.runs`; only a recurrent",
    ),
    "a state saved in no group": (
        runs(lambda run: replace(run, checkpoints=[(9, 1, 1)])),
        "group 9 does not exist",
    ),
    "a state saved in no page": (
        runs(lambda run: replace(run, checkpoints=[(0, 10**6, 1)])),
        "page 1000000 does not exist",
    ),
    "tokens mirrored that are not computed": (
        runs(lambda run: replace(run, mirrors=[(0, 1, 0, 10**6)])),
        "mirrored for group 0",
    ),
    "tokens mirrored in no group": (
        runs(lambda run: replace(run, mirrors=[(9, 1, 0, 1)])),
        "group 9 does not exist",
    ),
    "drafts of nobody": (runs(lambda run: replace(run, drafts=[1] * 50)), "drafts from"),
    "a key of less than nothing": (each(Publish, with_(length=-1)), "at `$.length`"),
    "a negative length of a hit": (each(Hit, with_(resume=-1)), "less than nothing"),
    "fewer tokens reported than it resumes at": (
        each(Hit, with_(reported=0, resume=16)),
        "0 - at `$.reported`; it lies",
    ),
    "more tokens reported than it has": (
        each(Hit, with_(reported=10**6)),
        "1000000 - at `$.reported`; it lies between",
    ),
    "tokens from nowhere": (each(Accept, lambda e: replace(e, upto=e.upto + 9)), "at `$.upto`"),
    "negative tokens": (each(Accept, with_(tokens=[-1])), "a token id outside"),
    # what is of another type
    "a page as a text": (each(Publish, with_(page="7")), "Expected `int`, got `str` - at `$.page`"),
    "a page as a fraction": (
        each(Publish, with_(page=7.5)),
        "Expected `int`, got `float` - at `$.page`",
    ),
    "a number beyond all": (each(Publish, with_(length=2**70)), "- at `$.length`"),
    "pages that are none": (
        each(Acquire, with_(pages=None)),
        "Expected `array`, got `None` - at `$.pages`",
    ),
    "pages as a number": (
        each(Release, with_(pages=3)),
        "Expected `array`, got `int` - at `$.pages`",
    ),
    "a step as a text": (every(step="first"), "Expected `int`, got `str` - at `$.step`"),
    "a reason of its own": (
        each(Unpublish, with_(reason="whim")),
        "Invalid enum value 'whim' - at `$.reason`",
    ),
    "a request as a number": (each(Hit, with_(r=7)), "Expected `str`, got `int` - at `$.r`"),
    # what cannot come then
    "every event of step 0": (every(step=0), "number the steps upwards from 1"),
    "every event of step 1": (every(step=1), "number the steps upwards from 1"),
    "steps backwards": (
        lambda op, events: [replace(event, step=10**6 - event.step) for event in events],
        "begins first",
    ),
    "a key for a step far ahead": (
        each(Publish, with_(step=10**9)),
        "events of step 1000000000 came already",
    ),
    "a step that begins twice": (
        each(StepBegin, lambda event: [event, replace(event)]),
        "has begun already",
    ),
    "a step that ends twice": (
        each(StepEnd, lambda event: [event, replace(event)]),
        "has not begun - at `$.step`",
    ),
    "a step that never begins": (each(StepBegin, lambda event: []), "has not begun - at `$.step`"),
    "steps that never end": (each(StepEnd, lambda event: []), "none of them ends"),
    "steps that nobody reports": (
        lambda op, events: [] if isinstance(op, Step) else events,
        "no `step_begin`; report every step",
    ),
    "an end before the beginning": (
        lambda op, events: sorted(events, key=lambda event: not isinstance(event, StepEnd)),
        "has not begun - at `$.step`",
    ),
    "a second submit": (
        each(Submitted, lambda event: [event, replace(event)]),
        "is submitted twice - at `$.r`",
    ),
    "a submit that nobody asked for": (
        put(lambda: Submitted("zoe", tokens=[1])),
        "'zoe' was not asked for",
    ),
    "no submit": (each(Submitted, lambda event: []), "`submit` of []"),
    "a submit of another": (each(Submitted, with_(r="zoe")), "`submit` of ['zoe']"),
    "a submit of other tokens": (
        each(Submitted, with_(tokens=[1])),
        "1 tokens of 'r1' - at `$.tokens`",
    ),
    "a submit without its salt": (
        each(Submitted, with_(salt="pepper")),
        "salt 'pepper' of 'r1' - at `$.salt`",
    ),
    "a second end": (each(Finished, lambda event: [event, replace(event)]), "has ended - at `$.r`"),
    "no end": (each(Finished, lambda event: []), "does not end; report `finish` or `abort`"),
    "no end of an abort": (
        each(Aborted, lambda event: []),
        "does not end; report `finish` or `abort`",
    ),
    "a preemption of a stranger": (
        each(Preempted, with_(r="zoe")),
        "was never submitted - at `$.r`",
    ),
    "no new weights": (each(Version, lambda event: []), "no `version` with weights 1"),
    "other weights": (each(Version, with_(weights=99)), "no `version` with weights 1"),
    "no answer to a reset": (
        each(ResetDone, lambda event: []),
        "no `reset`; report what was answered",
    ),
    "copies that never began": (
        each(StepBegin, with_(ended=[3])),
        "copy 3 is not under way - at `$.ended`",
    ),
    # what is the harness's to write down
    "a read": (
        put(lambda: Read(pool=0, group=0, pages=[], r="r1", start=0, stop=0)),
        "leave it out",
    ),
    "a write": (
        put(lambda: Write(pool=0, group=0, pages=[], r="r1", start=0, stop=0)),
        "leave it out",
    ),
    "a copy": (put(lambda: Copy(id=1, moves=[Move(1, 2)])), "leave it out"),
    "zeros": (put(lambda: Zero(pool=0, pages=[])), "leave it out"),
    "its own death": (put(lambda: Died(operation=0, message="")), "leave it out"),
}
"""By what the adapter does wrong: the mistake, and what is said of it."""

TRACE = lively(1)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_stops_the_trace_with_one_line(name: str) -> None:
    """It says engine, trace, operation and event, what is wrong there, and where the format is
    described. Exit code 4.
    """
    mistake, message = MISTAKES[name]
    result, line = attempt(lambda: drive(TRACE, mistaken(TRACE, mistake)))
    assert message in line and "\n" not in line
    assert line.startswith(f"trace {TRACE.header.name}: engine reference, ")
    assert "docs/reference/formats.md" in line or "report every step" in line
    assert (exit_code(result, line), result.findings) == (4, [])


def test_without_a_mistake_the_trace_passes() -> None:
    result, line = attempt(lambda: drive(TRACE, mistaken(TRACE, lambda op, events: events)))
    assert (exit_code(result, line), line) == (0, "")


def test_the_line_names_operation_and_event() -> None:
    """Both counted from 1, as people do: the operation in the trace, the event in the operation."""
    places: list[tuple[int, int]] = []

    def once(op: Op, events: list[Event]) -> list[Any]:
        places.extend(
            (TRACE.ops.index(op) + 1, place)
            for place, e in enumerate(events, 1)
            if isinstance(e, Publish)
        )
        return [
            replace(event, page=10**6) if isinstance(event, Publish) else event for event in events
        ]

    _, line = attempt(lambda: drive(TRACE, mistaken(TRACE, once)))
    operation, event = places[0]
    message = (
        f"operation {operation} (step), event {event} (publish): page 1000000 does not exist - at"
        " `$.page`"
    )
    assert message in line and TRACE.ops[operation - 1].run  # type: ignore[union-attr]


def test_what_was_found_before_outweighs_it() -> None:
    """A page is given back twice, and operations later comes what cannot be followed: exit code
    1.
    """

    def twice(op: Op, events: list[Event]) -> Any:
        return (
            None
            if op is TRACE.ops[-1]
            else [*events, *(event for event in events if isinstance(event, Release))]
        )

    result, line = attempt(lambda: drive(TRACE, mistaken(TRACE, twice)))
    assert (
        "double-free" in {finding.anomaly for finding in result.findings}
        and "returned a NoneType" in line
    )
    assert exit_code(result, line) == 1


def spec(mistake: Mistake) -> EngineSpec:
    """Return the reference with a mistake in its events as an engine by name."""
    from cachewitness.engines.registry import parse

    def opened(header: TraceHeader, options: Any) -> Any:
        return Mistaken(parse("reference").open(header), mistake)

    return EngineSpec(EngineKind("mistaken", "for a test", ("manager",), opened), {}, "mistaken")


def suites(*names: str) -> list[Any]:
    return [suite for suite in SUITES if suite.name in names]


BAD_KEYS = each(Publish, with_(page=10**6))


@pytest.mark.parametrize(
    "names", [("invariants", "random"), ("differential",)], ids=lambda names: names[0]
)
def test_a_run_reports_it_in_every_format(names: Sequence[str]) -> None:
    """Exit code 4, which is also an error in JUnit and an annotation on GitHub; no suite of it
    says that it passed.
    """
    report = Runner(spec(BAD_KEYS), [Configuration(load("full-mamba"))]).run(suites(*names))
    assert report.exit_code == 4 and {suite.outcome for suite in report.suites} == {"bad events"}
    document = jsonreport.document(report, {}, [], "vllm")
    lines = [line for suite in document.suites for line in suite.bad_events]
    assert (document.verdict, document.exit_code) == ("bad events", 4)
    assert lines and all("page 1000000 does not exist" in line for line in lines)
    assert junit.render(report, {}).count(b"<error") >= len(lines)
    assert any("page 1000000" in command for command in github.commands(report, {}))


def test_a_contradiction_in_another_trace_outweighs_it() -> None:
    """Some traces are stopped; in the others a page is given back twice: exit code 1, and both
    are reported.
    """
    step = {"traces": 0}

    def sometimes(op: Op, events: list[Event]) -> list[Any]:
        begins = any(isinstance(event, Submitted) and event.r == "r1" for event in events)
        step["traces"] += begins
        if step["traces"] % 2:
            return BAD_KEYS(op, events)
        return [*events, *(event for event in events if isinstance(event, Release))]

    report = Runner(spec(sometimes), [Configuration(load("full-mamba"))]).run(suites("random"))
    assert report.exit_code == 1 and report.bad_events
    assert {failure.finding.anomaly for suite in report.suites for failure in suite.failures} >= {
        "double-free"
    }


def test_a_campaign_stops_there() -> None:
    campaign = Campaign(
        spec(BAD_KEYS), Plan("vllm", ("manager",), Restriction([load("full-mamba")], {}), 0)
    )
    campaign.run(operations=2000)
    assert campaign.report.exit_code == 4 and len(campaign.report.bad_events) == 1


def test_lockstep_says_so_too() -> None:
    with pytest.raises(Stopped, match="page 1000000 does not exist") as stopped:
        lockstep(TRACE, mistaken(TRACE, BAD_KEYS))
    assert stopped.value.result.tallies[-1].checker == "differential"
    assert str(pickle.loads(pickle.dumps(stopped.value))) == str(stopped.value)


HEADERS: dict[str, tuple[Change, str]] = {
    "nothing": (lambda header: None, "returned a NoneType"),
    "no group": (lambda header: replace(header, groups=[]), "at `$.pools` or `$.groups`"),
    "pages as a text": (
        lambda header: replace(header, pools=[replace(header.pools[0], pages="many")]),
        "$.pools[0].pages",
    ),
    "a group in no pool": (
        lambda header: replace(header, groups=[replace(g, pool=9) for g in header.groups]),
        "pool 9",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_input_as_well(name: str) -> None:
    change, message = HEADERS[name]
    engine = mistaken(TRACE, lambda op, events: events)
    with pytest.raises(BadEvents) as bad:
        taken_in(change(engine.describe()))
    assert (
        message in str(bad.value) and "describe()" in str(bad.value) and "\n" not in str(bad.value)
    )
