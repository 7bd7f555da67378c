"""The table of cold against cached: one row for each arm and place, with largest differences as
shares of their tolerance.
"""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.text import Text

from cachewitness.report.arm_row import ArmRow
from cachewitness.report.tables import new_table, print_table

COLUMNS = ("arm", "where", "rows", "restored", "largest", "states", "bits", "flips", "verdict")
COLOURS = {"pass": "green", "FAIL": "bold red"}


def print_arms(rows: list[ArmRow], out: Console) -> None:
    """Print the lines, precision by precision; nothing if there are none."""
    order = list(dict.fromkeys(row.precision for row in rows))
    for precision, lines in groupby(
        sorted(rows, key=lambda row: order.index(row.precision)), key=lambda row: row.precision
    ):
        out.print(Text(f"cold against cached, {precision}:", style="bold"), soft_wrap=True)
        table = new_table(out, COLUMNS, gap=1, fold=False)
        for row in lines:
            table.add_row(*_configurations(row))
        print_table(table, out)
        out.print()


def _configurations(row: ArmRow) -> list[str | Text]:
    shares = [
        f"{row.restored[kind] / asked:.0%}" if asked else "-" for kind, asked in row.asked.items()
    ]
    alike = len(set(shares)) == 1
    return [
        row.arm,
        row.where,
        f"{row.rows:,}",
        shares[0] if alike else "/".join(share.rstrip("%") for share in shares) + "%",
        _difference(row.largest, row.share),
        _difference(row.state_largest, row.state_share) if row.states else "-",
        f"{row.bits_held:,}/{row.bits:,}" if row.bits else "-",
        f"{row.near}/{row.hard}",
        Text(row.verdict, style=COLOURS.get(row.verdict, "yellow")),
    ]


def _difference(largest: float, share: float) -> str:
    return f"{largest:.0e}/{share:.0%}" if share < 1 else f"{largest:.0e}/beyond"
