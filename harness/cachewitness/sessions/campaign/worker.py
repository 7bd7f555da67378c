"""Carries out one unit and returns what came of it: in a process that its driver started, or in a
task of a cluster.

A worker holds nothing and writes nothing but traces. It may be killed at any time: its unit is
carried out again.
"""

from __future__ import annotations

import os
import sys
from typing import IO

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness._util.workers import die_with_the_parent
from cachewitness.core.result import EXIT_USAGE
from cachewitness.sessions.campaign import unit as units
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.store import opened

READY = b"\n"
"""What a process writes once it is ready for a unit."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A unit to be carried out: its key, the unit as it is stored, the store of its traces, and the
    seconds that it may take.
    """

    key: str
    spec: bytes
    traces: str
    deadline: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a unit, as it is stored; or why it was not carried out here."""

    outcome: bytes = b""
    refused: str = ""


def carry_out(task: Task) -> Answer:
    """Carry out a unit.

    It is refused if this machine has another package or engine than the one that planned it, also
    if that was changed meanwhile, or if the store of traces cannot be used.
    """
    try:
        unit = units.read(task.spec, task.key)
        units.check_same(unit)
        outcome = perform(unit, opened(task.traces))
        units.check_same(unit, afresh=True)
    except UsageError as error:
        return Answer(refused=str(error))
    return Answer(outcome=units.stored(outcome, task.key))


def main() -> int:
    """Carry out the units of standard input, a line each, and answer each by a line on standard
    output, after one that says that it is ready; return the exit code.
    """
    parent = int(sys.argv[1])
    die_with_the_parent()
    if sys.platform.startswith("linux") and os.getppid() != parent:
        return EXIT_USAGE
    tasks = _own(0, "rb")
    answers = _own(1, "wb")
    answers.write(READY)
    answers.flush()
    for line in tasks:
        answer = carry_out(msgspec.json.decode(line, type=Task))
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()
    return 0


def _own(number: int, mode: str) -> IO[bytes]:
    """Return a standard stream that neither an engine nor what it starts reads or writes; in its
    place they have one that is empty.
    """
    kept = os.dup(number)
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, number)
    os.close(empty)
    os.register_at_fork(after_in_child=lambda: os.close(kept))
    return os.fdopen(kept, mode)
