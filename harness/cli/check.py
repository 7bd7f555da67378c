"""`cachewitness check`: a history that somebody recorded, judged without any engine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True, help="Print the witness and the verdict alone.")
def check(file: Path, quiet: bool) -> int:
    """Judge a recorded history under every checker.

    The format is docs/formats.md; `schema history` prints its JSON schema.
    """
    from harness import execute, validate
    from harness.cli.replay import exit_code, reasons
    from harness.report import terminal
    from harness.report.witness import witness_of_history

    happened, line_of = validate.load(file)
    result = execute.check(happened)
    out = terminal.console()
    if not quiet:
        header = happened.header
        version = f" ({header.engine_version})" if header.engine_version else ""
        click.echo(f"history of {header.engine}{version}, {len(happened.events):,} events\n")
        terminal.print_activity(result.activity, out)
        terminal.print_tallies(result.tallies, out)
    for finding in result.findings[:1]:
        terminal.print_lines([*witness_of_history(finding, happened, line_of, str(file)), ""], out)
    code = exit_code(result)
    terminal.print_verdict(code, out, reasons=reasons(result), passed="no contradiction in this history")
    return code
