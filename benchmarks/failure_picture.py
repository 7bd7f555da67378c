"""Draw a failure as a picture: the block tables of each step, and what the ledger knows of the
pages in them.

    python -m benchmarks.failure_picture          # writes docs/failure.svg

The failure is a real one: `cachewitness run` with a seeded fault, its shrunk trace replayed. A cell
of a block table shows the page, what was last written to it, and what the step does with it; the
read that the finding names is marked. The colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from cachewitness._util import chart, files, pages
from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.events import Event, Group, Header, Hit, Read, StepBegin, Write
from cachewitness.core.result import Result
from cachewitness.core.validate import load_trace
from cachewitness.engines.registry import parse

ENGINE = "reference:mutant=hit-is-maximum-over-groups"
WIDTH, CELL, LINE, LEFT = 680, 200, 18, 150
NAMES = {"full": "full attention", "sliding": "sliding window"}

STYLE = """
svg { font: 13px system-ui, sans-serif; }
.ink { fill: #1f2328; } .soft { fill: #59636e; } .bad { fill: #b3261e; font-weight: 600; } .good { fill: #1a7f37; }
.card { fill: #ffffff; stroke: #d1d9e0; } .cell { fill: #f6f8fa; stroke: #818b98; } .wrong { fill: #ffebe9; stroke: #b3261e; }
.head { font-weight: 600; }
"""  # noqa: E501
DARK = """
  .ink { fill: #f0f6fc; } .soft { fill: #9198a1; } .bad { fill: #ff7b72; } .good { fill: #3fb950; }
  .card { fill: #0d1117; stroke: #3d444d; } .cell { fill: #151b23; stroke: #656c76; } .wrong { fill: #3c1618; stroke: #ff7b72; }
"""  # noqa: E501


@dataclass(frozen=True)
class Cell:
    """A column of a block table in one step: the page, what it holds, what is done with it, and
    whether that is the finding.
    """

    page: str
    holds: str
    does: str
    wrong: bool


@dataclass(frozen=True)
class Card:
    """One request's part of one step: a title, and the block table of each group."""

    title: str
    rows: list[tuple[str, list[Cell]]]


def main() -> int:
    """Draw the picture and return the exit code."""
    path = pages.folder() / "failure.svg"
    files.write(path, [picture().encode()])
    print(path)
    return 0


def picture() -> str:
    """Run the engine, replay the failure that it is found by, and return the picture."""
    with tempfile.TemporaryDirectory() as kept:
        with redirect_stdout(StringIO()):
            invoke(["run", "--engine", ENGINE, "--fail-fast", "--quiet", "--report", kept])
        traces = Path(kept, "failures").glob("*.trace.jsonl")
        trace = load_trace(min(traces, key=lambda path: path.stat().st_size))
    return draw(drive(trace, parse(ENGINE).open(trace.header)))


def draw(result: Result) -> str:
    """Return the SVG of a replayed failure."""
    finding = result.findings[0]
    cards = list(_cards(result.history.header, result.history.events, finding.seq))
    y = 10
    parts = list[str]()
    for card in cards:
        height = 40 + len(card.rows) * (3 * LINE + 20)
        parts.append(chart.rect(10, y, WIDTH - 20, height, "card", rx=6))
        parts.append(_text(24, y + 24, "ink head", card.title))
        for index, (name, cells) in enumerate(card.rows):
            top = y + 38 + index * (3 * LINE + 20)
            parts.append(_text(24, top + 34, "soft", name))
            parts += [
                part
                for column, cell in enumerate(cells)
                for part in _cell(cell, LEFT + 24 + column * (CELL + 12), top)
            ]
        y += height + 12
    parts += [
        _text(24, y + 14, "bad", f"{finding.anomaly}"),
        *_wrapped(finding.sentence, y + 14 + LINE),
    ]
    height = y + 14 + LINE * (2 + len(finding.sentence) // 84)
    head = [chart.title(finding.sentence), chart.scheme(STYLE, DARK)]
    return chart.picture(WIDTH, height, [*head, *parts], role="img")


def _cards(header: Header, events: list[Event], found_at: int) -> Iterator[Card]:
    """Yield a card for each run of each step, up to the step of the finding."""
    holds: dict[tuple[int, int], str] = {
        (pool.id, page): "the null page: holds nothing"
        for pool in header.pools
        for page in pool.null
    }
    hits = {event.r: event for event in events if isinstance(event, Hit)}
    for begin in events:
        if not isinstance(begin, StepBegin):
            continue
        step = [event for event in events if event.step == begin.step]
        for run in begin.runs:
            rows = [
                (
                    f"group {group.id}: {NAMES.get(group.kind, group.kind)}",
                    [_seen(group, page, step, holds, found_at) for page in run.tables[group.id]],
                )
                for group in header.groups
            ]
            hit = hits[run.r].resume
            found = f"finds {hit} tokens cached" if hit else "finds nothing cached"
            yield Card(
                f"Step {begin.step}: request {run.r} {found}, computes tokens [{run.start},"
                f" {run.stop})",
                rows,
            )
        for event in step:
            if isinstance(event, Write):
                recurrent = header.groups[event.group].kind == "recurrent"
                what = (
                    f"the state after {event.stop}"
                    if recurrent
                    else f"tokens [{event.start}, {event.stop})"
                )
                holds.update(
                    {(event.pool, page): f"holds {what} of {event.r}" for page in event.pages}
                )


def _seen(
    group: Group, page: int, step: list[Event], holds: dict[tuple[int, int], str], found_at: int
) -> Cell:
    """Return the cell of a page: what it holds when the step begins, and what the step does with
    it.
    """
    touched = [
        e for e in step if isinstance(e, Read | Write) and e.group == group.id and page in e.pages
    ]
    wrong = any(event.seq == found_at for event in touched)
    verbs = dict.fromkeys("read" if isinstance(event, Read) else "written" for event in touched)
    does = "a wrong read" if wrong else " and ".join(sorted(verbs, reverse=True)) or "not touched"
    return Cell(f"page {page}", holds.get((group.pool, page), "holds nothing yet"), does, wrong)


def _cell(cell: Cell, x: int, y: int) -> list[str]:
    return [
        chart.rect(x, y, CELL, 3 * LINE + 8, "wrong" if cell.wrong else "cell", rx=4),
        _text(x + 10, y + LINE, "ink head", cell.page),
        _text(x + 10, y + 2 * LINE, "soft", cell.holds),
        _text(x + 10, y + 3 * LINE, "bad" if cell.wrong else "good", cell.does),
    ]


def _wrapped(sentence: str, y: int, most: int = 92) -> Iterator[str]:
    line = ""
    for word in [*sentence.split(), ""]:
        if not word or len(line) + len(word) > most:
            yield _text(24, y, "ink", line.strip())
            line, y = "", y + LINE
        line += f" {word}"


def _text(x: int, y: int, style: str, words: str) -> str:
    return chart.text(x, y, words, style)


if __name__ == "__main__":
    sys.exit(main())
