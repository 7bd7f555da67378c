"""`cachewitness check --events`: judges a recording of an engine's events for routers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cachewitness._util import output
from cachewitness._util.lines import printable
from cachewitness.cli.json_option import print_json
from cachewitness.core import result as verdicts
from cachewitness.core.recorded_events import RecordedEvents
from cachewitness.engines import event_recording
from cachewitness.report import terminal

if TYPE_CHECKING:
    from cachewitness.report.expected import Expectations

ENGINE = "events"
"""What stands for the engine in the id of a recording."""
SHOWN = 10
"""How many findings are printed."""


def check_events(file: Path, known: Expectations, *, once: bool, quiet: bool, as_json: bool) -> int:
    """Judge a recording, print what was found, and return the exit code."""
    recorded = RecordedEvents(once=once)
    recorded.take(event_recording.read(file))
    tally = recorded.tally()
    finding, entry = known.weigh(f"check:{file.name}@{ENGINE}", recorded.findings) or (None, None)
    if finding is not None and entry is None:
        code = verdicts.EXIT_FAIL
    else:
        code = verdicts.EXIT_PASS if tally.opportunities else verdicts.EXIT_NOTHING_CHECKED
    reasons = _reasons(recorded, finding is not None, entry.reason if entry else "")
    if as_json:
        from cachewitness.cli.documents import Judged

        print_json(
            Judged(
                file=str(file),
                engine=ENGINE,
                exit_code=code,
                reasons=reasons,
                findings=recorded.findings,
                checkers=[tally],
                expected=entry.reason if entry else "",
            )
        )
        return code
    out = terminal.console()
    if not quiet:
        output.echo(f"recording of {recorded.messages:,} messages, {recorded.events:,} events\n")
        terminal.print_tallies([tally], out)
        for note in recorded.notes():
            output.echo(printable(note))
    if finding is not None and entry is None:
        lines = [f"FAIL  {one.anomaly}: {one.line}" for one in recorded.findings[:SHOWN]]
        terminal.print_lines(["", *lines, "", finding.sentence, ""], out)
    passed = "nothing in these events contradicts another; whether they are all is not seen here"
    terminal.print_verdict(code, out, reasons=reasons, passed=passed)
    return code


def _reasons(recorded: RecordedEvents, found: bool, expected: str) -> list[str]:
    if expected:
        return [f"nothing else found; listed as expected ({expected})"]
    if found:
        kinds = sorted({finding.anomaly for finding in recorded.findings})
        return [f"{', '.join(kinds)}; {len(recorded.findings)} in all"]
    return [] if recorded.events else ["the recording has no event"]
