"""`cachewitness doctor`: which engines can run here, and what would make the others run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cachewitness._util import output
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import deadline_option, engines_option, interpreter_of

if TYPE_CHECKING:
    from cachewitness.engines.doctor import Document, Engine

SHOWN = {
    "runs": "runs",
    "missing": "missing",
    "broken": "broken",
    "refuses": "refuses",
    "program": "yours",
}


@click.command()
@click.argument("engine", nargs=-1, metavar="[NAME[:KEY=VALUE,…]]…")
@engines_option
@deadline_option(120.0, "How long an engine may take to be imported and opened.")
@json_option("doctor")
def doctor(engine: tuple[str, ...], engines: str, deadline: float, as_json: bool) -> int:
    """Start each engine in a process of its own, open it for a trace, and say what is missing.

    ENGINE, with its options: these alone. Exit code 4 if one that is named does not run; without
    names 0, whatever runs.
    """
    from cachewitness.core.result import EXIT_USAGE
    from cachewitness.engines.doctor import document, examine
    from cachewitness.engines.interpreters import file_of
    from cachewitness.engines.registry import EngineSpec, kinds, parse

    asked = [parse(text) for text in dict.fromkeys(engine)] or [
        EngineSpec(kind, {}, name) for name, kind in kinds().items()
    ]
    found = document(
        [examine(spec, interpreter_of(spec, engines), deadline) for spec in asked],
        file_of(engines),
    )
    if as_json:
        print_json(found)
    else:
        output.echo("\n".join(_shown(found)))
    ill = [one.name for one in found.engines if one.state not in ("runs", "program")]
    return EXIT_USAGE if engine and ill else 0


def _shown(found: Document) -> list[str]:
    """Return what was found: a line for each engine, and below it what is wrong and what mends
    it.
    """
    file = f"; other Pythons are named by {found.engines_file}" if found.engines_file else ""
    width = max(len(engine.name) for engine in found.engines)
    lines = [f"cachewitness {found.cachewitness} in {found.python}{file}", ""]
    for engine in found.engines:
        lines.append(
            f"{engine.name:{width}}  {SHOWN[engine.state]:8}{_lines(engine, found.python)}".rstrip()
        )
        lines += [f"{'':{width}}  {'':8}{what}" for what in _below(engine)]
    if found.withheld:
        kept = f"no engine's process gets, for they look like secrets: {', '.join(found.withheld)}"
        lines += ["", f"{kept}; to pass some on: CACHEWITNESS_PASS=NAME,…"]
    return lines


def _lines(engine: Engine, python: str) -> str:
    parts = [f"version {engine.version}"] if engine.version else []
    parts += (
        [f"{'' if engine.fits is not False else 'NOT '}written for {engine.written_for}"]
        if engine.written_for
        else []
    )
    parts += [f"in {engine.interpreter}"] if engine.interpreter != python else []
    parts += [engine.summary] if engine.state == "program" else []
    return ", ".join(parts)


def _below(engine: Engine) -> list[str]:
    lines = [engine.why] if engine.why else []
    if engine.fits is False:
        lines.append(
            f"what it is asked may have changed since {engine.written_for}; a run says so where it"
            " meets that"
        )
    return lines + (
        [f"{'asked by' if engine.state == 'program' else 'to mend'}: {engine.mend}"]
        if engine.mend
        else []
    )
