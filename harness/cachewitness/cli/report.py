"""`cachewitness report`: a run, a score, or a recorded history, as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from cachewitness._util.errors import UsageError
from cachewitness.cli.json_option import json_option
from cachewitness.cli.options import say_written

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=_FILE)
@click.option(
    "--out",
    type=_FILE,
    metavar="FILE",
    help="Where the page is written; default: report.html beside what it shows.",
)
@json_option("written")
def report(run: Path, out: Path | None, as_json: bool) -> int:
    """Draw a run, a score, or a recorded history, as one HTML page that needs no network.

    RUN is a folder that `--report` of any command or `score` wrote, or a history
    (docs/reference/formats.md).
    Failures are shown step by step: what each block table claims, and what the ledger knows of the
    pages in it; of a score, the answers that changed.
    """
    from cachewitness._util import files, reading
    from cachewitness.sessions.run import store

    if run.is_dir():
        content = _page_of(run)
        default = run / store.PAGE
    else:
        from cachewitness.core import validate
        from cachewitness.core.driving import judge
        from cachewitness.core.trace_format import FORMAT as TRACE
        from cachewitness.report.html import page

        try:
            header, events = validate.events(run)
        except UsageError as error:
            hint = (
                "; a trace has to be run: `cachewitness replay FILE --report DIR`"
                if TRACE in str(error)
                else ""
            )
            raise UsageError(f"{error}{hint}") from None
        kept = [*events]
        content = page.of_history(header, kept, run.name, judge(header, iter(kept)))
        default = (
            Path(store.PAGE) if str(run) == reading.STANDARD_INPUT else run.with_suffix(".html")
        )
    target = out or default
    store.ready(target, "--out")
    try:
        files.write(target, [content])
    except OSError as error:
        raise UsageError(f"--out: {target} cannot be written ({error.strerror})") from None
    say_written([target], as_json=as_json)
    return 0


class _Kind(NamedTuple):
    """A kind of report: the version that is read, its type, and what draws it."""

    version: int
    type: Any
    draw: Callable[[Any, Path], bytes]


def _kinds() -> dict[str, _Kind]:
    from cachewitness.parity.likelihood import document as likelihood
    from cachewitness.parity.likelihood import page as likelihood_page
    from cachewitness.parity.scores import document as score
    from cachewitness.parity.scores import page as score_page
    from cachewitness.report import jsonreport
    from cachewitness.report.html import page
    from cachewitness.sessions.campaign import page as campaign_page
    from cachewitness.sessions.campaign import summary
    from cachewitness.sessions.mutants import document as hunt
    from cachewitness.sessions.mutants import report_page as hunt_page
    from cachewitness.vectors import document as vectors
    from cachewitness.vectors import page as consumed_page

    return {
        jsonreport.FORMAT: _Kind(jsonreport.VERSION, jsonreport.Document, page.of_run),
        score.FORMAT: _Kind(
            score.VERSION, score.Document, lambda made, _: score_page.of_score(made)
        ),
        likelihood.FORMAT: _Kind(
            likelihood.VERSION,
            likelihood.Document,
            lambda made, _: likelihood_page.of_likelihood(made),
        ),
        summary.FORMAT: _Kind(summary.VERSION, summary.Document, campaign_page.of_campaign),
        hunt.FORMAT: _Kind(hunt.VERSION, hunt.Hunt, lambda made, _: hunt_page.of_hunt(made)),
        vectors.FORMAT: _Kind(vectors.VERSION, vectors.Consumed, consumed_page.of_vectors),
    }


def _page_of(folder: Path) -> bytes:
    """Return the page of what a folder holds, by the format that its report names. Raises
    UsageError naming a wrong field.
    """
    import msgspec

    from cachewitness._util import jsonl, reading
    from cachewitness.report import jsonreport
    from cachewitness.report.terminal import MEANINGS
    from cachewitness.sessions.run import store

    class Head(msgspec.Struct):
        format: str = ""

    path = folder / store.REPORT
    kinds = _kinds()
    try:
        content = reading.whole(path, remedy="; `cachewitness run --report DIR` writes it")
        named = msgspec.json.decode(content, type=Head).format
        kind = kinds.get(named, kinds[jsonreport.FORMAT])
        found = msgspec.json.decode(content, type=kind.type)
    except jsonl.UNREADABLE as error:
        raise UsageError(f"{path}: {error}") from None
    known = (named if named in kinds else jsonreport.FORMAT, kind.version)
    if (found.format, found.version) != known:
        raise UsageError(
            f"{path}: is {found.format} {found.version}; this release reads {known[0]} {known[1]}"
        )
    if found.exit_code not in MEANINGS:
        raise UsageError(f"{path}: {found.exit_code} is no exit code of a run - at `$.exit_code`")
    try:
        return kind.draw(found, folder / store.FAILURES)
    except OverflowError as error:
        raise UsageError(f"{path}: a number in it is too large ({error})") from None
