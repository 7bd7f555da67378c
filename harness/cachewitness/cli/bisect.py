"""`cachewitness bisect`: the commit of a fork since which a trace fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cachewitness._util import output
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import printable
from cachewitness.cli import completion
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.one_file import OneFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachewitness.sessions.bisect.search import Document

_PATH = click.Path(path_type=Path)


@click.command(cls=OneFile)
@click.option(
    "--trace",
    required=True,
    type=_PATH,
    metavar="FILE",
    help="The trace that fails, as kept: ….trace.jsonl, the shrunk one.",
)
@click.option(
    "--engine",
    required=True,
    shell_complete=completion.engine,
    metavar="NAME[:KEY=VALUE,…]",
    help="The engine, with {source} where the path of the checkout belongs: vllm:source={source}.",
)
@click.option("--good", required=True, metavar="REV", help="A revision at which it passes.")
@click.option("--bad", required=True, metavar="REV", help="A later one at which it fails.")
@click.option(
    "--repo",
    type=_PATH,
    default=Path(),
    metavar="DIR",
    help="The repository of the fork; default: this folder.",
)
@click.option(
    "--build",
    default="",
    metavar="COMMAND",
    help="A shell command that is run in each checkout first; where it fails, a commit is skipped.",
)
@click.option("--differential", is_flag=True, help="Replay beside the reference, as `replay` does.")
@click.option("--cold", is_flag=True, help="Compare with cold runs, as `replay` does.")
@json_option("bisection")
def bisect(
    trace: Path,
    engine: str,
    good: str,
    bad: str,
    repo: Path,
    build: str,
    differential: bool,
    cold: bool,
    as_json: bool,
) -> int:
    """Find the commit of a fork since which a trace fails, by `git bisect run`.

    Commits are checked out in a temporary work tree; the checkout of the user stays as it is. A
    commit is bad if the trace fails there with the anomaly that it has at --bad, and is skipped if
    the engine cannot be imported, or fails with something else. Exit code 0: the first bad commit
    is found; 5: it is among commits that had to be skipped. A line for each commit is printed on
    standard error as it is tested, and what is found on standard output.
    """
    from cachewitness.core import validate
    from cachewitness.sessions.bisect.search import search
    from cachewitness.sessions.bisect.step import SOURCE, Settings

    if SOURCE not in engine and not build:
        raise UsageError(
            f"--engine: names no {SOURCE}, and nothing is built, so that every commit would be the"
            " same engine"
        )
    validate.load_trace(trace)
    options = ["--differential"] * differential + ["--cold"] * cold
    settings = Settings(
        trace=str(trace.resolve()), engine=engine, options=options, build=build, anomaly="", log=""
    )
    found = search(settings, repo, good, bad)
    if as_json:
        print_json(found)
    else:
        output.echo("\n".join(map(printable, _lines(found))))
    return found.exit_code


def _lines(found: Document) -> Iterator[str]:
    skipped = sum(one.outcome == "skip" for one in found.tested)
    yield f"{len(found.tested)} commits tested, {skipped} of them skipped"
    if found.first_bad is None:
        yield f"the first bad commit is one of {len(found.candidates)}, since others say nothing:"
        for one in found.candidates:
            yield f"  {one.commit} {one.subject}" + (f": {one.why}" if one.why else "")
        return
    yield f"first bad commit: {found.first_bad.commit} {found.first_bad.subject}"
    yield f"  {found.first_bad.anomaly}: {found.first_bad.line}"
