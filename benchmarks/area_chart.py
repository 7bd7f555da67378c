"""Draws what a pool is used for over time, as areas that lie on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachewitness._util import chart
from cachewitness._util.chart import GAP, HEIGHT, LEFT, TOP, WIDTH

POINTS = 120
COLOURS = ("#1f4e79", "#8c2d04", "#7fb2dd", "#f4a460", "#e6e6e6")


@dataclass(frozen=True)
class Area:
    """One panel: `samples` are (turn, pages by kind); `line` is a share of the pool's height by
    turn, drawn over it.
    """

    title: str
    samples: Sequence[tuple[float, list[int]]]
    line: Sequence[float]


def stacked(panels: Sequence[Area], kinds: Sequence[str], line_name: str, columns: int = 2) -> str:
    """Return an SVG picture of several panels with one legend."""
    rows = -(-len(panels) // columns)
    width = columns * (WIDTH + GAP) + LEFT
    height = rows * (HEIGHT + GAP) + TOP
    parts = _legend(kinds, line_name)
    for index, panel in enumerate(panels):
        x = LEFT + index % columns * (WIDTH + GAP)
        y = TOP + index // columns * (HEIGHT + GAP)
        parts += _panel(panel, x, y)
    return chart.sheet(width, height, parts)


def thinned(
    samples: Sequence[tuple[float, list[int]]], points: int = POINTS
) -> list[tuple[float, list[float]]]:
    """Return at most so many samples, each the mean of its neighbourhood."""
    size = -(-len(samples) // points)
    out = []
    for start in range(0, len(samples), size):
        chunk = samples[start : start + size]
        kinds = range(len(chunk[0][1]))
        means = [sum(pages[kind] for _, pages in chunk) / len(chunk) for kind in kinds]
        out.append((sum(at for at, _ in chunk) / len(chunk), means))
    return out


def _legend(kinds: Sequence[str], line_name: str) -> list[str]:
    parts = []
    x = LEFT
    for kind, colour in zip(kinds, COLOURS, strict=True):
        parts.append(chart.rect(x, 12, 12, 12, fill=colour))
        parts.append(chart.text(x + 17, 22, kind))
        x += 34 + 7 * len(kind)
    parts.append(chart.line((x, 18), (x + 18, 18), stroke="#000000", stroke_width=2))
    return [*parts, chart.text(x + 23, 22, line_name)]


def _panel(panel: Area, x: int, y: int) -> list[str]:
    turns = len(panel.line)
    total = sum(panel.samples[0][1])
    points = thinned(panel.samples)
    across = [x + round(at / turns * WIDTH) for at, _ in points]
    floor = [float(y + HEIGHT)] * len(points)
    parts = [chart.headed(x, y, panel.title)]
    for kind, colour in enumerate(COLOURS):
        top = [
            low - pages[kind] / total * HEIGHT
            for low, (_, pages) in zip(floor, points, strict=True)
        ]
        outline = [*zip(across, top, strict=True), *reversed(list(zip(across, floor, strict=True)))]
        parts.append(chart.polygon(((a, round(b)) for a, b in outline), fill=colour))
        floor = top
    steps = [
        (x + round((turn + part) / turns * WIDTH), round(y + HEIGHT - share * HEIGHT))
        for turn, share in enumerate(panel.line)
        for part in (0, 1)
    ]
    parts.append(chart.polyline(steps, stroke="#000000", stroke_width=2))
    parts.append(chart.rect(x, y, WIDTH, HEIGHT, fill="none", stroke="#444444"))
    parts += [chart.mark_level(x, y, f"{total}"), chart.mark_level(x, y + HEIGHT, "0")]
    for turn in range(turns):
        centre = x + round((turn + 0.5) / turns * WIDTH)
        parts.append(chart.mark_column(centre, y, f"{turn + 1}"))
    return parts
