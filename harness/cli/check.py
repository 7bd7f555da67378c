"""`cachewitness check`: judges a recorded history without any engine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True, help="Print only the witness and the verdict.")
def check(file: Path, quiet: bool) -> int:
    """Judge a recorded history under every checker.

    The format is docs/formats.md; `schema history` prints its JSON schema.
    """
    from harness.cli.replay import exit_code, reasons
    from harness.history import validate
    from harness.run import execute
    from harness.verdict.report import terminal
    from harness.verdict.report.counterexample import witness_of_history

    header, events = validate.read(file)
    result = execute.judge(header, (event for _, event in events))
    out = terminal.console()
    if not quiet:
        version = f" ({header.engine_version})" if header.engine_version else ""
        click.echo(f"history of {header.engine}{version}, {result.activity.events:,} events\n")
        terminal.print_activity(result.activity, out)
        terminal.print_tallies(result.tallies, out)
    for finding in result.findings[:1]:
        terminal.print_lines([*witness_of_history(finding, validate.read(file)[1], str(file)), ""], out)
    code = exit_code(result)
    terminal.print_verdict(code, out, reasons=reasons(result), passed="no contradiction in this history")
    return code
