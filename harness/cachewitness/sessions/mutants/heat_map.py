"""Draws the kill matrix as a heat map: how many faults of each mechanism each detector sees.

It is made from the rows of a hunt, or from the table of the page in the docs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from cachewitness._util import chart
from cachewitness.engines.mutant import GROUPS
from cachewitness.sessions.mutants.detectors import DETECTORS, NO, NOT_RUN, SURVIVED
from cachewitness.sessions.mutants.matrix import Row

INVARIANTS = DETECTORS[0]
CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 26, 24, 290, 200
WORDS_MAX = 32
"""Letters of a mechanism beside its row, of which a reader of small screens has room for few; the
rest is shown by hovering."""
WIDTH_MIN = 460
"""What the headline needs."""
SHADES = 8
LIGHT = ((226, 236, 246), (16, 66, 120))
DARK = ((24, 44, 66), (126, 186, 245))
"""Where few and where all of a mechanism's faults are seen, on a white page and on a dark one."""

Colour = tuple[int, int, int]
Faults = Mapping[str, Mapping[str, Sequence[str]]]
"""For each mechanism's letter and each detector the faults that it sees."""


def drawn(page: str) -> str:
    """Return an SVG of the table in docs/results/kill-matrix.md. Raises ValueError if there is none
    in it.
    """
    return _drawn(*_read(page))


def of_rows(rows: Sequence[Row], *, inline: bool = False) -> str:
    """Return an SVG of what became of faults, those that could not be hunted left out; `inline`:
    as a part of a page.
    """
    seen: dict[str, dict[str, list[str]]] = {}
    of: dict[str, list[str]] = {}
    for row in rows:
        if row.not_run:
            continue
        of.setdefault(row.group, []).append(row.mutant)
        for name in _seeing(row.detectors):
            seen.setdefault(row.group, {}).setdefault(name, []).append(row.mutant)
    made = _drawn(seen, of)
    return made.replace(f' xmlns="{chart.NAMESPACE}"', "", 1) if inline else made


def _seeing(answers: Mapping[str, str]) -> list[str]:
    """Return the checkers and the other detectors that see a fault."""
    checkers = answers.get(INVARIANTS, NO)
    names = [] if checkers in (NO, NOT_RUN, SURVIVED) else checkers.split(", ")
    return names + [
        detector
        for detector in DETECTORS[1:]
        if answers.get(detector, NO) not in (NO, NOT_RUN, "–", "")
    ]


def _drawn(seen: Faults, of: Mapping[str, Sequence[str]]) -> str:
    named = {name for found in seen.values() for name in found}
    columns = [
        *sorted(named - {*DETECTORS}),
        *(detector for detector in DETECTORS if detector in named),
    ]
    rows = [letter for letter in GROUPS if of.get(letter)]
    width = max(WIDTH_MIN, LEFT + CELL_WIDTH * len(columns) + 60)
    height = TOP + CELL_HEIGHT * len(rows) + 16
    title = (
        f"{sum(map(len, of.values()))} seeded faults by mechanism, and how many of them each"
        " checker or detector sees"
    )
    parts = [
        chart.scheme(*_styles()),
        chart.element("rect", class_="page", width=width, height=height),
        *(
            chart.text(16, y, line, font_size=14, font_weight="bold")
            for y, line in _headline(title)
        ),
    ]
    for place, name in enumerate(columns):
        x = LEFT + CELL_WIDTH * place + CELL_WIDTH // 2 + 4
        turned = f"translate({x} {TOP - 8}) rotate(-60)"
        weight = "bold" if name in DETECTORS else "normal"
        parts.append(chart.element("text", escape(name), transform=turned, font_weight=weight))
    for place, letter in enumerate(rows):
        found = seen.get(letter, {})
        parts += _row(
            letter,
            TOP + CELL_HEIGHT * place,
            of[letter],
            [found.get(name, ()) for name in columns],
            columns,
        )
    return chart.picture(
        width,
        height,
        parts,
        role="img",
        aria_label=title,
        font_family="sans-serif",
        font_size=12,
    )


def _row(
    letter: str,
    y: int,
    faults: Sequence[str],
    cells: Sequence[Sequence[str]],
    columns: Sequence[str],
) -> list[str]:
    words = f"{letter}: {GROUPS[letter]}"
    base = y + CELL_HEIGHT - 8
    parts = [
        chart.text(16, base, _short(words), hover=words),
        chart.text(LEFT - 8, base, f"{len(faults)}", "soft", text_anchor="end"),
    ]
    for place, (found, name) in enumerate(zip(cells, columns, strict=True)):
        x = LEFT + CELL_WIDTH * place
        share = len(found) / len(faults)
        title = f"{letter}, {name}: {len(found)} of {len(faults)}" + "".join(
            f"\n{fault}" for fault in found
        )
        shade = round(share * (SHADES - 1)) if found else "none"
        cell = [chart.title(title), chart.rect(x, y, CELL_WIDTH - 2, CELL_HEIGHT - 2, f"s{shade}")]
        if found:
            middle = x + CELL_WIDTH // 2 - 1
            count = f"{len(found)}"
            cell.append(chart.text(middle, base, count, f"i{shade}", text_anchor="middle"))
        parts.append(chart.element("g", *cell))
    return parts


def _short(words: str) -> str:
    """Return what a mechanism is called, without what explains it."""
    head = re.split(r"(?<=..)[:;,] ", words[3:])[0]
    return words[:3] + (
        head if len(head) <= WORDS_MAX else head[: head.rindex(" ", 0, WORDS_MAX)] + " …"
    )


def _headline(title: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of the headline, each with its place."""
    first, comma, rest = title.partition(", ")
    yield 24, first + comma.rstrip()
    yield 42, rest


def _styles() -> tuple[str, str]:
    """Return the colours of a light page, and of a dark one for who prefers that."""
    light = _inks("#ffffff", "#1f2328", "#59636e", "#f3f4f6") + _shades(*LIGHT)
    dark = _inks("#0d1117", "#f0f6fc", "#9198a1", "#151b23") + _shades(*DARK)
    return light, dark


def _inks(page: str, ink: str, soft: str, empty: str) -> str:
    return (
        f".page {{ fill: {page}; }} text {{ fill: {ink}; }} .soft {{ fill: {soft}; }} .snone {{"
        f" fill: {empty}; }} "
    )


def _shades(least: Colour, most: Colour) -> str:
    """Return the colours of cells, and of the numbers in them, which stand out from theirs."""
    colours = [_colour(shade / (SHADES - 1), least, most) for shade in range(SHADES)]
    inks = ["#ffffff" if sum(colour) < 360 else "#000000" for colour in colours]
    cells = "".join(
        ".s{} {{ fill: #{:02x}{:02x}{:02x}; }} ".format(shade, *colour)
        for shade, colour in enumerate(colours)
    )
    return cells + "".join(f".i{shade} {{ fill: {ink}; }} " for shade, ink in enumerate(inks))


def _colour(share: float, least: Colour, most: Colour) -> Colour:
    red, green, blue = (
        round(low + (high - low) * share) for low, high in zip(least, most, strict=True)
    )
    return red, green, blue


def _read(page: str) -> tuple[Faults, dict[str, list[str]]]:
    """Return what each detector sees of each mechanism, and the faults of each mechanism."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    head = next((line for line in lines if line[0] == "fault"), None)
    if head is None:
        raise ValueError("the page has no table of faults")
    seen: dict[str, dict[str, list[str]]] = {}
    of: dict[str, list[str]] = {}
    for line in lines[lines.index(head) + 1 :]:
        cells = dict(zip(head, line, strict=True))
        fault = cells["fault"].split("`")[1]
        letter = cells["group"]
        of.setdefault(letter, []).append(fault)
        for name in _seeing(cells):
            seen.setdefault(letter, {}).setdefault(name, []).append(fault)
    return seen, of
