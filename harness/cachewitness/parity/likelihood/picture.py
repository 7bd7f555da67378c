"""Compared likelihoods as inline SVG: the change by position over the band of the noise, and every
question by its noise and its change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from cachewitness._util import chart
from cachewitness.parity.likelihood.document import ArmEntry, Asked, AtPosition

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 240, 62, 12, 16, 40
LEAST = 1e-5
"""In nats: smaller changes are drawn there."""


def pictures(arm: ArmEntry, other: str) -> list[str]:
    """Return the charts of an arm; none if nothing was counted."""
    rows = [row for row in arm.positions if row.change is not None]
    return [
        *([_logprobs(rows, arm.arm, other), _by_position(rows, arm.arm)] if rows else []),
        *([_by_question(arm.questions, arm.arm)] if arm.questions else []),
    ]


def _logprobs(rows: Sequence[AtPosition], arm: str, other: str) -> str:
    """Draw the mean logarithm of the cold run's tokens, cold with the band of the noise, and in
    the arm.
    """
    shown = [row for row in rows if row.cold is not None and row.arm is not None]
    cold = [row.cold or 0.0 for row in shown]
    there = [row.arm or 0.0 for row in shown]
    noise = [row.noise or 0.0 for row in shown]
    low = min([*map(lambda value, band: value - band, cold, noise), *there], default=-1.0)
    high = max([*map(lambda value, band: value + band, cold, noise), *there], default=0.0)
    axis = _Axis(low, high)
    places = [_x(index, len(shown)) for index in range(len(shown))]
    around = [
        (x, c, n)
        for x, c, n, row in zip(places, cold, noise, shown, strict=True)
        if row.noise is not None
    ]
    over = [(x, axis.y(c + n)) for x, c, n in around]
    under = [(x, axis.y(c - n)) for x, c, n in around]
    parts = [
        chart.polygon([*over, *reversed(under)], class_="band"),
        _line(places, [axis.y(value) for value in cold], "cold"),
        _line(places, [axis.y(value) for value in there], "arm"),
    ]
    title = f"arm {arm}: mean log-probability of the cold run's token by position (nats)"
    names = (("cold", "cold"), ("band", "± noise"), ("arm", other))
    return _figure(title, [*parts, *axis.marks(), *_positions(shown), *_legend(names)])


def _by_position(rows: Sequence[AtPosition], arm: str) -> str:
    """Draw the size of the change by position over that of the noise."""
    noise = [row.noise for row in rows]
    changes = [row.change or 0.0 for row in rows]
    axis = _Axis(0.0, max([*changes, *(value or 0.0 for value in noise)]))
    places = [_x(index, len(rows)) for index in range(len(rows))]
    known = [(x, value) for x, value in zip(places, noise, strict=True) if value is not None]
    base = axis.y(0.0)
    band = [(x, axis.y(value)) for x, value in known]
    parts = (
        [chart.polygon([(band[0][0], base), *band, (band[-1][0], base)], class_="band")]
        if band
        else []
    )
    parts.append(_line(places, [axis.y(value) for value in changes], "arm"))
    title = f"arm {arm}: mean change of the best tokens by position (nats)"
    names = (("band", "noise"), ("arm", "change"))
    return _figure(title, [*parts, *axis.marks(), *_positions(rows), *_legend(names)])


def _by_question(questions: Sequence[Asked], arm: str) -> str:
    """Draw a dot for each question: to the right its noise, upwards its change, both as powers of
    ten; the lines are change = noise and twice the noise.
    """
    values = [max(LEAST, value) for one in questions for value in (one.noise, one.change)]
    low = math.floor(math.log10(min(values)))
    high = max(low + 1, math.ceil(math.log10(max(values))))
    axis = _Axis(low, high)

    def x(value: float) -> float:
        share = (math.log10(max(LEAST, value)) - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(value: float) -> float:
        return axis.y(math.log10(max(LEAST, value)))

    top = 10.0**high
    bottom = 10.0**low
    parts = [
        chart.line((x(bottom), y(bottom)), (x(top), y(top)), "axis"),
        chart.line(
            (x(bottom), y(2 * bottom)), (x(top / 2), y(top)), "axis", stroke_dasharray="4 3"
        ),
    ]
    for one in questions:
        words = f"row {one.row}, {one.prefix}: {one.change:.3g} nats, noise {one.noise:.3g}"
        parts.append(
            chart.element(
                "circle",
                chart.title(words),
                class_="moved" if one.moved else "still",
                cx=x(one.noise),
                cy=y(one.change),
                r=4,
            )
        )
    powers = range(low, high + 1)
    parts += [_label(LEFT - 6, y(10.0**p) + 4, f"{10.0**p:g}", "end") for p in powers]
    parts += [_label(x(10.0**p), HEIGHT - 24, f"{10.0**p:g}", "middle") for p in powers]
    parts.append(_label((LEFT + WIDTH) / 2, HEIGHT - 6, "noise (nats)", "middle"))
    parts.append(_label(LEFT + 8, TOP + 12, "change (nats)", "start"))
    moved = sum(one.moved for one in questions)
    title = (
        f"arm {arm}: {moved} of {len(questions)} questions moved by twice the noise or more (the"
        " dashed line)"
    )
    return _figure(title, parts)


class _Axis:
    """A linear scale from a low value to a high one."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high if high > low else low + 1.0

    def y(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self._low) / (self._high - self._low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def marks(self) -> list[str]:
        """Return the lowest and the highest value as labels, and the base line."""
        base = HEIGHT - BOTTOM
        return [
            chart.line((LEFT, base), (WIDTH - RIGHT, base), "axis"),
            *(
                _label(LEFT - 6, self.y(value) + 4, f"{value:.2g}", "end")
                for value in (self._low, (self._low + self._high) / 2, self._high)
            ),
        ]


def _x(index: int, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / max(1, count)


def _line(places: Sequence[float], levels: Sequence[float], style: str) -> str:
    return chart.polyline(zip(places, levels, strict=True), class_=f"line {style}")


def _positions(rows: Sequence[AtPosition]) -> list[str]:
    return [
        _label(_x(index, len(rows)), HEIGHT - 24, f"{row.position}", "middle")
        for index, row in enumerate(rows)
    ]


def _legend(names: Sequence[tuple[str, str]]) -> list[str]:
    parts = []
    at = LEFT
    for style, words in names:
        parts.append(
            chart.rect(at, HEIGHT - 14, 22, 10, style)
            if style == "band"
            else chart.line((at, HEIGHT - 9), (at + 22, HEIGHT - 9), f"line {style}")
        )
        parts.append(_label(at + 28, HEIGHT - 5, words, "start"))
        at += 48 + 7 * len(words)
    return parts


def _label(x: float, y: float, words: str, anchor: str) -> str:
    return chart.text(x, y, words, "label", text_anchor=anchor)


def _figure(title: str, parts: Sequence[str]) -> str:
    drawn = chart.element(
        "svg",
        "\n".join(["", *parts, ""]),
        class_="chart likelihood",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=title,
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>\n{drawn}</figure>"
