"""The harness's time beside vLLM's own, over pools of several sizes.

    python benchmarks/overhead.py --vllm PATH [--write docs/results/speed.md]

The workload is `benchmarks/workload.py`. All times are CPU seconds, those inside vLLM too, the best
of several runs. Each pool is measured twice: as the observer works, and with a look at every block
after every call, as it works where a pool cannot be listened to.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks import sections, workload
from benchmarks.throughput import clean, session
from cachewitness._util import pages
from cachewitness.engines import dirty_blocks
from cachewitness.systems.vllm import clock

OPERATIONS = 4_000
REPEATS = 3
POOLS = (200, 2_000)


def measure(path: str, size: int) -> tuple[float, float, str]:
    """Return (microseconds an operation, those inside vLLM, its version)."""
    ops = list(workload.operations(OPERATIONS))
    rows = []
    for _ in range(REPEATS):
        one = session(pages=size, engine=f"vllm:source={path}")
        seconds = one.run(ops)
        inside: float = one.engine.engine_seconds  # type: ignore[attr-defined]
        rows.append((seconds / OPERATIONS * 1e6, inside / OPERATIONS * 1e6))
        version = one.engine.describe().engine_version
        result = one.close()
        if size == workload.PAGES:
            clean(result)
    return (*min(rows), version)


def main() -> int:
    """Measure and print the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, metavar="PATH")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the section into this page")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    clock.perf_counter = time.process_time  # type: ignore[attr-defined]
    rows: list[list[str]] = []
    usual = dirty_blocks.LOOK_EVERY
    for size in POOLS:
        for name, every in (("looks at every block", 1), ("listens", usual)):
            dirty_blocks.LOOK_EVERY = every
            whole, inside, version = measure(given.vllm, size)
            outside = whole - inside
            rows.append(
                [
                    f"{size:,}",
                    name,
                    *(f"{us:.0f}" for us in (whole, inside, outside)),
                    f"{outside / inside:.1f}",
                ]
            )
            print(rows[-1], file=sys.stderr, flush=True)
    text = pages.render(
        "speed-overhead",
        version=version,
        repeats=REPEATS,
        python=platform.python_version(),
        usual=usual,
        rows=rows,
    )
    sections.tell(text, given.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
