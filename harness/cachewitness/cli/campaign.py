"""`cachewitness campaign`: engines, policies, suites and fuzz streams that a file names, carried
out by many workers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import one_line
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import Isolate, engine_of
from cachewitness.cli.report_option import drawn, page_option, ready
from cachewitness.cli.status_line import StatusLine, left

if TYPE_CHECKING:
    from cachewitness.engines.registry import EngineSpec
    from cachewitness.report.summary import NotRun
    from cachewitness.sessions.campaign.driver import CampaignProgress, CampaignSettings, Result
    from cachewitness.sessions.campaign.executors import Executor
    from cachewitness.sessions.campaign.file import Engine, File
    from cachewitness.sessions.campaign.plan import Key, Planned
    from cachewitness.sessions.campaign.summary import Document
    from cachewitness.sessions.campaign.unit import Unit

WORKERS_MAX = 100_000
"""More is a mistake."""


class _Command(click.Command):
    """`campaign merge …` is a command of its own; any other first word is that of a campaign."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args[:1] == [merge.name]:
            return merge.make_context(f"{info_name} {merge.name}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


class _Shard(click.ParamType[tuple[int, int]]):
    """`K/N`: the share with number K of N, counted from 1."""

    name = "shard"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        number, _, count = str(value).partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            self.fail(f"{value!r} is not K/N with K from 1 to N, such as 1/3", param, ctx)
        return int(number), int(count)


@click.command(cls=_Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=None,
    help="How many workers to start; default: one for each core, or each core of the cluster.",
)
@click.option(
    "--database", metavar="FILE|URL", help="Where the state is kept, instead of what the file says."
)
@click.option(
    "--traces", metavar="DIR|URL", help="Where traces are kept, instead of what the file says."
)
@click.option(
    "--ray",
    "address",
    metavar="ADDRESS",
    help="Have a Ray cluster run the workers; `auto` finds one on this machine.",
)
@click.option(
    "--shard",
    type=_Shard(),
    metavar="K/N",
    help=(
        "Only share K of N, with a database of its own; `campaign merge` puts them together. Exit"
        " code 0 is no verdict then."
    ),
)
@page_option
@json_option("campaign")
@click.option(
    "--metrics",
    metavar="FILE|PORT",
    help=(
        "Keep a file up to date with metrics in Prometheus' text format, or serve them on a port of"
        " this machine."
    ),
)
def campaign(
    file: Path,
    workers: int | None,
    database: str | None,
    traces: str | None,
    address: str | None,
    shard: tuple[int, int] | None,
    folder: Path | None,
    as_json: bool,
    metrics: str | None,
) -> int:
    """Carry out the campaign of a TOML file: units of work that are done once, by workers that may
    be killed.

    The same command goes on with a campaign that was interrupted. docs/campaign.md describes the
    file. `campaign merge A B -o C` puts databases into one.
    """
    from cachewitness.core.result import EXIT_FAIL
    from cachewitness.sessions.campaign import file as files
    from cachewitness.sessions.campaign.driver import FindingsLost

    definition = files.load(file)
    planned = planned_of(definition, file)
    if shard:
        planned = _share(planned, shard, folder, as_json=as_json)
    settings = _settings(definition, database, traces)
    try:
        ready(folder)
        executor = _executor(address, settings.attempts)
        settings = settings._replace(workers=_workers(planned, workers, executor, file))
        return _drive(planned, settings, executor, metrics, folder, as_json=as_json)
    except FindingsLost as error:
        click.echo(f"cachewitness: {one_line(str(error))}", err=True)
        return EXIT_FAIL


@click.command()
@click.argument(
    "databases",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "-o",
    "--output",
    "into",
    required=True,
    metavar="FILE",
    help="The database that all results are entered into; made if it is not there.",
)
def merge(databases: tuple[Path, ...], into: str) -> int:
    """Put the results of campaigns, of shares say, into one database, and their traces beside it.

    The command of the campaign with --database and --traces then does what is missing, and judges
    the whole. Exit code 0 is no verdict.
    """
    from cachewitness._util import output
    from cachewitness.sessions.campaign.database import without_password
    from cachewitness.sessions.campaign.merge import merge as merged

    if "://" in into:
        raise UsageError(
            f"-o {without_password(into)}: it is a file; a server can be the --database of every"
            " share, and needs no merge"
        )
    done = merged(databases, Path(into))
    for line in dict.fromkeys(done.missing):
        click.echo(f"cachewitness: {one_line(line)}; its unit will be done again", err=True)
    files = f"{len(databases)} file{'s' * (len(databases) != 1)}"
    output.echo(f"{into}: {done.results:,} results of {files}, {done.found:,} with findings")
    return 0


def _share(
    planned: Planned, shard: tuple[int, int], folder: Path | None, *, as_json: bool
) -> Planned:
    """Return a share. Raises UsageError if a document of it is asked for, which would be taken for
    that of the campaign.
    """
    from cachewitness.sessions.campaign.plan import share_of

    if folder or as_json:
        option = "--report" if folder else "--json"
        raise UsageError(
            f"{option}: a share has no verdict; give it to the command that judges the merged"
            " campaign"
        )
    return share_of(planned, *shard)


def _settings(definition: File, database: str | None, traces: str | None) -> CampaignSettings:
    from cachewitness.sessions.campaign.driver import CampaignSettings

    budget = definition.budget
    return CampaignSettings(
        database=database or definition.state.database,
        traces=traces or definition.state.traces,
        workers=0,
        deadline=budget.deadline,
        attempts=budget.attempts,
        seconds=budget.seconds,
    )


def _executor(address: str | None, attempts: int) -> Executor:
    from cachewitness.sessions.campaign.executors import Processes, Ray

    return Ray(address, attempts) if address else Processes()


def _workers(planned: Planned, wanted: int | None, executor: Executor, file: Path) -> int:
    """Return how many workers to start. Raises UsageError for several if an engine takes one
    trace after another.
    """
    engines = {unit.engine.text: unit.engine for unit in planned.units}
    alone = {text: engine.named().one_at_a_time for text, engine in engines.items()}
    text, why = next(((text, why) for text, why in alone.items() if why), ("", ""))
    if why and wanted is not None and wanted > 1:
        raise UsageError(
            f"--workers {wanted}: {file} names {text}, whose traces are run one after another:"
            f" {why}; take 1"
        )
    return wanted if wanted is not None else 1 if why else executor.cores()


def _drive(
    planned: Planned,
    settings: CampaignSettings,
    executor: Executor,
    metrics: str | None,
    folder: Path | None,
    *,
    as_json: bool,
) -> int:
    from cachewitness.report import terminal
    from cachewitness.sessions.campaign import summary
    from cachewitness.sessions.campaign.driver import Driver
    from cachewitness.sessions.campaign.metrics import exporter

    shown = _Shown(planned.name)
    with exporter(metrics, planned.name) as measure:

        def tell(progress: CampaignProgress) -> None:
            shown.tell(progress)
            measure(progress)

        try:
            result = Driver(planned, settings, executor, tell).run()
        finally:
            shown.clear()
    document = summary.document(result, settings)
    problems = _keep(result, settings, document, folder) if folder else []
    if as_json:
        print_json(document)
    else:
        from cachewitness.cli.campaign_report import print_summary

        print_summary(document, terminal.console(), planned.share)
    return drawn(document.exit_code, folder, document, partial(_drawn, document), problems)


def _keep(result: Result, settings: CampaignSettings, whole: Document, folder: Path) -> list[str]:
    from cachewitness.report.html.page import FILMS_MAX
    from cachewitness.sessions.campaign.summary import keep
    from cachewitness.sessions.run import store

    return keep(result, settings, whole, folder / store.FAILURES, FILMS_MAX)


def _drawn(whole: Document, folder: Path) -> bytes:
    from cachewitness.sessions.campaign import page as campaign_page
    from cachewitness.sessions.run import store

    return campaign_page.of_campaign(whole, folder / store.FAILURES)


def planned_of(definition: File, path: Path) -> Planned:
    """Return the units of a campaign, the self-test first. Raises UsageError for whatever the file
    names that is not known.
    """
    from cachewitness.sessions.campaign.plan import Planned, canary_unit, self_test

    planted = self_test(definition.seeds[0])
    units: list[Unit] = []
    asked: dict[str, None] = {}
    left_out: dict[Key, list[NotRun]] = {}
    for index, engine in enumerate(definition.engines):
        try:
            for policy in engine.policies:
                made, without = _units(definition, engine, policy, asked)
                key = _key(engine, policy, made)
                if key in left_out:
                    raise UsageError(
                        f"{key[0]} under {policy} is named twice, and both would be told as one;"
                        " give it a `label`"
                    )
                left_out[key] = without
                units += made
        except UsageError as error:
            raise UsageError(f"{path}: {error} - at `$.engines[{index}]`") from None
    whole = [canary_unit(planted, definition.seeds[0]), *units]
    return Planned(
        definition.name, whole, planted, definition.budget.shrink, tuple(asked), left_out
    )


def _key(engine: Engine, policy: str, units: list[Unit]) -> Key:
    """Return what the units of an engine under a policy judge. Raises UsageError if there is
    none.
    """
    from cachewitness.sessions.campaign.plan import key_of

    if not units:
        raise UsageError(
            f"{engine.engine} has no unit of work under {policy}: the file names neither a suite"
            " that its configurations can run nor a fuzz stream for it"
        )
    return key_of(units[0])


def _units(
    definition: File, engine: Engine, policy: str, asked: dict[str, None]
) -> tuple[list[Unit], list[NotRun]]:
    """Return the units of one engine under one policy, and the suites that none of its
    configurations can run.

    They come seed by seed, so that a short campaign has something of everything.
    """
    from cachewitness.cli.options import exported_of
    from cachewitness.report.summary import NotRun
    from cachewitness.sessions.campaign.unit import SuiteUnit

    if engine.isolate not in (None, "yes", "no"):
        raise UsageError(f'isolate is "yes" or "no", not {engine.isolate!r}')
    isolate = Isolate(engine.isolate, engine.deadline, engine.memory_gib, engine.engines_file)
    spec = engine_of(engine.engine, policy, isolate=isolate, release=engine.release)
    options = [*engine.options, *(one.setting for one in exported_of(policy, engine.options))]
    units: list[Unit] = []
    named: dict[str, str] = {}
    for seed in definition.seeds:
        units += _configured(definition, engine, spec, policy, options, seed, named)
        units += _fuzzed(definition, engine, spec, policy, options, seed)
    asked.update(dict.fromkeys(named))
    has = {unit.suite for unit in units if isinstance(unit, SuiteUnit)}
    without = [
        NotRun(f"suite {name}", f"none of the configurations runs at the {level} level")
        for name, level in named.items()
        if name not in has
    ]
    return units, without


def _configured(
    definition: File,
    engine: Engine,
    spec: EngineSpec,
    policy: str,
    options: list[str],
    seed: int,
    named: dict[str, str],
) -> list[Unit]:
    from cachewitness.cli.options import configurations_of, suites_of
    from cachewitness.sessions.campaign.build_digest import package
    from cachewitness.sessions.campaign.engine_entry import engine_entry
    from cachewitness.sessions.campaign.plan import units_of_suite
    from cachewitness.sessions.campaign.unit import SuiteUnit

    names = definition.suites if engine.suites is None else engine.suites
    if not names:
        return []
    configurations, chosen, exact = configurations_of(
        policy, engine.layouts, options, engine.release, spec
    )
    pattern = SuiteUnit(
        package=package(),
        engine=engine_entry(spec, policy, engine.label),
        policy=policy,
        suite="",
        seed=seed,
        first=0,
        configurations=[],
        named=chosen,
        exact=exact,
    )
    suites = suites_of(names)
    named.update({suite.name: suite.level for suite in suites})
    return [
        unit
        for suite in suites
        for unit in units_of_suite(pattern, suite, configurations, definition.budget.configurations)
    ]


def _fuzzed(
    definition: File, engine: Engine, spec: EngineSpec, policy: str, options: list[str], seed: int
) -> list[Unit]:
    from dataclasses import replace

    from cachewitness.cli.fuzz import plan_of
    from cachewitness.sessions.campaign.build_digest import package
    from cachewitness.sessions.campaign.engine_entry import engine_entry
    from cachewitness.sessions.campaign.plan import SELF_TEST_STREAM, fuzzed
    from cachewitness.sessions.campaign.unit import Fuzzed

    names = definition.streams if engine.streams is None else engine.streams
    if SELF_TEST_STREAM in names:
        raise UsageError(f"the stream {SELF_TEST_STREAM!r} is the self-test's; take another name")
    made: list[Unit] = []
    for name in names:
        plan = replace(
            plan_of(spec, policy, engine.layouts, options, seed, engine.release), stream=name
        )
        whole = Fuzzed(
            package=package(),
            engine=engine_entry(spec, policy, engine.label),
            plan=plan,
            first=0,
            last=definition.budget.traces,
            beside=definition.lockstep,
        )
        made += fuzzed(whole, definition.budget.traces, definition.budget.per_unit)
    return made


class _Shown:
    """Says on standard error how far a campaign is, and what happened to its workers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status = StatusLine(anywhere=True, at_once=True)
        self._printed = 0

    def clear(self) -> None:
        """Wipe the line of a terminal."""
        self._status.clear()

    def tell(self, progress: CampaignProgress) -> None:
        """Say it, now and then."""
        for line in progress.incidents[self._printed :]:
            self.clear()
            click.echo(f"cachewitness: {line}", err=True)
        self._printed = len(progress.incidents)
        self._status.tell(lambda: f"{self._name}: {_line(progress)}")


def _line(progress: CampaignProgress) -> str:
    found = f"{len(progress.classes)} kinds of findings" if progress.classes else "no finding"
    return (
        f"{progress.done:,} of {progress.units:,} units{left(progress.left)}, {found},"
        f" {progress.workers} workers, {progress.traces:,} traces, {progress.operations:,}"
        f" operations, {len(progress.marks)} marks"
    )
