"""The option `--json`, the same for every command."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cachewitness._util import output


def json_option(kind: str, several: str = "", otherwise: str = "") -> Callable[[Any], Any]:
    """Return the option, for a command that then prints a document of a kind of which there is a
    schema; of another of several, or where `otherwise` says.

    With it or without, what an engine prints in this process goes to standard error
    (`output.claim`).
    """
    other = f"; of several files `schema {several}`" if several else ""
    other += f"; {otherwise}" if otherwise else ""
    what = f"Print a JSON document (`schema {kind}`{other}), and nothing else, on standard output."

    def with_option(command: Callable[..., int]) -> Any:
        @click.option("--json", "as_json", is_flag=True, help=what)
        @wraps(command)
        def alone(*given: Any, **options: Any) -> int:
            output.claim()
            return command(*given, **options)

        return alone

    return with_option


def print_json(document: object) -> None:
    """Print a document on standard output."""
    from cachewitness._util.indented import indented

    output.echo(indented(document), nl=False)
