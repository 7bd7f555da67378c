"""What is read off the log of llama.cpp's server: lines of a real one, and the same lines with
something changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.answered import AnswerSense
from cachewitness.core.checkers import fresh
from cachewitness.core.driving import judge
from cachewitness.core.events import (
    Answer,
    Answering,
    Event,
    Header,
    Resumed,
    Resumes,
    Rules,
    Submitted,
)
from cachewitness.core.malformed import MalformedHistory
from cachewitness.systems.llama_cpp.checkpoints import FIRST, Checkpoints
from cachewitness.systems.llama_cpp.log import Log

A = list(range(64)) + [100] * 10
"""Of so many tokens as in the log, and B begins like it: 73 tokens of `a`, 72 of `b`."""
B = list(range(64)) + [101] * 12

LOG = (Path(__file__).parent / "llama_cpp_server.log").read_text()
"""`a`, another request `x`, and `b`, for which the prompt of `a` comes back from the host with its
checkpoints."""
FROM_THE_HOST = r"  - found better prompt .*\n.* cache state: 0 prompts"
STAYS_THERE = (
    "  - cache state: 1 prompts\n0.1 I srv        update:    - prompt 0x7f29d4167580:      75"
    " tokens"
)


def edited(*changes: tuple[str, str]) -> str:
    """Return the log with each pattern replaced, which is there once."""
    text = LOG
    for pattern, new in changes:
        text, times = re.subn(pattern, new, text)
        assert times == 1, pattern
    return text


def followed(text: str = LOG) -> dict[str, list[Resumed]]:
    """Return what each request goes on from, by a log."""
    checkpoints = Checkpoints()
    for number, (r, prompt) in enumerate({"a": A, "x": [90] * 66, "b": B}.items()):
        assert checkpoints.number(r, prompt) == FIRST + number
    checkpoints.follow(text.splitlines())
    return {r: checkpoints.resumed(r) for r in ("a", "x", "b")}


def anomalies(text: str) -> list[str]:
    """Return what is found in a history of these requests and of what the log says of them."""
    states = followed(text)
    header = Header(
        engine="llama-cpp",
        level="answers",
        pools=[],
        groups=[],
        rules=Rules(answering=Answering("float32", 256, resumes="recurrent")),
    )

    def events() -> Iterator[Event]:
        for r, prompt in {"a": A, "x": [90] * 66, "b": B}.items():
            yield Submitted(r=r, tokens=prompt, generate=1)
            yield from states[r]
            yield Answer(
                r=r,
                tokens=[5],
                logprobs=[-0.5],
                restored=max((one.at for one in states[r]), default=0),
            )

    return [
        finding.anomaly
        for finding in judge(header, events(), fresh("answers")).findings
        if finding.checker == "resumes"
    ]


def test_a_checkpoint_that_comes_back_from_the_host_is_the_one_of_its_prompt() -> None:
    """`b` goes on behind the 64 tokens that it has in common with `a`, and nobody else restores
    anything.
    """
    assert followed() == {
        "a": [],
        "x": [],
        "b": [Resumed(r="b", at=64, of="a", taken=64, first=63)],
    }
    assert anomalies(LOG) == []


@pytest.mark.parametrize(
    ("changes", "anomaly"),
    [
        ([(r"(task 17 \| cached n_tokens =) 64", r"\1 65")], "state-position-skew"),
        (
            [
                (
                    r"(task 17 \| restored .*)63, .* = 63, .* = 64, ",
                    r"\g<1>69, pos_max = 69, n_tokens = 70, ",
                ),
                (r"(task 17 \| cached n_tokens =) 64", r"\1 70"),
            ],
            "stale-hit",
        ),
        (
            [
                (
                    r"(task 17 \| restored .*)63, .* = 63, .* = 64, ",
                    r"\g<1>60, pos_max = 60, n_tokens = 61, ",
                )
            ],
            "fabricated-snapshot",
        ),
        ([(FROM_THE_HOST, STAYS_THERE)], "fabricated-snapshot"),
    ],
    ids=["one token on", "of a prompt that parts earlier", "never made", "into an empty slot"],
)
def test_a_wrong_checkpoint_is_named(changes: list[tuple[str, str]], anomaly: str) -> None:
    """What a server restores wrongly follows from its log, whatever it answers."""
    assert anomalies(edited(*changes)) == [anomaly]


def test_a_prompt_for_which_there_is_no_room_stays_on_the_host() -> None:
    """A load that fails gives the slot nothing."""
    failed = (
        r"\g<1>\n0.1 I slot  prompt_load: id  1 | task -1 | failed to load prompt from cache\n0.1 I"
        r" srv  update:"
    )
    text = edited(
        (r"(  - found better prompt .*)\n.* cache state: 0 prompts", failed + STAYS_THERE),
        (r".* task 17 \| restored .*\n", ""),
        (r"(task 17 \| cached n_tokens =) 64", r"\1 0"),
    )
    assert followed(text)["b"] == []


def test_a_log_that_does_not_fit_together_tells_nothing() -> None:
    """Where prompts are listed that should not be there, what was restored is not known, and the
    trace is stopped.
    """
    assert followed(edited((r"(- prompt 0x7f29d4167580: +)75", r"\g<1>70"))) == {
        "a": [],
        "x": [],
        "b": [],
    }


def slot(line: str, task: int = 1) -> str:
    """Return a line of slot 0."""
    return f"0.1 I slot get_availabl: id  0 | task {task} | {line}"


def host(line: str, where: str = "update") -> str:
    """Return a line of the host's."""
    return f"0.1 I srv        {where}:  - {line}"


def ran(number: int, computed: int, *saved: str, at: int = 0) -> list[str]:
    """Return the lines of a request in slot 0 that leaves so many cells there; what was there
    before is `saved` first.
    """
    return [
        slot("selected slot by LRU, t_last = -1", -1),
        *saved,
        f"dry_allowed_length = {FIRST + number}",
        slot("processing task, is_child = 0"),
        slot(f"cached n_tokens = {at}, memory_seq_rm [{at}, end)"),
        slot(f"stop processing: n_tokens = {computed}, truncated = 0"),
    ]


def saving(tokens: int, *listed: int, obsolete: int = 0) -> list[str]:
    """Return the lines of a slot whose prompt is saved to the host, where then prompts of these
    lengths are listed.
    """
    gone = (
        [host(f"removing obsolete cached prompt with length {obsolete}", "alloc")]
        if obsolete
        else []
    )
    state = host(f"cache state: {len(listed)} prompts, 0.0 MiB")
    saved = host(f"saving prompt with length {tokens}, total state size = 0.1 MiB", "prompt_save")
    return [saved, *gone, state, *(host(f"prompt 0x7f: {length} tokens") for length in listed)]


def taken_from(prompts: dict[str, list[int]], lines: list[str], r: str) -> list[str]:
    """Return whose states a request goes on from, by such lines."""
    checkpoints = Checkpoints()
    for name, prompt in prompts.items():
        checkpoints.number(name, prompt)
    checkpoints.follow(lines)
    return [one.of for one in checkpoints.resumed(r)]


def test_a_prompt_that_was_computed_in_part_is_outlived_by_who_begins_with_that_part() -> None:
    """A client goes away after 32 tokens; who has these in common, and no more, takes their
    place on the host.
    """
    prompts = {
        "x": [90] * 66,
        "left": A,
        "c": [*A[:32], *[7] * 30],
        "y": [80] * 20,
        "d": [*A[:32], *[7] * 40],
    }
    lines = ran(0, 66) + ran(1, 32, *saving(66, 66)) + ran(2, 62, *saving(32, 66, 32))
    lines += ran(3, 20, *saving(62, 66, 62, obsolete=32))
    looks = [
        host("looking for better prompt, base f_keep = 0.000, f_sim = 0.000", "load"),
        host(
            "  - prompt with length      66, lcp =       0, f_keep = 0.000, f_sim = 0.000", "load"
        ),
        host(
            "  - prompt with length      62, lcp =      62, f_keep = 1.000, f_sim = 0.861", "load"
        ),
        host("found better prompt with f_keep = 1.000, f_sim = 0.861", "load"),
    ]
    loaded = [saving(20)[0], *looks, *saving(20, 66, 20)[1:]]
    assert taken_from(prompts, lines + ran(4, 72, *loaded, at=62), "d") == ["c"]


def test_of_prompts_alike_in_three_decimals_the_better_is_found() -> None:
    """The log rounds how much prompts are alike; the lengths beside it are whole."""
    new = list(range(2000))
    prompts = {"one": new[:1900], "two": new[:1901], "x": [1], "new": new}
    lines = ran(0, 1910) + ran(1, 1911, *saving(1910, 1910)) + ran(2, 1, *saving(1911, 1910, 1911))
    looks = [
        host("looking for better prompt, base f_keep = 0.000, f_sim = 0.000", "load"),
        host(
            "  - prompt with length    1910, lcp =    1900, f_keep = 0.995, f_sim = 0.950", "load"
        ),
        host(
            "  - prompt with length    1911, lcp =    1901, f_keep = 0.995, f_sim = 0.950", "load"
        ),
        host("found better prompt with f_keep = 0.995, f_sim = 0.950", "load"),
    ]
    loaded = [saving(1)[0], *looks, *saving(1, 1910, 1)[1:]]
    assert taken_from(prompts, lines + ran(3, 2000, *loaded, at=1901), "new") == ["two"]


@pytest.mark.parametrize(
    ("resume", "restored", "sentence"),
    [
        (Resumed(r="b", at=64, of="a", taken=75), 64, ""),
        (
            Resumed(r="b", at=64, of="a", taken=76),
            64,
            "behind 76 tokens of a, which has 75 with its answer",
        ),
        (Resumed(r="b", at=64, of="a", taken=1 << 70), 64, "which has 75 with its answer"),
        (Resumed(r="b", at=64, of="b", taken=64), 0, ""),
        (
            Resumed(r="b", at=64, of="b", taken=64),
            64,
            "a state of b itself, of which nothing was computed before",
        ),
    ],
    ids=[
        "all that there is",
        "one more",
        "far more",
        "its own, when it comes back",
        "its own, when it is new",
    ],
)
def test_a_state_is_of_tokens_that_somebody_computed(
    resume: Resumed, restored: int, sentence: str
) -> None:
    """Nobody has a state of more tokens than a request has with its answer, nor one of itself
    when it is first admitted.
    """
    rules = Rules(answering=Answering("float32", 256, resumes="full"))
    events: list[Event] = [
        Submitted(r="a", tokens=A, generate=1),
        Answer(r="a", tokens=[5], logprobs=[-0.5], restored=0),
        Submitted(r="b", tokens=B, generate=1),
        resume,
        Answer(r="b", tokens=[5], logprobs=[-0.5], restored=restored),
    ]
    judged = judge(
        Header(engine="e", level="answers", pools=[], groups=[], rules=rules),
        iter(events),
        fresh("answers"),
    )
    found = [one for one in judged.findings if one.checker == "resumes"]
    assert [one.anomaly for one in found] == (["fabricated-snapshot"] if sentence else [])
    assert all(sentence in one.sentence for one in found)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Answer(r="a", tokens=[5], restored=8)], "no `resume` of it came"),
        (
            [Resumed(r="a", at=8, of="a", taken=8), Answer(r="a", tokens=[5], restored=7)],
            "its `resume` said 8",
        ),
        ([Resumed(r="a", at=99, of="a", taken=99)], "has not so many tokens"),
        ([Resumed(r="a", at=8, of="z", taken=8)], "request 'z' was never submitted"),
        ([Resumed(r="a", at=8, of="a", taken=8, first=-2)], "-2 - at `$.first`"),
        (
            [Answer(r="a", tokens=[5], restored=0), Resumed(r="a", at=8, of="a", taken=8)],
            "'a' is answered",
        ),
    ],
)
def test_what_is_told_fits_the_answer(events: list[Event], message: str) -> None:
    """An engine that tells what it goes on from does so for each answer that restored something."""
    rules = Rules(answering=Answering("float32", 256, resumes="recurrent"))
    header = Header(engine="e", level="answers", pools=[], groups=[], rules=rules)
    sense = AnswerSense(header)
    sense.note(Submitted(r="a", tokens=A, generate=1))
    for event in events[:-1]:
        sense.note(event)
    with pytest.raises(MalformedHistory, match=re.escape(message)):
        sense.note(events[-1])


WRITES = """
import os, sys
from cachewitness.systems.llama_cpp.log import Log
log = Log(sys.argv[1])
os.write(2, b"one\\ntw")
log.await_line("one")
os.write(2, b"o\\n")
while not (lines := log.lines()):
    pass
print(lines)
if sys.argv[2] == "dies":
    os.write(2, b"last words\\n")
    os.abort()
log.close()
os.write(2, b"afterwards\\n")
"""


@pytest.mark.parametrize(
    ("how", "status", "last"), [("closes", 0, "afterwards"), ("dies", -6, "last words")]
)
def test_standard_error_is_read_and_passed_on(
    tmp_path: Path, how: str, status: int, last: str
) -> None:
    """Nothing of it is lost, whether the log is closed or the server aborts."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITES, str(tmp_path), how],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (status, "['two']\n" if how == "closes" else ran.stdout)
    assert ran.stderr.splitlines() == ["one", "two", last]


def test_a_log_of_another_form_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the line is missing that every server writes, it is said how to go on without the
    log.
    """
    monkeypatch.setattr("cachewitness.systems.llama_cpp.log.PATIENCE", 0.05)
    log = Log(str(tmp_path))
    with pytest.raises(UsageError, match="log=unread"):
        log.await_line("all slots are idle")
    log.close()


RESTORED = r".*restored context checkpoint.*\n"
GOES_ON = r"(task 17 .*)cached n_tokens = 64,"


FROM_NOTHING = [(RESTORED, ""), (GOES_ON, r"\1cached n_tokens = 0,")]
MADE_FIRST = r".*task 1 .*created context checkpoint 1 of 32.*\n"
SHARES = "it shares 64 tokens with a; checkpoints behind"
LEFT = f"a checkpoint fits and was not used ({SHARES} 64, 70)"
NONE_FITS = f"no checkpoint lies where the prompt parts, or in front ({SHARES} 70)"
PURGED = "0.1 I srv  try_clear_id: purging slot 1 with 75 tokens\n"
CLEARED = f"its slot was cleared before ({SHARES} 64, 70)"


def of_a_log(*changes: tuple[str, str], keeps: Resumes = "recurrent") -> Checkpoints:
    """Return what is followed of the changed log, for a model that keeps this."""
    checkpoints = Checkpoints(keeps)
    for r, prompt in {"a": A, "x": [90] * 66, "b": B}.items():
        checkpoints.number(r, prompt)
    checkpoints.follow(edited(*changes).splitlines())
    return checkpoints


@pytest.mark.parametrize(
    ("changes", "why", "unused"),
    [
        ([], "the log does not show it", ""),
        (FROM_NOTHING, "", LEFT),
        ([*FROM_NOTHING, (MADE_FIRST, "")], NONE_FITS, ""),
        ([*FROM_NOTHING, (r"(.*id  1 \| task 17 \| processing)", PURGED + r"\1")], CLEARED, ""),
    ],
)
def test_the_log_says_why_nothing_was_restored(
    changes: list[tuple[str, str]], why: str, unused: str
) -> None:
    """By the checkpoints that were made and the one that was needed; one that fits is no reason."""
    checkpoints = of_a_log(*changes)
    assert (checkpoints.why("b"), checkpoints.unused("b")) == (why, unused)
    assert checkpoints.why("a") == "its slot has nothing that the prompt begins with"


def test_a_request_that_is_refused_leaves_its_slot_as_it_was() -> None:
    """It is given a slot, and leaves it before anything of it is computed."""
    lines = "\n".join(
        [slot("processing task"), slot("stop processing: n_tokens = 75, truncated = 0")]
    ).replace("id  0", "id  1")
    refused = f"\n\tdry_allowed_length = {FIRST + 3}\n{lines}\n\tdry_allowed_length = {FIRST + 2}\n"
    checkpoints = Checkpoints()
    for r, prompt in {"a": A, "x": [90] * 66, "b": B, "too long": B * 9}.items():
        checkpoints.number(r, prompt)
    checkpoints.follow(
        edited(
            *FROM_NOTHING, (r"\n(.*id  1 \| task 17 \| processing)", refused + r"\1")
        ).splitlines()
    )
    assert "too long" in checkpoints.over and checkpoints.unused("b") == LEFT


def test_without_states_the_cells_of_a_slot_are_enough() -> None:
    """A model of attention alone needs no checkpoint, so cells that are not used are left."""
    unused = of_a_log(*FROM_NOTHING, keeps="full").unused("b")
    assert unused == f"the slot's cells fit and were not used ({SHARES} 64, 70)"


def test_a_window_that_is_not_whole_fits_nothing() -> None:
    """The checkpoint begins at position 63; the window behind 64 tokens reaches further back."""
    checkpoints = Checkpoints("sliding", 32)
    for r, prompt in {"a": A, "x": [90] * 66, "b": B}.items():
        checkpoints.number(r, prompt)
    checkpoints.follow(edited(*FROM_NOTHING).splitlines())
    why = f"no checkpoint lies where the prompt parts, or in front ({SHARES} 64, 70)"
    assert checkpoints.why("b") == why
    assert checkpoints.unused("b") == ""


def test_a_prompt_that_stays_on_the_host_whole_is_left_there() -> None:
    """`b` asks what `a` asked, and the server gives its slot nothing of what the host keeps."""
    checkpoints = Checkpoints()
    for r, prompt in {"a": A, "x": [90] * 66, "b": A}.items():
        checkpoints.number(r, prompt)
    checkpoints.follow(edited(*FROM_NOTHING, (FROM_THE_HOST, STAYS_THERE)).splitlines())
    assert checkpoints.unused("b") == (
        "the host keeps the prompt and was not used (all its 74 tokens, as of a)"
    )


@pytest.mark.parametrize("changes", [FROM_NOTHING, [*FROM_NOTHING, (MADE_FIRST, "")]])
def test_a_checkpoint_that_was_left_is_a_finding_and_one_that_is_not_there_is_none(
    changes: list[tuple[str, str]],
) -> None:
    """The finding says which checkpoint; the reason is counted."""
    checkpoints = of_a_log(*changes)
    header = Header(
        engine="llama-cpp",
        level="answers",
        pools=[],
        groups=[],
        rules=Rules(answering=Answering("float32", 256, resumes="recurrent")),
    )
    events: list[Event] = [Submitted(r="a", tokens=A, generate=1), Answer(r="a", tokens=[5])]
    why = checkpoints.why("b")
    unused = checkpoints.unused("b")
    answer = Answer(r="b", tokens=[5], restored=0, why=why, unused=unused)
    result = judge(header, [*events, Submitted(r="b", tokens=B, generate=1), answer])
    assert [finding.line for finding in result.findings] == (
        [f"request b restored nothing of its 76 tokens: {LEFT}"] if unused else []
    )
    (tally,) = [tally for tally in result.tallies if tally.checker == "answers"]
    reason = f"nothing restored: {why.partition(' (')[0]}"
    assert tally.excused == ({} if unused else {reason: 1})


@pytest.mark.parametrize(
    ("restored", "unused", "why"),
    [
        (20, "the slot's cells fit and were not used", ""),
        (0, "", "its slot was cleared before"),
        (None, "", "its slot was cleared before"),
    ],
    ids=["all of it", "nothing, as the server says", "not from a file"],
)
def test_what_a_slot_has_of_a_file_is_owed(restored: int | None, unused: str, why: str) -> None:
    """ggml-org/llama.cpp#28194: a file is restored, success is reported, and nothing is reused."""
    checkpoints = Checkpoints()
    for name, prompt in {"a": [7] * 20, "b": [7] * 30}.items():
        checkpoints.number(name, prompt)
    checkpoints.follow([*ran(0, 20), slot("clearing prompt with 20 tokens", -1)])
    if restored is not None:
        checkpoints.brought_back(0, restored)
    checkpoints.follow(ran(1, 30))
    assert checkpoints.unused("b").startswith(unused) and bool(unused) == bool(
        checkpoints.unused("b")
    )
    assert checkpoints.why("b").startswith(why) and bool(why) == bool(checkpoints.why("b"))


@pytest.mark.parametrize(
    ("later", "unused"),
    [(60, "a checkpoint behind 60 tokens fits and was not used"), (61, ""), (52, "")],
    ids=["just there", "a token too far", "nearly as far"],
)
def test_a_checkpoint_just_where_it_is_needed_is_owed_beside_an_earlier_one(
    later: int, unused: str
) -> None:
    """ggml-org/llama.cpp#23589: `<` where `<=` would do, so an earlier checkpoint is restored and
    what lies between is computed again each turn. `b` parts from `a` behind 60 tokens.
    """
    checkpoints = Checkpoints()
    for name, prompt in {"a": [7] * 90, "b": [*[7] * 60, *[8] * 30]}.items():
        checkpoints.number(name, prompt)
    made = [
        f"created context checkpoint (pos_min = {taken - 1}, pos_max = {taken - 1},"
        f" n_tokens = {taken}, size = 0.1 MiB)"
        for taken in (20, later)
    ]
    first = ran(0, 90)
    checkpoints.follow([*first[:-1], *map(slot, made), first[-1]])
    second = ran(1, 90, at=20)
    restored = "restored context checkpoint (pos_min = 19, pos_max = 19, n_tokens = 20, n_past = 20"
    checkpoints.follow([*second[:-2], slot(restored), *second[-2:]])
    assert [(one.of, one.at) for one in checkpoints.resumed("b")] == [("a", 20)]
    assert checkpoints.unused("b").partition(" (")[0] == unused


@pytest.mark.parametrize(("first", "fits"), [(29, True), (30, False)])
def test_a_window_that_begins_just_where_it_is_needed_fits(first: int, fits: bool) -> None:
    """A token at position 60 reads 29 to 59 and itself, by a window of 32."""
    checkpoints = Checkpoints("sliding", 32)
    for name, prompt in {"a": [7] * 90, "b": [*[7] * 60, *[8] * 30]}.items():
        checkpoints.number(name, prompt)
    made = f"created context checkpoint (pos_min = {first}, pos_max = 59, n_tokens = 60, size = 1"
    lines = ran(0, 90)
    checkpoints.follow([*lines[:-1], slot(made), lines[-1], *ran(1, 90)])
    assert bool(checkpoints.unused("b")) == fits
