"""`cachewitness completion`: what a shell completes of a command line, and the script that
teaches it to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

VARIABLE = "_CACHEWITNESS_COMPLETE"
"""What a shell's script sets when it asks for completions."""
PROGRAM = "cachewitness"
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def of(kind: str) -> Completer:
    """Return what completes a name of a kind that `cachewitness ls` lists."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [item for item in _items(kind) if item.value.startswith(incomplete)]

    return complete


def engine(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete an engine: its name, its options behind a colon, and the name of a fault behind
    `mutant=`.
    """
    name, colon, rest = incomplete.partition(":")
    if not colon:
        return of("engines")(context, parameter, incomplete)
    before, comma, last = rest.rpartition(",")
    key, equals, _ = last.partition("=")
    front = f"{name}:{before}{comma}"
    if not equals:
        options: dict[str, str] = next(
            (row["options"] for row in _rows("engines") if row["name"] == name), {}
        )
        found = [
            CompletionItem(f"{front}{option}=", help=meaning) for option, meaning in options.items()
        ]
    elif key == "mutant":
        faults = [row for row in _rows("mutants") if name in row["engines"]]
        found = [
            CompletionItem(f"{front}{key}={row['name']}", help=row["summary"]) for row in faults
        ]
    else:
        found = []
    return [item for item in found if item.value.startswith(incomplete)]


def _rows(kind: str) -> list[dict[str, Any]]:
    from cachewitness.cli.ls import KINDS

    return KINDS[kind][0]()


def _items(kind: str) -> list[CompletionItem]:
    field = {"layouts": "story", "anomalies": "invariant"}.get(kind, "summary")
    return [CompletionItem(row["name"], help=" ".join(row[field].split())) for row in _rows(kind)]


def answered(group: click.Group) -> int | None:
    """Print completions if a shell asks for them, and return its exit code; None if none asks."""
    if (asked := os.environ.get(VARIABLE)) is None:
        return None
    return shell_complete(group, {}, PROGRAM, VARIABLE, asked)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that has a shell complete commands, options, engines, layouts, suites and
    faults.
    """
    made = get_completion_class(shell)
    root = context.find_root().command
    assert made is not None
    click.echo(made(root, {}, PROGRAM, VARIABLE).source())
