"""Files of others take no memory out of proportion, write nowhere else, run nothing, and do not
steer the terminal.
"""

from __future__ import annotations

import ast
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from cachewitness._util import files, jsonl, reading
from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core import stored
from cachewitness.core import trace_format as traces
from cachewitness.core.events import History
from cachewitness.report import terminal
from cachewitness.report.tables import new_table, print_table

ROOT = Path(__file__).resolve().parents[2]
TRACE = fixtures() / "traces" / "mutants" / "hit-is-maximum-over-groups.jsonl"
HISTORY = fixtures() / "histories" / "legal" / "window-keeps-one-more.jsonl"
STEERS = "a\x1b[31m\x1b]0;t\x07\x9b2J\r\x08[bold]b[/bold]\u202e:smile:"


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return what a command says that ends with 4; it is one line that steers no terminal."""
    assert invoke(command) == 4
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.rstrip("\n").isprintable(), err
    return err


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--expected"],
        ["consume"],
        ["replay"],
        ["check"],
        ["explain"],
        ["run", "--engines"],
        ["doctor", "--engines"],
    ],
    ids=" ".join,
)
def test_a_file_without_end_is_refused(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a device is; no more of it is read than the limit."""
    monkeypatch.setattr(jsonl, "LINE_MAX", 100_000)
    path = "/dev/zero"
    if command[-1] == "--engines":  # which takes no device
        (tmp_path / "engines.toml").write_bytes(b" " * ((1 << 20) + 1))
        path = str(tmp_path / "engines.toml")
    assert "larger than" in (message := refused(capsys, *command, path)) or "longer than" in message


def test_a_file_of_too_many_lines_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Packed or not; a history is read line by line, and only what unpacks out of all proportion
    is given up.
    """
    monkeypatch.setattr(jsonl, "LINES_MAX", 1_000)
    monkeypatch.setattr(jsonl, "UNPACKED_MAX", 100_000)
    monkeypatch.setattr(jsonl, "RATIO_MAX", 50)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(TRACE.read_bytes() + b"\n" * 1_001))
    assert "more than" in refused(capsys, "replay", str(bomb))
    bomb.write_bytes(gzip.compress(HISTORY.read_bytes() + b"\n" * 300_000))
    assert "times its size" in refused(capsys, "check", str(bomb))
    bomb.write_bytes(gzip.compress(HISTORY.read_bytes() + b"\n" * 90_000))
    assert invoke(["check", str(bomb), "--quiet"]) == 0


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert reading.whole(path, 10) == b"x" * 10
    with pytest.raises(UsageError, match="larger than 9 bytes"):
        reading.whole(path, 9)
    with pytest.raises(UsageError, match="cannot be read"):
        reading.whole(Path("a\0b"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [traces.Submit("a", "x:65536 " * 64), traces.Submit("b", "x:65536 " * 65)],
            ":3: $.prompt: 4,259,840 tokens",
        ),
        (
            [traces.Submit(f"a{number}", "x:65536 " * 64) for number in range(5)],
            ":6: the trace has 20,971,520 tokens",
        ),
        ([traces.Submit("a", "x:1", generate=1 << 40)], ":2: $.generate: 1,099,511,627,776 tokens"),
    ],
)
def test_a_few_letters_do_not_stand_for_more_tokens_than_memory_holds(
    lines: list[traces.Op], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    traces.save(traces.Trace(traces.load(TRACE).header, lines), path)
    assert message in refused(capsys, "replay", str(path))


def test_what_lies_where_a_file_is_prepared_is_not_written_through(tmp_path: Path) -> None:
    """A folder of somebody else's may hold links."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("report.json", "report.json.part"):
        (tmp_path / name).symlink_to(victim)
    files.write(tmp_path / "report.json", [b"{}"])
    assert victim.read_text() == "mine"
    assert (tmp_path / "report.json").read_bytes() == b"{}" and not (
        tmp_path / "report.json"
    ).is_symlink()
    assert not (tmp_path / "report.json.part").exists()


@pytest.mark.parametrize("command", ["replay", "check", "explain", "report", "consume"])
def test_a_name_in_a_message_does_not_steer_the_terminal(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, command, f"{STEERS}.jsonl")


def test_what_is_printed_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lines, tables and a witness, on a terminal and in a pipe; and what looks like markup
    stands as it is.
    """
    for terminal_like in ("", "1"):
        (
            monkeypatch.setenv("FORCE_COLOR", terminal_like)
            if terminal_like
            else monkeypatch.delenv("FORCE_COLOR", raising=False)
        )
        out = terminal.console()
        table = new_table(out, ["x", STEERS])
        table.add_row(STEERS, "1")
        print_table(table, out)
        terminal.print_lines([f"FAIL {STEERS}", STEERS], out)
        out.print(Text(STEERS), soft_wrap=True)
        printed = capsys.readouterr().out
        assert "\\x1b[31m" in printed and "[bold]b[/bold]" in printed and ":smile:" in printed
        assert not {"\x07", "\x9b", "\x08", "\u202e"} & set(printed)
        assert (
            ("\x1b[1;31m" in printed) == bool(terminal_like)
            and "\x1b[31m" not in printed
            and "\x1b]" not in printed
        )


def test_nothing_that_runs_code_reads_a_file() -> None:
    """No pickle, no eval, no YAML with objects, and torch.load of tensors alone."""
    sources = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "reference_impl").rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for path in sources
        for call in running(path.read_text(encoding="utf-8"))
    ]
    assert found == [
        "harness/cachewitness/systems/sglang/stubs.py: exec"
    ]  # the source of the installed SGLang
    assert running("import pickle\npickle.load(file)") == ["pickle.load"]
    assert running("torch.load(file)") == ["torch.load"] and not running(
        "torch.load(file, weights_only=True)"
    )


def running(source: str) -> list[str]:
    """Return the calls of a source that run what they read."""
    if not any(f"{name}(" in source for name in RUNS):
        return []
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in RUNS
    ]
    plain = [
        call
        for call in calls
        if not any(ast.unparse(word) == "weights_only=True" for word in call.keywords)
    ]
    return [ast.unparse(call.func) for call in plain]


RUNS = ("eval", "exec", "torch.load", "pickle.load", "pickle.loads", "yaml.load", "marshal.loads")


def test_explain_takes_a_packed_history_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "h.jsonl.gz"
    packed.write_bytes(gzip.compress(HISTORY.read_bytes()))
    assert invoke(["explain", str(HISTORY)]) == 0
    output = capsys.readouterr().out
    assert invoke(["explain", str(packed)]) == 0 and capsys.readouterr().out == output
    reading._standard_input.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(HISTORY.read_bytes())))
    assert invoke(["explain", "-"]) == 0 and capsys.readouterr().out == output
    reading._standard_input.cache_clear()


def renumbered(numbers: Callable[[int], int], *left_out: int) -> Callable[[Path], None]:
    """Return what writes the history with other places, without some of its events."""

    def write(path: Path) -> None:
        history = stored.load(HISTORY)
        for index, event in enumerate(history.events):
            event.seq = numbers(index)
        kept = [event for index, event in enumerate(history.events) if index not in left_out]
        stored.save(History(history.header, kept, []), path)

    return write


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (renumbered(lambda index: index), ""),
        (renumbered(lambda index: index + 700), ""),
        (renumbered(lambda index: 0), ""),
        (renumbered(lambda index: index, 6), ":8: 7 - at `$.seq`; 6 was to come"),
        (renumbered(lambda index: index + 700, 2, 3), ":4: 704 - at `$.seq`; 702 was to come"),
        (renumbered(lambda index: 7 * (index == 5)), ":7: 7 - at `$.seq`; 0 was to come"),
    ],
    ids=["from 0", "from 700", "not told", "one left out", "two left out", "told once"],
)
def test_a_history_in_which_an_event_is_missing_is_refused(
    write: Callable[[Path], None], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(path := tmp_path / "history.jsonl")
    if says:
        assert says in refused(capsys, "check", str(path))
    else:
        assert invoke(["check", str(path), "--quiet"]) == 0
