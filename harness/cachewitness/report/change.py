"""What a change touches, and what of it a run entered: for reports."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

NAMED_MAX = 2
"""So many configurations, files or lines are named; of more, the number."""
LISTED_MAX = 40
"""So many functions are listed, those in front that no suite enters."""


class ChangedFunction(msgspec.Struct, kw_only=True):
    """A function, or what a module or a class runs when it is imported (`imports`).

    `lines` are those of the file that changed, or behind which lines are gone; `entered` are those
    of them that a suite entered, and `imported` those that ran when the module was imported.
    `called`: a suite entered the function. `by` names some of the suites and configurations that
    entered a changed line, else the function, as `suite@configuration`, and `by_count` counts all.
    `deleted`: it is not there any more.
    """

    name: str
    file: str
    imports: bool = False
    deleted: bool = False
    lines: list[int] = []
    entered: list[int] = []
    imported: list[int] = []
    called: bool = False
    by: list[str] = []
    by_count: int = 0

    @property
    def never(self) -> list[int]:
        """The changed lines that no suite entered."""
        return [line for line in self.lines if line not in self.entered]

    @property
    def line(self) -> str:
        """What came of it, in one line."""
        if self.deleted:
            return f"{self.name}  is gone: nothing of it is left to enter"
        count = f"{len(self.entered)} of {_counted(len(self.lines), 'changed line')} entered"
        if not self.never:
            return f"{self.name}  {count}, by {self._by}"
        if self.entered:
            return f"{self.name}  {count}, by {self._by}; no suite enters {self._never}"
        if self.called:
            return (
                f"{self.name}  entered by {self._by}, but no suite enters what changed in it:"
                f" {self._never}"
            )
        if self.imports and self.imported:
            return (
                f"{self.name}  run by importing the module alone, which says nothing of what uses"
                " it"
            )
        return f"{self.name}  no suite enters it"

    @property
    def _by(self) -> str:
        return _some(self.by, self.by_count)

    @property
    def _never(self) -> str:
        never = self.never
        numbers = _some([f"line {number}" for number in never], len(never))
        return f"{numbers} of {self.file}"


class Beside(msgspec.Struct):
    """Files of a kind that no suite can enter; `code`: they may change what the engine does."""

    kind: str
    files: list[str]
    code: bool = True

    @property
    def line(self) -> str:
        """The files in one line."""
        how = "not driven" if self.code else "no code"
        return f"{self.kind}: {_some(self.files, len(self.files))}: {how}"


class Change(msgspec.Struct, kw_only=True):
    """A change against `base`, and what of it a run entered.

    `first` is how many configurations of suites were run in front of the others of their suite, of
    them `first_beside` with options of the engine's name that the run's has not, a connector for
    example. They were chosen by the map of the release `by_map`; empty if there is none.
    """

    base: str
    functions: list[ChangedFunction] = []
    beside: list[Beside] = []
    first: int = 0
    first_beside: int = 0
    by_map: str = ""

    @property
    def not_entered(self) -> list[ChangedFunction]:
        """What changed and no suite entered, not even in part."""
        return [one for one in self.functions if not one.entered]

    @property
    def in_part(self) -> list[ChangedFunction]:
        """What changed and was entered in part."""
        return [one for one in self.functions if one.entered and one.never]

    @property
    def undriven(self) -> list[Beside]:
        """The files that may change what the engine does, and that no suite can enter."""
        return [one for one in self.beside if one.code]

    @property
    def unchecked(self) -> list[str]:
        """Why nothing of the change was checked; nothing if some of it was, or there is no code in
        it.
        """
        if not self.functions and not self.beside:
            return [f"nothing changed since {self.base}"]
        if any(one.entered for one in self.functions) or not (self.functions or self.undriven):
            return []
        if not self.functions:
            return [f"no suite can enter what changed since {self.base}"]
        return [f"no suite enters a line that changed since {self.base}"]

    @property
    def verdict(self) -> str:
        """What a run in which nothing was found says of the change."""
        if not self.functions and not self.undriven:
            return f"what changed since {self.base} is no code"
        left = [
            *(f"{one.name} is not entered" for one in self.not_entered),
            *(f"{one.name} is entered in part" for one in self.in_part),
            *(f"{one.kind} are not driven" for one in self.undriven),
        ]
        if not left:
            return f"suites enter every line that changed since {self.base}"
        more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
        some = f"{', '.join(left[:NAMED_MAX])}{more}"
        return f"not all that changed since {self.base} was tested: {some}"

    @property
    def lines(self) -> Iterator[str]:
        """A line for each function and each kind of files; first what no suite enters."""
        rest = [one for one in self.functions if one.entered and not one.never]
        ordered = [*self.not_entered, *self.in_part, *rest]
        yield from (one.line for one in ordered[:LISTED_MAX])
        if len(ordered) > LISTED_MAX:
            yield f"… and {len(ordered) - LISTED_MAX} more (all of them in report.json)"
        yield from (one.line for one in self.beside)
        if self.by_map and self.functions:
            beside = f", {self.first_beside} of them on other engines" if self.first_beside else ""
            yield (
                f"run first, by the map of {self.by_map}:"
                f" {_counted(self.first, 'configuration')} of suites{beside}"
            )

    @property
    def plan(self) -> str:
        """What is run first, in one line, before anything was."""
        if not self.by_map:
            return f"{self._what}; no map says what enters that: suites run in their order"
        return f"{self._what}; what enters that, by the map of {self.by_map}, is run first"

    @property
    def _what(self) -> str:
        beside = [f"{one.kind} ({len(one.files)})" for one in self.beside]
        functions = _counted(len(self.functions), "function")
        return f"changed since {self.base}: {', '.join([functions, *beside])}"


def _some(names: list[str], count: int) -> str:
    more = f" and {count - NAMED_MAX:,} more" if count > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
