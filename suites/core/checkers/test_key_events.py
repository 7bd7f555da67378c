"""What routers are told of keys, told late, out of two prompts at once, or of what the ledger
has forgotten.
"""

from __future__ import annotations

import msgspec
import pytest

from cachewitness.core import validate
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.checkers.key_events import KeyEventsTrue
from cachewitness.core.checkers.router_view import ANYWHERE, BEGINNING, RouterView
from cachewitness.core.driving import check
from cachewitness.core.events import (
    Hit,
    KeyEvents,
    KvStored,
    ResetDone,
    StepEnd,
    Submitted,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.workloads.notation import parse

HEADER = "pool 0: 20 pages, null 0\ngroup 0: full block 4\nrules: alignment 4, key-events\n"
TWO_GROUPS = "pool 0: 20 pages, null 0\ngroup 0: full block 4\ngroup 1: sliding block 4 window 4\n"
GAPS = TWO_GROUPS + "rules: alignment 4, retention dense on 1, key-events-with-gaps\n"
ORPHANS = HEADER.replace("key-events", "key-events-with-orphans")


def judged(text: str) -> tuple[list[Finding], Tally]:
    """Return the findings of the checker alone, and its tally."""
    result = check(parse(text), [KeyEventsTrue()])
    assert not result.tallies[0].crashed
    return result.findings, result.tallies[0]


def found(text: str) -> list[str]:
    """Return the anomalies that the checker finds."""
    return [finding.anomaly for finding in judged(text)[0]]


def one_request(r: str, prompt: str, pages: str, length: int) -> str:
    """Return how a request comes that keys its whole blocks in group 0."""
    columns = pages.split()
    keys = "".join(
        f"publish 0/{page} {r}:{4 * (i + 1)}\n"
        for i, page in enumerate(columns)
        if 4 * (i + 1) <= length
    )
    return f"submit {r} {prompt}\nacquire {r} | {pages}\n{keys}"


A = one_request("a", "x:9", "1 2 3", 9)


def test_an_engine_that_declares_nothing_is_not_judged() -> None:
    _, tally = judged(HEADER.replace(", key-events", "") + A + "step 1: a 0..9 | 1 2 3\n")
    assert tally.not_applicable == "the engine tells nobody of its keys"


def test_an_engine_that_says_it_tells_and_never_does_is_found() -> None:
    assert found(HEADER + A + "step 1: a 0..9 | 1 2 3\nfinish a\nrelease a\n") == ["lost-key-event"]


def test_what_is_lost_is_told_once_and_later_steps_are_judged_again() -> None:
    """Two steps lose an event each: two findings, and none for the step between."""
    text = (
        HEADER
        + A
        + "step 1: a 0..9 | 1 2 3\n"
        + one_request("b", "y:5", "4 5", 5)
        + "stored 0 h1 | y:4 by 4\n"
    )
    text += "step 2: b 0..5 | 4 5\n" + one_request("c", "z:5", "6 7", 5) + "step 3: c 0..5 | 6 7\n"
    assert found(text) == ["lost-key-event", "lost-key-event"]


def test_events_may_come_before_the_step_and_behind_it() -> None:
    event = "stored 0 h1 h2 | x:8 by 4"
    assert found(HEADER + A + f"{event}\nstep 1: a 0..9 | 1 2 3\n") == []
    assert found(HEADER + A + f"step 1: a 0..9 | 1 2 3\n{event} @1\n") == []
    assert found(
        HEADER
        + A
        + f"step 1: a 0..9 | 1 2 3\nsubmit b y:4\nacquire b | 5\nstep 2: b 0..4 | 5\n{event} @2\n"
    ) == ["lost-key-event", "false-key-event"]


def test_shapes_that_no_router_can_read() -> None:
    step = "\nstep 1: a 0..9 | 1 2 3\n"
    for event in (
        "stored 0 | x:8 by 4",
        "stored 0 h1 | x:8 by 4",
        "stored 0 h1 h1 | x:8 by 4",
        "stored 0 h1 h2 h3 | x:8 by 4",
    ):
        assert found(HEADER + A + event + step)[0] == "malformed-key-event", event
    for event in ("stored 0 h1 h2 | x:7 by 4", "stored 3 h1 h2 | x:8 by 4", "removed 0"):
        assert found(HEADER + A + event + step)[0] == "malformed-key-event", event
    assert found(HEADER + A + "stored - h1 h2 | x:8 by 4" + step) == [], (
        "with one group alone it goes without saying"
    )


def test_identity_is_told_with_the_tokens() -> None:
    tuned = (
        HEADER
        + A.replace("x:9", "x:9 adapter=tuned media=5+2:cat")
        + "{}\nstep 1: a 0..9 | 1 2 3\n"
    )
    assert found(tuned.format("stored 0 h1 h2 | x:8 by 4 adapter=tuned media=-,cat@1")) == []
    for identity in (
        "media=-,cat@1",
        "adapter=tuned media=-,cat@0",
        "adapter=tuned",
        "adapter=tuned media=cat@1,-",
        "adapter=tuned media=-,dog@1",
    ):
        assert found(tuned.format(f"stored 0 h1 h2 | x:8 by 4 {identity}")) == [
            "false-key-event"
        ], identity


def test_the_line_says_of_what_identity_an_event_is_wrong() -> None:
    """A list of known findings tells one mistake from another by it; what is named is in the
    sentence.
    """
    prompt = HEADER + A.replace("x:9", "x:9 media=5+2:cat")
    (finding,) = judged(prompt + "stored 0 h1 h2 | x:8 by 4\nstep 1: a 0..9 | 1 2 3\n")[0]
    assert finding.line.endswith("; it names other multimodal items than the block")
    assert "[], not [('cat', 1)]" in finding.sentence


def test_two_tenants_with_the_same_tokens_in_one_step() -> None:
    """Each event is of its own tenant's key, whichever comes first."""
    text = (
        HEADER
        + one_request("a", "x:5 salt=one", "1 2", 5)
        + one_request("b", "x:5 salt=two", "3 4", 5)
    )
    text += "{}\n{}\nstep 1: a 0..5 | 1 2; b 0..5 | 3 4\n"
    events = [
        f"stored 0 {name} | x:4 by 4 salt={salt}" for name, salt in (("h1", "one"), ("h2", "two"))
    ]
    assert found(text.format(*events)) == found(text.format(*reversed(events))) == []
    assert found(text.format(events[0], events[0].replace("h1", "h2"))) == ["false-key-event"]
    assert found(text.format(events[0], events[1].replace("h2", "h1"))) == ["false-key-event"], (
        "one name for two prefixes"
    )


def test_blocks_that_are_left_out_are_found_by_names_that_other_groups_told() -> None:
    """Two requests of one prompt key different blocks of their windows; the names say which
    event is of which.
    """
    text = (
        GAPS
        + "submit a x:9\nsubmit b x:13\nacquire a | 1 2 3 | 4 5 6\nacquire b | 7 8 9 10 | 11 12 13 14\n"  # noqa: E501
    )
    text += (
        "publish 0/1 a:4\npublish 0/2 a:8\npublish 0/9 b:12\npublish 1/5 a:8\npublish 1/13 b:12\n"
    )
    text += (
        "stored 0 h1 h2 | x:8 by 4\nstored 0 h3 | x[8]:4 by 4 behind h2\n"
        "stored 1 h3 | x:12 by 4\n{}"
    )
    text += "step 1: a 0..9 | 1 2 3 | 4 5 6; b 0..13 | 7 8 9 10 | 11 12 13 14\n"
    findings, tally = judged(text.format("stored 1 h2 | x:8 by 4\n"))
    assert not findings and tally.excused == {"key_events gaps": 2}
    assert found(text.format("")) == ["lost-key-event"]


def test_a_block_whose_parent_nobody_knows_is_not_guessed() -> None:
    """Two prompts end alike: of neither it can be said that it was lost, and neither is mistaken
    for the other.
    """
    text = (
        ORPHANS + "submit a x:4 q:5\nsubmit b y:4 q:5\nacquire a | 1 2 3\nacquire b | 4 5 6\n"
        "publish 0/2 a:8\npublish 0/5 b:8\n"
    )
    text += "stored 0 h1 | q:4 by 4 behind h8\nstored 0 h2 | q:4 by 4 behind h9\n"
    text += "step 1: a 0..9 | 1 2 3; b 0..9 | 4 5 6\nfinish a\nfinish b\nrelease a\nrelease b\n"
    text += "submit c z:4\nacquire c | 5\nunpublish 0/5 evict\nremoved 0 h2\nstep 2: c 0..4 | 5\n"
    findings, tally = judged(text)
    assert not findings and tally.excused == {"key_events orphans": 2}
    again = "removed 0 h1\nstored 0 h1 | q:4 by 4 behind h8\nstep 2"
    assert found(text.replace("step 2", again)) == [], (
        "its page lost the key and got it again in one call"
    )


IMAGE_OR_NOT = (
    ORPHANS + "submit a x:9 media=3+4:cat\nsubmit b x:9\nacquire a | 1 2 3\nacquire b | 4 5 6\n"
    "publish 0/2 a:8\npublish 0/5 b:8\n"
    + "stored 0 h1 | x[4]:4 by 4 behind h8 media=cat@-1\nstored 0 h2 | x[4]:4 by 4 behind h9\n"
    + "step 1: a 0..9 | 1 2 3; b 0..9 | 4 5 6\n"
)


def test_a_block_behind_an_unknown_parent_is_known_by_its_image() -> None:
    """Two prompts of the same tokens, one with an image in them: each event says of which it is."""
    assert found(IMAGE_OR_NOT) == []
    assert found(IMAGE_OR_NOT.replace("cat@-1", "dog@-1")) == ["false-key-event"]
    lost = IMAGE_OR_NOT.replace("stored 0 h2 | x[4]:4 by 4 behind h9\n", "")
    assert found(lost) == ["lost-key-event"], "it is known which one was not told"


def test_a_name_that_may_mean_two_blocks_takes_neither_from_the_other() -> None:
    """One page's key is told to be gone and there again, while another page gets a key over the
    same tokens.
    """
    text = (
        ORPHANS + "submit a x:4 q:5\nsubmit b y:4 q:5\nacquire a | 1 2 3\nacquire b | 4 5 6\n"
        "publish 0/2 a:8\npublish 0/5 b:8\n"
    )
    text += "stored 0 h1 | q:4 by 4 behind h8\nstored 0 h2 | q:4 by 4 behind h9\n"
    text += (
        "step 1: a 0..9 | 1 2 3; b 0..9 | 4 5 6\nsubmit c z:4 q:5\nacquire c | 7 8 9\n"
        "publish 0/8 c:8\n"
    )
    text += (
        "removed 0 h1\nstored 0 h1 | q:4 by 4 behind h8\nstored 0 h3 | q:4 by 4 behind h7\n"
        "step 2: c 0..9 | 7 8 9\n"
    )
    assert found(text) == []


SHARED = """pool 0: 20 pages, null 0
group 0: full block 8
group 1: sliding block 4 window 4
rules: alignment 8, retention dense on 1, key-events-with-gaps
submit a x:12 a:5
submit b x:12 b:5
acquire a | 1 2 3 | 4 5 6 7 8
publish 0/1 a:8
publish 0/2 a:16
publish 1/6 a:12
publish 1/7 a:16
acquire b | 9 10 11 | 12 13 14 15 16
publish 0/9 b:8
publish 0/10 b:16
publish 1/13 b:8
publish 1/14 b:12
publish 1/15 b:16
stored 1 h12 a16 | x:12 a:4 by 4
stored 0 h8 a16 | x:12 a:4 by 8
stored 1 h8 h12 b16 | x:12 b:4 by 4
"""
"""Two prompts that part in their last block. What is told first may mean any two of three blocks of
group 1."""


def test_a_name_that_is_not_clear_yet_does_not_shift_the_names_behind_it() -> None:
    """`b16` is the last block of its prompt, whatever `h12` means."""
    steps = "step 1: a 0..17 | 1 2 3 | 4 5 6 7 8; b 0..17 | 9 10 11 | 12 13 14 15 16\n"
    assert judged(SHARED + "stored 0 h8 b16 | x:12 b:4 by 8\n" + steps)[0] == []
    assert found(SHARED + "stored 0 h8 a16 | x:12 b:4 by 8\n" + steps)[0] == "false-key-event"


def test_what_the_ledger_forgets_may_still_be_told_to_be_gone() -> None:
    """A name outlives the number of its prefix: the number comes to stand for another, and the
    router's page stays counted.
    """
    view = RouterView()
    ledger = Ledger(parse(HEADER + A).header)
    view.store(0, "h1", 7)
    view.forget([7])
    assert view.prefix("h1") == ANYWHERE and view.prefix("") == BEGINNING
    assert [pages for _, _, pages, _ in view.differences(ledger)] == [1]
    assert view.remove(0, "h1")
    assert view.differences(ledger) == []


def test_names_end_when_all_is_cleared() -> None:
    """With new weights the same hash is another prefix; a parent has to be told anew."""
    text = HEADER + A + "stored 0 h1 h2 | x:8 by 4\nstep 1: a 0..9 | 1 2 3\nfinish a\nrelease a\n"
    text += "unpublish 0/1 version\nunpublish 0/2 version\nversion 1\ncleared\n" + one_request(
        "b", "x:9", "4 5 6", 9
    )
    step = "step 2: b 0..9 | 4 5 6\n"
    assert found(text + "stored 0 h1 h2 | x:8 by 4\n" + step) == []
    assert found(text + "stored 0 h2 | x[4]:4 by 4 behind h1\n" + step)[0] == "malformed-key-event"


def test_events_of_an_engine_that_declares_none_are_refused() -> None:
    """Else they would be judged by nobody."""
    text = (
        HEADER.replace(", key-events", "")
        + A
        + "stored 0 h1 h2 | x:8 by 4\nstep 1: a 0..9 | 1 2 3\n"
    )
    ((_, problem),) = validate.problems(parse(text))
    assert "`$.rules.key_events`" in problem


def test_the_event_of_the_format_says_nothing_that_it_was_not_given() -> None:
    event = KvStored(hashes=["h1"], tokens=[1, 2, 3, 4], block_size=4)
    assert (event.group, event.parent, event.salt, event.adapter, event.media) == (
        -1,
        "",
        "",
        "",
        [],
    )


# --- hits that are told again ---------------------------------------------------------------------

AGAIN = HEADER.replace("key-events", "key-events-of-hits")
REPORTED = AGAIN + A + "step 1: a 0..9 | 1 2 3\nstored 0 h1 h2 | x:8 by 4 @1\n"
B = "submit b x:12\nhit b 8 | 1 2\nacquire b | 1 2 4\n"
LAST = "publish 0/4 b:12\nstep 2: b 8..12 | 1 2 4\n"
NEW = "stored 0 h3 | x[8]:4 by 4 behind h2 @2\n"


def test_a_hit_may_be_told_again_where_that_is_declared() -> None:
    """It is no page more: when the request is gone and its pages lose their keys, routers are
    right again.
    """
    gone = (
        "finish b\nrelease b\nfinish a\nrelease a\n"
        + "".join(f"unpublish 0/{page} reset\n" for page in (1, 2, 4))
        + "reset ok\n"
    )
    repeated = "stored 0 h1 h2 | x:8 by 4 @2\n"
    after = (
        one_request("c", "z:5", "6 7", 5)
        + "step 3: c 0..5 | 6 7\ncleared @3\nstored 0 h9 | z:4 by 4 @3\n"
    )
    assert found(REPORTED + B + LAST + repeated + NEW + gone + after) == []
    assert found(REPORTED.replace("-of-hits", "") + B + LAST + repeated + NEW) == [
        "false-key-event"
    ]


def test_what_is_told_of_a_hit_is_of_the_prefix_that_is_hit() -> None:
    """Over other tokens, behind itself, with another salt, or of a block that no page has, it is
    false.
    """
    lies = (
        "stored 0 h1 h2 | y:8 by 4",
        "stored 0 h1 h2 | x:8 by 4 behind h2",
        "stored 0 h1 h2 | x:8 by 4 salt=s",
        "stored 0 h1 h2 h7 | x:12 by 4",
    )
    for lie in lies:
        assert found(REPORTED + B + LAST + NEW + f"{lie} @2\n") == ["false-key-event"], lie


def test_a_page_more_of_a_prefix_is_told_whether_a_hit_of_it_comes_before_or_behind() -> None:
    """Two pages of one prefix, of which one is told and hit in the step that fills the other."""
    more = "submit c x:5\nacquire c | 5 6\npublish 0/5 c:4\n"
    step = "publish 0/4 b:12\nstep 2: b 8..12 | 1 2 4; c 0..5 | 5 6\n"
    hit, page = "stored 0 h1 h2 | x:8 by 4 @2\n", "stored 0 h1 | x:4 by 4 @2\n"
    for events in (hit + page, page + hit):
        assert found(REPORTED + B + more + step + events + NEW) == []
    assert found(REPORTED + B + more + step + NEW) == ["lost-key-event"]


def test_a_page_that_goes_leaves_another_of_the_prefix_to_be_hit() -> None:
    """A router that was told so does not take the hit for a page more."""
    more = (
        "submit c x:5\nacquire c | 5 6\npublish 0/5 c:4\nstep 2: c 0..5 | 5 6\n"
        "stored 0 h1 | x:4 by 4 @2\nfinish c\nrelease c\n"
    )
    lost = "submit d y:4\nacquire d | 5\nunpublish 0/5 evict\npublish 0/5 d:4\n"
    events = "removed 0 h1 @3\nstored 0 h1 h2 | x:8 by 4 @3\nstored 0 h8 | y:4 by 4 @3\n"
    assert found(REPORTED + more + lost + "step 3: d 0..4 | 5\n" + events) == []


def test_a_reset_between_a_hit_and_a_key_of_its_prefix_does_not_make_the_key_false() -> None:
    """Nothing is told before the second step ends; then a key, a hit of it, that all is gone,
    and the key again.
    """
    before = AGAIN + A + "submit b x:12\nhit b 8 | 1 2\nacquire b | 1 2 4\n"
    reset = "finish a\nfinish b\nrelease a\nrelease b\nunpublish 0/1 reset\nunpublish 0/2 reset\nreset ok\n"  # noqa: E501
    anew = one_request("c", "x:9", "5 6 7", 9)
    event = "stored 0 h1 h2 | x:8 by 4 @1\n"
    steps = (
        f"begin 1: a 0..9 | 1 2 3; b 8..12 | 1 2 4\n{reset}{anew}begin 2: c 0..9 | 5 6 7\nend 1\n"
    )
    assert found(before + steps + event + event + "cleared @1\n" + event + "end 2\n") == []


def test_a_page_that_was_told_to_go_before_all_is_cleared_is_not_told_behind_that() -> None:
    """One of two pages of a prefix goes, so the other might be told again; with new weights, which
    come in the same operation, the same tokens are another prefix.
    """
    two = HEADER + A + "stored 0 h1 h2 | x:8 by 4\nstep 1: a 0..9 | 1 2 3\n"
    two += "submit c x:5\nacquire c | 5 6\npublish 0/5 c:4\nstep 2: c 0..5 | 5 6\n"
    two += "stored 0 h1 | x:4 by 4 @2\nfinish c\nrelease c\nfinish a\nrelease a\n"
    gone = "submit d y:4\nacquire d | 5\nunpublish 0/5 evict\npublish 0/5 d:4\nstep 3: d 0..4 | 5\n"
    gone += "removed 0 h1 @3\nstored 0 h8 | y:4 by 4 @3\n"
    pages = "".join(f"unpublish 0/{page} version @3\n" for page in (1, 2, 5))
    reset = f"{pages}version 1 @3\n"
    anew = one_request("e", "x:9", "6 7 8", 9) + "cleared\nstored 0 h1 h2 | x:8 by 4\n"
    assert found(two + gone + reset + anew + "step 4: e 0..9 | 6 7 8\n") == []


def test_an_event_that_no_router_reads_is_found_and_the_others_are_judged() -> None:
    text = HEADER + A + "step 1: a 0..9 | 1 2 3\nunreadable Moved is no event @1\n"
    whole = text + "stored 0 h1 h2 | x:8 by 4 @1\nfinish a\nrelease a\n"
    findings, tally = judged(whole)
    assert [finding.anomaly for finding in findings] == ["malformed-key-event"]
    assert findings[0].line.endswith("wrong kv_unreadable event, step 1; Moved is no event")
    assert tally.opportunities >= 2
    assert found(text + "finish a\nrelease a\n") == ["malformed-key-event", "lost-key-event"]


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("start", "cause"), [(0, "left-window"), (4, "left-window"), (8, "")])
def test_a_block_told_with_the_tokens_of_whose_window_it_left_has_a_cause(
    start: int, cause: str, backwards: bool, preempted: bool
) -> None:
    """Window blocks of four tokens: a query at token 12 reads [9, 12) alone. What is found is the
    second event, be it the true one, and whatever became of the request since.
    """
    request = "submit a x:12\nacquire a | 1 2 3 | 4 5 6\n"
    lost = "preempt a\nrelease a\n" if preempted else ""
    history = parse(GAPS + request + "step 1: a 0..12 | 1 2 3 | 4 5 6\n" + lost)
    tokens = next(event for event in history.events if isinstance(event, Submitted)).tokens
    blocks = [[7, 7, 7, 7], tokens[start : start + 4]]
    history.events += [
        KvStored(hashes=["h"], tokens=block, block_size=4, group=1, medium="CPU", step=1)
        for block in (reversed(blocks) if backwards else blocks)
    ]
    history.op_of += [history.op_of[-1]] * 2
    (finding,) = (
        finding
        for finding in check(history, [KeyEventsTrue()]).findings
        if finding.anomaly == "false-key-event"
    )
    assert finding.cause == cause


@pytest.mark.parametrize(
    ("reset", "lost"),
    [
        (ResetDone(ok=False, tier="cpu"), False),
        (ResetDone(ok=True, tier="local"), False),
        (ResetDone(ok=True, tier="cpu"), True),
    ],
    ids=["refused", "of the device", "of the tier"],
)
def test_a_reset_takes_from_routers_what_it_resets(reset: ResetDone, lost: bool) -> None:
    """The tier's block was told once, and is loaded behind the reset."""
    text = (
        "pool 0: 6 pages, null 0\npool 1: 4 pages, tier cpu\ngroup 0: full block 4\n"
        "group 1: full block 4 pool 1 of 0\nrules: alignment 4, key-events\n"
        "submit a x:5\nacquire a | 1 2\nstep 1: a 0..5 | 1 2\nfinish a\nrelease a\n"
        "submit b x:5\nhit b 4 tier cpu | 3 | 0\n"
    )
    history = parse(text)
    rules = msgspec.structs.replace(history.header.rules, key_events=KeyEvents(tiers=True))
    history.header = msgspec.structs.replace(history.header, rules=rules)
    tokens = next(event for event in history.events if isinstance(event, Submitted)).tokens
    stored = KvStored(hashes=["h"], tokens=tokens[:4], block_size=4, group=0, medium="CPU", step=1)
    ended = next(place for place, event in enumerate(history.events) if isinstance(event, StepEnd))
    history.events[ended + 1 : ended + 1] = [stored, reset]
    history.op_of[ended + 1 : ended + 1] = [history.op_of[ended]] * 2
    assert any(isinstance(event, Hit) for event in history.events)
    found = [finding.anomaly for finding in check(history, [KeyEventsTrue()]).findings]
    assert found == ["lost-key-event"] * lost


def test_what_lies_behind_a_false_event_has_a_parent_that_was_told() -> None:
    """The event is found once; a block behind a name that no event has is another fault."""
    begun = HEADER + one_request("a", "x:13", "1 2 3 4", 12)
    step = "step 1: a 0..13 | 1 2 3 4\n"
    false, behind = "stored 0 h1 h2 | z:4 x[4]:4 by 4\n", "stored 0 h3 | x[8]:4 by 4 behind h2\n"
    assert found(begun + false + behind + step) == ["false-key-event"]
    nobodys = behind.replace("h2", "h7")
    assert found(begun + false + nobodys + step) == ["false-key-event", "malformed-key-event"]


LATE = HEADER.replace("key-events", "key-events-once-and-late")
SAME = one_request("b", "x:8 y:1", "4 5 6", 8)
STORED = "stored 0 h1 h2 | x:8 by 4"


def test_what_is_told_a_step_late_is_told_where_that_is_declared() -> None:
    """And not where it is not, nor two steps late."""
    later = "submit c z:3\nacquire c | 8\n"
    first = "step 1: a 0..8 | 1 2 3\n"
    assert found(LATE + A + first + f"{later}step 2: c 0..3 | 8\n{STORED} @2\n") == []
    assert found(HEADER + A + first + f"{later}step 2: c 0..3 | 8\n{STORED} @2\n") != []
    assert found(LATE + A + first + f"{later}step 2: c 0..2 | 8\nstep 3: c 2..3 | 8\n") == [
        "lost-key-event"
    ]


def test_a_name_is_told_once_of_several_pages_where_that_is_declared() -> None:
    """With the first of its pages, and that it is gone with the last."""
    both = f"{A}step 1: a 0..8 | 1 2 3\n{STORED} @1\n{SAME}step 2: b 0..8 | 4 5 6\n"
    third = "submit c z:3\nacquire c | 8\nstep 3: c 0..3 | 8\n"
    assert found(LATE + both + third) == []
    assert found(HEADER + both + third) == ["lost-key-event"]
    ended = "finish a\nrelease a\nunpublish 0/2 evict\nunpublish 0/1 evict\n"
    assert found(LATE + both + ended + third) == []
    rest = "finish b\nrelease b\nunpublish 0/5 evict\nunpublish 0/4 evict\n"
    assert found(LATE + both + ended + rest + third) == ["lost-key-event"]
    assert found(LATE + both + ended + rest + "removed 0 h1 h2\n" + third) == []
