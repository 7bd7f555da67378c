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


def new_table(out: Console, columns: Sequence[str], *, numbers: bool = True, gap: int = 2, fold: bool = True) -> Table:
    """Return an empty table with `gap` blanks between columns.

    Columns of `numbers`, all but the first and those of words, are aligned to the right. What is too long for a column is
    folded, or, without `fold`, cut off.
    """
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold" if out.is_terminal else "")
    for index, name in enumerate(columns):
        right = numbers and index and name not in WORDS
        justify: JustifyMethod = "right" if right else "left"
        made.add_column(name, justify=justify, overflow="fold" if fold else "ellipsis", no_wrap=not fold)
    return made


def print_table(made: Table, out: Console) -> None:
    """Print a table; on a terminal too narrow for its words as a list, in a pipe without blanks at the ends of lines."""
    if out.is_terminal:
        if _fits(made, out):
            out.print(made)
        else:
            _print_list(made, out)
        return
    with out.capture() as capture:
        out.print(made)
    for line in capture.get().splitlines():
        out.print(Text(line.rstrip()), soft_wrap=True)


def _fits(made: Table, out: Console) -> bool:
    """Return whether a table fits without a word being broken; if so, give its columns the widths with which it does."""
    cells = [[column.header, *column.cells] for column in made.columns]
    sizes = [[Measurement.get(out, out.options, cell) for cell in column] for column in cells]
    whole = [column.no_wrap for column in made.columns]
    least = [max(size.maximum if one else size.minimum for size in column) for one, column in zip(whole, sizes, strict=True)]
    wanted = [max(size.maximum for size in column) - few for column, few in zip(sizes, least, strict=True)]
    spare = out.width - sum(made.padding[index] for index in (1, 3)) * len(cells) - sum(least)
    for column, few, more in zip(made.columns, least, wanted, strict=True):
        column.width = few + min(more, spare * more // max(sum(wanted), 1)) if spare >= 0 else None
    return spare >= 0


def _print_list(made: Table, out: Console) -> None:
    """Print each row as a list: its first cell, and below it the others behind the names of their columns."""
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
