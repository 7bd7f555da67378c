"""Write docs/results/resumed.md: every architecture of the engine `transformers`, resumed from the
library's caches and computed anew.

    python -m benchmarks.resumed

It needs torch and transformers, and takes some minutes. The numbers are those of the run at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from cachewitness._util import files, pages
from cachewitness.core.checkers.finding import Measured
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import parse
from cachewitness.parity.answers.compare import runs
from cachewitness.systems.transformers.architectures import ARCHITECTURES
from cachewitness.systems.transformers.kind import configurations
from cachewitness.workloads.answer_random import random_answers
from cachewitness.workloads.answer_stories import write
from cachewitness_faults.transformers.cache_faults import FAULTS

SEEDS = (1, 2)
"""Of the random traces."""


@dataclass(frozen=True)
class Row:
    """An architecture: what was compared, and by how many tolerances each seeded fault moves an
    answer.
    """

    name: str
    holds: str
    verdict: str
    findings: int
    measured: Measured
    faults: Mapping[str, float]

    @property
    def margin(self) -> tuple[str, float]:
        """The seeded fault that moves answers least, of those that have something to be planted
        into.
        """
        seen = {name: share for name, share in self.faults.items() if share > 1}
        return min(seen.items(), key=lambda item: item[1], default=("", 0.0))


def row_of(name: str) -> Row:
    """Run an architecture on random requests, and the story `single-tokens` with each fault."""
    shape = configurations()[0].shape("answers")
    results = [_run(random_answers(shape, seed), name) for seed in SEEDS]
    measured = Measured(dtype="float32")
    for result in results:
        measured.add(_measured(result))
    faults: dict[str, float] = {}
    if _right(results):
        story = write(shape, "single-tokens", SEEDS[0])
        faults = {fault: _measured(_run(story, name, mutant=fault)).share for fault in FAULTS}
    found = sum(len(result.findings) for result in results)
    return Row(
        name,
        ", ".join(ARCHITECTURES[name].holds),
        "pass" if _right(results) else "FAIL",
        found,
        measured,
        faults,
    )


def _right(results: list[Result]) -> bool:
    return all(result.outcome == "pass" for result in results)


def _run(trace: Trace, name: str, **options: str) -> Result:
    """Run a trace, with pasts that are recorded, so that windows and convolutions can be
    cropped.
    """
    recorded = Trace(replace(trace.header, options={"record": True}), trace.ops)
    named = ",".join(f"{key}={value}" for key, value in {"model": name, **options}.items())
    return runs(recorded, parse(f"transformers:{named}"))


def _measured(result: Result) -> Measured:
    return next(tally.measured[0] for tally in result.tallies if tally.measured)


def main() -> int:
    """Write the page and return the exit code."""
    import torch
    import transformers

    rows = []
    for name in ARCHITECTURES:
        rows.append(row_of(name))
        print(f"{name}: {rows[-1].verdict}", flush=True)
    text = pages.render(
        "resumed", rows=rows, torch=torch.__version__, transformers=transformers.__version__
    )
    files.write(pages.folder("results") / "resumed.md", [text.encode()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
