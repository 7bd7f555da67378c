"""Long runs without faults: every alarm is false, or a finding.

    python benchmarks/soak.py --engine NAME [--policy NAME] [--level LEVEL] --operations N --seed N [--kept FILE] [--keep DIR] [--write docs/results/soak.md]

Runs what `cachewitness fuzz` draws, and goes on after an alarm. An alarm is sorted as known if what
was read had been copied in the same step from a block that this step fills, which vLLM 0.26 and
later do (docs/systems/vllm-notes.md). `--kept` stores how far it came, and goes on from there. `--keep`
stores the trace of each alarm as it was drawn; `--write` puts a section on the run into a page.
"""  # noqa: E501

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from datetime import date
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

import msgspec

from benchmarks import sections
from cachewitness import __version__
from cachewitness._util import files, pages
from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.driving import drive
from cachewitness.core.events import Read, StepBegin, Write
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.sessions.fuzz.campaign import levels_of
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads.capabilities import fitting

PORTION = 20
"""So many numbers are run between two times that it is stored how far a run came."""
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


class Soaked(msgspec.Struct):
    """How far a soak came: `next` is the number that is drawn next, of those before the engine
    refused `refused`; operations are counted by level, alarms by why; times are in seconds.
    """

    command: str
    next: int = 0
    refused: int = 0
    version: str = ""
    activity: Activity = msgspec.field(default_factory=Activity)
    levels: dict[str, int] = {}
    alarms: dict[str, int] = {}
    clock: float = 0.0
    cpu: float = 0.0


def main() -> int:
    """Run, print what came of it, and return 1 if an alarm is not known."""
    given = _parser().parse_args()
    warnings.simplefilter("ignore")
    spec = parse(given.engine)
    levels = levels_of(spec, given.policy)
    if given.level and given.level not in levels:
        raise SystemExit(f"soak: {given.engine} runs at {', '.join(levels)}")
    restriction = Restriction([], {}, historic=not spec.kind.replays)
    plan = Plan(given.policy, (given.level,) if given.level else levels, restriction, given.seed)
    soaked = _kept(given)
    while soaked.activity.operations < given.operations:
        _portion(soaked, spec, plan, given)
        if given.kept:
            files.write(given.kept, [msgspec.json.encode(soaked)])
    sections.tell(_section(soaked, given), given.write)
    return int(any(why != KNOWN for why in soaked.alarms))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--policy", default="vllm")
    parser.add_argument("--level", choices=("manager", "scheduler"))
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kept", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--write", type=Path, metavar="FILE")
    return parser


def _command(given: argparse.Namespace) -> str:
    """Return the command that begins the same run, as far as its number of operations."""
    named = given.engine.partition(":")[0]
    parts = [
        f"--engine {named}{':source=PATH' if named != given.engine else ''}",
        f"--policy {given.policy}",
        *([f"--level {given.level}"] if given.level else []),
        f"--seed {given.seed}",
    ]
    return f"python benchmarks/soak.py {' '.join(parts)}"


def _kept(given: argparse.Namespace) -> Soaked:
    """Return how far the run came before, if that was stored."""
    command = _command(given)
    if not given.kept or not given.kept.exists():
        return Soaked(command)
    soaked = msgspec.json.decode(given.kept.read_bytes(), type=Soaked)
    if soaked.command != command:
        raise SystemExit(f"soak: {given.kept} is of another run: {soaked.command}")
    return soaked


def _portion(soaked: Soaked, spec: EngineSpec, plan: Plan, given: argparse.Namespace) -> None:
    """Run the next numbers."""
    began = time.perf_counter()
    cpu = time.process_time()
    for _ in range(PORTION):
        if soaked.activity.operations >= given.operations:
            break
        number = soaked.next
        soaked.next += 1
        try:
            configuration, trace = plan.draw(number)
            why = _run(soaked, spec, trace)
        except UsageError:
            soaked.refused += 1
            continue
        if why:
            print(f"alarm {number} {configuration.name}: {why}", flush=True)
        if why and given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            (given.keep / f"{number}.jsonl").write_bytes(traces.dump(trace))
    soaked.clock += time.perf_counter() - began
    soaked.cpu += time.process_time() - cpu


def _run(soaked: Soaked, spec: EngineSpec, trace: Trace) -> str:
    """Run a trace and return what is wrong, if anything is. Raises UsageError if the engine
    refuses it.
    """
    engine = spec.open(trace.header)
    described = engine.describe()
    trace = fitting(trace, described.capabilities)
    soaked.version = f"{described.engine} {described.engine_version}".strip()
    result = drive(trace, engine, keep=False)
    level = trace.header.level
    soaked.activity.add(result.activity)
    soaked.levels[level] = soaked.levels.get(level, 0) + result.activity.operations
    if not result.findings:
        return ""
    why = KNOWN if known(drive(trace, spec.open(trace.header))) else "not known"
    soaked.alarms[why] = soaked.alarms.get(why, 0) + 1
    return f"{result.findings[0].anomaly}: {why}"


def _section(soaked: Soaked, given: argparse.Namespace) -> str:
    return pages.render(
        "soak-run",
        engine=given.engine.partition(":")[0],
        policy=given.policy,
        level=given.level,
        release=__version__,
        python=platform.python_version(),
        today=date.today(),
        seed=given.seed,
        last=soaked.next - 1,
        soaked=soaked,
        command=f"{soaked.command} --operations {given.operations}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
