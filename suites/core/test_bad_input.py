"""A trace or a history that cannot be followed is refused in one line that names the file, the line
and the field: exit 4.

There is no lenient mode: nothing is guessed, skipped or judged of such a file.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util import jsonl, reading
from cachewitness._util.data import fixtures
from cachewitness.cli import invoke
from cachewitness.core import validate
from cachewitness.core.driving import drive
from cachewitness.core.stored import save
from cachewitness.core.trace_format import Op, Preempt, Step, Submit, Trace
from cachewitness.engines.policy import names
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.campaign import levels_of
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.layouts import load as load_layout
from cachewitness.workloads.shrink import shrink

TRACE = fixtures() / "traces" / "mutants" / "hit-is-maximum-over-groups.jsonl"
HISTORY = fixtures() / "histories" / "legal" / "window-keeps-one-more.jsonl"
COMMANDS = {"replay": TRACE, "check": HISTORY}
SUBMIT = {"op": "submit", "r": "a", "prompt": "x:20"}
SUBMITTED = {"e": "submit", "r": "a", "tokens": [1, 2, 3, 4]}
Lines = list[dict[str, Any]]
FULL = {"kind": "full", "block_size": 4}

TRACES: dict[str, tuple[dict[str, Any], Lines, int, str]] = {
    "an unknown operation": ({}, [SUBMIT, {"op": "fly", "r": "a"}], 3, "`$.op`"),
    "an unknown field": ({}, [SUBMIT, {"op": "finish", "r": "a", "z": 1}], 3, "`z`"),
    "a field of another type": ({}, [{**SUBMIT, "salt": 3}], 2, "`$.salt`"),
    "a negative length": ({}, [{**SUBMIT, "prompt": "x:-5"}], 2, "$.prompt"),
    "no length at all": ({}, [{**SUBMIT, "prompt": ""}], 2, "`$.prompt`"),
    "a length beyond all": ({}, [{**SUBMIT, "prompt": "x:99999999999999999999"}], 2, "$.prompt"),
    "a length of 5,000 digits": ({}, [{**SUBMIT, "prompt": "x:" + "9" * 5_000}], 2, "$.prompt"),
    "a start of 5,000 digits": (
        {},
        [{**SUBMIT, "prompt": "x[" + "9" * 5_000 + "]:1"}],
        2,
        "$.prompt",
    ),
    "a negative number of tokens": ({}, [SUBMIT, {"op": "step", "run": [["a", -3]]}], 3, "`$.run`"),
    "a request twice in a step": (
        {},
        [SUBMIT, {"op": "step", "run": [["a", 3], ["a", 3]]}],
        3,
        "`$.run`",
    ),
    "a negative budget": ({}, [SUBMIT, {"op": "step", "budget": -3}], 3, "`$.budget`"),
    "a negative image": (
        {},
        [{**SUBMIT, "media": [{"at": 0, "length": -4, "hash": "c"}]}],
        2,
        "`$.media`",
    ),
    "a step before its request": ({}, [{"op": "step", "run": [["a", 3]]}, SUBMIT], 2, "`$.run`"),
    "a stranger withdrawn": (
        {},
        [SUBMIT, {"op": "step", "run": [["a", 3]], "withdraw": ["b"]}],
        3,
        "`$.withdraw`",
    ),
    "a finish before its request": ({}, [{"op": "finish", "r": "a"}, SUBMIT], 2, "`$.r`"),
    "an abort before its request": ({}, [{"op": "abort", "r": "a"}, SUBMIT], 2, "`$.r`"),
    "a preemption before its request": ({}, [{"op": "preempt", "r": "a"}, SUBMIT], 2, "`$.r`"),
    "a request submitted twice": ({}, [SUBMIT, SUBMIT], 3, "`$.r`"),
    "a request named like a copy": ({}, [{**SUBMIT, "r": "copy:1"}], 2, "`$.r`"),
    "a request without a name": ({}, [{**SUBMIT, "r": ""}], 2, "`$.r`"),
    "an unknown tier": ({}, [{"op": "reset", "tier": "moon"}], 2, "`$.tier`"),
    "a newer version": ({"version": 99}, [SUBMIT], 1, "version 99"),
    "a newer version with a field of its own": (
        {"version": 4, "colour": "red"},
        [SUBMIT],
        1,
        "version 4",
    ),
    "another format": ({"format": "csv"}, [SUBMIT], 1, "format 'csv'"),
    "a pool of nothing": ({"pages": -1}, [SUBMIT], 1, "`$.pages`"),
    "a pool beyond all": ({"pages": 10**15}, [SUBMIT], 1, "`$.pages`"),
    "a tier beyond all": (
        {"policy": "lmcache", "options": {"tier_pages": 10**15}},
        [SUBMIT],
        1,
        "`$.options.tier_pages`",
    ),
    "layers beyond all": (
        {"layout": {"name": "l", "groups": [{**FULL, "layers": 10**9}]}},
        [],
        1,
        "layers",
    ),
    "an unknown kind of group": (
        {"layout": {"name": "l", "groups": [{"kind": "x", "block_size": 4}]}},
        [],
        1,
        "kind`",
    ),
    "a block of nothing": (
        {"layout": {"name": "l", "groups": [{"kind": "full", "block_size": 0}]}},
        [],
        1,
        "block_size 0",
    ),
    "no group": ({"layout": {"name": "l", "groups": []}}, [], 1, "$.layout.groups"),
    "an unknown option": (
        {"options": {"intervall": 3}},  # codespell:ignore intervall
        [SUBMIT],
        1,
        "'intervall'",
    ),
    "an option that cannot be": (
        {"options": {"retention_interval": -16}},
        [SUBMIT],
        1,
        "'retention_interval'",
    ),
    "an unknown policy": ({"policy": "vlm"}, [SUBMIT], 1, "'vlm'"),
}
"""By what is wrong: fields of the header, operations, the line that is named, and what of it."""

RUN = {"r": "a", "start": 0, "stop": 4, "tables": [[1, 2]]}
BEGUN = {"e": "step_begin", "asked": [["a", 4]], "runs": [RUN], "step": 1}
SESSION = {**SUBMITTED, "session": True}
PAUSED = [SESSION, {"e": "pause", "r": "a"}]
HISTORIES: dict[str, tuple[dict[str, Any], Lines, int, str]] = {
    "an unknown event": ({}, [SUBMITTED, {"e": "fly"}], 3, "`$.e`"),
    "a newer version": ({"version": 4}, [SUBMITTED], 1, "version 4"),
    "an older version": ({"version": 1}, [SUBMITTED], 1, "write it anew"),
    "a negative length": (
        {},
        [SUBMITTED, {"e": "publish", "group": 0, "page": 1, "r": "a", "length": -4}],
        3,
        "`$.length`",
    ),
    "a negative length of a key": (
        {},
        [{"e": "unpublish", "group": 0, "page": 1, "length": -4}],
        2,
        "`$.length`",
    ),
    "a negative hit": (
        {},
        [SUBMITTED, {"e": "hit", "r": "a", "reported": -1, "resume": 0, "pages": [[]]}],
        3,
        "`$.reported`",
    ),
    "less asked than nothing": ({}, [SUBMITTED, {**BEGUN, "asked": [["a", -4]]}], 3, "`$.asked`"),
    "a negative image": (
        {},
        [{**SUBMITTED, "media": [{"at": -1, "length": 1, "hash": "c"}]}],
        2,
        "`$.media`",
    ),
    "an end before its request": ({}, [{"e": "finish", "r": "a"}, SUBMITTED], 2, "`$.r`"),
    "a page of a stranger": (
        {},
        [{"e": "acquire", "pool": 0, "group": 0, "pages": [1], "holder": "b"}],
        2,
        "`$.holder`",
    ),
    "a step of a stranger": ({}, [BEGUN, SUBMITTED], 2, "`$.asked`"),
    "a request submitted twice": ({}, [SUBMITTED, SUBMITTED], 3, "`$.r`"),
    "a request named like a copy": ({}, [{**SUBMITTED, "r": "copy:1"}], 2, "`$.r`"),
    "a step that begins twice": ({}, [SUBMITTED, BEGUN, BEGUN], 4, "`$.step`"),
    "a step that never began": ({}, [SUBMITTED, {"e": "step_end", "step": 9}], 3, "`$.step`"),
    "a page that is not there": ({}, [{"e": "zero", "pool": 0, "pages": [99]}], 2, "`$.pages`"),
    "a negative page": ({}, [{"e": "zero", "pool": 0, "pages": [-3]}], 2, "`$.pages`"),
    "a pool that is not there": ({}, [{"e": "zero", "pool": 5, "pages": []}], 2, "pool 5"),
    "a group that is not there": ({}, [{"e": "unpublish", "group": 3, "page": 1}], 2, "`$.group`"),
    "a tier that is not there": ({}, [{"e": "reset", "ok": True, "tier": "moon"}], 2, "`$.tier`"),
    "tables of too few groups": (
        {},
        [SUBMITTED, {**BEGUN, "runs": [{**RUN, "tables": []}]}],
        3,
        "`$.runs`",
    ),
    "tokens that nobody has": (
        {},
        [SUBMITTED, {"e": "accept", "r": "a", "upto": 99, "tokens": [1]}],
        3,
        "`$.upto`",
    ),
    "a pause of what is no session": ({}, [SUBMITTED, {"e": "pause", "r": "a"}], 3, "`$.r`"),
    "more input for who does not wait": (
        {},
        [SESSION, {"e": "extend", "r": "a", "keep": 3, "tokens": [1]}],
        3,
        "`$.r`",
    ),
    "more input in place of what was said": (
        {},
        [*PAUSED, {"e": "extend", "r": "a", "keep": 2, "tokens": [1]}],
        4,
        "`$.keep`",
    ),
    "more input of nothing": (
        {},
        [*PAUSED, {"e": "extend", "r": "a", "keep": 4, "tokens": []}],
        4,
        "`$.tokens`",
    ),
    "a run of who waits for input": ({}, [*PAUSED, BEGUN], 4, "waits for more input"),
    "logits backwards": (
        {},
        [SUBMITTED, {"e": "compare", "r": "a", "start": 3, "stop": 1}],
        3,
        "`$.start`",
    ),
    "no group": ({"groups": []}, [], 1, "`$.groups`"),
    "a copy of a group that is not there": (
        {"groups": [{"id": 0, "kind": "full", "block_size": 2, "source_group": 7}]},
        [],
        1,
        "of 7",
    ),
    "a pool beyond all": ({"pools": [{"id": 0, "pages": 10**12}]}, [], 1, "`$.pools`"),
    "rules that cannot be": ({"rules": {"alignment": 0, "retention": {}}}, [], 1, "`$.rules`"),
    "a rule that has gone": (
        {"rules": {"stores_logits": True}},
        [],
        1,
        "unknown field `stores_logits` - at `$.rules`",
    ),
    "an order of eviction that has gone": (
        {"pools": [{"id": 0, "pages": 9, "eviction": {"order": "lfu"}}]},
        [],
        1,
        "Invalid enum value 'lfu' - at `$.pools[0].eviction.order`",
    ),
}

BYTES = {
    "nothing": (b"", "empty"),
    "bytes": (bytes(range(128, 256)), ":1: "),
    "bytes behind a header": (b"HEADER\n" + bytes(range(128, 256)), ":2: "),
    "a name that is no text": (b'HEADER\n{"op":"submit","e":"submit","r":"\xff"}', ":2: "),
    "no object": (b"HEADER\n\n[1, 2]\n", ":3: "),
    "brackets without end": (
        b"HEADER\n" + b'{"e":"finish","op":"finish","r":' + b"[" * 100_000,
        ":2: ",
    ),
    "a header of brackets": (b'{"options":{"a":' + b"[" * 100_000, ":1: "),
}
"""Files that are no JSON lines; HEADER stands for a good one."""


def refused(command: str, path: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = invoke([command, str(path)])
    out, err = capsys.readouterr()
    assert (code, out) == (4, ""), (code, err)
    assert err.startswith(f"cachewitness: {path}:") and err.count("\n") == 1
    assert message in err, err


def written(path: Path, model: Path, header: dict[str, Any], lines: Lines) -> Path:
    """Write a file with the header of another one, fields of it changed, and other lines."""
    first = json.loads(model.read_text().splitlines()[0]) | header
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *lines]))
    return path


@pytest.mark.parametrize("wrong", TRACES)
def test_a_trace_is_refused_by_its_line_and_field(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, ops, line, message = TRACES[wrong]
    path = written(tmp_path / "bad.jsonl", TRACE, header, ops)
    refused("replay", path, message, capsys)
    refused("replay", path, f"bad.jsonl:{line}: ", capsys)


@pytest.mark.parametrize("wrong", HISTORIES)
def test_a_history_is_refused_by_its_line_and_field(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, events, line, message = HISTORIES[wrong]
    path = written(tmp_path / "bad.jsonl", HISTORY, header, events)
    refused("check", path, message, capsys)
    refused("check", path, f"bad.jsonl:{line}: ", capsys)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", BYTES)
def test_a_file_that_is_no_json_is_refused(
    command: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = BYTES[wrong]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content.replace(b"HEADER", COMMANDS[command].read_bytes().splitlines()[0]))
    refused(command, path, message, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_cut_off_inside_a_line_is_refused_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever in its last line; the whole file is fine."""
    whole = COMMANDS[command].read_bytes().rstrip(b"\n")
    path = tmp_path / "cut.jsonl"
    lines = whole.count(b"\n") + 1
    for end in range(whole.rindex(b"\n") + 2, len(whole)):
        path.write_bytes(whole[:end])
        refused(command, path, f"cut.jsonl:{lines}: ", capsys)
    path.write_bytes(whole)
    assert invoke([command, str(path)]) == 0


@pytest.mark.parametrize("after", ["{", "\xff", "{}"])
def test_of_two_lines_that_are_wrong_the_first_is_named(
    after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines are read in portions before they are followed; a line that cannot be read does not
    hide one before it.
    """
    events = len(HISTORY.read_bytes().splitlines()) - 1
    path = tmp_path / "two.jsonl"
    stranger = json.dumps({"e": "finish", "r": "stranger", "seq": events})
    path.write_bytes(HISTORY.read_bytes() + f"{stranger}\n".encode() + after.encode("latin-1"))
    assert invoke(["check", str(path)]) == 4
    assert f"two.jsonl:{events + 2}: request 'stranger'" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_the_other_kind_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (other,) = (path for name, path in COMMANDS.items() if name != command)
    refused(command, other, f"{other.name}:1: ", capsys)


LLAMA = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 4,
}
WHOLE = {
    "consume": ("consume",),
    "plan vllm --config": ("plan", "vllm", "--config"),
    "check --expected": ("check", str(HISTORY), "--expected"),
    "report": ("report",),
}
"""Commands that read a file whole, or a history."""


@pytest.mark.parametrize("name", WHOLE)
def test_whatever_is_read_may_be_packed_or_come_on_standard_input(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("it.jsonl" if name == "report" else "it.json")
    content = {
        "consume": (fixtures() / "vectors" / "vllm" / "lookup.json").read_bytes(),
        "plan vllm --config": json.dumps(LLAMA).encode(),
        "check --expected": b"check:*  leak  # known\n",
        "report": HISTORY.read_bytes(),
    }[name]
    file.write_bytes(content)
    packed = file.with_name(f"{file.name}.gz")
    packed.write_bytes(gzip.compress(content))
    assert invoke([*WHOLE[name], str(file)]) == 0
    output = capsys.readouterr().out
    assert invoke([*WHOLE[name], str(packed)]) == 0
    alike = [capsys.readouterr().out]
    for given in (content, gzip.compress(content)):
        reading._standard_input.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert invoke([*WHOLE[name], "-"]) == 0
        alike.append(capsys.readouterr().out)
    reading._standard_input.cache_clear()
    if name == "report":
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "it.html",
            "it.jsonl",
            "it.jsonl.gz",
            "it.jsonl.html",
            "report.html",
        ]
    else:
        assert {len(text.splitlines()) for text in alike} == {len(output.splitlines())}


def test_a_packed_file_does_not_unpack_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content, message in (
        ("bomb.json.gz", gzip.compress(b" " * (1 << 23)), "larger than"),
        ("cut.json.gz", gzip.compress(b"{}" * 999)[:-12], "cannot be unpacked"),
    ):
        (tmp_path / name).write_bytes(content)
        assert invoke(["plan", "vllm", "--config", str(tmp_path / name)]) == 4
        assert message in capsys.readouterr().err, name


def test_standard_input_that_is_closed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading._standard_input.cache_clear()
    monkeypatch.setattr(sys, "stdin", None)
    assert invoke(["check", "-"]) == 4
    assert "standard input is closed; give a file" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_may_be_packed_or_come_on_standard_input(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the same verdict; a history is read more than once, also from there."""
    content = COMMANDS[command].read_bytes()
    expected = invoke([command, str(COMMANDS[command])]), capsys.readouterr().out
    packed = tmp_path / COMMANDS[command].name
    packed.write_bytes(gzip.compress(content))
    assert invoke([command, str(packed)]) == expected[0]
    assert capsys.readouterr().out.splitlines()[:3] == expected[1].splitlines()[:3]
    for given in (content, gzip.compress(content)):
        reading._standard_input.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert invoke([command, "-"]) == expected[0]
        assert capsys.readouterr().out.splitlines()[:3] == expected[1].splitlines()[:3]
    reading._standard_input.cache_clear()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_packed_file_that_is_cut_off_or_unpacks_without_end_is_refused(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(jsonl, "LINE_MAX", 100_000)
    whole = gzip.compress(COMMANDS[command].read_bytes())
    bomb = gzip.compress(b"[" * 10_000_000)
    for content, message in (
        (whole[:-20], "cannot be unpacked"),
        (b"\x1f\x8b\x00 no gzip", "cannot be"),
        (bomb, ":1: longer than"),
    ):
        (tmp_path / "x.jsonl.gz").write_bytes(content)
        assert invoke([command, str(tmp_path / "x.jsonl.gz")]) == 4
        error = capsys.readouterr().err
        assert message in error and "x.jsonl.gz" in error and "Traceback" not in error


@pytest.mark.parametrize("policy", names())
def test_what_the_references_record_can_be_checked(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No history of ours is refused, whatever holds pages in it, and its verdict is that of the
    run.
    """
    spec = parse("reference")
    plan = Plan(policy, levels_of(spec, policy), Restriction(), seed=7)
    for number in range(6):
        _, trace = plan.draw(number)
        save(drive(trace, spec.open(trace.header)).history, tmp_path / "history.jsonl")
        assert invoke(["check", str(tmp_path / "history.jsonl"), "--quiet"]) == 0, (
            capsys.readouterr().err
        )


def test_a_shrunk_trace_names_no_stranger(tmp_path: Path) -> None:
    """Even if no attempt was left before everything that does nothing was taken out of it."""
    shape = Configuration(load_layout("full-mamba")).shape("manager")
    strange: list[Op] = [
        Step(run=[("gone", 4), ("a", 3)], withdraw=["gone"]),
        Step(run=[("gone", 1)]),
        Preempt("gone"),
    ]
    header = random_trace(shape, 1, withdraw=False).header
    trace = Trace(header, [Submit("a", "x:20"), *strange, Preempt("a")])
    shrunk = shrink(
        trace, lambda one: len(one.ops) - 1 if Preempt("a") in one.ops else -1, attempts=0
    )
    assert shrunk.ops == [Submit("a", "x:20"), Step(run=[("a", 3)]), Preempt("a")]
    (tmp_path / "t.jsonl").write_bytes(validate.trace.dump(shrunk))
    assert validate.load_trace(tmp_path / "t.jsonl") == shrunk
