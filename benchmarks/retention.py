"""Before and after vllm-project/vllm#45845: what dense state snapshots do to multi-turn serving,
and what retention changes.

Full attention beside a recurrent group, blocks of 16 tokens, prefill in chunks of one block, long
decodes: so a snapshot is left behind at every block boundary, in prefill and in decode. The pool
holds every conversation's attention blocks, with room for sparse snapshots and not for dense ones.
All checkers watch every run: the dense arm breaks no rule, it only keeps what nobody asks for.

    python benchmarks/retention.py --vllm PATH … [--write docs/results/retention.md]

Each PATH is a folder that holds `vllm` (a checkout or an unpacked wheel); each is run in a process
of its own, on the same conversations, beside the reference told to be that release. Exits 1 if a
checker found anything in any run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks import retention_page as page
from benchmarks.conversations import Loop, Plan, Served
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness_reference.vllm.spec import NEWEST

LAYOUT = "full-mamba"
BLOCK = 16
INTERVAL = 8 * BLOCK

REASONING = Plan(
    talkers=12, turns=10, running=4, system=64, words=24, thoughts=160, answer=32, chunk=BLOCK
)
CHAT = Plan(talkers=8, turns=8, running=4, system=64, words=24, thoughts=0, answer=160, chunk=BLOCK)

RELEASES = ("0.25.1", "0.29.0", "0.30.0", "0.33.0")
"""The releases of vLLM that the comparison is about; those that nobody named a PATH for are listed
as not run."""


@dataclass(frozen=True)
class Arm:
    """One setting: a plan, a pool of `pages` pages and the options of the policy."""

    name: str
    plan: Plan
    pages: int
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, engine: str) -> Served:
        """Serve the plan on an engine."""
        header = TraceHeader(
            name=self.name, layout=layouts.load(LAYOUT), pages=self.pages, options=self.options
        )
        return Loop(header, parse(engine).open(header), self.plan).run()


def three(plan: Plan, pages: int, **options: Any) -> list[Arm]:
    """Return the three kinds of retention over one pool: explicitly dense, the release's
    default, an interval.
    """
    return [
        Arm("dense", plan, pages, {"retention_interval": None, **options}),
        Arm("default", plan, pages, options),
        Arm(f"interval {INTERVAL}", plan, pages, {"retention_interval": INTERVAL, **options}),
    ]


PRESSURE = three(REASONING, 651)
WIDE = three(REASONING, 1201, pages_per_snapshot=4)
ROOM = three(CHAT, 951)
SWEEP = {pages: three(REASONING, pages + 1) for pages in (500, 550, 600, 700, 750, 800)}
"""The pool under pressure again in other sizes, to show where the collapse begins and ends."""


def main(argv: list[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vllm",
        metavar="PATH",
        action="append",
        default=[],
        help="a folder that holds vllm; repeatable",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        type=Path,
        help="write the page (and its chart, FILE with .svg) here",
    )
    parser.add_argument("--only-vllm", metavar="PATH", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.only_vllm:
        print(
            json.dumps(
                [arm.run(f"vllm:source={given.only_vllm}").plain() for arm in PRESSURE + ROOM]
            )
        )
        return 0
    runs, not_run = _vllm(given.vllm)
    for release in sorted({NEWEST, *(_release(run.engine) for run in runs)}):
        runs += [_reference(arm, release, "pressure") for arm in PRESSURE]
        runs += [_reference(arm, release, "room") for arm in ROOM]
    runs += [_reference(arm, NEWEST, "wide") for arm in WIDE]
    runs += [
        _reference(arm, NEWEST, f"{page.POOL}{pages}")
        for pages, arms in SWEEP.items()
        for arm in arms
    ]
    text, chart = page.write(runs, not_run, _settings())
    print(text)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
        given.write.with_suffix(".svg").write_text(chart, encoding="utf-8")
    return 1 if any(run.served.findings for run in runs) else 0


def _settings() -> dict[str, page.Setting]:
    return {
        "pressure": page.Setting(REASONING, PRESSURE[0].pages, 1),
        "wide": page.Setting(REASONING, WIDE[0].pages, 4),
        "room": page.Setting(CHAT, ROOM[0].pages, 1),
    }


def _reference(arm: Arm, release: str, setting: str) -> page.RunOf:
    return page.RunOf(
        setting, arm.name, f"reference {release}", arm.run(f"reference:release={release}")
    )


def _release(engine: str) -> str:
    """Return the release (0.29) of an engine's name (vllm 0.29.0)."""
    return ".".join(engine.split()[-1].split(".")[:2])


def _vllm(paths: list[str]) -> tuple[list[page.RunOf], dict[str, str]]:
    """Run each vLLM in a process of its own; return the runs, and why a release was not run."""
    runs: list[page.RunOf] = []
    not_run = dict.fromkeys(
        (f"vLLM {version}" for version in RELEASES), "no --vllm PATH of this release was given"
    )
    for path in paths:
        command = [sys.executable, __file__, "--only-vllm", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            not_run[path] = (done.stderr.strip().splitlines() or ["no output"])[-1]
            continue
        served = [Served.from_plain(data) for data in json.loads(done.stdout.splitlines()[-1])]
        not_run.pop(served[0].engine.replace("vllm", "vLLM"), None)
        settings = ["pressure"] * len(PRESSURE) + ["room"] * len(ROOM)
        for arm, setting, one in zip(PRESSURE + ROOM, settings, served, strict=True):
            runs.append(page.RunOf(setting, arm.name, one.engine.replace("vllm", "vLLM"), one))
    return runs, not_run


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (UsageError, EngineMissing) as error:
        sys.exit(f"retention: {error}")
