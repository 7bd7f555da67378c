"""Long runs without faults: every alarm is false, or a finding.

    python benchmarks/soak.py --engine NAME [--policy NAME] --operations N --seed N [--keep DIR] [--write docs/results/soak.md]

Runs what `cachewitness fuzz` draws, and goes on after an alarm. An alarm is sorted as known if what
was read had been copied in the same step from a block that this step fills, which vLLM 0.26 and
later do (docs/systems/vllm-notes.md). `--keep` stores the trace of each alarm as it was drawn; `--write`
puts a section on the run into a page.
"""  # noqa: E501

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from collections import Counter
from datetime import date
from itertools import count
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks import sections
from cachewitness import __version__
from cachewitness._util import pages
from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.driving import drive
from cachewitness.core.events import Read, StepBegin, Write
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.campaign import levels_of
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads.capabilities import fitting

KNOWN = "a copy of a block that the same step fills"


def known(result: Result) -> bool:
    """Whether what the first finding read was copied, in the same step, from a block that this
    step writes or copies to.
    """
    finding = min(result.findings, key=lambda found: found.seq)
    read = result.history.events[finding.seq]
    if not isinstance(read, Read):
        return False
    same = [event for event in result.history.events if event.step == read.step]
    copies = [move for event in same if isinstance(event, StepBegin) for move in event.copies]
    filled = {move.dst for move in copies} | {
        page for event in same if isinstance(event, Write) for page in event.pages
    }
    return any(move.dst in read.pages and move.src in filled for move in copies)


def main() -> int:
    """Run, print what came of it, and return 1 if an alarm is not known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--policy", default="vllm")
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--write", type=Path, metavar="FILE")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    spec = parse(given.engine)
    plan = Plan(
        given.policy,
        levels_of(spec, given.policy),
        Restriction([], {}, historic=not spec.kind.replays),
        given.seed,
    )
    whole = Activity()
    alarms = Counter[str]()
    ran = Counter[str]()
    refused = 0
    version = ""
    began = time.perf_counter()
    cpu = time.process_time()
    for number in count():
        if whole.operations >= given.operations:
            break
        try:
            configuration, trace = plan.draw(number)
            engine = spec.open(trace.header)
        except UsageError:
            refused += 1
            continue
        described = engine.describe()
        trace = fitting(trace, described.capabilities)
        version = f"{described.engine} {described.engine_version}".strip()
        result = drive(trace, engine, keep=False)
        whole.add(result.activity)
        ran[trace.header.level] += result.activity.operations
        if result.findings:
            why = _sort(trace, spec.open(trace.header))
            alarms[why] += 1
            print(
                f"alarm {number} {configuration.name}: {result.findings[0].anomaly}: {why}",
                flush=True,
            )
            if given.keep:
                given.keep.mkdir(parents=True, exist_ok=True)
                (given.keep / f"{number}.jsonl").write_bytes(traces.dump(trace))
    named = given.engine.partition(":")[0]
    section = pages.render(
        "soak-run",
        engine=named,
        policy=given.policy,
        release=__version__,
        version=version or given.engine,
        python=platform.python_version(),
        today=date.today(),
        seed=given.seed,
        last=number - 1,
        refused=refused,
        activity=whole,
        levels=ran,
        clock=time.perf_counter() - began,
        cpu=time.process_time() - cpu,
        alarms=alarms,
        command=(
            "python benchmarks/soak.py --engine"
            f" {named}{':source=PATH' if named != given.engine else ''} --policy {given.policy}"
            f" --operations {given.operations} --seed {given.seed}"
        ),
    )
    sections.tell(section, given.write)
    return int(any(why != KNOWN for why in alarms))


def _sort(trace: Trace, engine: object) -> str:
    result = drive(trace, engine)  # type: ignore[arg-type]
    return KNOWN if known(result) else "not known"


if __name__ == "__main__":
    raise SystemExit(main())
