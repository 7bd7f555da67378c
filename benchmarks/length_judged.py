"""What judging costs as a sequence grows: a decode step, the prompt's tokens, and the end of the
request.

    python -m benchmarks.length_judged [--tokens N ...] [--write docs/results/speed.md]

One request of the workload `three-groups` (`benchmarks/workload.py`) is computed in chunks of 2 048
tokens on the reference under all checkers, generates `DECODES` tokens, and ends. Times are CPU
seconds of this process, engine included, without Python's collector of cycles. Of a decode step
there are two: the median, which stays in its blocks, and the mean: one step in so many takes a
block of every group and tells tables that have grown.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks import sections
from benchmarks.throughput import Session
from benchmarks.workload import BLOCK, LAYOUT
from cachewitness._util import pages
from cachewitness.core.trace_format import SEGMENT_TOKENS_MAX, Finish, Step, Submit, TraceHeader
from cachewitness.engines.registry import parse

LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
CHUNK, DECODES = 2_048, 64
GROWTH_MAX = {"end": 3.0, "prompt": 5.0}
"""By how much the time for a token of the longest sequence may exceed that of the shortest of the
three longest."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds: of the whole prompt, of a decode step, and of the end."""

    prompt: float
    step: float
    mean_step: float
    end: float


def measure(length: int) -> Cost:
    """Serve one request of so many tokens under all checkers. Raises SystemExit if anything is
    found.
    """
    columns = (length + CHUNK) // BLOCK
    options = {"max_model_len": length + CHUNK, "max_num_batched_tokens": CHUNK}
    header = TraceHeader(name="long", layout=LAYOUT, pages=4 * columns + 2, options=options)
    session = Session(parse("reference").open(header))
    parts = [min(SEGMENT_TOKENS_MAX, length - at) for at in range(0, length, SEGMENT_TOKENS_MAX)]
    prompt = " ".join(f"part{number}:{tokens}" for number, tokens in enumerate(parts))
    step = Step(run=[("long", CHUNK)])
    gc.collect()
    gc.disable()
    try:
        prefill = session.run([Submit(r="long", prompt=prompt), *[step] * (length // CHUNK + 2)])
        decodes = [session.run([step]) for _ in range(DECODES)]
        end = session.run([Finish("long")])
    finally:
        gc.enable()
    result = session.close()
    if result.outcome != "pass":
        raise SystemExit(f"length_judged: the run is not clean: {result.findings[:1]}")
    return Cost(prefill, median(decodes), mean(decodes), end)


def table(lengths: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, its head first, and what grew too much."""
    costs = [measure(length) for length in lengths]
    rows = [
        ["", *(f"{length:,}" for length in lengths)],
        ["a decode step in its blocks, ms", *(f"{cost.step * 1e3:.2f}" for cost in costs)],
        ["a decode step on average, ms", *(f"{cost.mean_step * 1e3:.2f}" for cost in costs)],
        [
            "a token of the prompt, µs",
            *(
                f"{cost.prompt / length * 1e6:.1f}"
                for cost, length in zip(costs, lengths, strict=True)
            ),
        ],
        ["the end, ms", *(f"{cost.end * 1e3:.1f}" for cost in costs)],
    ]
    grown = []
    for phase, most in GROWTH_MAX.items():
        per_token = [
            getattr(cost, phase) / length for cost, length in zip(costs, lengths, strict=True)
        ][-3:]
        if per_token[-1] > most * per_token[0]:
            grown.append(
                f"{phase}: {per_token[-1] / per_token[0]:.1f} times the time for a token at"
                f" {lengths[-1]:,} tokens"
            )
    return rows, grown


def main(argv: Sequence[str]) -> int:
    """Measure, print the section and return the exit code: 1 if something grew faster than the
    sequence.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=LENGTHS, metavar="N", help="the lengths, ascending"
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the section into this page")
    given = parser.parse_args(argv)
    (head, *body), grown = table(given.tokens)
    text = pages.render(
        "speed-length-judged",
        head=head,
        rows=body,
        chunk=CHUNK,
        decodes=DECODES,
        python=platform.python_version(),
    )
    sections.tell(text, given.write)
    for message in grown:
        print(message, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
