"""The option `--json`, the same for every command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def json_option(kind: str) -> Callable[[Any], Any]:
    """Return the option, for a command that then prints a document of a kind of which there is a schema."""
    what = f"Print a JSON document (`schema {kind}`), and nothing else, on standard output."
    return click.option("--json", "as_json", is_flag=True, help=what)


def print_json(document: object) -> None:
    """Print a document on standard output."""
    from harness._util.indented import indented

    click.echo(indented(document), nl=False)
