"""Draws the kill matrix as a heat map: how many faults of each mechanism each detector sees, from the page's own table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from harness.engines.mutant import GROUPS
from harness.mutants.detectors import DETECTORS, NO, NOT_RUN

INVARIANTS = DETECTORS[0]
CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 30, 24, 470, 200
WORDS_MAX = 80
"""Letters of a mechanism beside its row."""
LIGHTEST, DARKEST = (226, 236, 246), (16, 66, 120)

Faults = Mapping[str, Mapping[str, Sequence[str]]]
"""For each mechanism's letter and each detector the faults that it sees."""


def drawn(page: str) -> str:
    """Return an SVG of the table in docs/kill-matrix.md. Raises ValueError if there is none in it."""
    seen, of = _read(page)
    named = {name for found in seen.values() for name in found}
    columns = [*sorted(named - {*DETECTORS}), *(detector for detector in DETECTORS if detector in named)]
    rows = [letter for letter in GROUPS if of.get(letter)]
    width, height = LEFT + CELL_WIDTH * len(columns) + 60, TOP + CELL_HEIGHT * len(rows) + 16
    title = f"{sum(map(len, of.values()))} seeded faults by mechanism, and how many of them each checker or detector sees"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for place, name in enumerate(columns):
        x = LEFT + CELL_WIDTH * place + CELL_WIDTH / 2 + 4
        weight = "bold" if name in DETECTORS else "normal"
        parts.append(f'<text transform="translate({x:g} {TOP - 8}) rotate(-60)" font-weight="{weight}">{escape(name)}</text>')
    for place, letter in enumerate(rows):
        parts += _row(letter, TOP + CELL_HEIGHT * place, of[letter], [seen[letter].get(name, ()) for name in columns], columns)
    return "\n".join([*parts, "</svg>", ""])


def _row(letter: str, y: int, faults: Sequence[str], cells: Sequence[Sequence[str]], columns: Sequence[str]) -> list[str]:
    words = f"{letter}: {GROUPS[letter]}"
    words = words if len(words) <= WORDS_MAX else words[: words.rindex(" ", 0, WORDS_MAX)] + " …"
    base = y + CELL_HEIGHT - 8
    parts = [
        f'<text x="16" y="{base}">{escape(words)}</text>',
        f'<text x="{LEFT - 8}" y="{base}" text-anchor="end" fill="#555555">{len(faults)}</text>',
    ]
    for place, (found, name) in enumerate(zip(cells, columns, strict=True)):
        x, share = LEFT + CELL_WIDTH * place, len(found) / len(faults)
        told = f"{letter}, {name}: {len(found)} of {len(faults)}" + "".join(f"\n{fault}" for fault in found)
        fill = "#{:02x}{:02x}{:02x}".format(*_colour(share)) if found else "#f7f7f7"
        parts.append(
            f'<g><title>{escape(told)}</title><rect x="{x}" y="{y}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" '
            f'fill="{fill}"/>'
        )
        if found:
            ink = "#ffffff" if share > 0.5 else "#000000"
            parts.append(
                f'<text x="{x + CELL_WIDTH / 2 - 1:g}" y="{base}" text-anchor="middle" fill="{ink}">{len(found)}</text>'
            )
        parts.append("</g>")
    return parts


def _colour(share: float) -> tuple[int, ...]:
    return tuple(round(light + (dark - light) * share) for light, dark in zip(LIGHTEST, DARKEST, strict=True))


def _read(page: str) -> tuple[Faults, dict[str, list[str]]]:
    """Return what each detector sees of each mechanism, and the faults of each mechanism."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    head = next((line for line in lines if line[0] == "fault"), None)
    if head is None:
        raise ValueError("the page has no table of faults")
    seen: dict[str, dict[str, list[str]]] = {}
    of: dict[str, list[str]] = {}
    for line in lines[lines.index(head) + 1 :]:
        cells = dict(zip(head, line, strict=True))
        fault, letter = cells["fault"].split("`")[1], cells["group"]
        of.setdefault(letter, []).append(fault)
        names = [] if cells[INVARIANTS] == NO else cells[INVARIANTS].split(", ")
        names += [detector for detector in DETECTORS[1:] if cells[detector] not in (NO, NOT_RUN, "–", "")]
        for name in names:
            seen.setdefault(letter, {}).setdefault(name, []).append(fault)
    return seen, of
