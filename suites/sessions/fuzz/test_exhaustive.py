"""An exhaustive search sees every state of a bound, finds what is planted, and takes no two
different states to be one.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness._util.worker_pool import WorkerPool
from cachewitness.cli import invoke
from cachewitness.core.checkers.content_floor import ContentFloor, Lying
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.ownership import Ownership
from cachewitness.core.checkers.progress import Progress
from cachewitness.core.driving import drive
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import NoAnswer
from cachewitness.core.events import Counts, Event, Release, StepBegin
from cachewitness.core.result import (
    EXIT_FAIL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    EXIT_USAGE,
)
from cachewitness.core.trace_format import Finish, Level, Op, Step, Submit, Trace, TraceHeader
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.sessions.fuzz import exhaustive
from cachewitness.sessions.fuzz.exhaustive import Coverage, Covered, bound_of, search
from cachewitness.sessions.fuzz.explore import Found, Path, Watched, _Walk, explore, reached
from cachewitness.sessions.fuzz.scope import CONFIGURATIONS, Bound, Scope
from cachewitness.sessions.fuzz.self_test import sought
from cachewitness.sessions.fuzz.terminal import judged
from cachewitness.workloads.configurations import Configuration
from suites.support.sampled import chosen, fewer, of_all

DOCS = File(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "results" / "exhaustive.md").read_text(encoding="utf-8")
SMALL = Bound(requests=1, blocks=1, pages=4)
HYBRID = Scope(CONFIGURATIONS[4], "manager", Bound(requests=1, blocks=2, pages=7))


def with_options(configuration: int, **options: int) -> Configuration:
    chosen = CONFIGURATIONS[configuration]
    return replace(chosen, options={**chosen.options, **options})


def apart(engine: str) -> EngineSpec:
    """Return an engine in a process of its own, as somebody else's is: the reference goes beside
    it.
    """
    return replace(parse(engine), isolation=Isolation())


def test_the_clean_reference_is_complete_within_a_bound() -> None:
    """Every configuration, at both levels; the same numbers with one process as with two."""
    every = CONFIGURATIONS
    some = CONFIGURATIONS[:: fewer(1, 3)]
    two, one = (
        search(parse("reference"), SMALL, every if count == 2 else some, processes=count)
        for count in (2, 1)
    )
    assert two.complete and one.complete
    numbers = {covered.scope.name: (covered.states, covered.transitions) for covered in two.covered}
    assert all(
        numbers[covered.scope.name] == (covered.states, covered.transitions)
        for covered in one.covered
    )
    assert all(len(covered.states) >= 10 for covered in two.covered)


def test_another_engine_is_led_through_the_states_of_the_reference() -> None:
    """The same states and operations, and what it hits is its own; a fault in it is found, and
    the reference has none.
    """
    inside, beside = (
        search(spec, SMALL, CONFIGURATIONS[:1], ["manager"], processes=1)
        for spec in (parse("reference"), apart("reference"))
    )
    assert beside.complete and beside.hits == inside.hits > 0
    assert [(c.states, c.transitions) for c in beside.covered] == [
        (c.states, c.transitions) for c in inside.covered
    ]
    faulty = search(
        apart("reference:mutant=tail-published-early"),
        SMALL,
        CONFIGURATIONS[:1],
        ["manager"],
        processes=1,
    )
    assert faulty.failure is not None and faulty.failure.finding.anomaly == "partial-commit"


def test_what_an_engine_cannot_be_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not asked of the reference beside it either, so both are in the same state."""
    from cachewitness.systems.vllm import header as vllm_header

    every = search(parse("reference"), SMALL, CONFIGURATIONS[:1], ["manager"], processes=1)
    less = [name for name in vllm_header.CAPABILITIES if name != "preempt"]
    monkeypatch.setattr(vllm_header, "CAPABILITIES", less)
    some = search(parse("reference"), SMALL, CONFIGURATIONS[:1], ["manager"], processes=1)
    assert every.not_run == [] and [one.what for one in some.not_run] == ["preempt"]
    assert some.complete and sum(c.transitions for c in some.covered) < sum(
        c.transitions for c in every.covered
    )


def test_a_search_in_which_nothing_is_hit_has_checked_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--bound", "requests=1,pages=4", "--option", "enable_caching=false"]
    assert invoke(["fuzz", "--exhaustive", *words]) == EXIT_NOTHING_CHECKED
    assert "no look-up of the engine hit anything" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "more"), [({"async_depth": 1}, 10), ({"tier_pages": 3}, 1.5)])
def test_steps_in_flight_and_a_second_tier_are_states_of_their_own(
    options: dict[str, int], more: float
) -> None:
    """There are at least so many times as many states."""
    plain, other = (
        search(parse("reference"), SMALL, [with_options(0, **chosen)], ["scheduler"], processes=1)
        for chosen in ({}, options)
    )
    assert other.complete and len(other.covered[0].states) >= more * len(plain.covered[0].states)


def test_longer_prompts_have_more_states() -> None:
    """A bound is not a name for the same search."""
    one, two = (
        search(
            parse("reference"), Bound(1, n, 4), CONFIGURATIONS[:1], ["scheduler"], processes=1
        ).covered[0]
        for n in (1, 2)
    )
    assert one.complete and two.complete and len(two.states) > 2 * len(one.states)


PLANTED = [
    ("null-block-published", "fabricated-snapshot", 4),
    ("tail-published-early", "partial-commit", 0),
    ("replay-boundary-masked", "lost-replay-boundary", 2),
    ("resumed-request-refused", "no-progress", 0),
    ("block-leaked", "leak", 3),
]


@pytest.mark.parametrize(("mutant", "anomaly", "configuration"), chosen(PLANTED, *PLANTED[1:]))
def test_planted_fault_is_found(mutant: str, anomaly: str, configuration: int) -> None:
    """One request, prompts of up to two blocks, is enough for these."""
    coverage = search(
        parse(f"reference:mutant={mutant}"),
        HYBRID.bound,
        [CONFIGURATIONS[configuration]],
        [HYBRID.level],
    )
    assert coverage.failure is not None and not coverage.complete
    assert coverage.failure.finding.anomaly == anomaly
    assert len(coverage.failure.shrunk.ops) <= 8


@pytest.mark.parametrize(
    ("configuration", "level", "options"),
    [
        (0, "manager", {}),
        (2, "scheduler", {}),
        (4, "manager", {}),
        (5, "scheduler", {}),
        (4, "scheduler", {"async_depth": 1}),
        (0, "scheduler", {"tier_pages": 3}),
    ],
)
def test_states_taken_to_be_one_behave_alike(
    configuration: int, level: Level, options: dict[str, int]
) -> None:
    """Whatever is asked next of either of two such states, the same is offered and the same
    state comes of it.
    """
    scope = Scope(with_options(configuration, **options), level, SMALL)
    spec = parse("reference")
    merged: list[tuple[Path, Path]] = []
    found = explore(spec, scope, on_merge=lambda one, other: merged.append((one, other)))
    assert found.complete and merged
    for one, other in merged[:: max(1, len(merged) // fewer(60, 10))]:
        offered = reached(spec, scope, one).offered()
        assert offered == reached(spec, scope, other).offered()
        for op in offered:
            ways = [reached(spec, scope, (*path, op)) for path in (one, other)]
            assert ways[0].fingerprint() == ways[1].fingerprint(), (one, other, op)


ORDERED: list[tuple[int, Level]] = [
    (4, "scheduler"),
    (3, "manager"),
    (0, "scheduler"),
    (2, "scheduler"),
    (6, "scheduler"),
]
ORDERED_BOUND = Bound(pages=fewer(5, 3))


@pytest.mark.parametrize(
    ("configuration", "level"), chosen([*ORDERED, (5, "scheduler")], (4, "scheduler"))
)
def test_the_order_of_a_search_does_not_matter(
    configuration: int, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest states first: by other ways to the same states, with the same operations in them.

    If two states that differ were taken for one, what lies behind the one that came later would be
    missing.
    """
    scope = Scope(CONFIGURATIONS[configuration], level, ORDERED_BOUND)
    spec = parse("reference")
    first = list(scope.first())[-1]

    def newest(walk: _Walk) -> bytes | None:
        while walk._waiting and not walk.untried[walk._waiting[-1]]:
            walk._waiting.pop()
        return walk._waiting[-1] if walk._waiting else None

    nearest_first = explore(spec, scope, (first,))
    monkeypatch.setattr(_Walk, "next", newest)
    newest_first = explore(spec, scope, (first,))
    assert newest_first.complete and newest_first.operations != nearest_first.operations, (
        "the ways are the same"
    )
    assert (
        newest_first.states == nearest_first.states
        and newest_first.transitions == nearest_first.transitions
    )


def test_what_lies_without_a_key_is_part_of_a_state() -> None:
    """An engine that forgets is in the same state as one that never had anything; what it owes
    is not.
    """
    scope = Scope(CONFIGURATIONS[0], "manager", SMALL)
    position = reached(parse("reference"), scope, (Submit("r1", "A:3"), Step(run=[("r1", 2)])))
    before = position.fingerprint()
    (floor,) = (
        checker for checker in position._judged.checkers if isinstance(checker, ContentFloor)
    )
    node = position._named.ledger.requests["r1"].nodes[2]
    floor._lying[0, node] = Lying(0, node, 2, 0, 1, "r1", 0)
    assert (lying := position.fingerprint()) != before
    floor._stripped[0, node] = 1
    assert position.fingerprint() not in (before, lying)


def test_how_often_a_request_ran_in_vain_is_part_of_a_state() -> None:
    """Else a search would leave a request that runs for ever where it comes by for the second
    time.
    """
    scope = Scope(CONFIGURATIONS[0], "scheduler", SMALL)
    position = reached(parse("reference"), scope, (Submit("r1", "A:3"), Step(run=[], budget=2)))
    before = position.fingerprint()
    (progress,) = (
        checker for checker in position._judged.checkers if isinstance(checker, Progress)
    )
    circles = progress._circles
    assert circles._furthest == {"r1": 2}
    circles._furthest.clear()
    assert position.fingerprint() == before
    circles._furthest["r1"] = 3
    further = position.fingerprint()
    circles._vain["r1"] = 1
    vain = position.fingerprint()
    circles._again = 1
    assert len({before, further, vain, position.fingerprint()}) == 4


def test_a_page_that_was_merely_looked_at_does_not_make_another_state() -> None:
    """The record of a page that nobody touched is that of a page to which nothing happened."""
    scope = Scope(CONFIGURATIONS[4], "manager", SMALL)
    spec = parse("reference")
    position = reached(spec, scope, (Submit("r1", "A:2"), Step(run=[("r1", 2)])))
    before = position.fingerprint()
    records = position._named.ledger.records[0]
    assert len(records) < records.pages
    for page in range(records.pages):
        assert records[page] is not None
    assert position.fingerprint() == before


@of_all("a search of many seconds, for the numbers on a page alone")
@pytest.mark.parametrize("name", ["small-window[retention_interval=None] at scheduler level"])
def test_the_page_has_what_the_default_bound_covers(name: str) -> None:
    """A change that makes the bound smaller, so that less is covered under the same name, is
    seen here.
    """
    table = PAGE.partition("\nThe default bound is ")[2].split("```")[1]
    (row,) = re.findall(rf"^{re.escape(name)} +(\S+) +(\S+) +(\S+)  complete$", table, re.MULTILINE)
    scope = next(
        scope
        for scope in (Scope(each, "scheduler", Bound()) for each in CONFIGURATIONS)
        if scope.name == name
    )
    found = [explore(parse("reference"), scope, (first,)) for first in scope.first()]
    states = set().union(*(one.states for one in found))
    numbers = [len(states), sum(one.transitions for one in found), max(one.depth for one in found)]
    assert [f"{number:,}" for number in numbers] == list(row)


def test_a_request_computes_what_it_generated_if_it_may_generate_two() -> None:
    """It ends with its last token, which nobody computes: behind the longest prompt no step
    decodes in the default bound.
    """
    runs = [Step(run=[("r1", tokens)]) for tokens in (3, 1, 1)]
    for generated, decodes in ((1, 0), (2, 1)):
        header = Scope(CONFIGURATIONS[0], "manager", Bound(generated=generated)).header()
        history = drive(
            Trace(header, [Submit("r1", "A:3"), *runs]), parse("reference").open(header)
        ).history
        steps = [event for event in history.events if isinstance(event, StepBegin) and event.runs]
        assert len(steps) == 1 + decodes


def test_within_the_default_bound_a_block_is_hit() -> None:
    """Its last token has to be computed, so a prompt has one more than what can be hit, in every
    group at once.
    """
    for configuration in CONFIGURATIONS[:6]:
        header = Scope(configuration, "manager", Bound()).header()
        ops: list[Op] = [
            Submit("r1", "A:3"),
            *[Step(run=[("r1", tokens)]) for tokens in (2, 1)],
            Finish("r1"),
            Submit("r2", "A:3"),
        ]
        activity = drive(
            Trace(header, [*ops, Step(run=[("r2", 1)])]), parse("reference").open(header)
        ).activity
        assert activity.hits == (configuration.layout.name != "small-unequal")


def test_a_path_can_be_walked_without_meeting_the_end_of_time() -> None:
    """A search that is stopped says that it is not complete."""
    assert not explore(parse("reference"), HYBRID, stop=lambda: True).complete


def test_bound_is_read_and_refused() -> None:
    """Named parts replace the defaults; anything else is one line that names it."""
    assert bound_of("requests=3,pages=9") == Bound(requests=3, pages=9)
    assert bound_of("") == Bound()
    for text in ("request=3", "requests", "pages=1", "blocks=0", "blocks=-1", "blocks=two"):
        with pytest.raises(UsageError, match="--bound"):
            bound_of(text)


def test_command_says_that_it_was_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """And how many states there were, and how many configurations were left out."""
    assert invoke(["fuzz", "--exhaustive", "--bound", "requests=1,blocks=1,pages=4"]) == EXIT_PASS
    output = capsys.readouterr().out
    assert (
        "complete: nothing within the bound contradicts a rule" in " ".join(output.split())
        and "states" in output
    )
    assert "7 of 14 configurations were left out" in " ".join(output.split())
    assert (
        invoke(["fuzz", "--exhaustive", "--full", "--bound", "requests=1,blocks=1,pages=4"])
        == EXIT_PASS
    )
    assert "configurations were left out" not in " ".join(capsys.readouterr().out.split())
    assert invoke(["fuzz", "--exhaustive", "--seconds", "0.01"]) == EXIT_UNKNOWN


def test_a_level_may_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Options of schedulers are searched at scheduler level, whichever is named first."""
    begun = [
        "fuzz",
        "--exhaustive",
        "--bound",
        "requests=1,blocks=1,pages=4",
        "--seconds",
        "0.01",
        "--json",
    ]
    for words, levels in (
        (["--level", "manager"], ["manager"]),
        (["--level", "manager", "--level", "scheduler"], ["manager", "scheduler"]),
        (
            ["--level", "manager", "--level", "scheduler", "--option", "tier_pages=3"],
            ["scheduler"],
        ),
    ):
        assert invoke([*begun, *words]) == EXIT_UNKNOWN
        covered = json.loads(capsys.readouterr().out)["covered"]
        assert {one["configuration"].split(" at ")[1] for one in covered} == {
            f"{level} level" for level in levels
        }


def test_what_is_left_out_unless_all_is_asked_for_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And nothing is, if a layout, an option or a level is named."""
    begun = [
        "fuzz",
        "--exhaustive",
        "--bound",
        "requests=1,blocks=1,pages=4",
        "--seconds",
        "0.01",
        "--json",
    ]
    searched = {}
    for words in ([], ["--full"], ["--level", "scheduler"]):
        assert invoke([*begun, *words]) == EXIT_UNKNOWN
        document = json.loads(capsys.readouterr().out)
        searched[" ".join(words)] = (
            {one["configuration"] for one in document["covered"]},
            {one["what"] for one in document["not_run"]},
        )
    covered, left_out = searched[""]
    assert (
        searched["--full"] == (covered | left_out, set())
        and len(covered) == 7
        and len(left_out) == 7
    )
    assert searched["--level scheduler"] == (
        {one for one in covered | left_out if "scheduler" in one},
        set(),
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--exhaustive", "--seed", "3"],
        ["--exhaustive", "--operations", "3"],
        ["--exhaustive", "--bound", "cats=3"],
        ["--exhaustive", "--option", "tier_pages=4", "--option", "tier_delay=1"],
        ["--exhaustive", "--policy", "furiosa"],
        ["--exhaustive", "--level", "manager", "--option", "tier_pages=3"],
        ["--bound", "pages=4"],
        ["--level", "manager"],
        ["--full"],
        ["--engine", "nothing"],
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, exit 4."""
    assert invoke(["fuzz", *words]) == EXIT_USAGE
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_command_fails_on_a_planted_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """With a witness and a command that replays it."""
    words = [
        "--engine",
        "reference:mutant=resumed-request-refused",
        "--bound",
        "requests=1,blocks=1,pages=4",
    ]
    assert invoke(["fuzz", "--exhaustive", *words]) == EXIT_FAIL
    output = capsys.readouterr().out
    assert "FAIL  no-progress" in output and "replay: cachewitness replay" in output


class Leaking:
    """The reference, which keeps the pages of a request that ends and says nothing more of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def apply(self, op: Op) -> list[Event]:
        events = self._engine.apply(op)
        return [
            event
            for event in events
            if not (isinstance(op, Finish) and isinstance(event, Release | Counts))
        ]


def of_kind(opened: Callable[[Engine], Any]) -> EngineSpec:
    """Return somebody else's engine of the policy, which the reference goes beside."""
    reference = parse("reference")

    def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        engine: Engine = opened(reference.open(header))
        return engine

    return replace(
        reference,
        kind=replace(reference.kind, name="other", open=open_engine, is_reference=False),
        text="other",
    )


def test_what_shows_at_rest_alone_is_found() -> None:
    """The one request that there may be ends and keeps its pages: no further step shows that."""
    found = search(of_kind(Leaking), SMALL, CONFIGURATIONS[:1], ["manager"], processes=1)
    assert found.failure is not None and found.failure.finding.anomaly == "leak"
    assert [type(op) for op in found.failure.shrunk.ops][-1] is Finish
    assert search(
        of_kind(lambda engine: engine), SMALL, CONFIGURATIONS[:1], ["manager"], processes=1
    ).complete


class Babbling(Leaking):
    """The same, and once a request has ended it says what is no answer when it is let go of."""

    over = False

    def apply(self, op: Op) -> list[Event]:
        self.over |= isinstance(op, Finish)
        return super().apply(op)

    def close(self) -> None:
        if self.over:
            raise NoAnswer("it babbles")


def test_what_was_found_outranks_nonsense_behind_it() -> None:
    """Without a finding there is nothing but the nonsense."""
    scope = Scope(CONFIGURATIONS[0], "manager", SMALL)
    found = explore(of_kind(Babbling), scope, (Submit("A", "a:2"),))
    assert found.failure is not None and found.failure[1].anomaly == "leak"
    alone = Watched(Babbling(parse("reference").open(scope.header())))
    alone.engine.over = True
    with pytest.raises(NoAnswer, match="it babbles"):
        alone.close()


def test_a_process_that_dies_is_replaced_and_nothing_is_lost(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a task ends two processes, the search is unknown, and says why."""
    plain = exhaustive.explore

    def dying(*asked: Any, **more: Any) -> Any:
        if not (tmp_path / "engine-crashed").exists():
            (tmp_path / "engine-crashed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*asked, **more)

    whole = search(parse("reference"), SMALL, CONFIGURATIONS[:1], processes=1)
    lines = list[str]()
    monkeypatch.setattr(exhaustive, "explore", dying)
    again = search(parse("reference"), SMALL, CONFIGURATIONS[:1], processes=2, on_died=lines.append)
    assert again.complete and [one.states for one in again.covered] == [
        one.states for one in whole.covered
    ]
    assert len(lines) == 1 and "was ended by signal 9" in lines[0]
    monkeypatch.setattr(
        exhaustive, "explore", lambda *asked, **more: os.kill(os.getpid(), signal.SIGKILL)
    )
    lost = search(parse("reference"), SMALL, CONFIGURATIONS[:1], processes=2)
    assert (
        judged(lost, sought())[0] == EXIT_UNKNOWN
        and "was ended by signal 9" in judged(lost, sought())[1][0]
    )


def test_a_checker_that_crashes_leaves_the_rest_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Ownership, ledger: object) -> None:
        raise ValueError("a mistake of ours")

    self_test = sought()
    monkeypatch.setattr(Ownership, "at_rest", crash)
    coverage = search(parse("reference"), SMALL, CONFIGURATIONS[:1], ["manager"], processes=1)
    code, reasons = judged(coverage, self_test)
    assert (
        code == EXIT_UNKNOWN
        and not coverage.complete
        and "ValueError: a mistake of ours (at rest)" in reasons[0]
    )


@pytest.mark.parametrize(
    "stopped",
    [KeyboardInterrupt(), UsageError("it says nonsense")],
    ids=["interrupted", "nonsense"],
)
def test_what_is_found_already_is_told_where_an_earlier_task_stops_the_search(
    stopped: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was to be told when those before it were over."""
    trace = Trace(HYBRID.header(), [Submit("r1", "a:4")])
    failing = Found(
        failure=(trace, Finding(anomaly="leak", checker="ownership", sentence="…", seq=1, op=0))
    )

    class Stopping(WorkerPool[int, Found]):
        def in_order(self, items: object) -> Iterator[Any]:
            raise stopped
            yield

        def finished(self) -> list[tuple[int, Found]]:
            return [(0, Found(complete=True)), (1, failing)]

    monkeypatch.setattr(exhaustive, "WorkerPool", Stopping)
    coverage = search(parse("reference"), SMALL, CONFIGURATIONS[:2])
    assert (
        coverage.failure is not None
        and coverage.failure.finding.anomaly == "leak"
        and not coverage.complete
    )
    interrupted = isinstance(stopped, KeyboardInterrupt)
    code, reasons = judged(coverage, sought())
    assert (code, reasons[0]) == (EXIT_INTERRUPTED if interrupted else EXIT_FAIL, "leak")
    assert interrupted or "could not go on: it says nonsense" in reasons[1]


def test_tasks_behind_one_that_fails_stop() -> None:
    """Those before it go on, so that the first failure in their order is told, however many
    processes there are.
    """
    spec = parse("reference:mutant=block-leaked")
    coverage = Coverage(HYBRID.bound, [Covered(HYBRID)])
    tasks = exhaustive._Tasks(spec, coverage, 0.0)
    assert len(tasks.all) > 1 and not tasks.failing
    assert tasks.carry_out(1).failure and tasks.failing
    assert tasks.carry_out(0).failure and not tasks.carry_out(len(tasks.all) - 1).transitions
