"""Tables of simulated error rates, and the command that writes a section with them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import sections

RUNS = 20_000
World = TypeVar("World")


def table(
    head: Sequence[str],
    worlds: Sequence[World],
    runs: int,
    simulate: Callable[[World, int, int], Mapping[str, int]],
    cells: Callable[[World], str],
    verdicts: Sequence[str],
) -> str:
    """Return a table, and print each row when it is there: `cells` of a world, and how often, in
    per cent, each of the verdicts came of so many runs. A world's place is its seed.
    """
    lines = [*head]
    for seed, world in enumerate(worlds):
        found = simulate(world, runs, seed)
        rates = " | ".join(f"{100 * found[verdict] / runs:.2f}" for verdict in verdicts)
        line = f"| {cells(world)} | {rates} |"
        print(line, flush=True)
        lines.append(line)
    return "\n".join(lines)


def command(description: str, section: Callable[[int], str]) -> None:
    """Simulate, print, and write the page if asked to. `section` makes it, of so many runs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    given = parser.parse_args()
    sections.tell(section(given.runs), given.write)
