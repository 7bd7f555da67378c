"""The life of a page tells what happened to it, and with which event it began that it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from cachewitness.cli import invoke
from cachewitness.core import stored
from cachewitness.core.driving import judge
from cachewitness.core.events import (
    Acquire,
    Event,
    Group,
    Grow,
    Header,
    History,
    Pool,
    StepEnd,
    Submitted,
    Write,
)
from cachewitness.report.html.life import Life
from cachewitness.report.html.lives import lives
from cachewitness.report.html.text import life as lines
from cachewitness.workloads import anomaly_examples
from cachewitness.workloads.notation import parse

POOL = """
pool 0: 9 pages, null 0
group 0: full block 4
rules: alignment 4
"""
GIVEN_AWAY = f"""{POOL}
submit r1 a:5
acquire r1 | 1 2
publish 0/1 r1:4
step 1: r1 0..5 | 1 2
finish r1
release r1
submit r2 a:4 b:1
hit r2 4 | 1
acquire r2 | 1 3
step 2: r2 4..5 | 1 3
accept r2 6 @r2:1
unpublish 0/1 evict
submit r3 c:4
acquire r3 | 1
step 3: r3 0..4 | 1
step 4: r2 5..6 | 1 3
"""
LIFE = """
life of page 1:
  step 1  acquired by r1
  step 1  keyed as the first 4 tokens of r1
  step 1  written by r1: tokens [0, 4)
  step 2  released by r1; its key keeps it
  step 2  hit by r2 as tokens [0, 4)
  step 2  acquired by r2, which hit it
  step 2  read by r2 as tokens [0, 4)
  step 3  its key ends (evict): the first 4 tokens of r1
  step 3  acquired by r3, while r2 holds it  <-- the cause
  step 3  written by r3: tokens [0, 4)
  step 4  read by r2 as tokens [0, 4); it holds tokens [0, 4) of group 0, written by r3 in step 3  <-- here it fails
"""  # noqa: E501
STORIES = {story.name: story for story in anomaly_examples.load()}
CAUSES = {
    "chunk-begins-anew": "hit by r2, 6 tokens: the column has the null block",
    "copy-while-source-changes": "its key ends (evict): the first 4 tokens of r1",
    "evicted-for-room": "its key ends (evict): the first 4 tokens of r1",
    "hit-in-flight": (
        "the step that was to write it is withdrawn, and its key stays: the first 8 tokens of r1"
    ),
    "image-behind-the-block": (
        "hit by r2 as tokens [0, 4), while it is keyed as the first 4 tokens of r1"
    ),
    "key-inside-a-block": "keyed as the first 8 tokens of r1",
    "next-step-state": "hit by r2 as the state after 4 tokens",
    "one-holder-leaves": "released by r2; its key keeps it",
    "other-adapter-reloaded": "new weights are loaded, and its key stays: the first 4 tokens of r1",
    "recycled-page": "hit by r3 as tokens [0, 4), while it is keyed as the first 4 tokens of r2",
    "ring-behind-the-window": "acquired once more by r1",
    "row-of-the-request": "written by r1: tokens [4, 6)",
    "state-at-the-hit": "hit by r2 as the state after 7 tokens",
    "state-moves-on-in-place": "written by r1: the state after 9 tokens",
    "window-in-flight": "released by r1; its key keeps it",
    "window-moves-on": "released by r1; free",
}
"""By anomalous history what its head says is wrong, as an event of a page's life."""
THEMSELVES = {
    "copy-on-write": "written by r2: tokens [6, 8)",
    "counted-with-its-holders": "acquired by r2, which hit it",
    "counted-when-heard-of": "acquired by r2, which hit it, beside r1",
    "each-gives-back-once": "released by r2, which does not hold it",
    "filled-until-the-end": "acquired by r3",
}
"""Where the finding is of the event with which it began."""


def lives_in(history: History, seq: int | None = None) -> list[Life]:
    """Return the lives of what is found first in a history, or in its event number `seq`."""
    found = judge(history.header, iter(history.events)).findings
    fits = [finding for finding in found if seq in (None, finding.seq)]
    return lives(history.header, history.events, fits[0] if fits else None)


def causes(history: History) -> list[tuple[str, str]]:
    return [
        (event.text, event.mark)
        for life in lives_in(history)
        for event in life.events
        if event.mark in ("cause", "both")
    ]


def test_a_page_that_was_given_away_names_who_got_it_and_not_who_read_it() -> None:
    history = parse(GIVEN_AWAY, "given-away")
    found = judge(history.header, iter(history.events)).findings
    read = next(one for one in found if one.line.startswith("request r2 read page 1"))
    (life,) = lives_in(history, read.seq)
    assert lines(life) == LIFE.strip().splitlines()
    assert life.began and life.began.text == "acquired by r3, while r2 holds it"


def test_it_is_printed_by_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored.save(STORIES["recycled-page"].history("anomalous"), tmp_path / "h.jsonl")
    assert invoke(["explain", str(tmp_path / "h.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "life of page 1:\n" in out and "the first 4 tokens of r2  <-- the cause\n" in out


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_what_the_history_says_is_wrong(name: str) -> None:
    assert causes(STORIES[name].history("anomalous")) == [(CAUSES[name], "cause")]


@pytest.mark.parametrize("name", THEMSELVES)
def test_what_is_wrong_itself_is_its_own_cause(name: str) -> None:
    assert causes(STORIES[name].history("anomalous")) == [(THEMSELVES[name], "both")]


def test_a_cause_comes_before_its_effect_and_a_lawful_history_has_none() -> None:
    """Of every anomalous history at hand, and its lawful look-alike."""
    began = 0
    for story in STORIES.values():
        for kind in story.kinds:
            history = story.history(kind)
            if history.header.level == "answers":
                continue
            marked = [event for life in lives_in(history) for event in life.events if event.mark]
            if kind == "legal":
                assert not marked
            found = [event.seq for event in marked if event.mark == "found"]
            began += len(marked) > 0
            assert all(event.seq <= found[0] for event in marked if found), story.name
    assert began > 40


def test_counts_of_the_engine_are_told_where_they_are_what_is_wrong() -> None:
    def counted(name: str) -> list[str]:
        (life,) = lives_in(STORIES[name].history("anomalous"))
        return [event.text for event in life.events if event.text.startswith("the engine counts")]

    assert counted("counted-with-its-holders") == [
        "the engine counts 1 reference",
        "the engine counts 0 references",
    ]
    assert counted("recycled-page") == []


def test_a_long_life_is_cut_and_keeps_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachewitness.report.html.lives.EVENTS_MAX", 2)
    history = STORIES["one-holder-leaves"].history("anomalous")
    (life,) = lives_in(history)
    assert life.left_out == 6 and [event.mark for event in life.events] == ["cause", "found"]
    assert "… 6 events are left out" in lines(life)[1]


def test_writes_that_go_on_are_one_event() -> None:
    """And what a request reads of its own writes is none."""
    begun = "submit r1 a:2\nacquire r1 | 1\nstep 1: r1 0..2 | 1\naccept r1 3 @r1:1\n"
    decoded = "step 2: r1 2..3 | 1\naccept r1 4 @r1[1]:1\nstep 3: r1 3..4 | 1\n"
    history = parse(f"{POOL}{begun}{decoded}", "decodes")
    (life,) = lives(history.header, history.events, None, [(0, 1)])
    assert [(event.text, event.step, event.until) for event in life.events] == [
        ("acquired by r1", 1, 0),
        ("written by r1: tokens [0, 4)", 1, 3),
    ]


def test_a_page_that_a_pool_has_later_is_followed_from_then_on() -> None:
    header = Header(
        engine="e", level="manager", pools=[Pool(0, 1, grows=True)], groups=[Group(0, "full", 4)]
    )
    events: list[Event] = [
        Submitted(r="r1", tokens=[1]),
        StepEnd(step=1),
        Grow(pool=0, pages=2),
        Acquire(pool=0, group=0, pages=[2], holder="r1"),
    ]
    (life,) = lives(header, events, None, [(0, 2)])
    assert [event.text for event in life.events] == ["acquired by r1"]


def test_a_write_to_a_page_that_no_pool_has_is_drawn() -> None:
    """A history that somebody else recorded may name one: it has no life to tell."""
    history = parse(f"{POOL}submit r1 a:5\nacquire r1 | 1 2\nstep 1: r1 0..5 | 1 2\n", "wrong")
    events = [
        replace(event, pages=[-1, 2]) if isinstance(event, Write) else event
        for event in history.events
    ]
    (finding, *_) = judge(history.header, iter(events)).findings
    assert isinstance(events[finding.seq], Write)
    assert lives(history.header, events, finding) == []
