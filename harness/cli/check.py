"""`cachewitness check`: judges a recorded history without any engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness._util.lines import printable
from harness.cli.options import expectations_of, expected_options

if TYPE_CHECKING:
    from rich.console import Console

    from harness.verdict.expected import Entry, Expectations
    from harness.verdict.result import Result


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@expected_options
@click.option("--quiet", is_flag=True, help="Print only the witness and the verdict.")
def check(file: Path, expected: Path | None, strict_expected: bool, quiet: bool) -> int:
    """Judge a recorded history under every checker.

    The format is docs/formats.md; `schema history` prints its JSON schema. For --expected its id is `check:FILE@ENGINE`, with
    the name of the file alone and the engine that it was recorded from.
    """
    from harness.history import validate
    from harness.run import execute
    from harness.verdict.report import terminal
    from harness.verdict.report.counterexample import witness_of_history

    known = expectations_of(expected, strict_expected)
    header, events = validate.read(file)
    result = execute.judge(header, (event for _, event in events))
    out = terminal.console()
    if not quiet:
        version = f" ({header.engine_version})" if header.engine_version else ""
        click.echo(printable(f"history of {header.engine}{version}, {result.activity.events:,} events") + "\n")
        terminal.print_activity(result.activity, out)
        terminal.print_tallies(result.tallies, out)
    finding, entry = known.weigh(f"check:{file.name}@{header.engine}", result.findings) or (None, None)
    if finding and not entry:
        terminal.print_lines([*witness_of_history(finding, validate.read(file)[1], str(file)), ""], out)
    return _verdict(result, known, entry, out)


def _verdict(result: Result, known: Expectations, entry: Entry | None, out: Console) -> int:
    """Print the verdict and return its exit code; `entry` is what excuses the findings, if all of them are excused."""
    from harness.cli.replay import reasons
    from harness.verdict import result as verdict
    from harness.verdict.report import terminal

    told = [f"nothing else found; 1 expected finding, listed as {entry.anomaly} ({entry.reason})"] if entry else reasons(result)
    crashed = any(tally.crashed for tally in result.tallies)
    code = (verdict.EXIT_UNKNOWN if crashed else verdict.EXIT_PASS) if entry else verdict.exit_code(result)
    if known.broken and code in (verdict.EXIT_PASS, verdict.EXIT_UNKNOWN, verdict.EXIT_NOTHING_CHECKED):
        code, told = verdict.EXIT_USAGE, ["the list of expected failures is out of date", *known.broken]
    terminal.print_verdict(code, out, reasons=told, passed="no contradiction in this history")
    return code
