"""What `check` makes of a judged history: its exit code, the reasons of it, and the document of
`--json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cachewitness._util.collecting import seldom_collected
from cachewitness._util.errors import UsageError
from cachewitness.cli.replay import reasons
from cachewitness.core import driving, validate
from cachewitness.core import result as verdicts
from cachewitness.core.checkers.finding import denied
from cachewitness.report import terminal
from cachewitness.report.counterexample import witness_of_history

if TYPE_CHECKING:
    from rich.console import Console

    from cachewitness.cli.documents import Judged
    from cachewitness.core.checkers.finding import Finding
    from cachewitness.core.events import Event
    from cachewitness.core.result import Result
    from cachewitness.report.expected import Entry, Expectations


class Weighed(NamedTuple):
    """The verdict on a history by the list of expected failures: its exit code alone, and the
    reasons of it.

    `finding` is what is reported, `entry` what excuses it. `bad` says where the history cannot be
    read or followed, if it shows nothing until then; there is no `result` if it could not be judged
    at all.
    """

    file: Path
    result: Result | None
    code: int
    reasons: list[str]
    finding: Finding | None = None
    entry: Entry | None = None
    bad: str = ""

    def document(self) -> Judged:
        """Return what is printed with --json."""
        from cachewitness.cli.documents import Judged

        result = self.result
        if result is None or self.bad:
            return Judged(
                file=str(self.file),
                engine="",
                exit_code=self.code,
                reasons=self.reasons,
                bad_events=self.bad,
            )
        return Judged(
            file=str(self.file),
            engine=result.history.header.engine,
            engine_version=result.history.header.engine_version,
            exit_code=self.code,
            reasons=self.reasons,
            findings=result.findings,
            checkers=result.tallies,
            activity=result.activity,
            expected=self.entry.reason if self.entry else "",
        )


def judged(file: Path) -> tuple[Result | None, str]:
    """Judge a stored history; return the result, and where it cannot be read or followed any
    further, in one line.

    There is no result if there is no header that makes sense.
    """
    try:
        header, events = validate.events(file)
        with seldom_collected():
            return driving.judge(header, events), ""
    except driving.Stopped as stopped:
        return stopped.result, str(stopped)
    except UsageError as problem:
        return None, str(problem)


def weighed(file: Path, result: Result | None, bad: str, known: Expectations) -> Weighed:
    """Compare the findings of a history with the list. What breaks off and shows nothing new before
    it does is no verdict.
    """
    findings = result.findings if result is not None else []
    engine = result.history.header.engine if result is not None else ""
    name = f"check:{file.name}@{engine}"
    known.admit(name, result.tallies if result is not None else [])
    finding, entry = known.weigh(name, findings) or (None, None)
    if result is None or (bad and (finding is None or entry is not None)):
        return Weighed(file, result, verdicts.EXIT_USAGE, [], bad=bad)
    if entry is None:
        lines = reasons(result) + ([f"the rest was not judged: {bad}"] if bad else [])
        return Weighed(file, result, verdicts.exit_code(result), lines, finding)
    unjudged = any(tally.unjudged for tally in result.tallies)
    lines = [f"nothing else found; 1 expected finding, listed as {entry.anomaly} ({entry.reason})"]
    not_judged = denied(result.tallies)
    code = verdicts.EXIT_NOTHING_CHECKED if not_judged else verdicts.EXIT_PASS
    return Weighed(
        file,
        result,
        verdicts.EXIT_UNKNOWN if unjudged else code,
        lines + not_judged,
        finding,
        entry,
    )


def with_list(code: int, lines: list[str], known: Expectations) -> tuple[int, list[str]]:
    """Return the exit code and its reasons; where nothing was found, a list that is out of date
    is one.
    """
    if known.broken and code in (
        verdicts.EXIT_PASS,
        verdicts.EXIT_UNKNOWN,
        verdicts.EXIT_NOTHING_CHECKED,
    ):
        return verdicts.EXIT_USAGE, ["the list of expected failures is out of date", *known.broken]
    return code, lines


def print_witness(one: Weighed, out: Console) -> None:
    """Print the witness of what is reported of a history."""
    assert one.finding is not None
    terminal.print_lines(
        [*witness_of_history(one.finding, events_of(one.file), str(one.file)), ""], out
    )


def events_of(file: Path) -> Iterator[tuple[int, Event]]:
    """Yield the events of a stored history with their lines, as far as it can be followed; none
    of a pipe: it is read once.
    """
    with suppress(UsageError):
        yield from () if file.is_fifo() else validate.read(file)[1]
