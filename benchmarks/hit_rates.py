"""Hit rates of long multi-turn conversations by block size, dense and at an interval:
vllm-project/vllm#45845 in proportion.

    python -m benchmarks.hit_rates [--write docs/results/hit-rates.md]

The pull request states three things of a model whose state weighs as much as 471 tokens of
attention, at blocks of 128, 256 and 512 tokens: dense at small blocks falls late in long runs, an
interval recovers it to parity with large blocks, large blocks are unaffected. Here everything is an
eighth of that: a state weighs 59 tokens, blocks have 16, 32 and 64, a snapshot takes 4, 2 and 1 of
them. All runs serve the same conversations from the same bytes, under every checker, on the
reference of release 0.24, which has the change; vLLM itself has no blocks smaller than a state.
Deterministic. Exits 1 if a checker found anything, or if the three statements do not hold in the
pool that the page shows by turn.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import hit_rates_page as page
from benchmarks.conversations import Loop, Plan, Served
from cachewitness.core.trace_format import GroupSpec, Layout, TraceHeader
from cachewitness.engines.registry import parse

RELEASE = "0.24"
STATE_TOKENS = 59
"""How many tokens of attention weigh as much as a state: an eighth of Kimi-Linear's 471, on four
ranks."""
TALK = Plan(talkers=8, turns=14, running=4, system=64, words=24, thoughts=160, answer=32, chunk=64)
POOLS = (8_000, 10_000, 11_000, 12_000, 12_500, 13_000, 13_500, 14_000, 14_500, 15_000, 16_000)
"""The sizes of the pool, as the tokens of attention that would fill it."""
SHOWN = 14_000


@dataclass(frozen=True)
class Arm:
    """One way to serve: the block size and the retention interval in tokens, None for dense."""

    block: int
    interval: int | None = None

    @property
    def name(self) -> str:
        """What the page calls it."""
        return f"{self.block}, " + (
            "dense" if self.interval is None else f"interval {self.interval}"
        )

    @property
    def snapshot_pages(self) -> int:
        """The blocks that a snapshot spans."""
        return -(-STATE_TOKENS // self.block)

    def serve(self, tokens: int) -> Served:
        """Serve the conversations from a pool of so many tokens, the null block besides."""
        layout = Layout(
            "full-mamba", [GroupSpec("full", self.block), GroupSpec("recurrent", self.block)]
        )
        options = {
            "release": RELEASE,
            "retention_interval": self.interval,
            "pages_per_snapshot": self.snapshot_pages,
        }
        header = TraceHeader(
            name=self.name, layout=layout, pages=tokens // self.block + 1, options=options
        )
        return Loop(header, parse("reference").open(header), TALK).run()


SMALL, MIDDLE, LARGE = (Arm(block) for block in (16, 32, 64))
SPARSE = Arm(16, 256)
FINE = Arm(16, 64)
ARMS = (SMALL, MIDDLE, LARGE, SPARSE, FINE)


def main(argv: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        type=Path,
        help="write the page (and its chart, FILE with .svg) here",
    )
    given = parser.parse_args(argv)
    runs = {tokens: page.Pool(*(arm.serve(tokens) for arm in ARMS)) for tokens in POOLS}
    text, chart = page.write(runs, SHOWN, TALK, {arm.name: arm.snapshot_pages for arm in ARMS})
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
        given.write.with_suffix(".svg").write_text(chart, encoding="utf-8")
    clean = not any(served.findings for pool in runs.values() for served in pool)
    return 0 if clean and len(runs[SHOWN].holding(runs[max(runs)])) == len(page.STATEMENTS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
