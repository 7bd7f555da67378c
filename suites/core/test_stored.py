"""A history is read many lines at a time, and what is read, and what is refused, is as if each
line were read alone.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cachewitness._util import jsonl
from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core import stored
from cachewitness.core.events import Event

HEADER, *LINES = (
    (fixtures() / "histories" / "legal" / "window-keeps-one-more.jsonl").read_bytes().splitlines()
)
ONE, TWO, THREE = LINES[:3]
IN_TWO = ONE.replace(b",", b",\n", 1)
CONTENTS = {
    "as written": b"\n".join(LINES) + b"\n",
    "without the last end of a line": b"\n".join(LINES),
    "header alone": b"",
    "blank lines": ONE + b"\n\n  \n" + TWO + b"\n\n",
    "ends of lines of another system": b"\r\n".join(LINES) + b"\r\n",
    "blanks around an event": b"  " + ONE + b"\n" + TWO + b" \n",
    "two events in a line": ONE + b"\n" + TWO + THREE + b"\n",
    "an event in two lines": TWO + b"\n" + IN_TWO + b"\n" + THREE + b"\n",
    "two events in a line and one in two": TWO + b"\n" + ONE + IN_TWO + b"\n" + THREE + b"\n",
    "two events in a line and a blank one": ONE + TWO + b"\n\n" + THREE + b"\n",
    "an event in two lines, parted at a brace": (
        b'{"e":"submit","r":"r","tokens":[1],"media":[{}\n{}]}\n' + ONE + b"\n"
    ),
    "no JSON": ONE + b"\n" + TWO + b"\n{" + b"\n",
    "no UTF-8": ONE + b"\n" + TWO.replace(b'"e"', b'"\xff"') + b"\n",
    "of another shape": ONE + b"\n" + b'{"e":"acquire"}\n' + TWO + b"\n",
    "cut off": b"\n".join(LINES)[:-3],
}


def line_by_line(content: bytes) -> tuple[list[tuple[int, Event]], int]:
    """Return the events of a file's lines behind its header, with their numbers, and the number
    of the first bad line.
    """
    events = []
    for number, line in enumerate(content.split(b"\n"), start=2):
        if line.strip():
            try:
                events.append((number, msgspec.json.decode(line, type=Event)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                return events, number
    return events, 0


@pytest.mark.parametrize("block", [1, 7, 100, 1 << 14])
@pytest.mark.parametrize("content", CONTENTS)
def test_lines_read_together_are_read_as_if_alone(
    content: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK", block)
    path = tmp_path / "history.jsonl"
    path.write_bytes(HEADER + b"\n" + CONTENTS[content])
    expected, bad = line_by_line(CONTENTS[content])
    read: list[tuple[int, Event]] = []
    _, portions = stored.read(path)
    try:
        for lines, events in portions:
            read += zip(lines, events, strict=True)
        message = ""
    except UsageError as error:
        message = str(error)
    assert read == expected
    assert message.startswith(f"{path}:{bad}: ") if bad else not message


def test_the_contents_are_refused_or_not_as_they_should_be() -> None:
    """The cases above are what they are called: these have a line that is refused."""
    refused = {name for name, content in CONTENTS.items() if line_by_line(content)[1]}
    assert refused == {
        name
        for name in CONTENTS
        if name.startswith(("two events", "an event", "no ", "of another", "cut"))
    }


@pytest.mark.parametrize(("longest", "fits"), [(200, True), (201, False)])
def test_the_longest_line_is_known_to_the_byte(
    longest: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end counts; in blocks that are shorter, and in front of another line."""
    monkeypatch.setattr(jsonl, "LINE_MAX", 200)
    monkeypatch.setattr(jsonl, "BLOCK", 64)
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + b"x" * (longest - 1) + b"\nb\n")
    if fits:
        assert list(jsonl.lines(path)) == [b"a\n", b"x" * (longest - 1) + b"\n", b"b\n"]
    else:
        with pytest.raises(UsageError, match="lines:2: longer than 200 bytes"):
            list(jsonl.lines(path))
