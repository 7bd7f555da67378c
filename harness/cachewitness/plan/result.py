"""What a calculator answers with: lines of name, value and how it comes about, command lines to
copy, and remarks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Value = int | float | str | bool | None


@dataclass(frozen=True)
class Line:
    """One result. `name` is its key in JSON and ends in its unit; `how` is the arithmetic or the
    rule behind the value.
    """

    name: str
    value: Value
    how: str = ""


@dataclass(frozen=True)
class Table:
    """Several results of the same kind, a row each. The names of columns end in units, as those
    of lines do.
    """

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]


@dataclass
class Plan:
    """What `cachewitness plan SYSTEM` answers; `answer` is its one line, empty if the lines are all
    that there is to say. `shown` names the lines that are printed below it without being asked for.
    """

    system: str
    release: str
    layout: str = ""
    answer: str = ""
    lines: list[Line] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shown: tuple[str, ...] = ()

    def add(self, name: str, value: Value, how: str = "") -> None:
        """Append a line."""
        self.lines.append(Line(name, value, how))

    def tell_running(self, tokens: int, requests: int) -> None:
        """Say as the answer how many requests of so many tokens run at once."""
        self.answer = f"{tokens:,} tokens: {requests:,} requests run at once"

    def value(self, name: str) -> Value:
        """Return the value of a line by its name. Raises KeyError if there is none."""
        return {line.name: line.value for line in self.lines}[name]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data: `results` by name, and `how` each came about under the same
        names.
        """
        return {
            "system": self.system,
            "release": self.release,
            "layout": self.layout,
            "answer": self.answer,
            "results": {line.name: line.value for line in self.lines},
            "units": {line.name: unit_of(line.name, line.value) for line in self.lines},
            "how": {line.name: line.how for line in self.lines if line.how},
            "tables": {
                table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
                for table in self.tables
            },
            "commands": self.commands,
            "notes": self.notes,
        }


UNITS = {"_tokens": "tokens", "_bytes": "bytes", "_share": "share"}
"""By the end of a line's name; a share is 1 for all."""


def unit_of(name: str, value: Value) -> str:
    """Return the unit of a line's value: `count` for a number without one, `text`, `yes or no`."""
    if isinstance(value, bool):
        return "yes or no"
    if isinstance(value, str):
        return "text"
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "count")
