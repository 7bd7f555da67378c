"""Hunts all faults, several at a time, and returns a row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from statistics import median

import msgspec

from cachewitness._util.worker_pool import WorkerDied, WorkerPool
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import Mutant
from cachewitness.sessions.mutants.detectors import alone, detected
from cachewitness.sessions.mutants.hunt import hunt
from cachewitness.sessions.mutants.minimal_trace import keep, smallest, stored_witness
from cachewitness.workloads.shrink_candidates import size


class Row(msgspec.Struct, kw_only=True):
    """What became of one fault. `seconds` are CPU time to the kill; `operations` and `traces` were
    carried out until then.

    `other_seeds` are the CPU seconds to a kill under the seeds 1 and up, None where it survived.
    `witness` counts the operations of the shrunk trace; `alone` says that one detector sees the
    fault and no other.
    """

    mutant: str
    group: str
    policy: str
    anomaly: str
    checker: str
    killed: bool
    seconds: float
    operations: int
    traces: int
    other_seeds: list[float | None] = []
    by: str = ""
    witness: int = 0
    detectors: dict[str, str] = {}
    alone: bool = False
    false_alarms: list[str] = []
    not_run: str = ""

    @property
    def killing(self) -> list[float]:
        """CPU seconds to a kill, of every seed under which it was killed."""
        return [
            seconds
            for seconds in [self.seconds if self.killed else None, *self.other_seeds]
            if seconds is not None
        ]

    @property
    def hunts(self) -> int:
        """With how many seeds it was hunted."""
        return 1 + len(self.other_seeds)


class Matrix(msgspec.Struct, kw_only=True):
    """All rows, and the figures over those that were killed: CPU seconds and operations of
    witnesses.

    `interrupted`: the user stopped the hunt, and rows are missing.
    """

    rows: list[Row]
    interrupted: bool = False

    @property
    def survivors(self) -> list[Row]:
        """Faults that were hunted and, under some seed, not killed."""
        return [row for row in self.rows if len(row.killing) < row.hunts and not row.not_run]

    @property
    def figures(self) -> dict[str, float]:
        """Return median and worst of the time to a kill and of a witness's size."""
        seconds = sorted(chain.from_iterable(row.killing for row in self.rows)) or [0.0]
        sizes = sorted(row.witness for row in self.rows if row.killed) or [0]
        return {
            "seconds_median": median(seconds),
            "seconds_max": seconds[-1],
            "witness_operations_median": median(sizes),
            "witness_operations_max": sizes[-1],
        }


def run(
    mutants: Sequence[Mutant],
    budget: float,
    tensor_seconds: float,
    *,
    seeds: int = 1,
    write: bool = False,
    jobs: int = 1,
    on_row: Callable[[Row], None] | None = None,
) -> Matrix:
    """Hunt every fault, under each of so many seeds for `budget` seconds of CPU time at most,
    `jobs` faults at a time.

    With `write`, keep their witnesses.
    """
    one = partial(row_of, budget=budget, tensor_seconds=tensor_seconds, seeds=seeds, write=write)
    names = [mutant.name for mutant in mutants]
    matrix = Matrix(rows=[])
    try:
        with WorkerPool(jobs, one) as pool:
            for name, task in pool.in_order(names):
                try:
                    row = task.result()
                except WorkerDied as died:
                    row = _row(all_mutants()[name], not_run=str(died))
                matrix.rows.append(row)
                if on_row:
                    on_row(row)
    except KeyboardInterrupt:
        matrix.interrupted = True
    return matrix


def row_of(name: str, budget: float, tensor_seconds: float, seeds: int, write: bool) -> Row:
    """Hunt one fault, shrink what kills it first, and ask every detector; with `write`, keep the
    smallest witness known.
    """
    mutant = all_mutants()[name]
    if mutant.engine == "toy" and find_spec("torch") is None:
        return _row(mutant, not_run="torch is missing: pip install 'cachewitness[toy]'")
    found = hunt(mutant, budget)
    spent = {
        "seconds": round(found.seconds, 2),
        "operations": found.operations,
        "traces": found.traces,
    }
    if found.trace is None:
        return _row(mutant, **spent, false_alarms=list(found.false_alarms))
    others = [hunt(mutant, budget, seed) for seed in range(1, seeds)]
    small = stored_witness(mutant)
    if small is None or write:
        small = min(
            filter(None, (small, smallest(mutant, found.trace))),
            key=lambda trace: size(trace.header, trace.ops),
        )
    if write:
        keep(mutant, small)
    answers = detected(mutant, found.trace, tensor_seconds)
    return _row(
        mutant,
        killed=True,
        **spent,
        other_seeds=[round(other.seconds, 2) if other.trace else None for other in others],
        by=found.trace.header.name,
        witness=len(small.ops),
        detectors=answers,
        alone=alone(answers),
        false_alarms=[alarm for one in (found, *others) for alarm in one.false_alarms],
    )


def _row(mutant: Mutant, **found: object) -> Row:
    named = {
        "group": mutant.group,
        "policy": mutant.policy,
        "anomaly": mutant.anomaly,
        "checker": mutant.checker,
    }
    nothing = {"killed": False, "seconds": 0.0, "operations": 0, "traces": 0}
    return msgspec.convert({"mutant": mutant.name, **named, **nothing, **found}, Row)
