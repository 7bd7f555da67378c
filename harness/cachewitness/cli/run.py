"""`cachewitness run`: suites on an engine, a verdict, and a witness for whatever fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cachewitness.cli import completion
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import (
    Finite,
    configurations_of,
    died,
    engine_of,
    engine_option,
    expectations_of,
    expected_options,
    exported_of,
    finish,
    isolation_options,
    jobs_of,
    jobs_option,
    policy_option,
    release_option,
    replaced_by,
    suites_of,
)
from cachewitness.cli.report_option import files_of, keeper_of, report_option
from cachewitness.cli.report_option import ready as report_ready
from cachewitness.cli.status_line import StatusLine, left
from cachewitness.cli.table_option import ready, table_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachewitness.cli.options import Isolate
    from cachewitness.report.summary import Report, Stored
    from cachewitness.sessions.run.progress import Progress

_FILE = click.Path(path_type=Path)


@click.command()
@engine_option
@isolation_options
@policy_option
@release_option
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    shell_complete=completion.of("layouts"),
    metavar="NAME|PATH",
    help="Cache groups, by name (`ls layouts`) or from a TOML file; may be repeated.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the policy, its value as JSON or text; may be repeated.",
)
@click.option(
    "--retention-interval", metavar="N|none", help="Short for --option retention_interval=N."
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    shell_complete=completion.of("suites"),
    metavar="NAME",
    help="A suite to run (`ls suites`); may be repeated; default: all that apply.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of random workloads; equal seeds give equal traces.",
)
@click.option(
    "--seconds",
    type=Finite(min=0),
    default=0,
    help="Seconds for random workloads, shared among the suites; 0: a fixed number of workloads.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="The device that the engine computes on; short for NAME:device=….",
)
@click.option(
    "--full",
    is_flag=True,
    help=(
        "Run every trace on an engine that computes tensors; without it, and without --layout, a"
        " sample that takes a minute."
    ),
)
@jobs_option
@click.option(
    "--fail-fast",
    is_flag=True,
    help=(
        "Stop at the first failure that is not expected; the first four traces are run one at a"
        " time if the engine has a process of its own."
    ),
)
@expected_options
@json_option("report")
@table_option("suites and failures")
@click.option("--junit", type=_FILE, metavar="FILE", help="Write the report as JUnit XML.")
@report_option
@click.option(
    "--github",
    is_flag=True,
    help="Print failures as annotations of GitHub Actions, on standard error.",
)
@click.option("--quiet", is_flag=True, help="Print only witnesses and the verdict.")
def run(
    engine: str,
    isolate: Isolate,
    policy: str,
    release: str | None,
    layouts: tuple[str, ...],
    options: tuple[str, ...],
    retention_interval: str | None,
    suites: tuple[str, ...],
    seed: int,
    seconds: float,
    device: str | None,
    full: bool,
    jobs: int | None,
    fail_fast: bool,
    expected: Path | None,
    strict_expected: bool,
    as_json: bool,
    junit: Path | None,
    table: Path | None,
    folder: Path | None,
    github: bool,
    quiet: bool,
) -> int:
    """Run suites on an engine and report the verdict.

    Without options: every suite that the embedded reference can run, on small layouts of every
    kind. Failing traces are shrunk and kept in .cachewitness/failures (with --report, in its
    folder).
    """
    from cachewitness.sessions.run.runner import Runner

    spec = engine_of(engine, policy, device, isolate, release)
    said = [
        *options,
        *([f"retention_interval={retention_interval}"] if retention_interval is not None else []),
    ]
    exported = exported_of(policy, said)
    said += [one.setting for one in exported]
    configurations, named, exact = configurations_of(policy, layouts, said, release, spec.kind)
    _ready(junit, table)
    report_ready(folder)
    kept = keeper_of(spec, folder)
    status = StatusLine(shown=not quiet and not as_json)
    runner = Runner(
        spec,
        configurations,
        seed=seed,
        seconds=seconds,
        expected=expectations_of(expected, strict_expected),
        policy=policy,
        chosen_configurations=named,
        chosen_suites=bool(suites),
        exact_configurations=exact,
        full=full,
        fail_fast=fail_fast,
        jobs=jobs_of(spec, jobs),
        on_died=died,
        on_trace=(lambda progress: status.tell(lambda: _progress_text(progress)))
        if status.shown
        else None,
        on_failure=kept.take,
    )
    try:
        report = runner.run(suites_of(suites))
    finally:
        status.clear()
    report.environment = [one.origin for one in exported]
    report.settings = replaced_by(policy, configurations, release)
    names = [configuration.name for configuration in configurations]
    _show(report, kept.stored, names, policy, as_json=as_json, github=github, quiet=quiet)
    files, problems = _files(report, kept.stored, names, policy, junit, table, folder)
    return finish(report.exit_code, files, [*kept.problems, *problems], quiet=quiet or as_json)


def _ready(junit: Path | None, table: Path | None) -> None:
    """Make sure, before a long run, that the files that were asked for can be written. Raises
    UsageError if not.
    """
    from cachewitness.sessions.run import store

    if junit:
        store.ready(junit, "--junit")
    ready(table)


def _show(
    report: Report,
    stored: Mapping[str, Stored],
    configurations: list[str],
    policy: str,
    *,
    as_json: bool,
    github: bool,
    quiet: bool,
) -> None:
    """Print the report; whatever may go wrong with files comes later."""
    if as_json:
        from cachewitness.report import jsonreport

        print_json(jsonreport.document(report, stored, configurations, policy))
    else:
        from cachewitness.report import terminal

        terminal.print_report(
            report, stored, terminal.console(), configurations=len(configurations), quiet=quiet
        )
    if github:
        from cachewitness.report.github import commands

        for line in commands(report, stored):
            click.echo(line, err=True)


def _files(
    report: Report,
    stored: Mapping[str, Stored],
    configurations: list[str],
    policy: str,
    junit: Path | None,
    table: Path | None,
    folder: Path | None,
) -> tuple[dict[Path, bytes], list[str]]:
    """Return the files that the user asked for, with their content, and a line for each that
    could not be made.
    """
    made, problems = files_of(report, stored, configurations, policy, folder)
    if table:
        from cachewitness._util import frame
        from cachewitness.report import rows

        made[table] = frame.content(rows.rows(report, policy), rows.COLUMNS, table)
    if junit:
        from cachewitness.report import junit as junit_report

        made[junit] = junit_report.render(report, stored)
    return made, problems


def _progress_text(progress: Progress) -> str:
    """Return how far a run is, and how long the rest takes."""
    begun = (
        f"{progress.begun:,}" if progress.of is None else f"{progress.begun:,} of {progress.of:,}"
    )
    return (
        f"{progress.number}/{progress.suites} {progress.suite}: {begun} traces{left(progress.left)}"
    )
