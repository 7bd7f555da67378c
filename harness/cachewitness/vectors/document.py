"""What an engine answered to test vectors as one JSON document; `cachewitness schema consumed`
prints its schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import msgspec

from cachewitness._util.reading import STANDARD_INPUT
from cachewitness.core.driving import attempt
from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS, EXIT_UNKNOWN
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.summary import Stored
from cachewitness.sessions.run.store import keep_as
from cachewitness.vectors.consume import Consumed as Came
from cachewitness.vectors.consume import lived
from cachewitness.vectors.form import File, LifecycleVector

FORMAT, VERSION = "cachewitness.consumed", 1


class WrongAnswer(msgspec.Struct, kw_only=True):
    """A vector that was answered wrongly, and the bugs that it hunts; `stored` is where its
    trace was put, if it has one.
    """

    vector: str
    comment: str
    expected: str
    got: str
    hunts: list[str]
    stored: Stored | None = None


class ConsumedFile(msgspec.Struct, kw_only=True):
    """What came of a file of vectors, by class; `not_run` counts by reason, `differing` those
    that may differ and do.
    """

    file: str
    asked: dict[str, int]
    passed: dict[str, int]
    differing: int
    unknown: list[str]
    not_run: dict[str, int]
    failures: list[WrongAnswer]


class Consumed(msgspec.Struct, kw_only=True):
    """What an engine answered to files of vectors."""

    engine: str
    exit_code: int
    files: list[ConsumedFile]
    format: str = FORMAT
    version: int = VERSION


class AskedFile(NamedTuple):
    """A file of vectors that an engine was asked, and what came of it."""

    path: Path
    file: File
    came: Came


def document(asked: Iterable[AskedFile], engine: str) -> Consumed:
    """Return the document of files that an engine was asked."""
    files = [_entry(one) for one in asked]
    codes = {
        EXIT_FAIL: any(one.failures for one in files),
        EXIT_UNKNOWN: any(one.unknown for one in files),
        EXIT_NOTHING_CHECKED: not any(sum(one.asked.values()) for one in files),
    }
    return Consumed(
        engine=engine,
        exit_code=next((code for code, holds in codes.items() if holds), EXIT_PASS),
        files=files,
    )


def keep(
    whole: Consumed, asked: Iterable[AskedFile], spec: EngineSpec, folder: Path, most: int
) -> list[str]:
    """Run the traces of so many wrong answers again, keep them with their histories, and note in
    the document where.

    Returns why a trace or a history is not there, a line for each.
    """
    problems: list[str] = []
    for one, entry in zip(asked, whole.files, strict=True):
        command = f"cachewitness consume {quote(str(one.path))} {spec.arguments}"
        again = command if str(one.path) != STANDARD_INPUT else ""
        for failure, wrong in zip(one.came.failures, entry.failures, strict=True):
            vector = failure.vector
            if isinstance(vector, LifecycleVector) and most > 0:
                most -= 1
                small = Trace(vector.input.header, vector.input.ops)
                ran = partial(attempt, partial(lived, vector, spec))
                wrong.stored, problem = keep_as(
                    folder, f"{one.path.stem}-{vector.id}", small, ran, again
                )
                problems += [f"{vector.id}: {problem}"] if problem else []
    return problems


def _entry(asked: AskedFile) -> ConsumedFile:
    path, file, came = asked
    wrong = [
        WrongAnswer(
            vector=failure.vector.id,
            comment=failure.vector.comment,
            expected=failure.expected,
            got=failure.got,
            hunts=[f"{flag}: {file.flags[flag].bug}" for flag in failure.vector.flags],
        )
        for failure in came.failures
    ]
    return ConsumedFile(
        file=str(path),
        asked=dict(came.asked),
        passed=dict(came.passed),
        differing=came.differing,
        unknown=came.unknown,
        not_run=dict(came.not_run),
        failures=wrong,
    )
