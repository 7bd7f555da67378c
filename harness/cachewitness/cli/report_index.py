"""`cachewitness report-index`: many runs, such as those of every night, as one page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from cachewitness._util.errors import UsageError
from cachewitness.cli.json_option import json_option
from cachewitness.cli.options import say_written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachewitness.report.html.trend import Run

_PATH = click.Path(path_type=Path)
INDEX = "index.html"


@click.command("report-index")
@click.argument("folder", type=_PATH)
@click.option(
    "--out",
    type=_PATH,
    metavar="FILE",
    help="Where the page is written; default: index.html in FOLDER.",
)
@json_option("written")
def report_index(folder: Path, out: Path | None, as_json: bool) -> int:
    """Draw the runs below a folder as one page: findings, operations and hit rates over time.

    FOLDER has a folder for each run, which `--report` wrote, at any depth; in the order of their
    names, numbers by their value, so names that begin with the date are in its order. The exit code
    says nothing of the verdicts: 0 if the page is written, 4 if there is no report to be read.
    """
    from cachewitness._util import files
    from cachewitness.cli.suites import ENDLESS
    from cachewitness.report.html import trend
    from cachewitness.sessions.run import store

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    target = out or folder / INDEX
    store.ready(target, "--out")
    unread: list[str] = []
    content, count = trend.of_runs(_runs(folder, target.parent, unread), ENDLESS, unread)
    for line in unread:
        click.echo(f"cachewitness: not read: {line}", err=True)
    if not count:
        raise UsageError(
            f"{folder}: no {store.REPORT} below it can be read; `cachewitness run --report DIR`"
            " writes one"
        )
    files.write(target, [content])
    say_written([target], as_json=as_json)
    return 0


def _runs(folder: Path, beside: Path, unread: list[str]) -> Iterator[Run]:
    """Yield the runs below a folder in the order of their names; a line is added to `unread` for
    each report that cannot be read. Pages are named relative to the folder `beside`.
    """
    import os

    from cachewitness.report import jsonreport
    from cachewitness.report.html.trend import Run
    from cachewitness.report.terminal import MEANINGS
    from cachewitness.sessions.run import store

    for path in sorted(folder.rglob(store.REPORT), key=lambda path: _natural(path, folder)):
        try:
            report = jsonreport.load(path)
            if report.exit_code not in MEANINGS:
                raise UsageError(f"{path}: {report.exit_code} is no exit code of a run")
        except UsageError as error:
            unread.append(str(error))
            continue
        page = path.with_name(store.PAGE)
        link = quote(os.path.relpath(page, beside)) if page.is_file() else ""
        name = path.parent.relative_to(folder).as_posix()
        yield Run(folder.resolve().name if name == "." else name, link, report)


def _natural(path: Path, folder: Path) -> list[tuple[int, str]]:
    """Return what sorts the names of folders with their numbers by value."""
    parts = re.split(r"(\d+)", path.relative_to(folder).as_posix())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
