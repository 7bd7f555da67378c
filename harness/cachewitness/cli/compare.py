"""`cachewitness compare`: what changed from one run to another, to judge a merge by."""

from __future__ import annotations

from pathlib import Path

import click

from cachewitness.cli.json_option import json_option, print_json

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("before", type=_FILE, metavar="A")
@click.argument("after", type=_FILE, metavar="B")
@json_option("comparison")
def compare(before: Path, after: Path, as_json: bool) -> int:
    """Compare two reports: new and mended failures, hit rates, restored tokens, speed.

    A and B are `report.json` of two runs, or the folders that `--report` wrote; A is the older one.
    Exit code 1 if B has failures that A had not, 5 if it has none and checked less than A, or
    nothing can be compared, 2 if a checker crashed or events could not be followed in B alone, and
    otherwise 0, whatever both fail in.
    """
    from cachewitness.cli.suites import ENDLESS
    from cachewitness.report import comparison, comparison_text, jsonreport, terminal
    from cachewitness.sessions.run import store

    files = [path / store.REPORT if path.is_dir() else path for path in (before, after)]
    a, b = (jsonreport.load(path) for path in files)
    document = comparison.compare(a, b, (str(files[0]), str(files[1])), ENDLESS)
    if as_json:
        print_json(document)
    else:
        comparison_text.print_comparison(document, terminal.console())
    return document.exit_code
