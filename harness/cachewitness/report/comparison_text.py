"""Prints two compared runs: what changed in the suites, then the failures, then what B left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from cachewitness.report.comparison import Change, Document, Numbers, Row, Side
from cachewitness.report.tables import new_table, print_table
from cachewitness.report.terminal import MEANINGS, print_verdict

LISTED_MAX = 10
"""So many failures of a kind are listed; of more, the number is told."""


def print_comparison(document: Document, out: Console) -> None:
    """Print the comparison and its verdict."""
    for name, side in (("A", document.a), ("B", document.b)):
        out.print(Text(f"{name}  {_side(side)}"), soft_wrap=True)
    for line in document.differs:
        out.print(Text(f"differs: {line}"), soft_wrap=True)
    out.print()
    _print_suites([*document.suites, document.total], out)
    for title, changes in (
        ("new in B", document.new),
        ("as in A, on other random traces", document.again),
        ("new in B, and expected there", document.excused),
        ("mended in B", document.mended),
        ("not seen in B, and not known to be mended", document.gone),
    ):
        _print_changes(title, changes, out, lines=changes is document.new)
    if document.remaining:
        out.print(Text(f"in both: {document.remaining:,}"))
        out.print()
    _print_lines("B checked less:", document.less, out)
    _print_lines("B could not be judged:", document.open, out)
    print_verdict(document.exit_code, out, reasons=document.reasons)


def _side(side: Side) -> str:
    version = f" ({side.engine_version})" if side.engine_version else ""
    meaning = MEANINGS[side.exit_code][0] if side.exit_code in MEANINGS else side.verdict
    return (
        f"{side.file}: engine {side.engine}{version}, seed {side.seed}: {meaning} (exit code"
        f" {side.exit_code})"
    )


def _print_suites(rows: Sequence[Row], out: Console) -> None:
    columns = ["suite", "traces", "failures", "hit rate", "restored tokens", "operations/s"]
    table = new_table(out, columns)
    for row in rows:
        table.add_row(
            row.suite,
            _change(row, lambda numbers: f"{numbers.traces:,}"),
            _change(row, lambda numbers: f"{numbers.failures:,}"),
            _change(row, lambda numbers: _percent(numbers.hit_rate)),
            _change(row, lambda numbers: f"{numbers.hit_tokens:,}"),
            _change(row, lambda numbers: _whole(numbers.operations_per_second)),
        )
    print_table(table, out)
    out.print()


def _change(row: Row, shown: Callable[[Numbers], str]) -> str:
    before = shown(row.a) if row.a else "-"
    after = shown(row.b) if row.b else "-"
    return before if before == after else f"{before} → {after}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}%"


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _print_changes(title: str, changes: Sequence[Change], out: Console, *, lines: bool) -> None:
    """Print failures of one kind, with `lines` also what happened in each."""
    if not changes:
        return
    shown = []
    for one in changes[:LISTED_MAX]:
        cause = f",{one.cause}" if one.cause else ""
        shown.append(f"{one.anomaly}{cause}  {one.id}")
        shown += [f"  {text}" for text in (one.line if lines else "", one.why) if text]
    if len(changes) > LISTED_MAX:
        shown.append(f"… and {len(changes) - LISTED_MAX:,} more (all of them with --json)")
    _print_lines(f"{title}: {len(changes):,}", shown, out)


def _print_lines(title: str, lines: Sequence[str], out: Console) -> None:
    if not lines:
        return
    out.print(Text(title))
    for line in lines:
        out.print(Text(f"  {line}"), soft_wrap=True)
    out.print()
