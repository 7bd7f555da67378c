"""Marks are seen in what happened, each for its own reason, and for nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from cachewitness.core.checkers import fresh
from cachewitness.core.driving import check, drive
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    GroupSpec,
    Layout,
    Level,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
)
from cachewitness.engines.registry import parse as engine_of
from cachewitness.sessions.fuzz import coverage_points
from cachewitness.sessions.fuzz.watch import Watch
from cachewitness.workloads.notation import parse

FULL = GroupSpec(kind="full", block_size=4)
STATE = GroupSpec(kind="recurrent", block_size=4)
WINDOW = GroupSpec(kind="sliding", block_size=4, window=5)


def _seen(
    ops: list[Op],
    *groups: GroupSpec,
    level: Level = "manager",
    pages: int = 40,
    **options: object,
) -> Counter[str]:
    """Run a trace on the reference and return the marks of its history."""
    header = TraceHeader(
        name="marks",
        layout=Layout(name="marks", groups=[*(groups or (FULL,))]),
        pages=pages,
        level=level,
        options=options,
    )
    engine = engine_of("reference").open(header)
    seen = Counter[str]()
    result = drive(Trace(header, ops), engine, [*fresh(), Watch(engine.describe(), seen)])
    assert result.findings == [] and not any(tally.crashed for tally in result.tallies)
    return seen


def _run(r: str, tokens: int, times: int = 1) -> list[Op]:
    return [Step(run=[(r, tokens)]) for _ in range(times)]


FIRST: list[Op] = [Submit("r1", "A:9"), *_run("r1", 9)]
TUNED = Submit("r1", "A:9", adapter="tuned")
CASES: dict[str, tuple[list[Op], tuple[GroupSpec, ...], dict[str, object]]] = {
    "miss": (FIRST, (), {}),
    "hit on a boundary": ([*FIRST, Submit("r2", "A:12"), *_run("r2", 4)], (), {}),
    "hit with one token left": ([*FIRST, Submit("r2", "A:9"), *_run("r2", 4)], (), {}),
    "hit of somebody running": ([*FIRST, Submit("r2", "A:9"), *_run("r2", 4)], (), {}),
    "hit on generated tokens": (
        [*FIRST, *_run("r1", 1, 4), Submit("r2", "A:9 @r1:5"), *_run("r2", 2)],
        (),
        {},
    ),
    "hit in the same step": (
        [Submit("r1", "A:9"), Submit("r2", "A:9"), Step(run=[("r1", 9), ("r2", 9)])],
        (),
        {},
    ),
    "hit after preemption": ([*FIRST, Preempt("r1"), *_run("r1", 9)], (), {}),
    "duplicate key": (
        [Submit("r1", "A:9"), *_run("r1", 2), Submit("r2", "A:9"), *_run("r2", 9), *_run("r1", 7)],
        (),
        {},
    ),
    "null column skipped": (
        [*FIRST, Finish("r1"), Submit("r2", "A:9"), *_run("r2", 4)],
        (FULL, WINDOW),
        {},
    ),
    "window moved past a block": ([*FIRST, *_run("r1", 1)], (FULL, WINDOW), {}),
    "chunk longer than the window": (FIRST, (FULL, WINDOW), {}),
    "image sent again": (
        [
            Submit("r1", "A:9", media=[Media(2, 3, "cat")]),
            Submit("r2", "B:9", media=[Media(1, 2, "cat")]),
        ],
        (),
        {},
    ),
    "snapshot published": (FIRST, (FULL, STATE), {}),
    "snapshot restored": (
        [*FIRST, *_run("r1", 1), Submit("r2", "A:9"), *_run("r2", 4)],
        (FULL, STATE),
        {},
    ),
    "chunk over several boundaries": (FIRST, (FULL, STATE), {"retention_interval": 0}),
    "replay boundary kept": (FIRST, (FULL, STATE), {"retention_interval": 0}),
    "interval kept": (
        [Submit("r1", "A:19"), *_run("r1", 19, 4)],
        (FULL, STATE),
        {"retention_interval": 8},
    ),
    "hit inside a block": (
        [*FIRST, *_run("r1", 1), Finish("r1"), Submit("r2", "A:9"), *_run("r2", 4)],
        (FULL, GroupSpec(kind="recurrent", block_size=16)),
        {"retention_interval": 0, "hash_block_size": 2},
    ),
    "hit given back in some groups": (
        [*FIRST, Finish("r1"), Submit("r2", "A:13"), *_run("r2", 4)],
        (FULL, GroupSpec(kind="sliding", block_size=4, window=5)),
        {"use_eagle": True, "eagle_groups": [0]},
    ),
    "page zeroed": (FIRST, (FULL, STATE), {}),
    "prompt one short": ([Submit("r1", "A:7"), *_run("r1", 7)], (), {}),
    "prompt on a boundary": ([Submit("r1", "A:8"), *_run("r1", 8)], (), {}),
    "prompt one over": (FIRST, (), {}),
    "prompt in chunks": ([Submit("r1", "A:9"), *_run("r1", 5)], (), {}),
    "decode over a boundary": ([*FIRST, *_run("r1", 1, 4)], (), {}),
    "decode beside prefill": (
        [*FIRST, Submit("r2", "B:9"), Step(run=[("r1", 1), ("r2", 4)])],
        (),
        {},
    ),
    "aborted before it ran": ([Submit("r1", "A:9"), Abort("r1")], (), {}),
    "aborted mid-prefill": ([Submit("r1", "A:9"), *_run("r1", 5), Abort("r1")], (), {}),
    "preempted mid-prefill": ([Submit("r1", "A:9"), *_run("r1", 5), Preempt("r1")], (), {}),
    "preempted while decoding": ([*FIRST, *_run("r1", 1), Preempt("r1")], (), {}),
    "withdrawn": ([Submit("r1", "A:9"), Step(run=[("r1", 9)], withdraw=["r1"])], (), {}),
    "withdrawn key ended": ([Submit("r1", "A:9"), Step(run=[("r1", 9)], withdraw=["r1"])], (), {}),
    "salt": ([Submit("r1", "A:9", salt="s")], (), {}),
    "adapter": ([Submit("r1", "A:9", adapter="s")], (), {}),
    "image ends on a boundary": ([Submit("r1", "A:9", media=[Media(1, 7, "cat")])], (), {}),
    "reset": ([Reset()], (), {}),
    "reset refused": ([*FIRST, Reset()], (), {}),
    "weights updated midway": ([*FIRST, UpdateWeights(1)], (), {}),
    "adapter reloaded": ([UpdateWeights(1, "tuned")], (), {}),
    "adapter reloaded midway": ([TUNED, *_run("r1", 9), UpdateWeights(1, "tuned")], (), {}),
    "adapter reloaded beside others": ([TUNED, *_run("r1", 9), UpdateWeights(1, "other")], (), {}),
    "prompt again after a reload": (
        [TUNED, UpdateWeights(1, "tuned"), Submit("r2", "A:5", adapter="tuned")],
        (),
        {},
    ),
}
_PREVENTS: dict[str, list[Op]] = {
    "decode over a boundary": [*FIRST, *_run("r1", 1, 2)],
    "prompt one short": FIRST,
    "reset refused": [Reset()],
    "hit on a boundary": [*FIRST, Submit("r2", "B:12"), *_run("r2", 4)],
    "withdrawn": FIRST,
    "weights updated midway": [UpdateWeights(1)],
    "weights updated": [UpdateWeights(1, "tuned")],
    "adapter reloaded": [UpdateWeights(1)],
    "adapter reloaded midway": [TUNED, UpdateWeights(1, "other")],
    "adapter reloaded beside others": [TUNED, UpdateWeights(1, "tuned")],
    "prompt again after a reload": [
        TUNED,
        UpdateWeights(1, "other"),
        Submit("r2", "A:5", adapter="tuned"),
    ],
}


@pytest.mark.parametrize("mark", CASES)
def test_mark_is_reached(mark: str) -> None:
    """By a trace that was written to reach it."""
    ops, groups, options = CASES[mark]
    assert _seen(ops, *groups, **options)[mark] > 0


@pytest.mark.parametrize("mark", _PREVENTS)
def test_mark_is_not_reached_without_its_reason(mark: str) -> None:
    """By much the same trace without the one thing that counts."""
    assert _seen(_PREVENTS[mark])[mark] == 0


def test_marks_of_room_and_of_a_tier() -> None:
    """A pool for one request alone: the second takes pages from the first; what was stored is
    fetched.
    """
    ops: list[Op] = [
        Submit("r1", "A:9"),
        Step(budget=9),
        Step(budget=9),
        Finish("r1"),
        Submit("r2", "B:13"),
    ]
    ops += [Step(budget=13), Step(budget=13), Finish("r2"), Submit("r3", "A:9"), Step(budget=9)]
    seen = _seen(ops, level="scheduler", pages=6, tier_pages=16)
    assert all(seen[mark] for mark in ("attention evicted", "stored in tier", "fetched from tier"))


def test_marks_of_drafts_and_of_steps_in_flight() -> None:
    """Scripted drafts stand and fall; a second step is scheduled before the first has ended."""
    ops: list[Op] = [Submit("r1", "A:9"), *(Step(budget=9) for _ in range(14))]
    drafts = _seen(ops, level="scheduler", num_speculative_tokens=3)
    assert sum(drafts[f"drafts {how}"] for how in ("all stood", "partly stood", "all fell")) >= 10
    assert drafts["draft rejected over a boundary"] and drafts["drafts stood over a boundary"]
    flying = _seen([*ops, Abort("r1")], level="scheduler", async_depth=1)
    assert flying["step beside one in flight"] and flying["aborted in flight"]
    assert not drafts["step beside one in flight"] and not flying["step beside two in flight"]
    reset = _seen([*ops, Reset(running=True), *ops[1:]], level="scheduler", async_depth=1)
    assert (
        reset["reset in flight"] == 1
        and not flying["reset in flight"]
        and not drafts["reset in flight"]
    )
    deeper = _seen([*ops, Abort("r1")], level="scheduler", async_depth=2)
    assert deeper["step beside two in flight"] == deeper["step beside one in flight"] - 1 > 0


def test_a_recorded_history_has_marks_too() -> None:
    """Nothing of an engine is asked."""
    history = parse(
        "pool 0: 8 pages, null 0\ngroup 0: full block 4\nsubmit r1 a:5\nacquire r1 | 1 2\n"
        "step 1: r1 0..5 | 1 2\n"
    )
    seen = Counter[str]()
    check(history, [Watch(history.header, seen)])
    assert seen["prompt one over"] == 1


def test_marks_of_special_requests_are_asked_of_engines_that_have_a_drawing_of_their_own() -> None:
    """A campaign on the reference does not list them among those never reached."""
    assert coverage_points.drawn(own=True) == coverage_points.AREAS
    assert [*coverage_points.drawn(own=False)] == [*coverage_points.AREAS][:-1]


def test_every_mark_says_what_it_means() -> None:
    """In a sentence, once."""
    assert len(coverage_points.ALL) == sum(map(len, coverage_points.AREAS.values()))
    assert all(meaning and not meaning.endswith(".") for meaning in coverage_points.ALL.values())
