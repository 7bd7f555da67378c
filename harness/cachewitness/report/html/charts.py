"""Charts as inline SVG: how full the pools were, and how long the hits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cachewitness._util import chart
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
        chart.element(
            "circle",
            chart.title(f"{r}: {tokens} tokens in step {step}"),
            class_="hit",
            cx=_x(step - first, last - first),
            cy=_y(tokens, longest),
            r=3,
        )
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
    base = HEIGHT - BOTTOM
    return chart.polygon([(LEFT, base), *points, (points[-1][0], base)], class_=style)


def _chart(title: str, most: int, unit: str, samples: Sequence[Sample], parts: list[str]) -> str:
    base = HEIGHT - BOTTOM
    end = WIDTH - 8
    axes = [
        chart.line((LEFT, base), (end, base), "axis"),
        _label(LEFT - 6, TOP + 4, f"{most}", text_anchor="end"),
        _label(LEFT - 6, base, f"0 {unit}", text_anchor="end"),
        _label(LEFT, HEIGHT - 5, f"step {samples[0].step}"),
        _label(end, HEIGHT - 5, f"step {samples[-1].step}", text_anchor="end"),
    ]
    drawn = chart.element(
        "svg",
        "\n".join(["", *parts, *axes, ""]),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=title,
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>\n{drawn}</figure>"


def _label(x: int, y: int, words: str, **attributes: str) -> str:
    return chart.text(x, y, words, "label", **attributes)
