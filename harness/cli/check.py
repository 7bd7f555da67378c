"""`cachewitness check`: judges a recorded history without any engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness._util import output
from harness._util.lines import printable
from harness.cli.json_option import json_option, print_json
from harness.cli.options import expectations_of, expected_options, finish
from harness.cli.report_option import drawn_or_told

if TYPE_CHECKING:
    from harness.history.events import Header
    from harness.verdict.expected import Entry, Expectations
    from harness.verdict.result import Result

COLLECTED_AFTER = 50_000
"""So many objects come before Python looks for cycles among them: judging a history makes many objects, and hardly a cycle."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@expected_options
@click.option("--report", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write report.html, which draws it.")
@click.option("--quiet", is_flag=True, help="Print only the witness and the verdict.")
@json_option("judged")
def check(file: Path, expected: Path | None, strict_expected: bool, folder: Path | None, quiet: bool, as_json: bool) -> int:
    """Judge a recorded history under every checker.

    The format is docs/formats.md; `schema history` prints its JSON schema. For --expected its id is `check:FILE@ENGINE`, with
    the name of the file alone and the engine that it was recorded from.
    """
    from harness.history import validate
    from harness.run import execute, store
    from harness.verdict.report import terminal
    from harness.verdict.report.counterexample import witness_of_history

    known = expectations_of(expected, strict_expected)
    if folder:
        store.ready_folder(folder, "--report")
    header, events = validate.events(file)
    with _seldom_collected():
        result = execute.judge(header, events)
    finding, entry = known.weigh(f"check:{file.name}@{header.engine}", result.findings) or (None, None)
    code, told = _verdict(result, known, entry)
    pages, problems = _page(file, folder, result, (code, "; ".join(told if expected else [])))
    if as_json:
        _print(file, header, result, code, told, entry)
        return finish(code, pages, problems, quiet=True)
    out = terminal.console()
    if not quiet:
        version = f" ({header.engine_version})" if header.engine_version else ""
        output.echo(printable(f"history of {header.engine}{version}, {result.activity.events:,} events") + "\n")
        terminal.print_activity(result.activity, out)
        terminal.print_tallies(result.tallies, out)
    if finding and not entry:
        terminal.print_lines([*witness_of_history(finding, validate.read(file)[1], str(file)), ""], out)
    terminal.print_verdict(code, out, reasons=told, passed="no contradiction in this history")
    return finish(code, pages, problems, quiet=quiet)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _page(file: Path, folder: Path | None, result: Result, weighed: tuple[int, str]) -> tuple[dict[Path, bytes], list[str]]:
    """Return the page that was asked for, or a line if it cannot be drawn; `weighed`: what a list of expected failures says."""
    from harness.history import validate
    from harness.picture import page
    from harness.run import store

    if folder is None:
        return {}, []

    def draw() -> bytes:
        header, events = validate.events(file)
        return page.of_history(header, [*events], file.name, result, weighed)

    return drawn_or_told(folder / store.PAGE, draw)


def _print(file: Path, header: Header, result: Result, code: int, told: list[str], entry: Entry | None) -> None:
    from harness.cli import documents

    print_json(
        documents.Judged(
            file=str(file),
            engine=header.engine,
            engine_version=header.engine_version,
            exit_code=code,
            reasons=told,
            findings=result.findings,
            checkers=result.tallies,
            activity=result.activity,
            expected=entry.reason if entry else "",
        )
    )


def _verdict(result: Result, known: Expectations, entry: Entry | None) -> tuple[int, list[str]]:
    """Return the exit code and its reasons; `entry` is what excuses the findings, if all of them are excused."""
    from harness.cli.replay import reasons
    from harness.verdict import result as verdict

    told = [f"nothing else found; 1 expected finding, listed as {entry.anomaly} ({entry.reason})"] if entry else reasons(result)
    crashed = any(tally.crashed for tally in result.tallies)
    code = (verdict.EXIT_UNKNOWN if crashed else verdict.EXIT_PASS) if entry else verdict.exit_code(result)
    if known.broken and code in (verdict.EXIT_PASS, verdict.EXIT_UNKNOWN, verdict.EXIT_NOTHING_CHECKED):
        code, told = verdict.EXIT_USAGE, ["the list of expected failures is out of date", *known.broken]
    return code, told
