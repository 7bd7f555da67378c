"""Results in files of JSON lines, appended one by one: what was measured is measured once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

Row = TypeVar("Row", bound=msgspec.Struct)


class Side(msgspec.Struct, frozen=True):
    """What one side makes of a mutant.

    `outcome` is `not entered` (no case or test enters the function), `not replaced` (its code
    cannot be), `alive`, or what killed it: `rule`, `lock-step`, `died`, `hung`, or `test`. `by` names
    the killer: the finding, the error, or the test. `reached`: the changed statement was;
    `differs`: something was decided otherwise. `ran` of `entering` cases or tests were run, of
    which `within` say that all that enter the function were not too many for the budget.
    """  # noqa: E501

    number: int
    outcome: str
    by: str = ""
    reached: bool = False
    differs: bool = False
    ran: int = 0
    entering: int = 0
    seconds: float = 0.0


def rows(file: Path, kind: type[Row]) -> list[Row]:
    """Return what a file has; nothing if there is none. A last line without an end is left out."""
    if not file.exists():
        return []
    lines = file.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=kind) for line in lines if line.endswith(b"\n")]


def write(file: Path, items: Iterable[msgspec.Struct]) -> None:
    """Write a file anew."""
    file.write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in items))


def append(file: Path, item: msgspec.Struct) -> None:
    """Append a line."""
    with file.open("ab") as out:
        out.write(msgspec.json.encode(item) + b"\n")


def once(file: Path, kind: type[Row], measure: Callable[[], list[Row]]) -> list[Row]:
    """Return what a file has, or measure it and write the file."""
    if not file.exists():
        write(file, measure())
    return rows(file, kind)
