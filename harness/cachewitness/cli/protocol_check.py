"""`cachewitness protocol-check`: whether a program speaks docs/reference/protocol.md."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import shortened
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import deadline_option

if TYPE_CHECKING:
    from cachewitness.engines.isolation.protocol_check import Problem, Rehearsal

SHOWN, WRONG = 400, 2000
"""Characters of a line that a problem repeats, and of what is wrong with it."""


@click.command("protocol-check")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
@deadline_option(
    10.0, "How long the program may take for an answer; to start and to open, six times that."
)
@json_option("rehearsed")
def protocol_check(command: tuple[str, ...], deadline: float, as_json: bool) -> int:
    """Ask a program every question of the protocol once, and say what it answers wrongly.

    Exit code 0 if it speaks the protocol, 4 if not. Nothing is said of the engine behind it: that
    is for `run` to judge.
    """
    from cachewitness.core.checkers.wording import count
    from cachewitness.core.result import EXIT_USAGE
    from cachewitness.engines.isolation.engine import Isolation
    from cachewitness.engines.isolation.protocol_check import rehearse
    from cachewitness.report import terminal

    if not command:
        raise UsageError(
            "protocol-check: name the program: cachewitness protocol-check -- ./driver"
        )
    report = rehearse(command, Isolation(deadline=deadline, opening=6 * deadline, command=command))
    code = EXIT_USAGE if report.problems else 0
    if as_json:
        _print(command, report, code)
        return code
    out = terminal.console()
    for part, messages in report.messages.items():
        wrong = any(problem.part == part for problem in report.problems)
        terminal.print_lines(
            [f"{'WRONG' if wrong else 'ok':5}  {part}: {count(messages, 'answer')}"], out
        )
    for problem in report.problems:
        terminal.print_lines(["", *_lines(problem)], out)
    terminal.print_lines(["", *_verdict(report, shlex.join(command))], out)
    return code


def _print(command: tuple[str, ...], report: Rehearsal, code: int) -> None:
    from cachewitness.cli import documents

    problems = [documents.Problem(**problem._asdict()) for problem in report.problems]
    print_json(
        documents.Rehearsed(
            command=list(command),
            exit_code=code,
            answers=report.messages,
            problems=problems,
            not_asked=report.not_asked,
            levels=list(report.levels),
        )
    )


def _lines(problem: Problem) -> list[str]:
    """Return a problem in lines: what was asked, what came, what is wrong with it, and where to
    read on.
    """
    went = [
        f"  {name:8}  {shortened(line, SHOWN)}"
        for name, line in (("asked", problem.asked), ("came", problem.came))
        if line
    ]
    return [
        f"WRONG  {problem.part}",
        *went,
        f"  but       {shortened(problem.wrong, WRONG)}",
        f"  read      {problem.section}",
    ]


def _verdict(report: Rehearsal, command: str) -> list[str]:
    from cachewitness.core.checkers.wording import count

    asked = count(sum(report.messages.values()), "answer")
    if report.problems:
        what = count(len(report.problems), "problem")
        return [
            f"protocol-check: {what} in {asked} (exit code 4); what comes behind a problem was not"
            " asked"
        ]
    left = (
        [f"not asked, as it is not among its capabilities: {', '.join(report.not_asked)}"]
        if report.not_asked
        else []
    )
    at = " and ".join(report.levels)
    return [
        *left,
        f"protocol-check: it speaks the protocol at {at} level, {asked} (exit code 0)",
        (
            "Nothing was judged of its cache: cachewitness run --engine"
            f" {shlex.quote(f'jsonl:command={command}')}"
        ),
    ]
