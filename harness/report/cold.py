"""The table of cold against cached: a line for each arm and place, what was tolerated beside what was found."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cold.row import ArmRow

COLUMNS = ("arm", "where", "rows", "restored", "floor", "tolerance", "largest", "states", "bits", "flips", "verdict")
LEFT = ("arm", "where", "verdict")
COLOURS = {"pass": "green", "FAIL": "bold red"}


def print_arms(rows: list[ArmRow], out: Console) -> None:
    """Print the lines, precision by precision; nothing if there are none."""
    order = list(dict.fromkeys(row.precision for row in rows))
    for precision, lines in groupby(sorted(rows, key=lambda row: order.index(row.precision)), key=lambda row: row.precision):
        out.print(Text(f"cold against cached, {precision}:", style="bold"), soft_wrap=True)
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold" if out.is_terminal else "")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
        for row in lines:
            table.add_row(*_cells(row))
        with out.capture() as capture:
            out.print(table)
        for line in capture.get().splitlines():
            out.print(Text.from_ansi(line.rstrip()), soft_wrap=True)
        out.print()


def _cells(row: ArmRow) -> list[str | Text]:
    shares = [f"{row.restored[kind] / asked:.0%}" if asked else "-" for kind, asked in row.asked.items()]
    alike = len(set(shares)) == 1
    return [
        row.arm,
        row.where,
        f"{row.rows:,}",
        shares[0] if alike else "/".join(share.rstrip("%") for share in shares) + "%",
        f"{row.floor:.0e}",
        f"{row.tolerance:.0e}",
        f"{row.largest:.0e}",
        f"{row.state_largest:.0e}/{row.state_tolerance:.0e}" if row.states else "-",
        f"{row.bits_held:,}/{row.bits:,}" if row.bits else "-",
        f"{row.near}/{row.hard}",
        Text(row.verdict, style=COLOURS.get(row.verdict, "yellow")),
    ]
