"""`cachewitness check` of several histories: each is judged by itself, some at a time, and told
as it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cachewitness._util import output, workers
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import printable
from cachewitness._util.reading import STANDARD_INPUT
from cachewitness._util.worker_pool import WorkerDied, WorkerPool
from cachewitness.cli.json_option import print_json
from cachewitness.cli.judged_history import Weighed, judged, print_witness, weighed, with_list
from cachewitness.core import result as verdicts
from cachewitness.report import terminal

if TYPE_CHECKING:
    from cachewitness.report.expected import Expectations

SHOWN = 3
"""How many witnesses are printed, the first of each anomaly."""
WORDS = {
    verdicts.EXIT_INTERNAL: "make the detectors of the harness disagree",
    verdicts.EXIT_FAIL: "contradict a rule",
    verdicts.EXIT_USAGE: "cannot be read or followed",
    verdicts.EXIT_UNKNOWN: "were not judged to the end",
    verdicts.EXIT_NOTHING_CHECKED: "have nothing to judge",
}


def check_several(
    files: Sequence[Path], known: Expectations, jobs: int | None, *, quiet: bool, as_json: bool
) -> int:
    """Judge histories, print a line of each when it is done, witnesses and the verdict, and return
    the exit code.

    One that cannot be read or followed does not keep the others from being judged.
    """
    done: list[Weighed] = []
    interrupted = False
    try:
        for one in _weighed(files, known, jobs or workers.cores()):
            done.append(one)
            if not as_json and (not quiet or one.code != verdicts.EXIT_PASS):
                output.echo(printable(_line(one)))
    except KeyboardInterrupt:
        interrupted = True
    code, reasons = _verdict(done, known)
    if interrupted:
        so_far = "; ".join(reasons) or "nothing found"
        reasons = [f"stopped after {len(done)} of {len(files)} histories", f"until then {so_far}"]
        code = verdicts.EXIT_INTERRUPTED
    if as_json:
        from cachewitness.cli.documents import Checked

        print_json(
            Checked(exit_code=code, reasons=reasons, histories=[one.document() for one in done])
        )
    else:
        _print(done, code, reasons, quiet=quiet)
    return code


def _weighed(files: Sequence[Path], known: Expectations, jobs: int) -> Iterator[Weighed]:
    """Yield what comes of each file, in their order, however many are judged at a time."""
    if any(str(file) == STANDARD_INPUT for file in files):
        raise UsageError(
            f"{STANDARD_INPUT}: is one history, and cannot be judged beside others; name it alone,"
            " or name files"
        )
    with WorkerPool(min(jobs, len(files)), judged) as pool:
        for file, task in pool.in_order(files):
            try:
                yield weighed(file, *task.result(), known)
            except WorkerDied as died:
                yield Weighed(file, None, verdicts.EXIT_UNKNOWN, [f"{file}: {died}"])
            except KeyboardInterrupt:
                for other, judgement in pool.finished():
                    yield weighed(other, *judgement, known)
                raise


def _line(one: Weighed) -> str:
    result = one.result
    text = one.bad or "; ".join(one.reasons)
    if result is None or one.bad:
        counted = engine = ""
    else:
        header = result.history.header
        events = result.activity.events
        counted = f"{events:,} events" if events else ""
        engine = f"  ({' '.join(filter(None, (header.engine, header.engine_version)))})"
    return (
        f"{terminal.MEANINGS[one.code][0]:<15}{counted:>17} "
        f" {one.file}{engine}{f'  {text}' if text else ''}"
    )


def _verdict(done: Sequence[Weighed], known: Expectations) -> tuple[int, list[str]]:
    """Return the exit code of several histories, and its reasons."""
    codes = Counter(one.code for one in done)
    of = f"of {len(done)} histories"
    reasons = [f"{codes[code]} {of} {says}" for code, says in WORDS.items() if codes[code]]
    if kinds := Counter(
        one.finding.anomaly for one in done if one.finding is not None and one.entry is None
    ):
        reasons[0] += f" ({', '.join(f'{anomaly} in {count}' for anomaly, count in kinds.items())})"
    expected = Counter(one.entry.reason for one in done if one.entry is not None)
    reasons += [f"{count} {of} fail as listed ({why})" for why, count in expected.items()]
    return with_list(verdicts.worst(codes), reasons, known)


def _print(done: Sequence[Weighed], code: int, reasons: list[str], *, quiet: bool) -> None:
    out = terminal.console()
    first: dict[str, Weighed] = {}
    for one in done:
        if one.finding is not None and one.entry is None:
            first.setdefault(one.finding.anomaly, one)
    if not quiet or any(one.code for one in done):
        out.print()
    for one in list(first.values())[:SHOWN]:
        print_witness(one, out)
    terminal.print_verdict(
        code, out, reasons=reasons, passed=f"no contradiction in {len(done)} histories"
    )
