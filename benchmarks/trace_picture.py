"""Draw a trace as a picture: every prompt as a bar whose colours are its texts, so that what two
prompts share is seen.

A line is an operation. Below a bar stand the blocks of each cache group; behind it, dashed, what
the request is to generate. It needs no engine, so it is there for those that tell no pages as well.
The colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from cachewitness._util import chart
from cachewitness.core.trace_format import GroupSpec, Op, Step, Submit, Trace, segments
from cachewitness.report.counterexample import compact, describe_layout

WIDTH, LEFT, RIGHT, BAR, LINE = 720, 140, 24, 18, 24
NUMBER, WORDS, BESIDE = 20, 72, 110
"""Where the numbers begin, where the words do, and the room for a salt or an adapter beside a bar.
"""
HUES = (212, 28, 140, 280, 350, 180, 60, 320)
"""Of the texts of a trace, in the order in which they come."""
TICKS_MAX = 64
"""Of more blocks than these none is marked."""
SHOWN_MAX = 24
"""So many lines are drawn: those up to where the finding shows, of more the last."""
WORDS_MAX = 92
"""Letters of an operation that has no bar."""
STYLE = """
svg { font: 12px system-ui, sans-serif; }
.card { fill: #ffffff; stroke: #d1d9e0; } .ink { fill: #1f2328; } .soft { fill: #59636e; }
.on { fill: #1f2328; } .tick { stroke: #59636e; } .make { fill: none; stroke: #59636e; stroke-dasharray: 3 2; }
.here { fill: #ffebe9; }
"""  # noqa: E501
DARK = """
.card { fill: #0d1117; stroke: #3d444d; } .ink { fill: #f0f6fc; } .soft { fill: #9198a1; }
.tick { stroke: #9198a1; } .make { stroke: #9198a1; } .here { fill: #3c1618; }
"""


class Line(NamedTuple):
    """A line of the picture: the number of its first operation, the operation, and how many of
    its like it stands for.
    """

    number: int
    op: Op
    times: int


def drawn(trace: Trace, shows: int) -> str:
    """Return the SVG of a trace; `shows` is the number of the operation at which its finding
    shows, from 1.
    """
    lines = _lines(trace.ops, shows)
    kept = lines[-SHOWN_MAX:]
    texts = [
        text
        for line in lines
        if isinstance(line.op, Submit)
        for text, _, _ in segments(line.op.prompt)
    ]
    hues = {text: HUES[place % len(HUES)] for place, text in enumerate(dict.fromkeys(texts))}
    most = max((_length(line.op) for line in kept), default=1) or 1
    groups = trace.header.layout.groups
    beside = BESIDE * any(map(_identity, (line.op for line in kept)))
    layout = f"{describe_layout(trace.header.layout)}, {trace.header.pages} pages"
    parts = [_text(NUMBER, 28, "soft", layout)]
    y = 44
    if len(lines) > len(kept):
        parts.append(_text(NUMBER, y + 12, "soft", f"… lines before: {len(lines) - len(kept)}"))
        y += LINE
    for line in kept:
        height = LINE + (6 * len(groups) if isinstance(line.op, Submit) else 0)
        if line.number <= shows < line.number + line.times:
            parts.append(chart.rect(12, y - 4, WIDTH - 24, height, "here", rx=4))
        parts += _line(line, y, (WIDTH - LEFT - RIGHT - beside) / most, hues, groups)
        y += height
    shades = [(f".t{place}", hue) for place, hue in enumerate(hues.values())]
    colours = "".join(f"{name} {{ fill: hsl({hue} 70% 78%); }} " for name, hue in shades)
    darker = "".join(f"{name} {{ fill: hsl({hue} 55% 62%); }} " for name, hue in shades)
    head = [
        chart.title("; ".join(compact(line.op) for line in kept)),
        chart.scheme(f"{STYLE}{colours}\n", f"{DARK}{darker}"),
        chart.rect(1, 1, WIDTH - 2, y + 12, "card", rx=6),
    ]
    return chart.picture(WIDTH, y + 14, [*head, *parts], role="img")


def _lines(ops: Sequence[Op], shows: int) -> list[Line]:
    """Return the operations up to where the finding shows, equal ones in a row as one line."""
    numbered = enumerate(ops[: max(shows, 1)], 1)
    runs = [list(run) for _, run in groupby(numbered, key=lambda entry: entry[1])]
    return [Line(run[0][0], run[0][1], len(run)) for run in runs]


def _length(op: Op) -> int:
    if not isinstance(op, Submit):
        return 0
    return sum(count for _, _, count in segments(op.prompt)) + max(op.generate, 0)


def _line(
    line: Line, y: int, scale: float, hues: dict[str, int], groups: Sequence[GroupSpec]
) -> Iterator[str]:
    """Yield what one operation looks like."""
    op = line.op
    number = (
        f"{line.number}" if line.times == 1 else f"{line.number}–{line.number + line.times - 1}"
    )
    yield _text(NUMBER, y + 13, "soft", number)
    if not isinstance(op, Submit):
        words = compact(op) if op != Step() else "step"
        words = words if len(words) <= WORDS_MAX else words[:WORDS_MAX] + "…"
        yield _text(WORDS, y + 13, "ink", words + (f"  ×{line.times}" if line.times > 1 else ""))
        return
    yield _text(WORDS, y + 13, "ink", op.r)
    at = 0
    places = {text: place for place, text in enumerate(hues)}
    for text, start, count in segments(op.prompt):
        yield from _bar(
            LEFT + at * scale,
            y,
            count * scale,
            f"t{places[text]}",
            f"{text}{f'[{start}]' if start else ''}:{count}",
        )
        at += count
    if op.generate > 0:
        x = LEFT + at * scale
        width = op.generate * scale
        yield chart.rect(x, y, max(width, 2.0), BAR, "make", rx=2)
    for row, group in enumerate(groups):
        yield from _blocks(group, at, y + BAR + 3 + 6 * row, scale)
    if words := _identity(op):
        yield _text(LEFT + _length(op) * scale + 6, y + 13, "soft", words)


def _identity(op: Op) -> str:
    """Return what a prompt has beside its tokens; empty for nothing."""
    named = (("salt", op.salt), ("adapter", op.adapter)) if isinstance(op, Submit) else ()
    return ", ".join(f"{name} {value}" for name, value in named if value)


def _bar(x: float, y: int, width: float, style: str, words: str) -> Iterator[str]:
    bar = chart.rect(x, y, max(width - 1, 1.0), BAR, style, rx=2)
    yield chart.element("g", chart.title(words), bar)
    if width > 7 * len(words):
        yield _text(x + 4, y + 13, "on", words)


def _blocks(group: GroupSpec, tokens: int, y: int, scale: float) -> Iterator[str]:
    """Yield the blocks of a group below a prompt, as strokes that end where a block does."""
    if not group.block_size or tokens / group.block_size > TICKS_MAX:
        return
    for start in range(0, tokens, group.block_size):
        stop = min(start + group.block_size, tokens)
        whole = stop - start == group.block_size
        x = LEFT + start * scale + 0.5
        end = LEFT + stop * scale - 1.5
        dashes: dict[str, str] = {} if whole else {"stroke_dasharray": "2 2"}
        yield chart.line((x, y), (max(end, x + 1), y), "tick", stroke_width=2, **dashes)


def _text(x: float, y: int, style: str, text: str) -> str:
    return chart.text(float(x), y, text, style)
