"""`cachewitness replay`: stored traces on an engine."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import click

from cachewitness._util import output
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import one_line, printable
from cachewitness._util.reading import STANDARD_INPUT
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import (
    engine_of,
    engine_option,
    finish,
    gather,
    isolation_options,
    release_option,
)
from cachewitness.cli.report_option import files_of, keeper_of, ready, report_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachewitness.cli.options import Isolate
    from cachewitness.core.events import Header
    from cachewitness.core.result import Result
    from cachewitness.core.trace_format import Trace
    from cachewitness.engines.registry import EngineSpec
    from cachewitness.sessions.run.judging import Way


@dataclass(frozen=True)
class How:
    """On which engine a trace is run again, and what it is compared with."""

    engine: str
    isolate: Isolate
    release: str | None
    differential: bool
    cold: bool
    shrinking: bool

    @property
    def way(self) -> Way:
        """How it is judged."""
        return "cold" if self.cold else "lockstep" if self.differential else "rules"


@dataclass(frozen=True)
class Output:
    """What a replay prints, and the files that it writes."""

    recorded: Path | None
    exported: str | None
    output: Path | None
    folder: Path | None
    quiet: bool
    as_json: bool


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@engine_option
@isolation_options
@release_option
@click.option(
    "--differential", is_flag=True, help="Run the reference beside the engine and compare them."
)
@click.option(
    "--cold", is_flag=True, help="Compare tensors with cold runs, as the suite cold-vs-cached does."
)
@click.option(
    "--shrink",
    "shrinking",
    is_flag=True,
    help="Look for a smaller trace with the same anomaly, and keep it beside the original.",
)
@click.option(
    "--history",
    "recorded",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the history, which `check` can judge again.",
)
@click.option(
    "--export",
    "exported",
    type=click.Choice(["pytest"]),
    help="Write a failure as a test that needs the engine alone.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where --export writes; default: test_NAME.py in this folder.",
)
@report_option
@click.option("--quiet", is_flag=True, help="Print only the witness and the verdict.")
@json_option("judged")
@gather(how=How, to=Output)
def replay(files: tuple[Path, ...], how: How, to: Output) -> int:
    """Run stored traces on an engine under every checker; of several each is printed in short."""
    if len(files) == 1:
        return _replay(files[0], how, to)
    return _several(files, how, to)


def _several(files: Sequence[Path], how: How, to: Output) -> int:
    """Run traces one after another and return the worst exit code. One that cannot be read or run
    does not keep the others from it.
    """
    from cachewitness.core import result as verdict
    from cachewitness.report import terminal

    for name, given in (
        ("json", to.as_json),
        ("history", to.recorded),
        ("export", to.exported),
        ("output", to.output),
        ("report", to.folder),
        ("shrink", how.shrinking),
    ):
        if given:
            raise UsageError(f"--{name}: is about one trace; name one file, not {len(files)}")
    if Path(STANDARD_INPUT) in files:
        raise UsageError(f"{STANDARD_INPUT}: is one trace; name it alone, or name files")
    codes = list[int]()
    for file in files:
        output.echo(printable(f"{file}"))
        try:
            codes.append(_replay(file, how, replace(to, quiet=True)))
        except UsageError as error:
            click.echo(f"cachewitness: {one_line(str(error))}", err=True)
            codes.append(verdict.EXIT_USAGE)
        output.echo("")
    counted = Counter(codes)
    ends = [f"{counted[code]} {terminal.MEANINGS[code][0]}" for code in sorted(counted)]
    output.echo(f"{len(files)} traces: {', '.join(ends)}")
    return verdict.worst(codes)


def _replay(file: Path, how: How, to: Output) -> int:
    from cachewitness.core import result as verdict
    from cachewitness.core import validate
    from cachewitness.core.stored import save
    from cachewitness.sessions.run import store
    from cachewitness.sessions.run.judging import explained

    spec = engine_of(how.engine, isolate=how.isolate, release=how.release)
    asked = validate.load_trace(file)
    test_file = _ready(spec, asked, to)
    _fits(spec, asked, file, differential=how.differential)
    if how.cold and (how.differential or not spec.kind.computes):
        raise UsageError(
            "--cold: "
            + (
                "leave out --differential"
                if how.differential
                else f"engine {spec.kind.name} computes no tensors"
            )
        )
    # Before anything is written: a trace that this engine cannot run leaves no report and no test.
    header = _described(spec, asked, file)
    if missing := _missing(spec, asked, header):
        click.echo(one_line(f"cachewitness: {file}: not run: {missing}"), err=True)
        if to.as_json:
            _print(
                _Outcome(spec, asked, file), not_run=missing, exit_code=verdict.EXIT_NOTHING_CHECKED
            )
        return verdict.EXIT_NOTHING_CHECKED
    asked = _fitting(spec, asked, header, file)
    ready(to.folder, *([] if str(file) == STANDARD_INPUT else [file]))
    started = perf_counter()
    result, bad = explained(asked, spec, how.way)
    if how.shrinking and result.findings:
        smaller = _smaller(asked, spec, how.way, result.findings[0].anomaly)
        second, stopped = explained(smaller, spec, how.way)
        # A failure that does not repeat cannot be shrunk; then the first run is what is reported.
        if second.findings:
            asked, file, result, bad = smaller, _write_smaller(smaller, file), second, stopped
    if to.recorded:
        save(result.history, to.recorded)
    again = bool(result.findings) and str(file) != STANDARD_INPUT
    command = store.replay_command(file, spec, how.way) if again else ""
    test: list[str] = []
    if test_file:
        from cachewitness.cli.as_test import export

        test = export(spec, result, test_file)
    outcome = _Outcome(spec, asked, file, result, bad, command, test)
    code = verdict.exit_code(result, bad)
    if to.as_json:
        _print(outcome, exit_code=code)
    else:
        _show(outcome, code, to.folder, quiet=to.quiet)
    files, problems = _files(outcome, to.folder, perf_counter() - started, cold=how.cold)
    return finish(code, files, problems, quiet=to.quiet or to.as_json)


def _ready(spec: EngineSpec, asked: Trace, to: Output) -> Path | None:
    """Make sure that a history and a test can be written; return the file of the test, if one is
    asked for. Raises UsageError if not.
    """
    from cachewitness.sessions.run import store

    if to.recorded:
        store.ready(to.recorded, "--history")
    if to.exported:
        from cachewitness.cli import as_test

        return as_test.ready(spec, asked, to.output)
    if to.output:
        raise UsageError("--output: belongs to --export; give both or neither")
    return None


class _Outcome(NamedTuple):
    """The result of a replay."""

    spec: EngineSpec
    trace: Trace
    file: Path
    result: Result | None = None
    bad: str = ""
    command: str = ""
    test: Sequence[str] = ()


def _show(outcome: _Outcome, code: int, folder: Path | None, *, quiet: bool) -> None:
    from cachewitness.report import terminal
    from cachewitness.report.counterexample import witness
    from cachewitness.sessions.run.store import FAILURES

    result = outcome.result
    out = terminal.console()
    assert result is not None
    if not quiet:
        terminal.print_activity(result.activity, out)
        terminal.print_tallies(result.tallies, out)
    terminal.print_bad_events([outcome.bad] if outcome.bad else [], out)
    for finding in result.findings[:1]:
        terminal.print_lines([*witness(finding, outcome.trace, replay=outcome.command), ""], out)
        if not outcome.command:
            kept = (
                f"it is kept in {folder / FAILURES}"
                if folder
                else "to run it again, keep it in a file or name --report DIR"
            )
            terminal.print_lines([f"replay: the trace came on standard input; {kept}", ""], out)
    if outcome.test:
        terminal.print_lines([*outcome.test, ""], out)
    terminal.print_verdict(
        code, out, reasons=reasons(result), passed="no contradiction in this trace"
    )


def _print(outcome: _Outcome, *, exit_code: int, not_run: str = "") -> None:
    from cachewitness.cli import documents

    result = outcome.result
    judged = documents.Judged(
        file=str(outcome.file), engine=outcome.spec.text, exit_code=exit_code, not_run=not_run
    )
    if result is not None:
        judged.engine_version = result.history.header.engine_version
        judged.reasons = reasons(result)
        judged.findings = result.findings
        judged.checkers = result.tallies
        judged.activity = result.activity
        judged.bad_events = outcome.bad
        judged.replay = outcome.command
        judged.export = list(outcome.test)
    print_json(judged)


def _files(
    outcome: _Outcome, folder: Path | None, seconds: float, *, cold: bool
) -> tuple[dict[Path, bytes], list[str]]:
    """Return the files of the report with their content, and a line for each that could not be
    made.
    """
    from cachewitness.report import compared
    from cachewitness.report.one_trace import report_of

    if folder is None or outcome.result is None:
        return {}, []
    suite = compared.NAME if cold else "replay"
    report = report_of(
        outcome.result, outcome.trace, outcome.spec.text, suite, seconds=seconds, bad=outcome.bad
    )
    kept = keeper_of(outcome.spec, folder)
    for failure in report.failures:
        kept.take(failure, final=True)
    files, problems = files_of(
        report, kept.stored, [outcome.trace.header.layout.name], outcome.trace.header.policy, folder
    )
    return files, [*kept.problems, *problems]


def reasons(result: Result) -> list[str]:
    """Return why a judged trace failed, was not judged to the end, or shows nothing of what it
    is for; else nothing.
    """
    from cachewitness.core.checkers.finding import denied

    found = [finding.anomaly for finding in result.findings]
    if not found:
        open_ = [f"{tally.checker}: {tally.unjudged}" for tally in result.tallies if tally.unjudged]
        return open_ or denied(result.tallies) or list(filter(None, [result.activity.unexercised]))
    return [f"{found[0]}, the gravest of {len(found)} findings"] if len(found) > 1 else found


def _fits(spec: EngineSpec, asked: Trace, file: Path, *, differential: bool) -> None:
    from cachewitness._util.names import nearest
    from cachewitness.engines import policy as policy_registry

    header = asked.header
    kind = spec.kind
    if header.level == "answers" and differential:
        raise UsageError("--differential: no reference answers; leave it out")
    if header.level != "answers" and header.policy not in policy_registry.names():
        raise UsageError(
            f"{file}:1: no policy is called"
            f" {header.policy!r}{nearest(header.policy, policy_registry.names())}"
        )
    if header.level not in kind.levels:
        raise UsageError(
            f"{file}:1: the trace is for {header.level} level; engine {kind.name} runs at"
            f" {', '.join(kind.levels)}"
        )
    if header.policy and not kind.follows(header.policy):
        raise UsageError(
            f"{file}:1: the trace is for policy {header.policy!r}; engine {kind.name} follows"
            f" {', '.join(kind.policies or ())}"
        )
    if differential:
        from cachewitness.sessions.run.lockstep import incomparable

        if why := incomparable(spec, header.policy):
            raise UsageError(f"--differential: {why}")


def _described(spec: EngineSpec, asked: Trace, file: Path) -> Header:
    """Return what the engine says of itself for a trace.

    Raises UsageError, naming the file unless an option of the command is at fault, for a
    configuration that the engine refuses.
    """
    from cachewitness.core.driving import described

    try:
        engine = spec.open(asked.header)
        header = described(engine, asked.header)
        with suppress(Exception):  # running the trace will tell
            engine.close()
    except UsageError as error:
        raise UsageError(
            f"{error}" if str(error).startswith("--") else f"{file}:1: {error}"
        ) from None
    return header


def _missing(spec: EngineSpec, asked: Trace, header: Header) -> str:
    """Return why the engine cannot do what the trace needs; empty if it can."""
    for need in asked.header.needs:
        if need not in header.capabilities:
            return header.not_applicable.get(need, f"engine {spec.kind.name} cannot {need}")
    return ""


def _fitting(spec: EngineSpec, asked: Trace, header: Header, file: Path) -> Trace:
    """Return the trace; one at answers level without what the engine does not declare, as `run`
    has it, and that is told.

    Elsewhere a checker does not apply without it. An engine that was never told of salts would
    restore what it may not.
    """
    from cachewitness.workloads.capabilities import fitting, lacking

    missing = lacking(asked, header.capabilities) if header.level == "answers" else []
    for need in missing:
        why = header.not_applicable.get(need, f"engine {spec.kind.name} does not declare it")
        click.echo(one_line(f"cachewitness: {file}: left out: {need}: {why}"), err=True)
    return fitting(asked, header.capabilities) if missing else asked


def _smaller(asked: Trace, spec: EngineSpec, way: Way, anomaly: str) -> Trace:
    """Return a failing trace as small as it gets."""
    from cachewitness.sessions.run.judging import judged
    from cachewitness.workloads.shrink import shrink

    def fails(candidate: Trace) -> int:
        try:
            findings = judged(candidate, spec, way).result.findings
        except UsageError:
            return -1
        return next((finding.op for finding in findings if finding.anomaly == anomaly), -1)

    return shrink(asked, fails)


def _write_smaller(smaller: Trace, file: Path) -> Path:
    """Write a smaller trace beside the original, `.shrunk` in its name; one of standard input in
    this folder.
    """
    from cachewitness.core.trace_format import save

    name = "standard-input" if str(file) == STANDARD_INPUT else file.name.removesuffix(".jsonl")
    path = file.with_name(f"{name}.shrunk.jsonl")
    save(smaller, path)
    return path
