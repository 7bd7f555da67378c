"""Files made wrong: what stands in a good one, changed in its bytes, its lines or its values, as an
attacker would.

A change is three numbers, so that Hypothesis can draw and shrink it: what is done, where, and with
what.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

Edit = tuple[int, int, int]
HTML = "<img src=x onerror=alert(1)>"
WORDS = (
    "",
    "a",
    "../../../etc/passwd",
    "/etc/passwd",
    "a/b\\c",
    "a\0b",
    "\x1b[31m\x1b]0;title\x07\x9b31m",
    "\u202e\u2028\ufeff",
    "\n\r\n",
    HTML,
    "</script><script>alert(1)</script>",
    "[bold red]x[/]",
    "{{ 7*7 }}${7*7}%s%n",
    "copy:1",
    "pin:9",
    "@r1:20",
    "x:65536 " * 80,
    "x:999999999",
    "9" * 5_000,
    "é" * 300,
    "none",
    "token_id:" + "9" * 5_000,
    "token_id:\u0663",
    "NaN",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**15,
    2**22,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    10**400,
)
VALUES: tuple[Any, ...] = (
    *WORDS,
    *NUMBERS,
    *(0.0, -0.0, 0.5, 1e300, -1e300, 5e-324),
    *(
        None,
        True,
        False,
        [],
        {},
        [[]],
        [[], {}],
        {"": ""},
        [0] * 300,
        ["a"] * 50,
        {"a": {"a": {"a": {}}}},
    ),
)
"""What any field may hold instead of what belongs there."""
RAW = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"9" * 5_000,
    b'"\\ud800"',
    b'"\\udfff\\ud800"',
    b'"\\u0000"',
    b"[" * 3_000,
    b'{"a":' * 3_000,
    b'{"a":1,"a":[]}',
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\0",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\n\n\n",
    b"\x1b[2J",
    b",",
    b"}",
    b"]]",
    b'"',
    b"#",
    b"=",
    b"[a]\n",
    b"[[groups]]\n",
    b"a.b.c = 1\n",
    b" = inf\n",
    b"1979-05-27T07:32:00Z",
    b"\x1f\x8b\x08\x00",
)
"""What may stand between any two bytes."""


def drawn(rng: Random) -> Edit:
    """Draw a change."""
    return rng.randrange(len(_CHANGES)), rng.randrange(1 << 20), rng.randrange(1 << 20)


def mangled(content: bytes, edits: list[Edit]) -> bytes:
    """Return a file with these changes made to it, one after the other; the same for the same
    changes.
    """
    for what, where, value in edits:
        content = _CHANGES[what % len(_CHANGES)](content, where, value)
    return content


def _flipped(content: bytes, where: int, value: int) -> bytes:
    if not content:
        return bytes([value % 256])
    at = where % len(content)
    return content[:at] + bytes([value % 256]) + content[at + 1 :]


def _inserted(content: bytes, where: int, value: int) -> bytes:
    at = where % (len(content) + 1)
    return content[:at] + RAW[value % len(RAW)] + content[at:]


def _cut_off(content: bytes, where: int, _: int) -> bytes:
    return content[: where % (len(content) + 1)]


def _cut_out(content: bytes, where: int, value: int) -> bytes:
    at = where % (len(content) + 1)
    return content[:at] + content[at + 1 + value % 40 :]


def _line_moved(content: bytes, where: int, value: int) -> bytes:
    """Move a line, copy it, or take it out."""
    lines = content.split(b"\n")
    line = lines[where % len(lines)]
    if value % 3 != 1:
        del lines[where % len(lines)]
    if value % 3 != 2:
        lines.insert(value // 3 % (len(lines) + 1), line)
    return b"\n".join(lines)


def _value_changed(content: bytes, where: int, value: int) -> bytes:
    """Change a value of a line of JSON, or of the whole file if it is one document; nothing if
    it is none.
    """
    lines = [content] if content[:1] == b"{" and b"\n}" in content else content.split(b"\n")
    at = where % len(lines)
    try:
        document = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _word_changed(content, where, value)
    places = [([], ""), *_places(document)]
    holder, key = places[where // len(lines) % len(places)]
    new = VALUES[value % len(VALUES)]
    if not places[1:] or key == "":
        document = new
    elif value // len(VALUES) % 4 == 1:
        del holder[key]
    elif value // len(VALUES) % 4 == 2 and isinstance(holder, dict):
        holder[str(new)[:50]] = holder.pop(key)
    elif value // len(VALUES) % 4 == 3:
        other, name = places[1 + value % len(places[1:])]
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = new
    lines[at] = json.dumps(document, ensure_ascii=bool(value % 2)).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return every place of a document that holds a value: what it is in, and its key or index."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting and len(found) < 2_000:
        holder = waiting.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        found += [(holder, key) for key in keys if key != ""]
        waiting += [holder[key] for key in keys]
    return found


def _word_changed(content: bytes, where: int, value: int) -> bytes:
    """Change what stands behind a `=` of a line, or a word of it."""
    lines = content.split(b"\n")
    at = where % len(lines)
    name, equals, _ = lines[at].partition(b"=")
    new = json.dumps(VALUES[value % len(VALUES)], ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    words = lines[at].split(b" ")
    words[where // len(lines) % len(words)] = new.strip(b'"')
    lines[at] = name + b"= " + new if equals and value % 2 else b" ".join(words)
    return b"\n".join(lines)


_CHANGES = (
    _value_changed,
    _value_changed,
    _value_changed,
    _word_changed,
    _line_moved,
    _flipped,
    _inserted,
    _cut_off,
    _cut_out,
)
