"""What a token costs in the references as sequences grow: the same at 62 500 tokens as at a
million.

    python -m benchmarks.long_sequence [--policy NAME ...] [--tokens N ...] \
        [--write docs/results/speed.md]

For each policy one sequence is computed in chunks of 2 048 tokens over pools that hold it twice,
ends, and is sent again. Four phases are timed apart: the look-up of the second request (`look up`),
taking blocks for a chunk (`allocate`), keying or storing what was computed and giving back what no
later token needs (`retain`), and the end (`release`); and the steps of a single token that follow
the look-up (`decode`). Times are CPU seconds of this process, the best of several repetitions,
without Python's collector of cycles, whose passes over live objects would be counted to whoever
happens to allocate. Digests of a whole prompt are part of the look-up.

Linear means that the time per token does not grow with the sequence. The run stops with a message
if it does: if at the longest sequence a token costs more than `GROWTH_MAX` times what it costs at
the shortest. `--write` puts the section into a page.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import sections
from benchmarks.long_sequence_subjects import SUBJECTS
from benchmarks.long_sequence_watch import CHUNK, DECODES, Watch
from cachewitness._util import pages

LENGTHS = (62_500, 125_000, 250_000, 500_000, 1_000_000)
REPEATS = 3
GROWTH_MAX = 2.5
PHASES = ("look up", "allocate", "retain", "release", "decode")


def measure(name: str, length: int, repeats: int = REPEATS) -> dict[str, float]:
    """Return the least seconds of each phase, over so many repetitions, for a sequence of
    `length` tokens.
    """
    best: dict[str, float] = {}
    for _ in range(repeats):
        subject = SUBJECTS[name](length)
        watch = Watch()
        tokens = list(range(length))
        gc.collect()
        gc.disable()
        try:
            subject.serve(tokens, watch)
        finally:
            gc.enable()
        for phase, seconds in watch.seconds.items():
            best[phase] = min(seconds, best.get(phase, seconds))
    return best


def per_token(phase: str, seconds: float, length: int) -> float:
    """Return microseconds per token of a phase: of the sequence, or of those that were
    generated.
    """
    return seconds / (DECODES if phase == "decode" else length) * 1e6


def table(
    names: Sequence[str], lengths: Sequence[int], repeats: int = REPEATS
) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, its head first, and what grew too much."""
    rows = [["policy", "phase", *(f"{length:,}" for length in lengths), "growth"]]
    grown = []
    for name in names:
        found = [measure(name, length, repeats) for length in lengths]
        for phase in PHASES:
            if phase not in found[0]:
                continue
            costs = [
                per_token(phase, seconds[phase], length)
                for seconds, length in zip(found, lengths, strict=True)
            ]
            growth = costs[-1] / max(costs[0], 0.005)
            rows.append([name, phase, *(f"{cost:.2f}" for cost in costs), f"{growth:.2f}"])
            if growth > GROWTH_MAX and costs[-1] > 0.05:
                grown.append(
                    f"{name}, {phase}: {growth:.1f} times the time per token at {lengths[-1]:,}"
                    " tokens"
                )
    return rows, grown


def section(rows: Sequence[Sequence[str]]) -> str:
    """Return the section of the page for a table, its head first."""
    head, *body = rows
    return pages.render(
        "speed-long-sequence",
        head=head,
        rows=body,
        chunk=CHUNK,
        repeats=REPEATS,
        python=platform.python_version(),
    )


def main(argv: Sequence[str]) -> int:
    """Measure, print the section and return the exit code: 1 if something grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=sorted(SUBJECTS),
        help="a policy; all of them if left out",
    )
    parser.add_argument(
        "--tokens",
        action="append",
        type=int,
        metavar="N",
        help="a length; several make the columns",
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the section into this page")
    given = parser.parse_args(argv)
    rows, grown = table(given.policy or list(SUBJECTS), given.tokens or LENGTHS)
    sections.tell(section(rows), given.write)
    for message in grown:
        print(message, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
