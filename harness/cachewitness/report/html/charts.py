"""Charts as inline SVG: how full the pools were, and how long the hits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cachewitness.report.html.frames import Film, Sample

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 130, 56, 18, 20
POINTS_MAX = 400
"""Steps of a chart; of a longer run every n-th is drawn, and the chart says so."""


def occupancy(film: Film) -> list[str]:
    """Return a chart for each pool with pages: those that requests hold, and on top of them
    those kept for a key alone.
    """
    return [
        _occupancy(film, index, name)
        for index, name in enumerate(film.pools)
        if film.samples and any(sample.pools[index][2] for sample in film.samples)
    ]


def _occupancy(film: Film, index: int, name: str) -> str:
    samples, every = _thinned(film.samples)
    most = max(sample.pools[index][2] for sample in samples)
    held = [sample.pools[index][0] for sample in samples]
    used = [sample.pools[index][0] + sample.pools[index][1] for sample in samples]
    parts = [_area(used, most, "kept"), _area(held, most, "held")]
    title = (
        f"{name}: of {most} pages at most {max(held)} held by requests, {max(used)} with those kept"
        " for their keys"
    )
    return _chart(title + every, most, "pages", samples, parts)


def hits(film: Film) -> str:
    """Return a chart of the look-ups: a dot for each, as high as its hit is long; empty if
    nobody was looked up.
    """
    if not film.hits or not film.samples:
        return ""
    first = film.samples[0].step
    last = film.samples[-1].step
    longest = max(1, *(tokens for _, _, tokens in film.hits))
    shown = film.hits[:: max(1, len(film.hits) // POINTS_MAX)]
    dots = [
        f'<circle class="hit" cx="{_x(step - first, last - first):.1f}"'
        f' cy="{_y(tokens, longest):.1f}" r="3"><title>{escape(r)}: {tokens} tokens in step'
        f" {step}</title></circle>"
        for step, r, tokens in shown
    ]
    found = sum(tokens > 0 for _, _, tokens in film.hits)
    title = (
        f"hits: {found} of {len(film.hits)} look-ups found something, at most"
        f" {max(t for _, _, t in film.hits)} tokens"
    )
    return _chart(title, longest, "tokens", film.samples, dots)


def _thinned(samples: Sequence[Sample]) -> tuple[Sequence[Sample], str]:
    every = -(-len(samples) // POINTS_MAX)
    return samples[::every], f" (one step in {every} is drawn)" if every > 1 else ""


def _x(index: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - 8) * index / max(1, last)


def _y(value: float, most: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / max(1, most))


def _area(values: Sequence[int], most: int, style: str) -> str:
    """Return a filled area under a step function, a step wide for each value."""
    points = [
        (_x(index + side, len(values)), _y(value, most))
        for index, value in enumerate(values)
        for side in (0, 1)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polygon class="{style}" points="{LEFT},{HEIGHT - BOTTOM} {path}'
        f' {points[-1][0]:.1f},{HEIGHT - BOTTOM}"/>'
    )


def _chart(title: str, most: int, unit: str, samples: Sequence[Sample], parts: list[str]) -> str:
    base = HEIGHT - BOTTOM
    axes = [
        f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - 8}" y2="{base}"/>',
        f'<text class="label" x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{most}</text>',
        f'<text class="label" x="{LEFT - 6}" y="{base}" text-anchor="end">0 {unit}</text>',
        f'<text class="label" x="{LEFT}" y="{HEIGHT - 5}">step {samples[0].step}</text>',
        (
            f'<text class="label" x="{WIDTH - 8}" y="{HEIGHT - 5}" text-anchor="end">step'
            f" {samples[-1].step}</text>"
        ),
    ]
    opening = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(title)}">'
    )
    return "\n".join(
        [
            f"<figure><figcaption>{escape(title)}</figcaption>",
            opening,
            *parts,
            *axes,
            "</svg></figure>",
        ]
    )
