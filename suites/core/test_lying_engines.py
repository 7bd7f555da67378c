"""Engines that are sound to look at and say what is not so: of themselves, of what they were asked,
of why a key ended.

The cache behind each is the reference's and right unless the lie is about it, so without the check
every one of them passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers import ALL
from cachewitness.core.declared import ALWAYS, OF_INTERVAL, OF_KEYS, OF_STATES
from cachewitness.core.driving import Stopped, check, drive, seconds_in
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import describe_error
from cachewitness.core.events import (
    Accept,
    Acquire,
    Captures,
    Copy,
    Counts,
    Event,
    Eviction,
    Group,
    Header,
    History,
    Hit,
    Move,
    Pool,
    ResetDone,
    Retention,
    StepBegin,
    Submitted,
    Unpublish,
    UnpublishReason,
)
from cachewitness.core.intake import BadEvents
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.result import EXIT_NOTHING_CHECKED, UNCOUNTED, Result
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Op,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.core.well_formed import WellFormedness
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.terminal import covered
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from suites.support.mistaken_engine import Mistake, lively, mistaken

Say = Callable[[Header], Header]
FULL = Configuration(load("full"))
REPLAYED = [
    Submit("a", "doc:40 q:3"),
    Step(run=[("a", 43)]),
    Finish("a"),
    Submit("b", "doc:40 z:3"),
    Step(run=[("b", 43)]),
]

CROWDED = Trace(
    TraceHeader("crowded", FULL.layout, pages=4),
    [op for r in "abcd" for op in (Submit(r, f"{r}:40"), Step(run=[(r, 40)]), Finish(r))],
)
"""Each request takes the pages that the one before left keys in."""


class Declaring:
    """The reference, which says something else of itself."""

    def __init__(self, header: TraceHeader, say: Say) -> None:
        self._engine = parse("reference").open(header)
        self._say = say

    def describe(self) -> Header:
        return self._say(self._engine.describe())

    def apply(self, op: Op) -> list[Event]:
        return self._engine.apply(op)

    def close(self) -> None:
        self._engine.close()


def rules(**fields: Any) -> Say:
    return lambda header: replace(header, rules=replace(header.rules, **fields))


def pools(**fields: Any) -> Say:
    return lambda header: replace(header, pools=[replace(pool, **fields) for pool in header.pools])


def says(**fields: Any) -> Say:
    return lambda header: replace(header, **fields)


def each_group(**fields: Any) -> Say:
    return lambda header: replace(
        header, groups=[replace(group, **fields) for group in header.groups]
    )


DECLARED: dict[str, tuple[Say, str]] = {
    "nothing applies": (
        says(not_applicable=dict.fromkeys(ALWAYS, "trust me")),
        "'safety-law' - at `$.not_applicable`",
    ),
    "nobody is owed a turn": (
        says(not_applicable={"progress": "trust me"}),
        "'progress' - at `$.not_applicable`; it applies to every cache",
    ),
    "no rule of keys applies, and there are keys": (
        says(not_applicable={OF_KEYS[1]: "trust me"}),
        "a key in group 0",
    ),
    "no state is kept, and states have keys": (
        says(not_applicable={OF_STATES: "trust me"}),
        "a key in group 1",
    ),
    "nothing is cached, and things are hit": (
        rules(caching=False),
        "the header says `caching` false",
    ),
    "a patience without end": (
        rules(progress_steps=10**9),
        "1000000000 - at `$.rules.progress_steps`",
    ),
    "no patience": (rules(progress_steps=-1), "-1 - at `$.rules.progress_steps`"),
    "everything is reserved": (
        rules(reserved_pages=10**9),
        "1000000000 - at `$.rules.reserved_pages`",
    ),
    "drafts without end": (rules(drafts=10**9), "1000000000 - at `$.rules.drafts`"),
    "a watermark that is no number": (
        pools(eviction=Eviction("lru", watermark=float("nan"))),
        "nan of pool 0 - at `$.pools`",
    ),
    "room from the first page on": (
        pools(eviction=Eviction("lru", watermark=0.0)),
        "0.0 of pool 0 - at `$.pools`",
    ),
    "a capability that writes on the terminal": (
        says(capabilities=["abort", "\x1b[2Jreset"]),
        r"reset' - at `$.capabilities`",
    ),
    "a tier of two lines": (
        pools(tier="local\nverdict: pass"),
        r"'local\nverdict: pass' - at `$.pools`",
    ),
    "a pool without end": (
        pools(pages=1 << 22),
        "4,194,304 pages of pool 0 - at `$.pools`; the trace gives the engine",
    ),
    "another level": (
        says(level="answers"),
        "'answers' - at `$.level`; the trace has level 'manager'",
    ),
    "a verdict in its name": (
        says(engine="mine\nverdict: pass"),
        r"'mine\nverdict: pass' - at `$.engine`",
    ),
    "colours in its version": (
        says(engine_version="\x1b[31m1.0"),
        r"'\x1b[31m1.0' - at `$.engine_version`",
    ),
}


@pytest.mark.parametrize(("say", "message"), DECLARED.values(), ids=DECLARED.keys())
def test_a_declaration_that_cannot_be_or_that_events_belie_is_refused(
    say: Say, message: str
) -> None:
    """What an engine says of itself switches rules off, so it is input: one line that names the
    field.
    """
    trace = lively()
    with pytest.raises(BadEvents) as refused:
        drive(trace, Declaring(trace.header, say))
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("seconds", [-5.0, float("nan"), float("inf"), "long", None])
def test_time_that_cannot_be_is_not_told(seconds: Any) -> None:
    """What an engine says of its own time stands in no verdict, so it is left out."""
    engine = Declaring(lively().header, says())
    engine.engine_seconds = seconds
    assert seconds_in(engine) is None
    engine.engine_seconds = 0.25
    assert seconds_in(engine) == 0.25


def test_an_exception_writes_one_printable_line() -> None:
    assert (
        describe_error(ValueError("\x1b[2Jverdict: pass\nagain"))
        == r"ValueError: \x1b[2Jverdict: pass"
    )


def test_an_engine_of_another_layout_is_refused() -> None:
    """A trace with a recurrent group is not judged on an engine that declares attention alone."""
    trace = lively()

    def all_full(header: Header) -> Header:
        return each_group(kind="full")(rules(retention=Retention())(header))

    with pytest.raises(
        BadEvents, match=r"full - at `\$.groups`; the trace's layout has full, recurrent"
    ):
        drive(trace, Declaring(trace.header, all_full))


def test_a_window_narrower_than_the_layouts_is_refused() -> None:
    """What lies left of the window is never read, so an engine could declare itself out of every
    fault in it.
    """
    header = TraceHeader("narrow", load("full-swa"), pages=20)
    with pytest.raises(BadEvents, match="window 1 - at"):
        drive(Trace(header, REPLAYED), Declaring(header, each_group(window=1)))


def test_the_rules_that_nobody_may_deny_are_rules() -> None:
    """Their names are those of checkers."""
    assert {*ALWAYS, *OF_KEYS, OF_STATES, OF_INTERVAL} <= {
        checker.invariant or checker.name for checker in ALL
    }


def changed(kind: type[Event], change: Callable[[Any], Any]) -> Mistake:
    return lambda op, events: [change(event) if type(event) is kind else event for event in events]


def left_out(leave: Callable[[Any], bool]) -> Mistake:
    return lambda op, events: [event for event in events if not leave(event)]


def with_(**fields: Any) -> Callable[[Any], Any]:
    return lambda event: replace(event, **fields)


def alone() -> Mistake:
    """Give every request tokens of its own, so that nobody shares anything."""
    moved: dict[str, int] = {}

    def mistake(op: Op, events: list[Any]) -> list[Any]:
        for event in events:
            if isinstance(event, Submitted):
                moved[event.r] = (len(moved) + 1) << 30
        return [
            (
                replace(e, tokens=[token + moved[e.r] for token in e.tokens])
                if isinstance(e, Submitted | Accept)
                else e
            )
            for e in events
        ]

    return mistake


ANSWERED: dict[str, tuple[Mistake, str]] = {
    "nobody was asked for": (
        changed(StepBegin, with_(asked=[])),
        "asked [] - at `$.asked`; the operation asks for",
    ),
    "all tokens are one": (
        changed(Submitted, lambda e: replace(e, tokens=[7] * len(e.tokens))),
        "different segments are different",
    ),
    "nothing is shared": (alone(), "equal segments are equal tokens"),
    "look-ups in vain are not reported": (
        left_out(lambda e: isinstance(e, Hit) and not e.resume),
        "runs and was not looked up",
    ),
    "keys end with a reset that never was": (
        changed(Unpublish, with_(reason="reset")),
        "keys ended for 'reset' without",
    ),
    "keys end with a step that ran": (changed(Unpublish, with_(reason="withdraw")), "keys of step"),
    "a reset that nobody asked for": (
        lambda op, events: (
            [*events, ResetDone(step=events[-1].step, ok=True)] if isinstance(op, Step) else events
        ),
        "`reset`, which nobody asked for",
    ),
}


@pytest.mark.parametrize(("mistake", "message"), ANSWERED.values(), ids=ANSWERED.keys())
def test_an_answer_to_something_else_is_refused(mistake: Mistake, message: str) -> None:
    """An engine that says that it was asked something else is not judged by that."""
    with pytest.raises(Stopped) as stopped:
        for trace in (lively(), CROWDED):
            drive(trace, mistaken(trace, mistake))
    assert message in str(stopped.value)


def flushing(header: TraceHeader, eviction: Eviction, reason: UnpublishReason) -> Result:
    """Run a prompt twice on a cache that forgets every key when a request ends, and says why."""
    engine = parse("reference").open(header)

    class Flushing(Declaring):
        def apply(self, op: Op) -> list[Event]:
            events = self._engine.apply(op)
            if not isinstance(op, Finish | Abort):
                return events
            more = [
                event for event in self._engine.apply(Reset()) if not isinstance(event, ResetDone)
            ]
            return events + [
                replace(event, reason=reason) if isinstance(event, Unpublish) else event
                for event in more
            ]

    engine.close()
    return drive(Trace(header, REPLAYED), Flushing(header, pools(eviction=eviction)))


@pytest.mark.parametrize("order", ["lru", "lru-used", "random"])
@pytest.mark.parametrize("free_first", [True, False])
def test_a_cache_that_forgets_everything_is_found_whatever_order_it_declares(
    order: Any, free_first: bool
) -> None:
    """One queue for pages with and without a key is no reason to end a key for nobody."""
    header = TraceHeader("replayed", FULL.layout, pages=20)
    found = {
        finding.anomaly
        for finding in flushing(header, Eviction(order, free_first=free_first), "evict").findings
    }
    assert "needless-eviction" in found


def test_a_configuration_that_was_run_and_then_refused_was_not_checked() -> None:
    """An engine that takes one trace of each configuration and refuses all others has not passed
    them.
    """
    opened = count()

    def once(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        if next(opened):
            raise UsageError("not any more")
        return parse("reference").open(header)

    spec = EngineSpec(
        EngineKind("once", "a reference that tires", ("manager",), once, replays=False), {}, "once"
    )
    report = Runner(spec, [Configuration(load("full-mamba"))]).run(
        [suite for suite in SUITES if suite.name == "random"]
    )
    assert report.exit_code == EXIT_NOTHING_CHECKED
    assert any(
        "refused it after 1 of its traces had run: not any more" in line for line in report.vacuous
    )


def test_a_configuration_that_one_suite_ran_and_another_was_refused_was_not_checked() -> None:
    def tired(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        if header.name.startswith("random"):
            raise UsageError("not any more")
        return parse("reference").open(header)

    spec = EngineSpec(
        EngineKind("tired", "a reference that tires", ("manager",), tired, replays=False),
        {},
        "tired",
    )
    suites = [suite for suite in SUITES if suite.name in ("invariants", "random")]
    report = Runner(spec, [Configuration(load("full-mamba"))]).run(suites)
    assert report.exit_code == EXIT_NOTHING_CHECKED
    assert any(
        "refused it after another suite had run on it: not any more" in line
        for line in report.vacuous
    )


def test_an_engine_without_counts_is_told_that_they_were_not_judged() -> None:
    """Its free list is nobody's word against the ledger's; the report and its last line but one
    say so.
    """

    class Uncounted(Declaring):
        def apply(self, op: Op) -> list[Event]:
            return [event for event in self._engine.apply(op) if not isinstance(event, Counts)]

    def opened(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        return Uncounted(header, lambda header: header)

    spec = EngineSpec(
        EngineKind("silent", "a reference without counts", ("manager",), opened, replays=False),
        {},
        "silent",
    )
    asked = [suite for suite in SUITES if suite.name == "invariants"]
    silent, counted = (Runner(engine, [FULL]).run(asked) for engine in (spec, parse("reference")))
    assert UNCOUNTED[0] in [entry.what for entry in silent.not_run] and UNCOUNTED[0] in covered(
        silent
    )
    assert UNCOUNTED[0] not in [entry.what for entry in counted.not_run]


DECLARED = Header("test", "manager", [Pool(0, 9)], [Group(0, "full", 4)])
WITH_TIER = [Pool(0, 9), Pool(1, 9, tier="cpu")]
DENIED: dict[str, tuple[Say, str]] = {
    "full attention that retention thins out": (
        rules(retention=Retention(0, [0])),
        "group 0 - at `$.rules.retention.groups`; of full attention every block is needed",
    ),
    "hits that no prompt is long enough for": (
        rules(alignment=4096),
        (
            "4096 - at `$.rules.alignment`; all blocks end together every 16 tokens, and hits are"
            " multiples of 128 tokens at most"
        ),
    ),
    "captures that lie nowhere": (
        rules(captures=Captures()),
        "no pool of another tier - at `$.pools`",
    ),
}


@pytest.mark.parametrize(("say", "message"), DENIED.values(), ids=DENIED.keys())
def test_what_no_cache_can_be_is_not_declared(say: Say, message: str) -> None:
    """Where it could, rules would be silent: a cache that forgets says that retention did it."""
    with pytest.raises(BadEvents, match=re.escape(message)):
        drive(CROWDED, Declaring(CROWDED.header, say))


def test_pools_are_known_by_their_ids_and_not_by_their_place() -> None:
    """A history of one pool that has the number 7."""
    happened = drive(CROWDED, parse("reference").open(CROWDED.header)).history
    (pool,) = happened.header.pools
    (group,) = happened.header.groups
    header = replace(happened.header, pools=[replace(pool, id=7)], groups=[replace(group, pool=7)])
    events = [
        replace(e, pool=7) if hasattr(e, "pool") else e for e in map(_of_pool_7, happened.events)
    ]
    result = check(History(header, events, happened.op_of))
    assert result.findings == [] and not any(tally.crashed for tally in result.tallies)


def _of_pool_7(event: Event) -> Event:
    return (
        replace(event, zeros=[(7, pages) for _, pages in event.zeros])
        if isinstance(event, StepBegin)
        else event
    )


def test_a_copy_ends_with_the_pages_that_it_began_with() -> None:
    sense = WellFormedness(replace(DECLARED, pools=WITH_TIER))
    sense.follow(Copy(id=1, moves=[Move(1, 2)], phase="begin"))
    with pytest.raises(MalformedHistory, match="other pages than copy 1 began with"):
        sense.follow(Copy(id=1, moves=[], phase="end"))


def test_a_capture_lies_in_a_page_at_least() -> None:
    with pytest.raises(MalformedHistory, match="no page of 'capture:1'"):
        WellFormedness(replace(DECLARED, pools=WITH_TIER)).follow(
            Acquire(pool=0, group=0, pages=[], holder="capture:1")
        )


def sparse(interval: int | None) -> Say:
    return rules(retention=Retention(interval, [1]))


@pytest.mark.parametrize(
    ("asked", "declared"), [(None, 0), (None, 64), (64, 0), (64, None), (0, None)]
)
def test_a_retention_that_the_trace_does_not_ask_for_is_refused(
    asked: int | None, declared: int | None
) -> None:
    """Where each state is to be kept, an engine that keeps one in an interval would owe nothing
    for the others.
    """
    header = TraceHeader("kept", load("full-swa"), pages=20, options={"retention_interval": asked})
    message = (
        f"{declared} - at `$.rules.retention.interval`; the trace's option retention_interval is"
        f" {asked}"
    )
    with pytest.raises(BadEvents, match=re.escape(message.replace("None", "null"))):
        drive(Trace(header, REPLAYED), Declaring(header, sparse(declared)))
    assert drive(Trace(header, REPLAYED), Declaring(header, sparse(asked))).findings == []


def test_a_trace_that_asks_for_no_retention_leaves_it_to_the_engine() -> None:
    header = TraceHeader("kept", load("full-swa"), pages=20)
    default = parse("reference").open(header).describe().rules.retention.interval
    assert drive(Trace(header, REPLAYED), Declaring(header, sparse(default))).findings == []


def test_hits_may_be_as_coarse_as_the_blocks_of_all_groups_together() -> None:
    """As vLLM's are where blocks of 4 and of 8 tokens are hit whole alone."""
    header = TraceHeader("coarse", load("full-mamba-unequal"), pages=40)
    assert drive(Trace(header, REPLAYED), Declaring(header, rules(alignment=8))).findings == []


def test_where_nothing_is_hit_it_is_all_the_same_of_what_hits_would_be_multiples() -> None:
    """In vLLM's mode `none` a block holds the state of a whole request, and the common multiple
    of blocks is as long.
    """
    options = {"mamba_cache_mode": "none", "enable_caching": False}
    header = TraceHeader("whole", load("full-mamba"), pages=40, options=options)
    engine = parse("reference").open(header)
    assert engine.describe().rules.alignment == 4096
    assert drive(Trace(header, REPLAYED), engine).findings == []


def test_counts_that_stop_are_found() -> None:
    """What was counted last stands until the engine counts again; where it stops, every rule
    about counts would be silent.
    """
    trace = lively()
    asked = count()

    def stops(op: Op, events: list[Any]) -> list[Any]:
        stopped = next(asked) > 12
        return [event for event in events if not (stopped and isinstance(event, Counts))]

    result = drive(trace, mistaken(trace, stops))
    found = result.findings
    assert (
        result.counted
        and {finding.checker for finding in found} == {"ownership"}
        and len(found) == 1
    )
    assert "and what it counts stands until it counts again" in found[0].sentence
    assert drive(trace, mistaken(trace, lambda op, events: events)).findings == []
