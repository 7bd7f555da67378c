"""`cachewitness check` of several histories: each is judged by itself, some at a time, and told as it is done."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness._util import output, workers
from harness._util.crew import Crew, Task, WorkerDied
from harness._util.errors import UsageError
from harness._util.lines import printable
from harness._util.reading import STANDARD_INPUT
from harness.cli import documents
from harness.cli.json_option import print_json
from harness.cli.judged_history import cut_off, document, events_of, judged, verdict, with_list
from harness.verdict.result import (
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    EXIT_USAGE,
)

if TYPE_CHECKING:
    from harness.checkers.finding import Finding
    from harness.verdict.expected import Expectations
    from harness.verdict.result import Result

WORST_FIRST = (EXIT_INTERNAL, EXIT_FAIL, EXIT_USAGE, EXIT_UNKNOWN, EXIT_NOTHING_CHECKED)
"""A finding stands whatever else is open; of the others, what has cleared least comes first."""
Judgement = tuple["Result | None", str]
"""What came of a file: the result, None if there is none, and one line if it cannot be read or followed to its end."""
SHOWN = 3
"""How many witnesses are printed, the first of each anomaly."""
WORDS = {
    EXIT_INTERNAL: "are judged in two ways by the harness",
    EXIT_FAIL: "contradict a rule",
    EXIT_USAGE: "cannot be read or followed",
    EXIT_UNKNOWN: "were not judged to the end",
    EXIT_NOTHING_CHECKED: "have nothing to judge",
}


class One(NamedTuple):
    """What came of one history: `code` is its own exit code, `excused` the reason of the list for its finding."""

    file: Path
    judged: documents.Judged
    finding: Finding | None
    excused: str

    @property
    def code(self) -> int:
        """Return the exit code of this history alone."""
        return self.judged.exit_code


def check_several(files: Sequence[Path], known: Expectations, jobs: int | None, *, quiet: bool, as_json: bool) -> int:
    """Judge histories, print a line of each when it is done, witnesses and the verdict, and return the exit code.

    One that cannot be read or followed does not keep the others from being judged.
    """
    done: list[One] = []
    interrupted = False
    try:
        for one in _judged(files, known, jobs or workers.cores()):
            done.append(one)
            if not as_json and (not quiet or one.code != EXIT_PASS):
                output.echo(printable(_line(one)))
    except KeyboardInterrupt:
        interrupted = True
    code, told = _verdict(done, known)
    if interrupted:
        so_far = "; ".join(told) or "nothing found"
        code, told = EXIT_INTERRUPTED, [f"stopped after {len(done)} of {len(files)} histories", f"until then {so_far}"]
    if as_json:
        print_json(documents.Checked(exit_code=code, reasons=told, histories=[one.judged for one in done]))
    else:
        _print(done, code, told, quiet=quiet)
    return code


def _judged(files: Sequence[Path], known: Expectations, jobs: int) -> Iterator[One]:
    """Yield what comes of each file, in their order, however many are judged at a time."""
    if any(str(file) == STANDARD_INPUT for file in files):
        raise UsageError(f"{STANDARD_INPUT}: is one history, and cannot be judged beside others; name it alone, or name files")
    with Crew(min(jobs, len(files)), judge_file) as crew:
        waiting: deque[tuple[Path, Task[Path, Judgement]]] = deque()
        rest = iter(files)
        while True:
            while len(waiting) < crew.ahead and (file := next(rest, None)) is not None:
                waiting.append((file, crew.submit(file)))
            if not waiting:
                return
            file, task = waiting.popleft()
            try:
                yield _weighed(file, task.result(), known)
            except WorkerDied as died:
                reason = f"{file}: {died}"
                yield One(file, documents.Judged(file=str(file), engine="", exit_code=EXIT_UNKNOWN, reasons=[reason]), None, "")


def judge_file(file: Path) -> Judgement:
    """Judge a stored history."""
    try:
        _, result, bad = judged(file)
    except UsageError as problem:
        return None, str(problem)
    return result, bad


def _weighed(file: Path, judgement: Judgement, known: Expectations) -> One:
    result, bad = judgement
    found = None
    if result is not None:
        engine = result.history.header.engine
        found = known.weigh(f"check:{file.name}@{engine}", result.findings)
    finding, entry = found or (None, None)
    if result is None or (bad and (finding is None or entry is not None)):
        return One(file, documents.Judged(file=str(file), engine="", exit_code=EXIT_USAGE, bad_events=bad), None, "")
    code, told = verdict(result, entry)
    told += [cut_off(bad)] if bad else []
    one = document(file, result.history.header, result, code, told, entry)
    return One(file, one, finding if entry is None else None, one.expected)


def _line(one: One) -> str:
    from harness.verdict.report.terminal import MEANINGS

    events, judged = one.judged.activity.events, one.judged
    counted = f"{events:,} events" if events else ""
    version = f" {judged.engine_version}" if judged.engine_version else ""
    engine = f"  ({judged.engine}{version})" if judged.engine else ""
    why = judged.bad_events or "; ".join(judged.reasons)
    return f"{MEANINGS[one.code][0]:<15}{counted:>17}  {one.file}{engine}{f'  {why}' if why else ''}"


def _verdict(done: Sequence[One], known: Expectations) -> tuple[int, list[str]]:
    """Return the exit code of several histories, and its reasons."""
    codes = Counter(one.code for one in done)
    of = f"of {len(done)} histories"
    worst = next((code for code in WORST_FIRST if codes[code]), EXIT_PASS)
    told = [f"{codes[code]} {of} {WORDS[code]}" for code in WORST_FIRST if codes[code]]
    if kinds := Counter(one.finding.anomaly for one in done if one.finding is not None):
        told[0] += f" ({', '.join(f'{anomaly} in {count}' for anomaly, count in kinds.items())})"
    expected = Counter(one.excused for one in done if one.excused)
    told += [f"{count} {of} fail as listed ({why})" for why, count in expected.items()]
    return with_list(worst, told, known)


def _print(done: Sequence[One], code: int, told: list[str], *, quiet: bool) -> None:
    from harness.verdict.report import terminal
    from harness.verdict.report.counterexample import witness_of_history

    out, said = terminal.console(), not quiet or any(one.code for one in done)
    first: dict[str, tuple[Path, Finding]] = {}
    for one in done:
        if one.finding is not None:
            first.setdefault(one.finding.anomaly, (one.file, one.finding))
    if said:
        out.print()
    for file, finding in list(first.values())[:SHOWN]:
        terminal.print_lines([*witness_of_history(finding, events_of(file), str(file)), ""], out)
    passed = f"no contradiction in {len(done)} histories"
    terminal.print_verdict(code, out, reasons=told, passed=passed)
