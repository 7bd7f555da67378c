"""`cachewitness explain`: what an anomaly is, by an example; or what is wrong with a trace or a
history, as a small picture.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cachewitness._util.errors import UsageError
from cachewitness.cli import completion
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.one_file import OneFile
from cachewitness.cli.options import engine_of, engine_option, isolation_options

if TYPE_CHECKING:
    from cachewitness.cli.options import Isolate
    from cachewitness.core.result import Result
    from cachewitness.engines.mutant import Mutant

REFERENCE = "reference"
FAULTS_SHOWN = 6
"""Faults of a kind that are listed; of more, the number is told."""


@click.command(cls=OneFile)
@click.argument("what", metavar="ANOMALY|FILE", shell_complete=completion.of("anomalies"))
@engine_option
@isolation_options
@json_option("explained")
def explain(what: str, engine: str, isolate: Isolate, as_json: bool) -> int:
    """Explain an anomaly by an example, or draw what is wrong with a trace or a history.

    ANOMALY is a name (`ls anomalies`). FILE is a trace, which is run on --engine, or a history; the
    block tables are shown, and the life of the page at fault with the cause marked. The exit code
    is 0 whatever is found: `replay` and `check` judge.
    """
    from cachewitness._util import reading
    from cachewitness.cli import documents
    from cachewitness.core.checkers.anomalies import BY_NAME
    from cachewitness.report import terminal

    if what in BY_NAME:
        lines = _anomaly(what)
        document = documents.Explained(anomaly=what)
    elif what == reading.STANDARD_INPUT or os.path.lexists(what):
        result = _judged(Path(what), engine, isolate)
        lines = _shown(result)
        document = documents.Explained(finding=next(iter(result.findings), None))
    else:
        from cachewitness._util.names import nearest

        raise UsageError(
            f"explain: {what!r} is no anomaly and no file{nearest(what, list(BY_NAME))}"
        )
    if not as_json:
        terminal.print_lines(lines, terminal.console())
        return 0
    document.picture = lines
    if document.finding:
        document.anomaly = document.finding.anomaly
    known = BY_NAME.get(document.anomaly)
    document.invariant, document.implies = (known.invariant, known.implies) if known else ("", "")
    print_json(document)
    return 0


def _judged(path: Path, engine: str, isolate: Isolate) -> Result:
    """Judge a history, or run a trace on an engine."""
    from msgspec.structs import replace

    from cachewitness._util import jsonl
    from cachewitness.core import events as history
    from cachewitness.core import validate
    from cachewitness.core.driving import judge
    from cachewitness.sessions.run.judging import explained

    if history.FORMAT.encode() in next(jsonl.lines(path), b""):
        header, read = validate.events(path)
        events = [*read]
        return replace(judge(header, iter(events)), history=history.History(header, events))
    trace = validate.load_trace(path)
    return explained(trace, engine_of(engine, isolate=isolate)).result


def _shown(result: Result) -> list[str]:
    """Return what was found in a result, the moment of it, and what it is an example of."""
    from cachewitness.cli.replay import reasons
    from cachewitness.report.counterexample import wrapped

    if not result.findings and result.outcome == "unknown":
        return wrapped(f"it was not judged to the end: {'; '.join(reasons(result))}")
    if not result.findings:
        return ["nothing is wrong with it: no checker finds a contradiction"]
    return [*_found(result), "", *_rule(result.findings[0].anomaly)]


def _found(result: Result) -> list[str]:
    """Return the operations, the finding, and the block tables of its moment."""
    from cachewitness.report.counterexample import compact, marked, wrapped
    from cachewitness.report.html.frames import film
    from cachewitness.report.html.lives import lives
    from cachewitness.report.html.text import life, moment

    finding = result.findings[0]
    header = result.history.header
    events = result.history.events
    operations = [compact(op) for op in result.trace.ops] if result.trace else []
    listed = [*marked(operations, finding.op), ""] if operations else []
    return [
        *listed,
        *wrapped(finding.line),
        *wrapped(finding.sentence),
        "",
        *moment(film(header, events, finding)),
        *(line for one in lives(header, events, finding) for line in ("", *life(one))),
    ]


def _rule(anomaly: str) -> list[str]:
    from cachewitness.core.checkers.anomalies import BY_NAME
    from cachewitness.report.counterexample import wrapped

    known = BY_NAME[anomaly]
    return [
        anomaly,
        *wrapped(f"the rule: {known.invariant}", "  "),
        *wrapped(f"what it implies: {known.implies}", "  "),
    ]


def _anomaly(name: str) -> list[str]:
    """Return the rule, the lawful look-alikes, the real bugs of the kind, and the smallest
    example that fails here and now.
    """
    from cachewitness._util import data
    from cachewitness.engines.faults import all_mutants
    from cachewitness.report.counterexample import wrapped
    from cachewitness.workloads import anomaly_examples

    faults = [mutant for mutant in all_mutants().values() if mutant.anomaly == name]
    lines = [
        *_rule(name),
        f"  reported by: {anomaly_examples.reported_by(name)}",
        "",
        *_look_alikes(name),
    ]
    if missing := data.faults_missing("further examples"):
        lines += [*wrapped(str(missing), ""), ""]
    if faults:
        lines += ["seeded faults of this kind, and the public bugs that they mirror:"]
        lines += [f"  {mutant.name}: {mutant.mirrors}" for mutant in faults[:FAULTS_SHOWN]]
        lines += [f"  … and {len(faults) - FAULTS_SHOWN} more (`ls mutants`)"] * (
            len(faults) > FAULTS_SHOWN
        )
        lines += ["", *_example(faults)]
    return [*lines, f"more: docs/reference/anomalies.md#{name}"]


def _look_alikes(name: str) -> list[str]:
    """Return what is lawful although it looks like it; a wheel has no stories."""
    from cachewitness.report.counterexample import wrapped
    from cachewitness.workloads import anomaly_examples

    stories = [story.legal for story in anomaly_examples.load() if story.anomaly == name]
    lines = [line for legal in stories for line in wrapped(f"- {legal}", "  ")]
    return ["lawful, although it looks like it:", *lines, ""] if lines else []


def _example(faults: list[Mutant]) -> list[str]:
    """Return the shortest stored trace of a fault that runs without tensors, as it fails on the
    engine with the fault.
    """
    from cachewitness.core import trace_format as traces
    from cachewitness.core.driving import drive
    from cachewitness.engines.registry import parse
    from cachewitness.sessions.mutants.minimal_trace import path_of

    stored = {
        mutant.name: traces.load(path_of(mutant)) for mutant in faults if path_of(mutant).exists()
    }
    able = [mutant for mutant in faults if mutant.name in stored and mutant.engine == REFERENCE]
    for mutant in sorted(able, key=lambda mutant: len(stored[mutant.name].ops)):
        trace = stored[mutant.name]
        result = drive(trace, parse(f"{REFERENCE}:mutant={mutant.name}").open(trace.header))
        if any(finding.anomaly == mutant.anomaly for finding in result.findings[:1]):
            return [f"an example, by the fault {mutant.name}:", "", *_found(result), ""]
    return []
