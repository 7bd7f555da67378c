"""Tasks of lm-eval's own that `score` is asked for, and its traps as lines of warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachewitness.parity.scores.named_task import NamedTask


def is_named(options: dict[str, Any]) -> bool:
    """Return whether a task of lm-eval's is asked. Raises UsageError for options that do not fit
    one.
    """
    from cachewitness._util.errors import UsageError
    from cachewitness.parity.scores.named_task import OURS

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
        random_shots=options["random_shots"],
        source=str(data or "hub"),
    )


def generating(options: dict[str, Any]) -> NamedTask:
    """Return the task that `score` asks for answers, after a warning for each trap that lm-eval
    would be in by itself on the server, if one is asked and tokenizes.

    Raises UsageError if its answers are chosen, not generated.
    """
    from cachewitness._util.errors import UsageError
    from cachewitness.parity.scores.named_task import GENERATED

    task = load_named(options, 1, options["limit"] or 0)
    if task.kind != GENERATED:
        raise UsageError(
            f"--task {task.name}: of kind {task.kind}, which chooses by likelihoods, and lm-eval's"
            " way to ask for these does not read a cache; add --likelihood"
        )
    if options["max_tokens"]:
        task.shorten(options["max_tokens"])
    if options["base_url"]:
        _warn_of_server(task, options)
    return task


def _warn_of_server(task: NamedTask, options: dict[str, Any]) -> None:
    from functools import cache

    from cachewitness._util.errors import UsageError
    from cachewitness.parity.likelihood.asking import Served
    from cachewitness.parity.scores.remote import key_of
    from cachewitness.parity.scores.traps import traps_of

    chosen = (options["model"], "--base-url", options["timeout"], key_of(options["key"]))
    server = Served.at(options["base_url"], *chosen)
    urls = [server.url, *filter(None, [options["cold_url"]])]
    try:
        server.tokens(task.name)
    except UsageError:
        warn(traps_of(task, None, urls, server.key))
    else:
        warn(traps_of(task, cache(server.tokens), urls, server.key))


def warn(lines: Sequence[str]) -> None:
    """Print a line for each trap."""
    for line in lines:
        click.echo(f"warning: lm-eval by itself: {line}", err=True)
