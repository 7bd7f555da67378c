"""Tables whose columns are aligned with blanks alone, alike on a screen and in a file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

LABEL = "  {}: "
"""How a value begins in a list."""
WORDS = ("", "where", "verdict")
"""Columns of words among those of numbers."""


def new_table(
    out: Console, columns: Sequence[str], *, numbers: bool = True, gap: int = 2, fold: bool = True
) -> Table:
    """Return an empty table with `gap` blanks between columns.

    Columns of `numbers`, all but the first and those of words, are aligned to the right. What is
    too long for a column is folded, or, without `fold`, cut off.
    """
    made = Table(
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        header_style="bold" if out.is_terminal else "",
    )
    for index, name in enumerate(columns):
        right = numbers and index and name not in WORDS
        justify: JustifyMethod = "right" if right else "left"
        made.add_column(
            name, justify=justify, overflow="fold" if fold else "ellipsis", no_wrap=not fold
        )
    return made


def print_table(made: Table, out: Console) -> None:
    """Print a table: on a terminal too narrow for its words as a list, in a pipe without blanks at
    the ends of lines.

    A pipe has no width that words would have to be broken for: a table is printed as wide as they
    are.
    """
    if out.is_terminal:
        if _spread(made, out, out.width):
            out.print(made)
        else:
            _print_list(made, out)
        return
    text = _captured(made, out)
    before = out.width
    cells = (cell for column in made.columns for cell in (column.header, *column.cells))
    if {word for cell in cells for word in _plain(cell).split()} - {*text.split()}:
        out.width = max(before, sum(_least(made, out)) + _gaps(made))
        _spread(made, out, out.width)
        text = _captured(made, out)
        out.width = before
    for line in text.splitlines():
        out.print(Text(line.rstrip()), soft_wrap=True)


def _captured(made: Table, out: Console) -> str:
    with out.capture() as capture:
        out.print(made)
    return capture.get()


def _spread(made: Table, out: Console, width: int) -> bool:
    """Return whether a table fits without a word being broken; if so, give its columns the
    widths with which it does.
    """
    least = _least(made, out)
    wanted = [
        max(size.maximum for size in sizes) - few
        for sizes, few in zip(_sizes(made, out), least, strict=True)
    ]
    spare = width - _gaps(made) - sum(least)
    for column, few, more in zip(made.columns, least, wanted, strict=True):
        column.width = few + min(more, spare * more // max(sum(wanted), 1)) if spare >= 0 else None
    return spare >= 0


def _least(made: Table, out: Console) -> list[int]:
    """Return how wide each column is at least: as its longest word, or as its longest cell if
    that is not folded.
    """
    columns = zip(made.columns, _sizes(made, out), strict=True)
    return [
        max(size.maximum if column.no_wrap else size.minimum for size in sizes)
        for column, sizes in columns
    ]


def _sizes(made: Table, out: Console) -> list[list[Measurement]]:
    return [
        [Measurement.get(out, out.options, cell) for cell in (column.header, *column.cells)]
        for column in made.columns
    ]


def _gaps(made: Table) -> int:
    """Return how many blanks are between the columns."""
    return sum(made.padding[index] for index in (1, 3)) * len(made.columns)


def _print_list(made: Table, out: Console) -> None:
    """Print each row as a list: its first cell, and below it the others behind the names of
    their columns.
    """
    names = [_plain(column.header) for column in made.columns]
    for first, *others in zip(*(column.cells for column in made.columns), strict=True):
        out.print(Text(_plain(first), style="bold"))
        for name, cell in zip(names[1:], others, strict=True):
            text = _plain(cell).strip()
            if text:
                label = LABEL.format(name) if name else "  "
                out.print(Padding(Text(label.lstrip() + " ".join(text.split())), (0, 0, 0, 2)))


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
