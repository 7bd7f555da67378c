"""The option `--report`, the same for every command that runs traces, and the files that it asks
for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cachewitness.cli.status_line import StatusLine
    from cachewitness.engines.registry import EngineSpec
    from cachewitness.report.summary import Failure, Report, Stored
    from cachewitness.sessions.run.store import Keeper

F = TypeVar("F", bound="Callable[..., Any]")


def _folder_option(what: str) -> Callable[[F], F]:
    return click.option(
        "--report", "folder", type=click.Path(path_type=Path), metavar="DIR", help=what
    )


report_option = _folder_option(
    "Write report.json, report.html, report.sarif, junit.xml, badge.json, comment.md, and the"
    " traces and histories of failures."
)
page_option = _folder_option("Write report.json, and report.html, which draws it.")


def ready(folder: Path | None, *sources: Path) -> None:
    """Make sure, before a long run, that the folder can be written to, and clear it of an earlier
    report.

    Raises UsageError if it cannot be, or if it holds one of `sources`, the files that are to be
    shown.
    """
    from cachewitness._util.errors import UsageError
    from cachewitness.sessions.run import store

    if folder is None:
        return
    for source in sources:
        if folder.resolve() in source.resolve().parents:
            raise UsageError(
                f"--report: {folder} is cleared for the report, and {source} lies in it; name"
                " another folder"
            )
    store.ready_folder(folder, "--report")
    store.clear(folder)


def failures_of(folder: Path | None) -> Path:
    """Return where failures are kept: in the folder of the report, if there is one."""
    from cachewitness.sessions.run import store

    return folder / store.FAILURES if folder else store.DEFAULT_FOLDER


def keeper_of(engine: EngineSpec, folder: Path | None, most: int | None = None) -> Keeper:
    """Return what keeps failures: `most` of them (None: all) with their histories in the folder, or
    the first of each anomaly without one.
    """
    from cachewitness.sessions.run import store

    return store.Keeper(
        engine,
        failures_of(folder),
        everything=folder is not None,
        most=most,
    )


def telling(kept: Keeper, status: StatusLine) -> Callable[[Failure, bool], None]:
    """Return what keeps a failure, and says that a smaller trace of it is looked for."""
    from cachewitness.report.counterexample import shrinking

    def take(failure: Failure, final: bool) -> None:
        kept.take(failure, final)
        if not final:
            status.note(shrinking(failure))

    return take


def files_of(
    report: Report,
    stored: Mapping[str, Stored],
    configurations: Sequence[str],
    policy: str,
    folder: Path | None,
) -> tuple[dict[Path, bytes], list[str]]:
    """Return the files of the folder with their content, and a line for each that could not be
    made; none without a folder.
    """
    if folder is None:
        return {}, []
    from cachewitness.report import badge, jsonreport, junit, markdown, sarif
    from cachewitness.report.html import page
    from cachewitness.sessions.run import store

    document = jsonreport.document(report, stored, configurations, policy)
    drawn, problems = drawn_or_problems(
        folder / store.PAGE, lambda: page.of_run(document, folder / store.FAILURES)
    )
    made = {folder / store.REPORT: jsonreport.render(document), **drawn}
    made[folder / store.JUNIT] = junit.render(report, stored)
    made[folder / store.SARIF] = sarif.render(report, stored, str(folder / store.REPORT))
    made[folder / store.COMMENT] = markdown.render(report, stored)
    made[folder / store.BADGE] = badge.render(report)
    return made, problems


def so_far(
    report: Report,
    stored: Mapping[str, Stored],
    configurations: Sequence[str],
    policy: str,
    folder: Path | None,
    junit_file: Path | None,
) -> dict[Path, bytes]:
    """Return the files that are kept up while a run goes on, with what there is so far."""
    from cachewitness.report import jsonreport, junit
    from cachewitness.sessions.run import store

    made = {}
    if folder is not None:
        document = jsonreport.document(report, stored, configurations, policy)
        made[folder / store.REPORT] = jsonreport.render(document)
    cases = [path for path in (folder and folder / store.JUNIT, junit_file) if path]
    return made | dict.fromkeys(cases, junit.render(report, stored) if cases else b"")


def drawn_or_problems(
    target: Path, draw: Callable[[], bytes]
) -> tuple[dict[Path, bytes], list[str]]:
    """Return a page by its file, or a line on why there is none: the picture of a verdict takes
    the verdict from nobody.
    """
    try:
        return {target: draw()}, []
    except Exception as error:
        return {}, [f"{target}: cannot be drawn: {type(error).__name__}: {error}"]


def drawn(
    code: int,
    folder: Path | None,
    document: object,
    draw: Callable[[Path], bytes],
    problems: Sequence[str] = (),
) -> int:
    """Write a document and its page into the folder, and return the exit code; no pass outlives a
    file that is missing.

    `problems` are what the page lacks, a line for each.
    """
    from cachewitness._util.indented import indented
    from cachewitness._util.lines import one_line
    from cachewitness.cli.options import finish
    from cachewitness.sessions.run import store

    if folder is None:
        return code
    page, lines = drawn_or_problems(folder / store.PAGE, lambda: draw(folder))
    for line in problems:
        click.echo(f"cachewitness: {one_line(line)}", err=True)
    return finish(code, {folder / store.REPORT: indented(document), **page}, lines, quiet=True)
