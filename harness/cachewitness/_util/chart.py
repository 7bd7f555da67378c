"""Draws what a pool is used for over time, and rates as lines: SVG, without any plotting
package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 190
LEFT, TOP, GAP = 46, 64, 58
POINTS = 120
LINES = (("#8c2d04", ""), ("#e08030", ""), ("#1f4e79", ""), ("#8c2d04", "6 3"), ("#8c2d04", "2 3"))
"""Colour and dashes of each line, in order."""
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
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0'
            f' 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_legend(kinds, line_name),
    ]
    for index, panel in enumerate(panels):
        x = LEFT + index % columns * (WIDTH + GAP)
        y = TOP + index // columns * (HEIGHT + GAP)
        parts += _panel(panel, x, y)
    return "\n".join([*parts, "</svg>", ""])


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
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="22">{escape(kind)}</text>')
        x += 34 + 7 * len(kind)
    parts.append(
        f'<line x1="{x}" y1="18" x2="{x + 18}" y2="18" stroke="#000000" stroke-width="2"/>'
    )
    return [*parts, f'<text x="{x + 23}" y="22">{escape(line_name)}</text>']


def _panel(panel: Area, x: int, y: int) -> list[str]:
    turns = len(panel.line)
    total = sum(panel.samples[0][1])
    points = thinned(panel.samples)
    across = [x + round(at / turns * WIDTH) for at, _ in points]
    floor = [float(y + HEIGHT)] * len(points)
    parts = [f'<text x="{x}" y="{y - 8}" font-weight="bold">{escape(panel.title)}</text>']
    for kind, colour in enumerate(COLOURS):
        top = [
            low - pages[kind] / total * HEIGHT
            for low, (_, pages) in zip(floor, points, strict=True)
        ]
        outline = [*zip(across, top, strict=True), *reversed(list(zip(across, floor, strict=True)))]
        parts.append(
            f'<polygon fill="{colour}" points="{" ".join(f"{a},{b:.0f}" for a, b in outline)}"/>'
        )
        floor = top
    steps = " ".join(
        f"{x + round((turn + part) / turns * WIDTH)},{y + HEIGHT - share * HEIGHT:.0f}"
        for turn, share in enumerate(panel.line)
        for part in (0, 1)
    )
    parts.append(f'<polyline fill="none" stroke="#000000" stroke-width="2" points="{steps}"/>')
    parts.append(
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444444"/>'
    )
    for label, at in ((f"{total}", y + 4), ("0", y + HEIGHT + 4)):
        parts.append(f'<text x="{x - 6}" y="{at}" text-anchor="end">{label}</text>')
    for turn in range(turns):
        centre = x + round((turn + 0.5) / turns * WIDTH)
        parts.append(
            f'<text x="{centre}" y="{y + HEIGHT + 16}" text-anchor="middle">{turn + 1}</text>'
        )
    return parts


@dataclass(frozen=True)
class Curves:
    """One panel of lines: a rate from 0 to 1 by name, a value for each tick."""

    title: str
    ticks: Sequence[str]
    rates: Mapping[str, Sequence[float]]


def curves(panels: Sequence[Curves]) -> str:
    """Return an SVG picture of several panels, side by side, with one legend; of as many lines
    as LINES has, at most.
    """
    named = LEFT + sum(52 + 7 * len(name) for name in panels[0].rates)
    width = max(len(panels) * (WIDTH + GAP) + LEFT, named)
    height = TOP + HEIGHT + GAP
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0'
            f' 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    at = LEFT
    for name, (colour, dashes) in zip(panels[0].rates, LINES[: len(panels[0].rates)], strict=True):
        parts.append(
            f'<path d="M{at},18h26" stroke="{colour}" stroke-width="2"'
            f' stroke-dasharray="{dashes}"/>'
        )
        parts.append(f'<text x="{at + 32}" y="22">{escape(name)}</text>')
        at += 52 + 7 * len(name)
    for index, panel in enumerate(panels):
        parts += _lines(panel, LEFT + index * (WIDTH + GAP), TOP)
    return "\n".join([*parts, "</svg>", ""])


def _lines(panel: Curves, x: int, y: int) -> list[str]:
    across = [
        x + round((tick + 0.5) / len(panel.ticks) * WIDTH) for tick in range(len(panel.ticks))
    ]
    parts = [f'<text x="{x}" y="{y - 8}" font-weight="bold">{escape(panel.title)}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = y + HEIGHT - round(share * HEIGHT)
        parts.append(f'<path d="M{x},{level}h{WIDTH}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x - 6}" y="{level + 4}" text-anchor="end">{share:.0%}</text>')
    for rates, (colour, dashes) in zip(
        panel.rates.values(), LINES[: len(panel.rates)], strict=True
    ):
        points = " ".join(
            f"{a},{y + HEIGHT - rate * HEIGHT:.0f}" for a, rate in zip(across, rates, strict=True)
        )
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline fill="none" {style} points="{points}"/>')
    for a, tick in zip(across, panel.ticks, strict=True):
        parts.append(
            f'<text x="{a}" y="{y + HEIGHT + 16}" text-anchor="middle">{escape(tick)}</text>'
        )
    return parts
