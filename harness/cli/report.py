"""`cachewitness report`: a run, a score, or a recorded history, as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from harness._util.errors import UsageError
from harness.cli.json_option import json_option
from harness.cli.options import say_written

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=_FILE)
@click.option("--out", type=_FILE, metavar="FILE", help="Where the page is written; default: report.html beside what it shows.")
@json_option("written")
def report(run: Path, out: Path | None, as_json: bool) -> int:
    """Draw a run, a score, or a recorded history, as one HTML page that needs no network.

    RUN is a folder that `run --report` or `score` wrote, or a history (docs/formats.md). Failures of a run are shown step by
    step: what each block table claims, and what the ledger knows of the pages in it; of a score, the answers that changed.
    """
    from harness._util import files, reading
    from harness.run import store

    if run.is_dir():
        content, default = _page_of(run), run / store.PAGE
    else:
        from harness.history import validate
        from harness.picture import page
        from harness.run.execute import judge
        from harness.trace.format import FORMAT as TRACE

        try:
            header, events = validate.read(run)
        except UsageError as error:
            told = "; a trace has to be run: `cachewitness replay FILE --report DIR`" if TRACE in str(error) else ""
            raise UsageError(f"{error}{told}") from None
        kept = [event for _, event in events]
        content = page.of_history(header, kept, run.name, judge(header, iter(kept)))
        default = Path(store.PAGE) if str(run) == reading.STANDARD_INPUT else run.with_suffix(".html")
    target = out or default
    store.ready(target, "--out")
    try:
        files.write(target, [content])
    except OSError as error:
        raise UsageError(f"--out: {target} cannot be written ({error.strerror})") from None
    say_written([target], as_json=as_json)
    return 0


def _page_of(folder: Path) -> bytes:
    """Return the page of what a folder holds, by the format that its report names. Raises UsageError naming a wrong field."""
    import msgspec

    from harness._util import jsonl, reading
    from harness.picture import page, score_page
    from harness.run import store
    from harness.score import document
    from harness.verdict.report import jsonreport
    from harness.verdict.report.terminal import MEANINGS

    class Kind(msgspec.Struct):
        format: str = ""

    path = folder / store.REPORT
    try:
        content = reading.whole(path, remedy="; `cachewitness run --report DIR` writes it")
        scored = msgspec.json.decode(content, type=Kind).format == document.FORMAT
        found: document.Document | jsonreport.Document = (
            msgspec.json.decode(content, type=document.Document)
            if scored
            else msgspec.json.decode(content, type=jsonreport.Document)
        )
    except jsonl.UNREADABLE as error:
        raise UsageError(f"{path}: {error}") from None
    known = (document.FORMAT, document.VERSION) if scored else (jsonreport.FORMAT, jsonreport.VERSION)
    if (found.format, found.version) != known:
        raise UsageError(f"{path}: is {found.format} {found.version}; this release reads {known[0]} {known[1]}")
    if found.exit_code not in MEANINGS:
        raise UsageError(f"{path}: {found.exit_code} is no exit code of a run - at `$.exit_code`")
    return score_page.of_score(found) if isinstance(found, document.Document) else page.of_run(found, folder / store.FAILURES)
