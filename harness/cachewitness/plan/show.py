"""Prints a plan: a table of lines, then remarks and commands as they are, so that they can be
copied.
"""

from __future__ import annotations

import json

from cachewitness._util import output
from cachewitness.plan.result import Plan, Value

PIPE_WIDTH = 120
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def show(plan: Plan, *, as_json: bool, explain: bool = True) -> None:
    """Print a plan on standard output. Its answer comes first; without `explain` of the lines only
    those in `plan.shown` follow it.
    """
    if as_json:
        output.echo(json.dumps(plan.as_json(), indent=2, ensure_ascii=False))
        return
    from rich.text import Text

    _print_lines(plan, explain or not plan.answer)
    from cachewitness.report.terminal import console

    out = console(PIPE_WIDTH)
    for note in plan.notes:
        out.print(Text(f"\nnote: {note}"), soft_wrap=True)
    for command in plan.commands:
        output.echo(f"\n{command}")


def format_value(name: str, value: Value) -> str:
    """Return a value as a table shows it: thousands apart, bytes with their power of 1024,
    shares in percent.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{100 * value:.1f} %" if name.endswith("share") else f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}" + (_binary(value) if name.endswith("_bytes") else "")
    return value


def _binary(amount: int) -> str:
    size = float(amount)
    unit = ""
    for name in _UNITS:
        if size < 1024:
            break
        size, unit = size / 1024, name
    return f" ({size:.2f} {unit})" if unit else ""


def _print_lines(plan: Plan, explain: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from cachewitness.report.tables import print_table
    from cachewitness.report.terminal import console

    out = console(PIPE_WIDTH)
    head = f"{plan.system} {plan.release}" + (f", {plan.layout}" if plan.layout else "")
    if plan.answer:
        out.print(Text(plan.answer, style="bold"), soft_wrap=True)
        out.print()
    out.print(Text(head, style="bold"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(
        justify="right", no_wrap=not any(isinstance(line.value, str) for line in plan.lines)
    )
    table.add_column(style="dim")
    for line in plan.lines:
        if not explain and line.name not in plan.shown:
            continue
        table.add_row(line.name.replace("_", " "), format_value(line.name, line.value), line.how)
    print_table(table, out)
    for shown in plan.tables:
        columns = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in shown.columns:
            columns.add_column(name.replace("_", " "), justify="right")
        for row in shown.rows:
            columns.add_row(
                *(format_value(name, value) for name, value in zip(shown.columns, row, strict=True))
            )
        out.print()
        print_table(columns, out)
