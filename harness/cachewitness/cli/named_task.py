"""Tasks of lm-eval's own that `score` is asked for, and its traps as lines of warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachewitness.parity.scores.named_task import NamedTask

OURS = ("problems", "gsm8k")


def is_named(options: dict[str, Any]) -> bool:
    """Return whether a task of lm-eval's is asked. Raises UsageError for options that do not fit
    one.
    """
    from cachewitness._util.errors import UsageError

    name = options["task"]
    if options["data"] and not name:
        raise UsageError("--data: belongs to a task of lm-eval's; name it, --task NAME")
    named = bool(name) and (name not in OURS or bool(options["data"]))
    if named and (options["gsm8k"] or options["shots_from"]):
        raise UsageError(
            f"--gsm8k, --shots-from: task {name} has its documents from --data, or from where"
            " lm-eval has them"
        )
    return named


def load_named(options: dict[str, Any], prefixes: int, limit: int) -> NamedTask:
    """Return the task, with so many prefixes and documents. Raises UsageError if it cannot be
    had, EngineMissing without lm-eval.
    """
    from cachewitness.parity.scores import named_task, offline

    data = options["data"]
    offline.prepare(online=data is None, client=True)
    return named_task.NamedTask(
        named_task.load(options["task"], data),
        shots=options["shots"],
        prefixes=prefixes,
        limit=limit,
        source=str(data or "hub"),
    )


def warn(lines: Sequence[str]) -> None:
    """Print a line for each trap."""
    for line in lines:
        click.echo(f"warning: lm-eval by itself: {line}", err=True)
