"""Pictures as SVG, without any plotting package: elements, colours for a light page and a dark one,
and rates as lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH, HEIGHT = 400, 190
"""Of one panel, in pixels."""
LEFT, TOP, GAP = 46, 64, 58
"""Room left of the panels and above them, and between two of them."""
LINES = (("#8c2d04", ""), ("#e08030", ""), ("#1f4e79", ""), ("#8c2d04", "6 3"), ("#8c2d04", "2 3"))
"""Colour and dashes of each line, in order."""

Value = int | float | str
Point = tuple[int | float, int | float]


# --- elements -------------------------------------------------------------------------------------


def element(name: str, /, *content: str, **attributes: Value) -> str:
    """Return an element around markup.

    In the names of attributes `_` stands for `-`, and one at the end (`class_`) for nothing. Floats
    are written with one decimal.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def rect(
    x: float, y: float, width: float, height: float, style: str = "", **attributes: Value
) -> str:
    """Return a rectangle; `style` is its class."""
    return element("rect", **_class(style), x=x, y=y, width=width, height=height, **attributes)


def line(start: Point, stop: Point, style: str = "", **attributes: Value) -> str:
    """Return a straight line; `style` is its class."""
    places = {"x1": start[0], "y1": start[1], "x2": stop[0], "y2": stop[1]}
    return element("line", **_class(style), **places, **attributes)


def polygon(points: Iterable[Point], **attributes: Value) -> str:
    """Return a filled outline."""
    return element("polygon", **attributes, points=_points(points))


def polyline(points: Iterable[Point], **attributes: Value) -> str:
    """Return a line through points."""
    return element("polyline", fill="none", **attributes, points=_points(points))


def text(
    x: float, y: float, words: str, style: str = "", *, hover: str = "", **attributes: Value
) -> str:
    """Return words that begin at a place; `style` is their class, `hover` what a mouse shows."""
    shown = [title(hover)] if hover else []
    return element("text", escape(words), *shown, **_class(style), x=x, y=y, **attributes)


def title(words: str) -> str:
    """Return what is shown where a mouse rests on the element around it."""
    return element("title", escape(words))


def scheme(light: str, dark: str) -> str:
    """Return the style of a picture on a light page, and what changes on a dark one."""
    return element("style", f"{light}@media (prefers-color-scheme: dark) {{{dark}}}")


def picture(width: int, height: int, parts: Iterable[str], **attributes: Value) -> str:
    """Return the text of an SVG file."""
    content = "".join(f"\n{part}" for part in parts)
    return (
        element(
            "svg",
            content,
            "\n",
            xmlns=NAMESPACE,
            viewBox=f"0 0 {width} {height}",
            width=width,
            height=height,
            **attributes,
        )
        + "\n"
    )


def sheet(width: int, height: int, parts: Iterable[str]) -> str:
    """Return a picture on white, with the letters of all charts."""
    white = element("rect", width=width, height=height, fill="#ffffff")
    return picture(width, height, [white, *parts], font_family="sans-serif", font_size=12)


def _class(style: str) -> dict[str, Value]:
    return {"class_": style} if style else {}


def _value(value: Value) -> str:
    return f"{value:.1f}" if isinstance(value, float) else escape(str(value))


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_value(x)},{_value(y)}" for x, y in points)


# --- rates as lines -------------------------------------------------------------------------------


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
    parts = []
    at = LEFT
    for name, style in zip(panels[0].rates, _styles(panels[0]), strict=True):
        parts.append(element("path", d=f"M{at},18h26", **style))
        parts.append(text(at + 32, 22, name))
        at += 52 + 7 * len(name)
    for index, panel in enumerate(panels):
        parts += _lines(panel, LEFT + index * (WIDTH + GAP), TOP)
    return sheet(width, TOP + HEIGHT + GAP, parts)


def headed(x: int, y: int, words: str) -> str:
    """Return the title of a panel."""
    return text(x, y - 8, words, font_weight="bold")


def mark_level(x: int, y: int, words: str) -> str:
    """Return a number at the left axis of a panel."""
    return text(x - 6, y + 4, words, text_anchor="end")


def mark_column(x: int, y: int, words: str) -> str:
    """Return words below a panel."""
    return text(x, y + HEIGHT + 16, words, text_anchor="middle")


def _styles(panel: Curves) -> list[dict[str, Value]]:
    return [
        {"stroke": colour, "stroke_width": 2, "stroke_dasharray": dashes}
        for colour, dashes in LINES[: len(panel.rates)]
    ]


def _lines(panel: Curves, x: int, y: int) -> list[str]:
    across = [
        x + round((tick + 0.5) / len(panel.ticks) * WIDTH) for tick in range(len(panel.ticks))
    ]
    parts = [headed(x, y, panel.title)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = y + HEIGHT - round(share * HEIGHT)
        parts.append(element("path", d=f"M{x},{level}h{WIDTH}", stroke="#dddddd"))
        parts.append(mark_level(x, level, f"{share:.0%}"))
    for rates, style in zip(panel.rates.values(), _styles(panel), strict=True):
        levels = [round(y + HEIGHT - rate * HEIGHT) for rate in rates]
        parts.append(polyline(zip(across, levels, strict=True), **style))
    parts += [mark_column(a, y, tick) for a, tick in zip(across, panel.ticks, strict=True)]
    return parts
