"""Tables whose columns are aligned with blanks alone, alike on a screen and in a file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

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
    """Print a table; in a pipe without the blanks at the ends of its lines."""
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as capture:
        out.print(made)
    for line in capture.get().splitlines():
        out.print(Text(line.rstrip()), soft_wrap=True)
