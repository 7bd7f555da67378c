"""A run in Markdown, as the comment on a pull request that is kept up from one push to the next.

It begins with a marker that nobody sees, by which `ci/comment.sh` finds it again. Names come from
traces and engines of others: each stands in a code span, where nothing is markup and nobody is
mentioned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from shlex import quote

from cachewitness._util.lines import shortened
from cachewitness.report.summary import Failure, Report, Stored, shown
from cachewitness.report.terminal import MEANINGS, in_short, reasons

MARKER = "<!-- cachewitness -->"
ROWS_MAX = 20
"""So many anomalies have a row."""
TEXT_MAX = 300
"""Characters of a cell; a comment may have 65,536 in all."""
LONG_MAX = 2_000
"""Characters of a reason, or of a command."""
RED_BEFORE = (
    "Was it red before this change? `cachewitness compare BASE THIS`, with the artefacts of both,"
    " says what the change brought."
)


def render(report: Report, stored: Mapping[str, Stored]) -> bytes:
    """Return the comment."""
    return ("\n".join(_lines(report, stored)) + "\n").encode()


def _lines(report: Report, stored: Mapping[str, Stored]) -> Iterator[str]:
    name, _, meaning = MEANINGS[report.exit_code]
    version = f" {code(report.engine_version)}" if report.engine_version else ""
    yield MARKER
    yield f"### cachewitness: {name} (exit code {report.exit_code})"
    yield ""
    yield f"{code(report.engine)}{version}, seed {report.seed}: " + "; ".join(
        code(reason, LONG_MAX) for reason in reasons(report) or [meaning]
    )
    first = shown(report)
    if first:
        yield ""
        yield from _table(report, first[:ROWS_MAX])
    if len(first) > ROWS_MAX:
        yield ""
        yield f"… and {len(first) - ROWS_MAX} more anomalies"
    yield ""
    yield f"covered: {code(in_short(report))}; the rest is in `report.html`"
    if first:
        yield ""
        yield RED_BEFORE
    kept = [stored[one.id] for one in first[:ROWS_MAX] if one.id in stored]
    if kept:
        yield ""
        yield "To see it again, where the gate was called, with `DIR` the folder of the artefacts:"
        yield ""
        yield f"* {code(f'DIR={quote(kept[0].folder)}')}"
        yield from (f"* {code(one.portable, LONG_MAX)}" for one in kept)


def _table(report: Report, first: list[Failure]) -> Iterator[str]:
    count = Counter(one.finding.anomaly for one in report.failures if not one.expected)
    yield "| anomaly | traces | the first of them | what happened |"
    yield "|---|---|---|---|"
    for one in first:
        finding = one.finding
        cells = (
            code(finding.anomaly),
            f"{count[finding.anomaly]:,}",
            code(one.id),
            code(finding.line or finding.sentence),
        )
        yield f"| {' | '.join(cells)} |"


def code(text: str, most: int = TEXT_MAX) -> str:
    """Return a text as a code span of one line, also in a cell of a table."""
    plain = shortened(" ".join(text.split()), most).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
