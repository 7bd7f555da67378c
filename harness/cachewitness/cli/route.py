"""`cachewitness route`: a router that follows key events, in front of a simulated fleet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cachewitness._util import output
from cachewitness._util.lines import printable
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import Selection, gather, selection_options
from cachewitness.cli.status_line import StatusLine

if TYPE_CHECKING:
    from cachewitness.cli import documents
    from cachewitness.engines.registry import EngineSpec
    from cachewitness.sessions.route.session import Failure, Planned, Report

LISTED = 3
"""So many configurations that were not judged are named for each reason."""
REFERENCE = "cachewitness_reference.router:Router"


@dataclass(frozen=True)
class Asked:
    """Which router is asked, over how many workers, and what it is asked."""

    router: str
    workers: int
    deliveries: tuple[str, ...]
    traces: int
    seed: int
    quiet: bool
    as_json: bool


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE…]", type=click.Path(path_type=Path))
@click.option(
    "--router",
    default=REFERENCE,
    show_default=True,
    metavar="MODULE:CLASS",
    help="The router; it is built once for each trace (docs/routers.md).",
)
@selection_options(
    layouts="Cache groups, by name (`ls layouts`) or from a TOML file; may be repeated.",
    options="An option of the policy, its value as JSON or text; may be repeated.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=64),
    default=3,
    show_default=True,
    metavar="N",
    help="How many engines the fleet has.",
)
@click.option(
    "--delivery",
    "deliveries",
    multiple=True,
    metavar="NAME",
    help=(
        "How messages arrive: whole, late, gaps, twice, media, seeds or restart; may be repeated;"
        " default: each in turn."
    ),
)
@click.option(
    "--traces",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    metavar="N",
    help="How many traces are run on each configuration.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The seed of the workloads; equal seeds give equal traces.",
)
@click.option("--quiet", is_flag=True, help="Print only witnesses and the verdict.")
@json_option("routed")
@gather(asked=Asked)
def route(files: tuple[Path, ...], chosen: Selection, asked: Asked) -> int:
    """Give a router the key events of a fleet of engines, and hold what it foresees against the
    keys that are there.

    With FILEs, stored traces are run again, each with every --delivery.
    """
    from cachewitness.sessions.route.delivery import DELIVERIES, known
    from cachewitness.sessions.route.router import load
    from cachewitness.sessions.route.session import Session

    spec = chosen.spec()
    make = load(asked.router)
    deliveries = [known(name) for name in asked.deliveries] or list(DELIVERIES)
    planned = _stored(files, deliveries) if files else _planned(spec, chosen, asked, deliveries)
    status = StatusLine(shown=not (asked.quiet or asked.as_json))
    session = Session(spec, make, asked.workers, on_trace=lambda one: status.tell(lambda: one.name))
    try:
        report = session.run(planned)
    finally:
        status.clear()
    replays = [_keep(failure, spec, asked) for failure in report.failures]
    if asked.as_json:
        print_json(_document(report, replays, spec, asked))
        return report.exit_code
    if not asked.quiet:
        _print_summary(report, make, spec, asked)
    _show(report, replays)
    return report.exit_code


def _planned(
    spec: EngineSpec, chosen: Selection, asked: Asked, deliveries: Sequence[str]
) -> list[Planned]:
    from cachewitness.sessions.route.session import plan

    configurations = chosen.configurations(spec).configurations
    return list(plan(spec, configurations, deliveries, asked.traces, asked.seed))


def _stored(files: Sequence[Path], deliveries: Sequence[str]) -> list[Planned]:
    from cachewitness.core import validate
    from cachewitness.sessions.route.session import Planned

    return [
        Planned(trace, trace.header.layout.name, how)
        for trace in map(validate.load_trace, files)
        for how in deliveries
    ]


def _show(report: Report, replays: Sequence[str]) -> None:
    """Print a witness for each anomaly, and the verdict."""
    from cachewitness.report import terminal
    from cachewitness.report.counterexample import witness

    out = terminal.console()
    for failure, replay in zip(report.failures, replays, strict=True):
        lines = witness(
            failure.finding,
            failure.shrunk,
            name=failure.planned.name,
            whole=len(failure.planned.trace.ops),
            replay=replay,
            why_long=failure.why_long,
        )
        terminal.print_lines([*lines, ""], out)
    found = ", ".join(failure.finding.anomaly for failure in report.failures)
    reasons = [f"{report.failed} of {report.traces} traces contradict the contract ({found})"]
    terminal.print_verdict(
        report.exit_code,
        out,
        reasons=reasons if found else (),
        passed=f"each of {report.judged:,} answers is what the keys and the router's contract say",
    )


def _document(
    report: Report, replays: Sequence[str], spec: EngineSpec, asked: Asked
) -> documents.Routed:
    from cachewitness.cli import documents

    return documents.Routed(
        router=asked.router,
        engine=spec.text,
        workers=asked.workers,
        exit_code=report.exit_code,
        answers=report.judged,
        traces=report.traces,
        failed=report.failed,
        routes=[
            documents.Routes(
                layouts=name,
                requests=sums.requests,
                prompt=sums.prompt,
                foreseen=sums.foreseen,
                hit=sums.hit,
                equal=sums.equal,
                wrong_worker=sums.wrong,
                lost=sums.lost,
                more=dict(sums.more),
                less=dict(sums.less),
            )
            for name, sums in report.sums.items()
            if sums.requests
        ],
        failures=[
            documents.MisjudgedRoute(id=one.planned.name, finding=one.finding, replay=replay)
            for one, replay in zip(report.failures, replays, strict=True)
        ],
        not_judged=report.not_judged,
    )


def _keep(failure: Failure, spec: EngineSpec, asked: Asked) -> str:
    """Write the trace of a failure; return the command that runs it again."""
    from cachewitness._util.names import identifier
    from cachewitness.core import trace_format
    from cachewitness.sessions.run.store import DEFAULT_FOLDER, TRACE, ready_folder

    ready_folder(DEFAULT_FOLDER, "route")
    name = identifier(f"{failure.finding.anomaly} {failure.planned.name}")[:120]
    path = DEFAULT_FOLDER / f"route-{name}{TRACE}"
    trace_format.save(failure.shrunk, path)
    return (
        f"cachewitness route {shlex.quote(str(path))} {spec.arguments} --router"
        f" {shlex.quote(asked.router)} --workers {asked.workers} --delivery"
        f" {failure.planned.delivery}"
    )


def _print_summary(report: Report, make: object, spec: EngineSpec, asked: Asked) -> None:
    from cachewitness.report import terminal
    from cachewitness.report.tables import new_table, print_table

    out = terminal.console()
    counts = "counts pages" if getattr(make, "counts", False) else "does not count pages"
    groups = "all groups" if getattr(make, "all_groups", False) else "full attention alone"
    output.echo(printable(f"router {asked.router}"))
    output.echo(f"it {counts} and looks at {groups}")
    output.echo(printable(f"fleet of {asked.workers} workers, engine {spec.text}"))
    output.echo("")
    table = new_table(
        out, ["layouts", "requests", "tokens", "foreseen", "hit", "equal", "wrong worker", "lost"]
    )
    for name, sums in report.sums.items():
        if sums.requests:
            table.add_row(
                name,
                f"{sums.requests:,}",
                f"{sums.prompt:,}",
                f"{sums.foreseen:,}",
                f"{sums.hit:,}",
                f"{sums.equal:,}",
                f"{sums.wrong:,}",
                f"{sums.lost:,}",
            )
    print_table(table, out)
    for line in _differences(report):
        output.echo(line)
    for why, names in report.not_judged.items():
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        output.echo(printable(f"not judged: {', '.join(names[:LISTED])}{more}: {why}"))
    output.echo("")


def _differences(report: Report) -> list[str]:
    """Return in lines why hits are not what was foreseen."""
    from cachewitness.sessions.route.summary import CAUSES

    lines = []
    for name, sums in report.sums.items():
        for word, counted in (("more", sums.more), ("less", sums.less)):
            lines += [
                f"{name}: {counted[cause]:,} tokens {word} foreseen than hit: {meaning}"
                for cause, meaning in CAUSES.items()
                if counted[cause]
            ]
    return lines and ["", *lines]
