"""The notation says what it means: each line becomes its event, and a bad line is refused with
its number.
"""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.events import (
    Accept,
    Acquire,
    Copy,
    Counts,
    Died,
    Event,
    Group,
    Hit,
    Move,
    Pool,
    Publish,
    Read,
    Release,
    ResetDone,
    Retention,
    Rules,
    Run,
    Settled,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
    Version,
    Write,
    Zero,
)
from cachewitness.core.trace_format import Media, Vocabulary
from cachewitness.workloads.notation import parse

HEAD = """\
pool 0: 10 pages, null 0
pool 1: 8 pages, tier cpu
group 0: full block 4
group 1: recurrent block 8 every-block
group 2: full block 4 pool 1
"""
R1 = "submit r1 a:8 b:2\n"


def _events(lines: str) -> list[Event]:
    return parse(HEAD + lines).events


def _last(lines: str) -> Event:
    event = _events(R1 + lines)[-1]
    event.seq = event.step = 0
    return event


def test_the_header_is_read() -> None:
    """Pools, groups and rules with all that they may say."""
    text = HEAD + "group 3: sliding block 2 window 6\ngroup 4: chunked block 2 chunk 8\n"
    rules = (
        "rules: alignment 4, eagle-drop 2, retention 8 on 1 3, shared-prefix-boundary,"
        " no-caching, progress 3\n"
    )
    header = parse(text + rules, name="mine").header
    assert header.pools == [Pool(0, 10, [0]), Pool(1, 8, [], "cpu")]
    assert header.groups == [
        Group(0, "full", 4),
        Group(1, "recurrent", 8, snapshots="every-block"),
        Group(2, "full", 4, pool=1),
        Group(3, "sliding", 2, window=6),
        Group(4, "chunked", 2, chunk=8),
    ]
    assert header.rules == Rules(
        caching=False,
        alignment=4,
        eagle_drop_tokens=2,
        retention=Retention(interval=8, groups=[1, 3], shared_prefix_boundary=True),
        progress_steps=3,
    )
    assert header.trace == "mine"


def test_dense_retention_is_no_interval() -> None:
    """`dense` is the interval that a header leaves out."""
    assert parse(HEAD + "rules: retention dense on 1").header.rules.retention == Retention(
        interval=None, groups=[1]
    )


TOKENS = Vocabulary().tokens("a:8 b:2")

LINES: dict[str, Event] = {
    "submit r2 a:8 b:2 salt=x adapter=tuned media=4+2:cat,7+1:dog": Submitted(
        r="r2",
        tokens=TOKENS,
        salt="x",
        adapter="tuned",
        media=[Media(4, 2, "cat"), Media(7, 1, "dog")],
    ),
    "hit r1 8 | 3 4 | 0": Hit(r="r1", reported=8, resume=8, pages=[[3, 4], [0], []]),
    "hit r1 8 resume 7 tier cpu | 3 4": Hit(
        r="r1", reported=8, resume=7, pages=[[3, 4], [], []], tier="cpu"
    ),
    "acquire r1 | | 5": Acquire(pool=0, group=1, pages=[5], holder="r1"),
    "acquire copy:1 | | | 5": Acquire(pool=1, group=2, pages=[5], holder="copy:1"),
    "release r1 | 3 4": Release(pool=0, group=0, pages=[3, 4], holder="r1"),
    "publish 1/5 r1:8": Publish(group=1, page=5, r="r1", length=8),
    "unpublish 1/5 evict": Unpublish(group=1, page=5, reason="evict"),
    "unpublish 1/5:8 retention": Unpublish(group=1, page=5, length=8, reason="retention"),
    "accept r1 9 c:2": Accept(r="r1", upto=9, tokens=[3 * 65536, 3 * 65536 + 1]),
    "reset failed": ResetDone(ok=False),
    "reset ok tier cpu": ResetDone(ok=True, tier="cpu"),
    "version 3 adapter tuned": Version(weights=3, adapter="tuned"),
    "counts 0: free 5 held 3 cached 1 refs 3=2 4=1": Counts(
        pool=0, free=5, held=3, cached=1, refs=[(3, 2), (4, 1)]
    ),
    "died 4 AssertionError: no block": Died(operation=4, message="AssertionError: no block"),
    "write 1 r1 0..8 | 5": Write(pool=0, group=1, pages=[5], r="r1", start=0, stop=8),
    "read 0 r1 2..6 | 3 4": Read(pool=0, group=0, pages=[3, 4], r="r1", start=2, stop=6),
    "copy 7 begin 3>4 1/2>0/3": Copy(id=7, moves=[Move(3, 4), Move(2, 3, 1, 0)], phase="begin"),
    "zero 1/5": Zero(pool=1, pages=[5]),
    "settle 1: before 3>4; after 4>5": Settled(before=[Move(3, 4)], after=[Move(4, 5)]),
    "end 1 withdraw r1": StepEnd(withdrawn=["r1"]),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_its_event(line: str) -> None:
    """One line, one event, with everything that the line says."""
    assert _last(line) == LINES[line]


def test_a_step_has_its_runs_copies_zeros_and_refusals() -> None:
    """Who ran was asked for; who is only asked for did not run."""
    line = (
        "begin 3: r1 0..8 | 3 4 | 5; r2 0..2 | 6; asks r2 4; copy 7>8 1/2>0/3; zero 0/5;"
        " withdraw r2"
    )
    begun = _events(R1 + "submit r2 c:4\n" + line)[-1]
    expected = StepBegin(
        step=3,
        asked=[("r1", 8), ("r2", 2), ("r2", 4)],
        runs=[Run("r1", 0, 8, [[3, 4], [5], []]), Run("r2", 0, 2, [[6], [], []])],
        copies=[Move(7, 8), Move(2, 3, 1, 0)],
        zeros=[(0, [5])],
    )
    expected.seq = 2
    assert begun == expected


def test_a_run_has_its_drafts_and_a_step_its_stores() -> None:
    """Behind the range the drafts, in segments; behind each table the pages of the states after
    them.
    """
    text = "submit r1 a:6\nbegin 1: r1 5..6 ~x:2 | 1 2 | 3 4 ~ 5 6; store 0/1>1/3"
    begin = parse(HEADER_OF_TIERS + text).events[-1]
    assert isinstance(begin, StepBegin)
    (run,) = begin.runs
    assert (run.start, run.known, run.stop, len(set(run.drafts))) == (5, 6, 8, 2)
    assert (run.tables, run.scratch) == ([[1, 2], [3, 4], []], [[], [5, 6], []])
    assert begin.stores == [Move(1, 3, 0, 1)]


def test_a_run_saves_states_on_its_way() -> None:
    text = "submit r1 a:6\nbegin 1: r1 0..6 | 1 2 | 3 4; saves r1 1/5:4"
    begin = parse(HEADER_OF_TIERS + text).events[-1]
    assert isinstance(begin, StepBegin) and begin.runs[0].checkpoints == [(1, 5, 4)]
    with pytest.raises(UsageError, match="r2 does not run before `saves`"):
        parse(HEADER_OF_TIERS + text.replace("saves r1", "saves r2"))


HEADER_OF_TIERS = """\
pool 0: 10 pages, null 0
pool 1: 4 pages, tier cpu
group 0: full block 4
group 1: recurrent block 4
group 2: full block 4 pool 1
"""


def test_the_worker_executes_a_step_where_it_ends() -> None:
    """`step` is begin and end; what is read and written stands between them."""
    kinds = [type(event).__name__ for event in _events(R1 + "step 1: r1 0..8 | 3 4 | 5\n")]
    assert kinds == ["Submitted", "StepBegin", "Write", "Write", "Read", "StepEnd"]
    withdrawn = [
        type(event).__name__ for event in _events(R1 + "step 1: r1 0..8 | 3 4 | 5; withdraw r1\n")
    ]
    assert withdrawn == ["Submitted", "StepBegin", "StepEnd"]


def test_drop_without_pages_gives_everything_back() -> None:
    """What was taken and not yet given back, group by group."""
    lines = "acquire r1 | 3 4 | 5\nrelease r1 | 3\nrelease r1\n"
    dropped = [
        (event.group, event.pages) for event in _events(R1 + lines) if isinstance(event, Release)
    ]
    assert dropped == [(0, [3]), (0, [4]), (1, [5])]


def test_events_belong_to_the_step_that_comes_next_unless_they_say_otherwise() -> None:
    """Scheduling comes before its step; `@1` names another one."""
    lines = "publish 0/3 r1:4\nstep 1: r1 0..8 | 3 4 | 5\npublish 0/4 r1:8 @1\nfinish r1\n"
    steps = [(type(event).__name__, event.step) for event in _events(R1 + lines)]
    assert steps == [("Submitted", 1), ("Publish", 1)] + [
        (name, 1) for name in ("StepBegin", "Write", "Write", "Read", "StepEnd", "Publish")
    ] + [("Finished", 2)]


def test_events_are_numbered_and_comments_ignored() -> None:
    """The total order is that of the lines."""
    happened = parse(HEAD + "# a story\n\n" + R1 + "acquire r1 | 3   # a page\nfinish r1\n")
    assert [event.seq for event in happened.events] == [0, 1, 2] == list(range(len(happened.op_of)))


BAD = {
    "acquire r1 | 99": "pool 0 has no page 99",
    "acquire r1 | 1 | 2 | 3 | 4": "behind a bar for each of 3 groups",
    "acquire r1 3": "behind a bar",
    "acquire r1 | x": "should be numbers",
    "tke r1 | 1": "'tke' begins no line",
    "hit r9 4 | 1": "no request 'r9' was submitted before this line",
    "hit r1": "is not of the form `hit r1 8",
    "publish 0/3 r1:11": "r1 has 10 tokens, not 11",
    "publish 7/3 r1:4": "there is no group 7",
    "unpublish 0/3 boredom": "'boredom' is no reason to unpublish",
    "step 1: r1 8..8 | 3": "r1 runs no tokens from 8 to 8",
    "step 1: r1 0..11 | 3": "r1 has 10 tokens, not 11",
    "step one: r1 0..8": "is not of the form `step 1",
    "accept r1 20 c:1": "r1 has 10 tokens; 1 more do not make 20",
    "submit r1 a:4": "r1 is submitted twice",
    "submit r2": "r2 has no tokens",
    "submit r2 a:4 media=cat": "is not of the form `media=4\\+2:cat`",
    "counts 0: free many": "is not of the form `counts 0",
    "group 5: full block 4": "group 5 comes as number 3",
    "group 3: full block 4 pool 9": "group 3 lies in pool 9, which no line before declares",
    "rules: kindness 4": "no rule is called 'kindness 4'",
    "zero 9/1": "pool 9 has no page 1",
    "acquire r1 | " + "9" * 5_000: "a number is too long",
    "reset maybe": "is not of the form `reset ok",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_refused_with_its_number(line: str) -> None:
    """Where, what is wrong, and what the line should look like."""
    with pytest.raises(UsageError, match=f"^mine:7: .*{BAD[line]}"):
        parse(HEAD + R1 + line, "mine")


def test_a_history_without_pools_is_refused() -> None:
    """There is nothing to happen on."""
    with pytest.raises(UsageError, match="starts with its pools and groups"):
        parse("", "mine")
