"""`cachewitness check`: judges recorded histories without any engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cachewitness._util import output
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import printable
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import expectations_of, expected_options, finish
from cachewitness.cli.report_option import drawn_or_problems

if TYPE_CHECKING:
    from cachewitness.core.result import Result
    from cachewitness.report.expected import Expectations


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@expected_options
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write report.html, which draws it; of one history.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help=(
        "How many of several histories to judge at a time; the outcome is the same. Left out: one"
        " for each core."
    ),
)
@click.option(
    "--events",
    is_flag=True,
    help=(
        "FILE is no history but what a router recorded of an engine's key events, in MessagePack or"
        " JSON."
    ),
)
@click.option(
    "--once",
    is_flag=True,
    help=(
        "With --events: the engine promises to tell of each block once, so one that is stored again"
        " without having been removed is a finding."
    ),
)
@click.option(
    "--quiet",
    is_flag=True,
    help=(
        "Print only the witness and the verdict; of several histories also a line of each that does"
        " not pass."
    ),
)
@json_option("judged", several="checked")
def check(
    files: tuple[Path, ...],
    expected: Path | None,
    strict_expected: bool,
    folder: Path | None,
    jobs: int | None,
    events: bool,
    once: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Judge recorded histories under every checker.

    The format is docs/reference/formats.md; `schema history` prints its JSON schema. For --expected
    the id of     one is `check:FILE@ENGINE`, with the name of the file alone and the engine that it
    was recorded from. Of several histories, each is judged by itself.
    """
    known = expectations_of(expected, strict_expected)
    if once and not events:
        raise UsageError("--once: says something of recorded events; name --events as well")
    if events:
        if len(files) > 1 or folder:
            raise UsageError("--events: judges one recording, without a page; name one file")
        from cachewitness.cli.check_events import check_events

        return check_events(files[0], known, once=once, quiet=quiet, as_json=as_json)
    if len(files) == 1:
        return _check(
            files[0], known, folder, listed=expected is not None, quiet=quiet, as_json=as_json
        )
    if folder:
        raise UsageError(f"--report {folder}: draws one history; name one file")
    from cachewitness.cli.check_several import check_several

    return check_several(files, known, jobs, quiet=quiet, as_json=as_json)


def _check(
    file: Path,
    known: Expectations,
    folder: Path | None,
    *,
    listed: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    from cachewitness.cli.judged_history import judged, print_witness, weighed, with_list
    from cachewitness.report import terminal
    from cachewitness.sessions.run import store

    if folder:
        store.ready_folder(folder, "--report")
    one = weighed(file, *judged(file), known)
    result = one.result
    if one.bad or result is None:
        raise UsageError(one.bad)
    code, reasons = with_list(one.code, one.reasons, known)
    pages, problems = _page(file, folder, result, (code, "; ".join(reasons if listed else [])))
    if as_json:
        print_json(one._replace(code=code, reasons=reasons).document())
        return finish(code, pages, problems, quiet=True)
    out = terminal.console()
    if not quiet:
        header = result.history.header
        version = f" ({header.engine_version})" if header.engine_version else ""
        output.echo(
            printable(f"history of {header.engine}{version}, {result.activity.events:,} events")
            + "\n"
        )
        terminal.print_activity(result.activity, out)
        terminal.print_tallies(result.tallies, out)
    if one.finding and not one.entry:
        print_witness(one, out)
    terminal.print_verdict(code, out, reasons=reasons, passed="no contradiction in this history")
    return finish(code, pages, problems, quiet=quiet)


def _page(
    file: Path, folder: Path | None, result: Result, weighed: tuple[int, str]
) -> tuple[dict[Path, bytes], list[str]]:
    """Return the page that was asked for, or a line if it cannot be drawn; `weighed`: what a
    list of expected failures says.
    """
    from cachewitness.cli.judged_history import events_of
    from cachewitness.report.html import page
    from cachewitness.sessions.run import store

    if folder is None:
        return {}, []

    def draw() -> bytes:
        events = [event for _, event in events_of(file)]
        return page.of_history(result.history.header, events, file.name, result, weighed)

    return drawn_or_problems(folder / store.PAGE, draw)
