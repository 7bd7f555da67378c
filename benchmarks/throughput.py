"""How many operations a second the harness judges, and that neither the history's length nor the
pool's size matters.

    python benchmarks/throughput.py [--vllm PATH] [--write docs/results/speed.md] [--profile]

The workload is `benchmarks/workload.py`. Times are CPU seconds of this process, the best of several
repetitions, so that other work on the machine disturbs them little; two processes and vLLM are
timed by the clock as well. `--profile` prints where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks import sections, workload
from benchmarks.bare import Bare
from cachewitness._util import pages
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.checkers.protocol import Checker
from cachewitness.core.driving import BatchedRun, Observer
from cachewitness.core.engine import Engine
from cachewitness.core.events import StepBegin
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import Op, Submit
from cachewitness.engines.registry import parse

REPEATS = 3
OPERATIONS = 4_000
LENGTHS = (1, 4, 16)
POOLS = (100, 1_000, 10_000, 100_000)
AIM = 20_000


class Session:
    """An engine under checkers, run in portions: `run` returns the CPU seconds that a portion
    took.
    """

    def __init__(self, engine: Engine, checkers: Iterable[Checker] | None = None) -> None:
        described = engine.describe()
        self.engine = engine
        self.prefilled: list[int] = []
        self._observer = Observer(described, checkers, keep=False)
        self._ahead = BatchedRun(engine, described, self._observer)

    @property
    def activity(self) -> Activity:
        """What happened so far."""
        return self._observer.activity

    def run(self, ops: list[Op]) -> float:
        """Carry out operations and return the CPU seconds; raises if the engine does."""
        begun = time.process_time()
        for index, op in enumerate(ops):
            assert self._ahead.carry_out(op, index) is not None, self._observer.findings
        self._ahead.judge()
        return time.process_time() - begun

    def close(self) -> Result:
        """End the run and return what the checkers say."""
        self.engine.close()
        return self._observer.close(None)


@dataclass(frozen=True)
class Mix:
    """What the workload is made of, counted in a run: `prefills` are the tokens of each, `idle`
    the steps that ran nothing.
    """

    activity: Activity
    submits: int
    prefills: list[int]
    decodes: int
    idle: int


@dataclass(frozen=True)
class BesideVllm:
    """With vLLM as the engine: operations per second, and microseconds per operation inside its
    code and outside.
    """

    version: str
    rate: float
    inside: float
    outside: float


def main(argv: list[str]) -> int:
    """Run the benchmark and return the exit code: 1 if a checker found something, or the pool
    was not under pressure.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vllm",
        metavar="PATH",
        help="a folder that holds vllm, to compare the harness's time with",
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the page here")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="print the functions that take most time, and nothing else",
    )
    given = parser.parse_args(argv)
    if given.profile:
        profile()
        return 0
    text = page(given.vllm)
    print(text)
    if given.write:
        before = given.write.read_text(encoding="utf-8") if given.write.exists() else ""
        given.write.write_text(sections.headed(before, text), encoding="utf-8")
    return 0


def page(vllm: str | None) -> str:
    """Run everything and return the page, without the sections that other benchmarks write."""
    count = OPERATIONS
    judged, bare = ratios(count)
    by_cpu, by_clock = on_two(count)
    counted = mix(count)
    rates = [(count * times, quarters(count * times)) for times in LENGTHS]
    entries = {**judged, "the bare policy (the reference's manager in a plain loop)": bare}
    return pages.render(
        "speed",
        rate=count / judged["all checkers"],
        by_cpu=by_cpu,
        by_clock=by_clock,
        aim=AIM,
        python=platform.python_version(),
        cores=os.cpu_count(),
        repeats=REPEATS,
        workload=workload,
        mix=counted,
        wide=sum(tokens >= 4 * workload.BLOCK for tokens in counted.prefills),
        ratios=[
            [name, f"{s / count * 1e6:.0f}", f"{count / s:,.0f}", f"{s / bare:.1f}"]
            for name, s in entries.items()
        ],
        checkers_cost=judged["all checkers"] / judged["no checker"],
        beside=beside_vllm(vllm, count) if vllm else None,
        lengths=[[f"{size:,}", *(f"{rate:,.0f}" for rate in four)] for size, four in rates],
        slowdown=rates[-1][1][-1] / rates[-1][1][0],
        pools=[
            [f"{size:,}", f"{rate:,.0f}", f"{evicted:,}"]
            for size in POOLS
            for rate, evicted in [over_pool(size, count)]
        ],
    )


# --- what is measured -----------------------------------------------------------------------------


def session(
    pages: int = workload.PAGES,
    checkers: Iterable[Checker] | None = None,
    engine: str = "reference",
) -> Session:
    """Return a session of the workload over a pool of so many pages."""
    return Session(parse(engine).open(workload.header(pages)), checkers)


def best(measure: Callable[[], float]) -> float:
    """Return the least of several measurements."""
    return min(measure() for _ in range(REPEATS))


def judged_run(
    ops: list[Op], checkers: Callable[[], Iterable[Checker] | None], engine: str = "reference"
) -> float:
    """Return the CPU seconds of a whole run; raises if it is not a clean run under pressure."""
    one = session(checkers=checkers(), engine=engine)
    seconds = one.run(ops)
    clean(one.close())
    return seconds


def clean(result: Result) -> None:
    """Raise unless nothing was found, nothing crashed and blocks were evicted."""
    if result.outcome != "pass":
        raise SystemExit(f"throughput: the run is not clean: {result.findings[:1]}")
    if not result.activity.evictions:
        raise SystemExit("throughput: nothing was evicted; the pool is not under pressure")


def ratios(count: int) -> tuple[dict[str, float], float]:
    """Return CPU seconds of the workload with all checkers and with none, and of the bare
    policy.
    """
    ops = list(workload.operations(count))
    judged = {
        "all checkers": best(lambda: judged_run(ops, lambda: None)),
        "no checker": best(lambda: judged_run(ops, lambda: ())),
    }
    return judged, best(lambda: Bare(workload.header()).run(ops))


def quarters(count: int) -> list[float]:
    """Return operations a second in each quarter of a run of so many operations, the best of
    several runs.
    """
    ops = list(workload.operations(count))
    size = count // 4
    runs = []
    for _ in range(REPEATS):
        one = session()
        runs.append([one.run(ops[quarter * size : (quarter + 1) * size]) for quarter in range(4)])
        clean(one.close())
    return [size / min(seconds) for seconds in zip(*runs, strict=True)]


def over_pool(pages: int, count: int) -> tuple[float, int]:
    """Return (operations a second over a pool that is full of keys, how many of them were
    evicted).
    """
    one = session(pages)
    one.run(list(workload.filling(pages)))
    before = one.activity.evictions
    portions = workload.operations(count)
    size = count // REPEATS
    seconds = best(lambda: one.run(list(islice(portions, size))))
    clean(one.close())
    return size / seconds, one.activity.evictions - before


def on_two(count: int) -> tuple[float, float]:
    """Return operations a second of two processes at once, by their CPU seconds and by the
    clock, the best of several runs.
    """
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_shard, [count // 10] * 2))  # imports, and warms up
        by_cpu = []
        by_clock = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            seconds = list(pool.map(_shard, [count] * 2))
            by_clock.append(2 * count / (time.perf_counter() - begun))
            by_cpu.append(sum(count / one for one in seconds))
    return max(by_cpu), max(by_clock)


def _shard(count: int) -> float:
    return judged_run(list(workload.operations(count)), lambda: None)


def mix(count: int) -> Mix:
    """Count what the workload is made of."""
    ops = list(workload.operations(count))
    engine = parse("reference").open(workload.header())
    begun = [event.runs for op in ops for event in engine.apply(op) if isinstance(event, StepBegin)]
    tokens = [run.stop - run.start for runs in begun for run in runs]
    whole = session()
    whole.run(ops)
    submits = sum(isinstance(op, Submit) for op in ops)
    prefills = [number for number in tokens if number > 1]
    return Mix(
        whole.close().activity,
        submits,
        prefills,
        len(tokens) - len(prefills),
        sum(not runs for runs in begun),
    )


def profile() -> None:
    """Print the functions that take most time, with all checkers."""
    ops = list(workload.operations(OPERATIONS))
    one = session()
    profiler = cProfile.Profile()
    profiler.runcall(one.run, ops)
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(40)


def beside_vllm(path: str, count: int) -> BesideVllm:
    """Return the time of the harness beside vLLM's own, by the clock, the best of several runs."""
    ops = list(workload.operations(count))
    rows = []
    for _ in range(REPEATS):
        one = session(engine=f"vllm:source={path}")
        begun = time.perf_counter()
        one.run(ops)
        wall = time.perf_counter() - begun
        inside: float = one.engine.engine_seconds  # type: ignore[attr-defined]
        rows.append((wall, inside))
        version = one.engine.describe().engine_version
        clean(one.close())
    wall, inside = min(rows)
    return BesideVllm(version, count / wall, inside / count * 1e6, (wall - inside) / count * 1e6)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (UsageError, EngineMissing) as error:
        sys.exit(f"throughput: {error}")
