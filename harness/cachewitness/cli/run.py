"""`cachewitness run`: suites on an engine, a verdict, and a witness for whatever fails."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from cachewitness._util.errors import UsageError
from cachewitness.cli import completion
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import (
    ExpectedFailures,
    Finite,
    Selection,
    died,
    expected_options,
    finish,
    gather,
    jobs_of,
    jobs_option,
    known_option,
    replaced_by,
    selection_options,
    suites_of,
)
from cachewitness.cli.report_option import files_of, keeper_of, report_option, so_far, telling
from cachewitness.cli.report_option import ready as report_ready
from cachewitness.cli.status_line import FirstFailure, StatusLine, SuiteLines, left
from cachewitness.cli.table_option import ready, table_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachewitness.engines.registry import EngineSpec
    from cachewitness.report.baseline import Baseline
    from cachewitness.report.summary import Failure, Report, Stored
    from cachewitness.sessions.change.measured import Measured
    from cachewitness.sessions.run.choice import Choice
    from cachewitness.sessions.run.progress import RunProgress

_FILE = click.Path(path_type=Path)
PROGRESS_S = 60.0
"""Seconds between two lines on how far a run is, where there is no terminal."""


@dataclass(frozen=True)
class Work:
    """What a run does with the engine: which suites, from which seed, and how long.

    `seconds` are shared among the random suites; 0: a fixed number of workloads.
    """

    retention_interval: str | None
    suites: tuple[str, ...]
    seed: int
    seconds: float
    device: str | None
    full: bool
    jobs: int | None
    only: tuple[str, ...]
    last_failed: bool
    fail_fast: bool
    max_failures: int
    shrink_attempts: int | None
    diff: str | None
    baseline: Path | None
    loss: float | None

    def earlier(self) -> Baseline | None:
        """Return the earlier report that is to be compared with. Raises UsageError if it cannot
        be read.
        """
        from cachewitness.report.baseline import load

        if self.baseline is None:
            if self.loss is not None:
                raise UsageError("--loss: there is no --baseline that anything is lost from")
            return None
        return load(self.baseline, (self.loss or 0.0) / 100)


@dataclass(frozen=True)
class Output:
    """What a run prints, and the files that it writes."""

    as_json: bool
    junit: Path | None
    table: Path | None
    folder: Path | None
    github: bool
    quiet: bool


@click.command()
@selection_options(
    layouts="Cache groups, by name (`ls layouts`) or from a TOML file; may be repeated.",
    options="An option of the policy, its value as JSON or text; may be repeated.",
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
    "--only",
    multiple=True,
    metavar="PATTERN",
    help=(
        "Run only traces whose id fits, `suite:trace@configuration` as reports print it; * and ?"
        " stand for anything; may be repeated."
    ),
)
@click.option(
    "--last-failed",
    is_flag=True,
    help=(
        "Run only what failed last, as the folder of failures says; everything if nothing did."
        " Without it, what failed last is run first."
    ),
)
@click.option(
    "--fail-fast",
    is_flag=True,
    help=(
        "Stop at the first failure that is not expected; the first four traces are run one at a"
        " time if the engine has a process of its own."
    ),
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help=(
        "How many failures are kept beside the first of each anomaly, and at most how many of those"
        " first ones are shrunk; the rest are counted and named."
    ),
)
@click.option(
    "--shrink-attempts",
    type=click.IntRange(min=0),
    metavar="N",
    help=(
        "How many smaller traces are tried for a failure; left out: 5000, and fewer for an engine"
        " that only answers."
    ),
)
@click.option(
    "--diff",
    metavar="BASE|FILE",
    help=(
        "What the engine's source changed since it left a commit, or a file of `git diff` that ends"
        " in .diff or .patch: run what enters that first, and say what of it no suite enters."
    ),
)
@click.option(
    "--baseline",
    type=_FILE,
    metavar="FILE",
    help=(
        "A report of an earlier run (report.json): fail if less is restored on the same traces of"
        " a configuration."
    ),
)
@click.option(
    "--loss",
    type=Finite(min=0, max=100),
    metavar="PERCENT",
    help="How much less than in --baseline may be restored; left out: 0.",
)
@expected_options
@known_option
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
@gather(work=Work, listed=ExpectedFailures, output=Output)
def run(chosen: Selection, work: Work, listed: ExpectedFailures, output: Output) -> int:
    """Run suites on an engine and report the verdict.

    Without options: every suite that the embedded reference can run, on small layouts of every
    kind. Failing traces are shrunk and kept in .cachewitness/failures (with --report, in its
    folder).
    """
    from cachewitness._util import files
    from cachewitness.sessions.run import last_failed
    from cachewitness.sessions.run.runner import Runner
    from cachewitness.sessions.run.snapshots import Snapshots

    spec = chosen.spec(work.device)
    if work.retention_interval is not None:
        chosen = chosen.also([f"retention_interval={work.retention_interval}"])
    exported = chosen.exported()
    chosen = chosen.also([one.setting for one in exported])
    configurations, named, exact = chosen.configurations(spec)
    _ready(output)
    choice = _choice(work, output)
    change = _change(work, spec)
    kept = keeper_of(spec, output.folder, work.max_failures)
    talks = not output.quiet and not output.as_json
    status = StatusLine(shown=talks)
    progress = status if status.shown else StatusLine(shown=talks, anywhere=True, every=PROGRESS_S)
    first = FirstFailure(status, shown=talks)
    keep = telling(kept, status)

    def met(failure: Failure, final: bool) -> None:
        first.tell(failure)
        keep(failure, final)

    def made(report: Report) -> _Made:
        report.environment = [one.origin for one in exported]
        report.settings = settings
        report.not_kept = len(kept.left_out)
        return _Made(report, kept.stored, [one.name for one in configurations], chosen.policy)

    def remember(report: Report) -> None:
        failed = {failure.id for failure in report.failures if not failure.expected}
        last_failed.save(kept.folder, choice.failed, choice.ran, failed)

    def write(report: Report) -> None:
        with suppress(UsageError):
            remember(report)
        for path, content in so_far(*made(report), output.folder, output.junit).items():
            with suppress(UsageError):  # it is told when the run has ended
                files.write(path, [content])

    settings = replaced_by(chosen.policy, configurations, chosen.release)
    runner = Runner(
        spec,
        configurations,
        seed=work.seed,
        seconds=work.seconds,
        expected=listed.load(spec),
        policy=chosen.policy,
        baseline=work.earlier(),
        chosen_configurations=named,
        chosen_suites=bool(work.suites),
        exact_configurations=exact,
        full=work.full,
        fail_fast=work.fail_fast,
        jobs=jobs_of(spec, work.jobs),
        on_died=died,
        on_trace=(lambda made: progress.tell(lambda: _progress_text(made)))
        if progress.shown
        else None,
        on_failure=met,
        on_suite=SuiteLines(shown=talks).tell,
        on_step=Snapshots(write).offer if output.folder or output.junit else None,
        shrunk=work.max_failures,
        attempts=work.shrink_attempts,
        choice=choice,
        change=change,
        known_beside=listed.known,
    )
    if change and talks:
        click.echo(change.report().plan, err=True)
    try:
        with change.measuring() if change else nullcontext():
            report = runner.run(suites_of(work.suites))
    finally:
        status.clear()
    whole = made(report)
    _show(whole, output)
    written, problems = _files(whole, output)
    try:
        remember(report)
    except UsageError as error:
        problems.append(str(error))
    quiet = output.quiet or output.as_json
    return finish(report.exit_code, written, [*kept.problems, *problems], quiet=quiet)


def _choice(work: Work, output: Output) -> Choice:
    """Return which traces are run, and which of them first."""
    from cachewitness.cli.report_option import failures_of
    from cachewitness.sessions.run import last_failed
    from cachewitness.sessions.run.choice import Choice

    folder = failures_of(output.folder)
    failed = last_failed.load(folder)
    if work.last_failed and not failed:
        click.echo(
            f"cachewitness: --last-failed: nothing in {folder} says that a trace failed; every"
            " trace is run",
            err=True,
        )
    return Choice(work.only, failed, failed_only=work.last_failed and bool(failed))


def _change(work: Work, spec: EngineSpec) -> Measured | None:
    """Return the change that the user named, None for none. Raises UsageError if it cannot be
    read.
    """
    if work.diff is None:
        return None
    from cachewitness.sessions.change.entered_map import stored
    from cachewitness.sessions.change.measured import planned
    from cachewitness.sessions.change.source import tree_of
    from cachewitness.sessions.change.touched import read

    return planned(read(tree_of(spec), work.diff), stored(spec.kind.name), spec.options)


class _Made(NamedTuple):
    """What a run came to: its report, where its failures are stored, its configurations by name,
    and the policy.
    """

    report: Report
    stored: Mapping[str, Stored]
    configurations: list[str]
    policy: str


def _ready(output: Output) -> None:
    """Make sure, before a long run, that the files that were asked for can be written. Raises
    UsageError if not.
    """
    from cachewitness.sessions.run import store

    if output.junit:
        store.ready(output.junit, "--junit")
    ready(output.table)
    report_ready(output.folder)


def _show(made: _Made, output: Output) -> None:
    """Print the report; whatever may go wrong with files comes later."""
    if output.as_json:
        from cachewitness.report import jsonreport

        print_json(jsonreport.document(*made))
    else:
        from cachewitness.report import terminal

        terminal.print_report(
            made.report,
            made.stored,
            terminal.console(),
            configurations=len(made.configurations),
            quiet=output.quiet,
        )
    if output.github:
        from cachewitness.report.github import commands

        for line in commands(made.report, made.stored):
            click.echo(line, err=True)


def _files(made: _Made, output: Output) -> tuple[dict[Path, bytes], list[str]]:
    """Return the files that the user asked for, with their content, and a line for each that
    could not be made.
    """
    files, problems = files_of(*made, output.folder)
    if output.table:
        from cachewitness._util import frame
        from cachewitness.report import rows

        table = rows.rows(made.report, made.policy)
        files[output.table] = frame.content(table, rows.COLUMNS, output.table)
    if output.junit:
        from cachewitness.report import junit

        files[output.junit] = junit.render(made.report, made.stored)
    return files, problems


def _progress_text(progress: RunProgress) -> str:
    """Return how far a run is, and how long the rest takes."""
    begun = (
        f"{progress.begun:,}" if progress.of is None else f"{progress.begun:,} of {progress.of:,}"
    )
    return (
        f"{progress.number}/{progress.suites} {progress.suite}: {begun} traces{left(progress.left)}"
    )
