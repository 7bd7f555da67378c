"""The cause of a finding, where a checker can tell: a copy that was made before what it copies
was written.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from cachewitness.core.checkers.finding import (
    BEYOND_ANSWER,
    EARLY_COPY,
    HELD_BY_WAITING,
    INSIDE_BLOCK,
    KEPT_HASH,
    OPEN_CHUNK,
)
from cachewitness.core.driving import check
from cachewitness.core.events import Accept, Extended, Paused, Publish, Read, Run, StepBegin
from cachewitness.core.ledger.records import RUN_PAST
from cachewitness.report.counterexample import headline
from cachewitness.workloads.notation import parse

START = """pool 0: 8 pages, null 0
group 0: full block 4
rules: alignment 2
submit a x:5
acquire a | 1 2
publish 0/1 a:4
"""
SECOND = """submit b x:3 y:2
hit b 2 | 1
acquire b | 3 4
publish 0/3 b:4
acquire copy:1 | 1 3
"""
EARLY = START + SECOND + "step 1: a 0..5 | 1 2; b 2..5 | 3 4; copy 1>3\nrelease copy:1\n"
IN_TIME = (
    START + "step 1: a 0..5 | 1 2\n" + SECOND + "step 2: b 2..5 | 3 4; copy 1>3\nrelease copy:1\n"
)


def causes(text: str, *anomalies: str) -> list[tuple[str, str]]:
    """Return what is found, of some anomalies alone if any are named, and the cause of each."""
    found = check(parse(text)).findings
    return [(one.anomaly, one.cause) for one in found if one.anomaly in anomalies or not anomalies]


def test_a_copy_of_what_its_own_step_writes_is_the_cause_of_what_is_read_and_keyed_there() -> None:
    assert causes(EARLY) == [("stale-hit", EARLY_COPY), ("partial-commit", EARLY_COPY)]
    assert causes(IN_TIME) == []


def test_whoever_reads_the_copy_later_has_the_same_cause() -> None:
    later = "finish b\nrelease b\nsubmit c x:3 y:3\nhit c 4 | 3\nacquire c | 3 5\nstep 2: c 4..6 | 3 5\n"  # noqa: E501
    assert causes(EARLY + later)[2:] == [("partial-commit", EARLY_COPY)]


def test_a_page_that_was_written_anew_has_that_cause_no_longer() -> None:
    anew = (
        "finish b\nrelease b\nunpublish 0/3 evict\nsubmit c z:5\nacquire c | 3 5\n"
        "publish 0/3 c:4\nstep 2: c 0..5 | 3 5\n"
    )
    wrong = "submit d w:5\nhit d 4 | 3\nacquire d | 3 6\nstep 3: d 4..5 | 3 6\n"
    assert causes(EARLY + anew)[2:] == []
    assert causes(EARLY + anew + wrong)[2:] == [("stale-hit", "")]


def test_the_cause_is_told() -> None:
    finding = check(parse(EARLY)).findings[0]
    assert any(
        "the cause: early-copy, as the page was copied" in line for line in headline(finding, "t")
    )
    assert not any(
        "the cause" in line for line in headline(msgspec.structs.replace(finding, cause=""), "t")
    )


def test_a_smaller_trace_stands_for_the_same_cause_alone() -> None:
    early = check(parse(EARLY)).findings[0]
    other = msgspec.structs.replace(early, cause="")
    assert (
        early.alike(early)
        and other.alike(other)
        and not early.alike(other)
        and not other.alike(early)
    )


RESUMED = (
    START
    + "step 1: a 0..5 | 1 2\n"
    + SECOND.replace("publish 0/3 b:4\n", "")
    + "step 2: b 2..5 | 3 4; copy 1>3\nrelease copy:1\n"
)
"""Of the request that was resumed inside a block nothing is kept."""
NOT_KEPT = ("lost-replay-boundary", "key-owed")


def test_what_is_not_kept_behind_a_resume_inside_a_block_is_told_from_what_is_not_kept() -> None:
    """Also where the block has a key after all, and where nobody was resumed inside one."""
    ends = "finish b\nrelease b\n"
    assert causes(RESUMED + ends, *NOT_KEPT) == [(name, INSIDE_BLOCK) for name in NOT_KEPT]
    assert causes(IN_TIME + ends, *NOT_KEPT) == []
    cold = START.replace("publish 0/1 a:4\n", "") + "step 1: a 0..5 | 1 2\nfinish a\nrelease a\n"
    assert causes(cold, *NOT_KEPT) == [(name, "") for name in NOT_KEPT]


STORED = """pool 0: 12 pages, null 0
pool 1: 8 pages, tier cpu, evicts lru
group 0: full block 4
group 1: chunked block 16 chunk 4
group 2: full block 4 pool 1
rules: alignment 4
submit a x:12
hit a 0
acquire a | 1 2 3 | 4
publish 0/1 a:4
publish 0/2 a:8
publish 0/3 a:12
step 1: a 0..12 | 1 2 3 | 4; store 0/1>1/0 0/2>1/1 0/3>1/2
publish 2/0 a:4
publish 2/1 a:8
publish 2/2 a:12
finish a
release a
submit b x:12
acquire b | 5 6 7 | 8
"""
LOADED = "copy 1/0>0/5 1/1>0/6 1/2>0/7"


def of_reads(text: str) -> list[tuple[str, str]]:
    """Return the causes of what is read wrongly."""
    return [one for one in causes(text) if one[0] == "stale-hit"]


def test_a_hit_that_ends_inside_a_chunk_is_the_cause_where_it_brings_nothing_of_it() -> None:
    """The last token alone is computed again, and the other three of its chunk are nowhere."""
    whole = "hit b 12 resume 11 tier cpu | 5 6 7 | | 0 1 2\n"
    last = f"step 2: b 11..12 | 5 6 7 | 8; {LOADED}\n"
    assert of_reads(STORED + whole + last) == [("stale-hit", OPEN_CHUNK)]


def test_a_hit_that_ends_with_a_chunk_needs_nothing_of_it() -> None:
    """The lawful look-alike: the chunk is computed as a whole."""
    shorter = "hit b 8 tier cpu | 5 6 | | 0 1\n"
    rest = "step 2: b 8..12 | 5 6 7 | 8; copy 1/0>0/5 1/1>0/6\n"
    assert of_reads(STORED + shorter + rest) == []


@pytest.mark.parametrize(
    ("hit", "moved"),
    [
        ("hit b 12 resume 11 tier cpu | 5 6 7 | | 0 1 2", "copy 1/0>0/5 1/1>0/6"),
        ("hit b 12 resume 11 | 5 6 7 | ", LOADED),
    ],
    ids=["a page is not loaded", "a hit on the device"],
)
def test_other_reads_there_have_another_cause(hit: str, moved: str) -> None:
    """What full attention reads is no matter of chunks, and the device's own hits end with them."""
    found = of_reads(STORED + f"{hit}\nstep 2: b 11..12 | 5 6 7 | 8; {moved}\n")
    assert found[0] == ("stale-hit", "")


STATES = """pool 0: 16 pages, null 0
group 0: full block 4
group 1: recurrent block 8
rules: alignment 4
submit a x:4
hit a 0
acquire a | 1 | 2
publish 0/1 a:4
publish 1/2 a:4
step 1: a 0..4 | 1 | 2
finish a
release a
submit b x:4 y:16
hit b 4 | 1 | 2
acquire b | 1 3 4 5 6 | 2 7 8
"""


@pytest.mark.parametrize(
    ("keyed", "saved", "cause"),
    [
        ("1/2 b:8", "; saves b 1/7:16", RUN_PAST),
        ("1/2 b:8", "", ""),
        ("1/2 b:8", "; saves b 1/7:8", ""),
        ("1/8 b:16", "; saves b 1/7:16", ""),
        ("1/2 b:16", "; saves b 1/7:16", ""),
    ],
    ids=[
        "a later state is saved",
        "none is saved",
        "the key's own state goes elsewhere",
        "the last state under the key of a saved one",
        "the first state under the key of a saved one",
    ],
)
def test_a_chunk_that_runs_past_its_first_block_leaves_the_state_that_it_began_with(
    keyed: str, saved: str, cause: str
) -> None:
    """Whoever goes on from there has the same cause; a key over any other state is another
    fault.
    """
    text = STATES + f"publish {keyed}\nstep 2: b 4..20 | 1 3 4 5 6 | 2 7 8{saved}\n"
    assert causes(text, "fabricated-snapshot") == [("fabricated-snapshot", cause)]
    if cause:
        reads = (
            "submit c x:4 y:4 z:4\nhit c 8 | 1 3 | 2\nacquire c | 1 3 9 | 2 10\n"
            "step 3: c 8..12 | 1 3 9 | 2 10\n"
        )
        assert causes(text + reads, "fabricated-snapshot")[1:] == [("fabricated-snapshot", cause)]


SESSIONS = """pool 0: 6 pages, null 0
group 0: full block 4
rules: alignment 4, progress 2
submit a x:8 session=yes
hit a 0
acquire a | 1 2
submit b y:4 session=yes
hit b 0
acquire b | 3
step 1: a 0..8 | 1 2; b 0..4 | 3
pause a
pause b
"""


@pytest.mark.parametrize(
    ("asked", "cause"),
    [("extend a 8 u:8\nextend b 4 v:8\n", HELD_BY_WAITING), ("extend a 8 u:1\nfinish b\n", "")],
    ids=["each lacks what the other holds", "there is room for all"],
)
def test_who_waits_for_pages_of_others_who_wait_is_told_from_an_engine_that_runs_nobody(
    asked: str, cause: str
) -> None:
    idle = "".join(f"step {step}: \n" for step in range(2, 7))
    gone = "release b\n" if "finish" in asked else ""
    assert causes(SESSIONS + asked + gone + idle, "no-progress") == [("no-progress", cause)]


ANSWERED = """pool 0: 8 pages, null 0
group 0: full block 4
rules: alignment 4
submit a x:7 session=yes
hit a 0
acquire a | 1 2
publish 0/1 a:4
step 1: a 0..7 | 1 2
accept a 8 @a:1
publish 0/2 a:8
step 2: a 7..8 | 1 2
pause a
submit b x:7 @a:1 y:1
hit b 8 | 1 2
acquire b | 1 2 3
"""
"""The answer of a session completes a block, which another request hits."""


@pytest.mark.parametrize(
    ("keep", "cause"), [(7, KEPT_HASH), (6, "")], ids=["its last token", "more than that"]
)
def test_a_block_keeps_its_key_that_the_dropped_token_of_an_answer_had_completed(
    keep: int, cause: str
) -> None:
    """Who holds it is written over, and reads other tokens. A session that goes on in front of more
    than that token is another fault.
    """
    text = ANSWERED + f"extend a {keep} v:4\nstep 3: a {keep}..{keep + 1} | 1 2\n"
    assert causes(text, "aliased-write") == [("aliased-write", cause)]
    read = text + "step 4: b 8..9 | 1 2 3\n"
    assert causes(read, "stale-hit") == [("stale-hit", cause)]


GOES_ON = """pool 0: 8 pages, null 0
group 0: recurrent block 4
rules: alignment 4
submit a x:2 session=yes
hit a 0
acquire a | 1 2
step 1: a 0..2 | 1
accept a 3 @a:1
"""
"""The answer of a session is over with its third token."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "begin 2: a 2..3 | 1\npause a\nend 2\nextend a 2 v:3\nstep 3: a 2..4 | 1\n",
            [("state-position-skew", BEYOND_ANSWER)],
        ),
        ("begin 2: a 2..3 | 1\npause a\nend 2\nextend a 3 v:3\nstep 3: a 3..4 | 1\n", []),
        ("pause a\nextend a 2 v:3\nstep 2: a 2..4 | 1\n", []),
    ],
    ids=["it has seen the dropped token", "no token is dropped", "no step was in flight"],
)
def test_a_session_s_state_that_a_step_in_flight_advanced_over_its_answer_s_last_token(
    text: str, found: list[tuple[str, str]]
) -> None:
    assert causes(GOES_ON + text) == found


@pytest.mark.parametrize(
    ("again", "found"), [(False, []), (True, ["state-position-skew"])], ids=["others", "the same"]
)
def test_what_a_step_behind_an_answer_reads_is_nobody_s_where_the_session_has_other_tokens(
    again: bool, found: list[str]
) -> None:
    """Such a step is judged by keys of what it makes. Those of a session that went on name what
    that has instead, unless its input begins with the dropped token.
    """
    history = parse(GOES_ON)
    answered = history.events[-1]
    assert isinstance(answered, Accept)
    tokens = [*(answered.tokens if again else [7]), 8, 9]
    history.events += [
        StepBegin(step=2, runs=[Run("a", 3, 4, [[1]])]),
        Paused(r="a", step=2),
        Extended(r="a", keep=2, tokens=tokens, step=2),
        Publish(group=0, page=2, r="a", length=4, step=3),
        StepBegin(step=3, runs=[Run("a", 2, 5, [[1, 2]])]),
        Read(pool=0, group=0, pages=[1], r="a", start=0, stop=3, step=2),
    ]
    history.events = [replace(event, seq=seq) for seq, event in enumerate(history.events)]
    assert [one.anomaly for one in check(history).findings] == found
