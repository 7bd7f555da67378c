"""`cachewitness fuzz`: random traces on drawn configurations, or every trace within a bound."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import click

from cachewitness._util.errors import UsageError
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import (
    ExpectedFailures,
    Finite,
    Selection,
    configurations_of,
    died,
    engine_of,
    expected_options,
    finish,
    fitted,
    gather,
    jobs_of,
    jobs_option,
    known_option,
    options_of,
    selection_options,
)
from cachewitness.cli.report_option import files_of, keeper_of, ready, report_option, telling
from cachewitness.cli.status_line import StatusLine, left

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cachewitness.core.trace_format import Level
    from cachewitness.engines.registry import EngineSpec
    from cachewitness.report.summary import Stored
    from cachewitness.sessions.fuzz.campaign import Campaign
    from cachewitness.sessions.fuzz.exhaustive import Coverage
    from cachewitness.sessions.fuzz.self_test import CanaryResult
    from cachewitness.sessions.fuzz.trial import Plan


@dataclass(frozen=True)
class Budget:
    """When a campaign ends, the seed of what it draws, and how many traces it runs at a time.

    `seconds` and `operations` are 0 if they bound nothing.
    """

    seconds: float
    operations: int
    seed: int
    jobs: int | None


@dataclass(frozen=True)
class Search:
    """An exhaustive search, if one is asked for: its bound (`KEY=N,…`), and at which levels."""

    exhaustive: bool
    bound: str
    levels: tuple[Level, ...]
    full: bool


@click.command()
@selection_options(
    layouts="Cache groups to use instead of drawn ones; may be repeated.",
    options="An option to fix instead of drawing it; may be repeated.",
)
@click.option(
    "--seconds",
    type=Finite(min=0),
    default=0,
    help="Stop after so many seconds; 0: when something fails.",
)
@click.option(
    "--operations", type=click.IntRange(min=0), default=0, help="Stop after so many operations."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of everything that is drawn.",
)
@click.option(
    "--lockstep/--no-lockstep",
    "beside",
    default=True,
    help="Run the reference in lock-step beside the engine, where it can follow; on by default.",
)
@jobs_option
@expected_options
@known_option
@report_option
@click.option(
    "--exhaustive", is_flag=True, help="Run every trace within a bound instead of random traces."
)
@click.option(
    "--bound",
    default="",
    metavar="KEY=N,…",
    help=(
        "The bound of --exhaustive: requests, blocks (of a prompt), pages (of the pool), generated"
        " (tokens)."
    ),
)
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.Choice(["manager", "scheduler"]),
    help="A level of --exhaustive; may be repeated. Left out: each that the engine has.",
)
@click.option(
    "--full",
    is_flag=True,
    help=(
        "With --exhaustive: every configuration at each level; without it, and without --layout,"
        " --option and --level, those that take a minute or two."
    ),
)
@json_option("fuzz` or, with --exhaustive, `search")
@gather(budget=Budget, listed=ExpectedFailures, search=Search)
def fuzz(
    chosen: Selection,
    budget: Budget,
    beside: bool,
    listed: ExpectedFailures,
    folder: Path | None,
    search: Search,
    as_json: bool,
) -> int:
    """Run random traces on drawn configurations under every checker, until time is up or something
    fails.

    An expected failure does not end it. A known fault is planted first and must be reported. The
    last line is the command that runs the same campaign again. With --exhaustive, run every trace
    of small configurations within a bound and report whether the search was complete.
    """
    exported = chosen.exported()
    chosen = chosen.also([one.setting for one in exported])
    if search.exhaustive:
        _nothing_drawn(budget, listed, folder)
        return _exhaustive(chosen, search, budget, as_json=as_json)
    if search.bound or search.levels or search.full:
        which = "bound" if search.bound else "level" if search.levels else "full"
        raise UsageError(f"--{which}: belongs to --exhaustive")
    from cachewitness.report import terminal
    from cachewitness.sessions.fuzz import terminal as fuzz_terminal
    from cachewitness.sessions.fuzz.campaign import Campaign
    from cachewitness.sessions.fuzz.self_test import POLICY, run_self_test

    spec = chosen.spec()
    plan = plan_of(spec, chosen.policy, chosen.layouts, chosen.options, budget.seed, chosen.release)
    ready(folder)
    self_test = run_self_test(
        plan
        if chosen.policy == POLICY
        else plan_of(engine_of("reference"), POLICY, (), (), budget.seed)
    )
    status = StatusLine(anywhere=True)
    kept = keeper_of(spec, folder)
    known = listed.load(spec)

    def tell(campaign: Campaign) -> None:
        status.tell(lambda: _progress_text(campaign, budget.seconds, budget.operations))

    campaign = Campaign(
        spec,
        plan,
        tell,
        known,
        telling(kept, status),
        beside=beside,
        jobs=jobs_of(spec, budget.jobs),
        on_died=died,
    )
    campaign.report.environment = [one.origin for one in exported]
    try:
        campaign.run(budget.seconds, budget.operations)
    finally:
        status.clear()
    again = fuzz_terminal.command(
        spec,
        chosen.policy,
        chosen.layouts,
        chosen.options,
        campaign.operations,
        budget.seed,
        str(listed.expected or ""),
        no_known=listed.no_known,
        beside=beside,
    )
    if as_json:
        _print_campaign(campaign, self_test, kept.stored, again)
    else:
        fuzz_terminal.print_campaign(campaign, self_test, kept.stored, again, terminal.console())
    files, problems = files_of(
        fuzz_terminal.proved(campaign, self_test), kept.stored, [], chosen.policy, folder
    )
    return finish(
        fuzz_terminal.exit_code(campaign, self_test),
        files,
        [*kept.problems, *problems],
        quiet=as_json,
    )


def _nothing_drawn(budget: Budget, listed: ExpectedFailures, folder: Path | None) -> None:
    """Raise UsageError if an option of random traces was given to an exhaustive search."""
    if budget.operations or budget.seed:
        raise UsageError(
            "--exhaustive: nothing is drawn; leave out "
            + ("--operations" if budget.operations else "--seed")
        )
    if folder:
        raise UsageError(
            "--report: an exhaustive search ends at its first failure; `replay FILE --report"
            " DIR` draws it"
        )
    if listed.expected:
        raise UsageError(
            "--expected: an exhaustive search has no list; it ends at its first failure"
        )
    if listed.no_known:
        raise UsageError("--no-known: an exhaustive search has no list; leave it out")


def _print_campaign(
    campaign: Campaign, self_test: CanaryResult | None, stored: Mapping[str, Stored], again: str
) -> None:
    from cachewitness.cli import documents
    from cachewitness.report import jsonreport
    from cachewitness.sessions.fuzz import coverage_points
    from cachewitness.sessions.fuzz import terminal as fuzz_terminal

    fuzzed = documents.Fuzzed(
        report=jsonreport.document(campaign.report, stored, [], campaign.plan.policy),
        exit_code=fuzz_terminal.exit_code(campaign, self_test),
        reasons=fuzz_terminal.reasons(campaign, self_test),
        self_test=self_test,
        marks={name: campaign.marks[name] for name in coverage_points.ALL},
        again=again,
        digest=campaign.digest,
    )
    print_json(fuzzed)


def plan_of(
    spec: EngineSpec,
    policy: str,
    layouts: Sequence[str],
    options: Sequence[str],
    seed: int,
    release: str | None = None,
) -> Plan:
    """Return what is drawn for an engine under a policy. Raises UsageError if it cannot be
    fuzzed, or for what is unknown.
    """
    from cachewitness.sessions.fuzz.campaign import levels_of
    from cachewitness.sessions.fuzz.draw import Restriction
    from cachewitness.sessions.fuzz.trial import Plan
    from cachewitness.workloads.configurations import SCHEDULER_OPTIONS

    asked = options_of(options)
    drawing = spec.kind.drawing
    own = drawing.own(asked, spec.options) if drawing else ()
    chosen = {name: value for name, value in asked.items() if name not in own}
    levels = levels_of(spec, policy)
    if own or any(chosen.get(name) for name in SCHEDULER_OPTIONS):
        levels = tuple(level for level in levels if level == "scheduler")
    if not levels:
        raise UsageError(
            f"--engine: {spec.kind.name} runs at no level at which this can be fuzzed; see `ls"
            " engines`"
        )
    if spec.own_layouts:
        named = configurations_of(policy, layouts, options, release, spec).configurations
    else:
        named = [fitted(policy, name, chosen, release) for name in dict.fromkeys(layouts)]
    fixed = named[0].options if named else chosen
    of_layouts = [configuration.layout for configuration in named]
    chosen_of = Restriction(
        of_layouts,
        fixed,
        historic=not spec.kind.replays,
        whole=spec.own_layouts,
        accepts=spec.kind.accepts,
        own={name: asked[name] for name in own},
    )
    return Plan(policy, levels, chosen_of, seed)


def _exhaustive(chosen: Selection, asked: Search, budget: Budget, *, as_json: bool) -> int:
    from cachewitness.report import terminal
    from cachewitness.sessions.fuzz import terminal as fuzz_terminal
    from cachewitness.sessions.fuzz.exhaustive import LEVELS, bound_of, check, search
    from cachewitness.sessions.fuzz.scope import CONFIGURATIONS
    from cachewitness.sessions.fuzz.self_test import sought
    from cachewitness.sessions.run import store
    from cachewitness.workloads.configurations import Configuration
    from cachewitness.workloads.layouts import load

    spec = chosen.spec()
    options = options_of(chosen.options)
    configurations = [Configuration(load(name), options) for name in dict.fromkeys(chosen.layouts)]
    configurations = configurations or [
        Configuration(one.layout, one.options | options) for one in CONFIGURATIONS if options
    ]
    levels = tuple(dict.fromkeys(asked.levels)) or LEVELS
    check(spec, chosen.policy, configurations, levels)
    full = asked.full or bool(configurations or asked.levels)
    configurations = configurations or list(CONFIGURATIONS)
    limits = bound_of(asked.bound)
    self_test = sought()
    status = StatusLine(anywhere=True)
    started = monotonic()

    def tell(tasks: int, states: int, failing: bool) -> None:
        rest = left(budget.seconds - (monotonic() - started) if budget.seconds else None)
        found = (
            "; a contradiction was found, and the tasks before its own are finished first"
            if failing
            else ""
        )
        status.tell(lambda: f"exhaustive: {tasks:,} tasks done, {states:,} states{rest}{found}")

    try:
        coverage = search(
            spec,
            limits,
            configurations,
            levels,
            full=full,
            seconds=budget.seconds,
            on_progress=tell,
            on_died=died,
            processes=jobs_of(spec, budget.jobs),
        )
    finally:
        status.clear()
    kept = store.Keeper(spec, store.DEFAULT_FOLDER)
    if coverage.failure:
        kept.take(coverage.failure, final=True)
    code, reasons = fuzz_terminal.judged(coverage, self_test)
    if as_json:
        _print_search(coverage, self_test, spec, kept.stored, code, reasons)
    else:
        fuzz_terminal.print_coverage(coverage, self_test, spec, kept.stored, terminal.console())
    return finish(code, {}, kept.problems)


def _print_search(
    coverage: Coverage,
    self_test: CanaryResult,
    spec: EngineSpec,
    stored: Mapping[str, Stored],
    code: int,
    reasons: list[str],
) -> None:
    from dataclasses import asdict

    from cachewitness.cli import documents
    from cachewitness.report import jsonreport

    failure = coverage.failure
    covered = [
        documents.Searched(
            configuration=one.scope.name,
            states=len(one.states),
            transitions=one.transitions,
            depth=one.depth,
            complete=one.complete,
        )
        for one in coverage.covered
    ]
    search = documents.Search(
        engine=spec.text,
        exit_code=code,
        reasons=reasons,
        bound=asdict(coverage.bound),
        self_test=self_test,
        covered=covered,
        failure=jsonreport.entry(failure, stored.get(failure.id)) if failure else None,
        not_run=coverage.not_run,
        seconds=coverage.seconds,
    )
    print_json(search)


def _progress_text(campaign: Campaign, seconds: float, operations: int) -> str:
    """Return how far a campaign is that ends after so many seconds or operations, 0: neither."""
    marks = sum(map(bool, campaign.marks.values()))
    spent = max(campaign.report.seconds, 0.001)
    rate = campaign.operations / spent
    rest = [seconds - spent] if seconds else []
    rest += [max(operations - campaign.operations, 0) / rate] if operations and rate else []
    done = f"{campaign.traces:,} traces, {campaign.operations:,} operations"
    return f"fuzz: {done}{left(min(rest, default=None))}, {rate:,.0f} a second, {marks} marks"
