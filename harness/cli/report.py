"""`cachewitness report`: a run, or a recorded history, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness._util.errors import UsageError
from harness.cli.json_option import json_option
from harness.cli.options import say_written

if TYPE_CHECKING:
    from harness.verdict.report.jsonreport import Document

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=_FILE)
@click.option("--out", type=_FILE, metavar="FILE", help="Where the page is written; default: report.html beside what it shows.")
@json_option("written")
def report(run: Path, out: Path | None, as_json: bool) -> int:
    """Draw a run, or a recorded history, as one HTML page that needs no network.

    RUN is a folder that `run --report` wrote, or a history (docs/formats.md). Failures are shown step by step: what each block
    table claims, and what the ledger knows of the pages in it.
    """
    from harness._util import files
    from harness.picture import page
    from harness.run import store

    if run.is_dir():
        content, default = page.of_run(_document(run / store.REPORT), run / store.FAILURES), run / store.PAGE
    else:
        from harness.history import validate

        header, events = validate.read(run)
        content, default = page.of_history(header, [event for _, event in events], run.name), run.with_suffix(".html")
    target = out or default
    store.ready(target, "--out")
    try:
        files.write(target, [content])
    except OSError as error:
        raise UsageError(f"--out: {target} cannot be written ({error.strerror})") from None
    say_written([target], as_json=as_json)
    return 0


def _document(path: Path) -> Document:
    """Read the report of a run. Raises UsageError naming the field that does not fit."""
    import msgspec

    from harness._util import jsonl, reading
    from harness.verdict.report import jsonreport
    from harness.verdict.report.terminal import MEANINGS

    try:
        content = reading.whole(path, remedy="; `cachewitness run --report DIR` writes it")
        found = msgspec.json.decode(content, type=jsonreport.Document)
    except jsonl.UNREADABLE as error:
        raise UsageError(f"{path}: {error}") from None
    known = (jsonreport.FORMAT, jsonreport.VERSION)
    if (found.format, found.version) != known:
        raise UsageError(f"{path}: is {found.format} {found.version}; this release reads {known[0]} {known[1]}")
    if found.exit_code not in MEANINGS:
        raise UsageError(f"{path}: {found.exit_code} is no exit code of a run - at `$.exit_code`")
    return found
