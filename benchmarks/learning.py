"""Whether a search that learns finds seeded faults after fewer operations than blind drawing:
docs/results/learning.md and its chart.

    python -m benchmarks.learning --kept FILE [--write docs/results/learning.md]

Blind is what `cachewitness fuzz` does: each trace is drawn anew. The ways that learn keep a corpus
of traces, as the choices that made them (as Zest does, Padhye and others, ISSTA 2019): a trace
joins it when it shows a feature that no trace showed before. The next trace is drawn anew, or
begins as a trace of the corpus does and goes on otherwise, or is one with some choices changed, or
goes on as another. Traces with rare features are taken more often. The ways differ in what counts
as a feature.

The ways with swarm weights keep no traces. Half of the traces are of a swarm, in which the weight
of each kind of operation is multiplied by a factor; a factor is drawn the more often, the more of
the traces drawn with it showed something new.

Counted are operations up to the one at which the fault is found, over the hardest faults in the
references and five seeds. `--kept` stores what was measured and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks.learning_page import write
from cachewitness._util.errors import UsageError
from cachewitness.core.checkers import fresh
from cachewitness.core.checkers.protocol import Checker, Handler
from cachewitness.core.driving import described, drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import Header, StepEnd
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import Trace
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.campaign import levels_of
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.fuzz.watch import Watch
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.generate import SWARM
from cachewitness.workloads.source import Source

T = TypeVar("T")
CAP = 40_000
"""In operations: whoever has not found a fault by then has not found it."""
HARDEST = 40
SEEDS = range(5)
AGAIN = 0.5
"""So large a share of the traces is made from the corpus."""
BLIND = "blind"


class Choices:
    """A source that makes given choices first, as fractions, then draws others; it notes all of
    them in `made`.
    """

    def __init__(self, given: Sequence[float], rng: random.Random) -> None:
        self._given = given
        self._rng = rng
        self.made: list[float] = []

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + int(self._next() * (high - low + 1))

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[int(self._next() * len(options))]

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""
        return self._next() * 100 < percent

    def _next(self) -> float:
        at = len(self.made)
        self.made.append(self._given[at] if at < len(self._given) else self._rng.random())
        return self.made[-1]


class Feedback(Protocol):
    """Sees a trace run, and says what it showed."""

    @property
    def checkers(self) -> list[Checker]:
        """Return what is shown every event."""

    def features(self) -> Collection[Hashable]:
        """Return what the trace showed."""


class Marks:
    """The fuzzer's marks (`harness/cachewitness/sessions/fuzz/coverage_points.py`), each with
    how often, in powers of two.
    """

    def __init__(self, header: Header) -> None:
        self._marks = Counter[str]()
        self.checkers: list[Checker] = [Watch(header, self._marks)]

    def features(self) -> Collection[Hashable]:
        """Return the marks of the trace."""
        return {(mark, times.bit_length()) for mark, times in self._marks.items()}


class _Shapes(Checker):
    """Notes, after each step, how much of each pool is held, keyed, both and neither, and how
    many requests live and wait.
    """

    name = "shapes"
    summary = "what the ledger's states look like"
    anomalies = ()

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Hashable] = set()
        self._before: Hashable = ()

    def handlers(self) -> dict[type, Handler]:
        return {StepEnd: self._note}

    def _note(self, ledger: Ledger, event: StepEnd) -> None:
        pools = []
        for pool in ledger.header.pools:
            counts = Counter(
                (bool(record.holders), bool(record.keys))
                for record in ledger.records[pool.id].usable.values()
            )
            pools.append(
                tuple(
                    counts[kind].bit_length()
                    for kind in ((True, True), (True, False), (False, True))
                )
            )
        live = sum(request.live for request in ledger.requests.values())
        now = (*pools, live.bit_length(), len(ledger.open_steps))
        self.seen.add((self._before, now))
        self._before = now


class States:
    """The step from one state of the ledger to the next, in powers of two of its counts."""

    def __init__(self, header: Header) -> None:
        self._shapes = _Shapes()
        self.checkers: list[Checker] = [self._shapes]

    def features(self) -> Collection[Hashable]:
        """Return the steps of the trace."""
        return self._shapes.seen


class Learner(Protocol):
    """Says how the next trace is drawn, and learns from what it showed."""

    def source(self) -> Source:
        """Return where the choices of the next trace come from."""

    def learn(self, features: Collection[Hashable]) -> None:
        """Take in what the last trace showed."""


class Corpus:
    """The choices of traces that showed something new."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._entries: list[tuple[list[float], Collection[Hashable]]] = []
        self._times = Counter[Hashable]()

    def source(self) -> Choices:
        """Return choices that begin as those of the corpus."""
        self._last = Choices(self.begun(), self._rng)
        return self._last

    def begun(self) -> list[float]:
        """Return the choices with which the next trace begins; none: it is drawn anew."""
        rng = self._rng
        if not self._entries or rng.random() >= AGAIN:
            return []
        one = self._taken()
        other = self._taken()
        way = rng.choice(("goes on otherwise", "is changed", "goes on as another"))
        if way == "goes on otherwise":
            return one[: rng.randrange(len(one))]
        if way == "goes on as another":
            at = rng.randrange(min(len(one), len(other)))
            return one[:at] + other[at:]
        changed = list(one)
        for _ in range(rng.choice((1, 2, 4, 8, 16))):
            changed[rng.randrange(len(changed))] = rng.random()
        return changed

    def _taken(self) -> list[float]:
        weights = [
            sum(1 / self._times[feature] for feature in features) for _, features in self._entries
        ]
        return self._rng.choices(self._entries, weights)[0][0]

    def learn(self, features: Collection[Hashable]) -> None:
        """Keep a trace that showed what none showed before."""
        new = any(feature not in self._times for feature in features)
        self._times.update(features)
        if new:
            self._entries.append((self._last.made, features))


class Swarm:
    """How many traces were drawn with each factor of a swarm, and how many of them showed
    something new.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._drawn = Counter[tuple[int, int]]()
        self._paid = Counter[tuple[int, int]]()
        self._seen: set[Hashable] = set()

    def source(self) -> Choices:
        """Return choices of which the factors of a swarm are drawn by what they brought."""
        self._last = _Factors(self._rng, self._weight)
        return self._last

    def _weight(self, kind: int, factor: int) -> float:
        return (self._paid[kind, factor] + 1) / (self._drawn[kind, factor] + 2)

    def learn(self, features: Collection[Hashable]) -> None:
        """Count the trace for the factors that it was drawn with."""
        factors = list(enumerate(self._last.factors))
        self._drawn.update(factors)
        if not self._seen.issuperset(features):
            self._paid.update(factors)
        self._seen.update(features)


class _Factors(Choices):
    """A source that draws the factors of a swarm, one for each kind of operation, by given
    weights.
    """

    def __init__(self, rng: random.Random, weight: Callable[[int, int], float]) -> None:
        super().__init__((), rng)
        self._weight = weight
        self._factors_rng = rng
        self.factors: list[int] = []

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        if options is not SWARM:
            return super().choice(options)
        kind = len(self.factors)
        weights = [self._weight(kind, factor) for factor in SWARM]
        [place] = self._factors_rng.choices(range(len(SWARM)), weights)
        self.factors.append(SWARM[place])
        return options[place]


@dataclass(frozen=True)
class Way:
    """A way to search: what counts as a feature, and what is learnt from it."""

    feedback: Callable[[Header], Feedback]
    learner: Callable[[random.Random], Learner]


WAYS: dict[str, Way | None] = {
    BLIND: None,
    "marks": Way(Marks, Corpus),
    "ledger states": Way(States, Corpus),
    "swarm weights by marks": Way(Marks, Swarm),
    "swarm weights by ledger states": Way(States, Swarm),
}


def operations_to_kill(fault: Mutant, seed: int, way: Way | None) -> int:
    """Return after how many operations a way of searching finds a fault; CAP if not by then."""
    spec = parse(f"reference:mutant={fault.name}")
    plan = Plan(fault.policy, levels_of(spec, fault.policy), Restriction(), seed)
    learner = way.learner(random.Random(f"{seed}/learning")) if way else None
    operations = 0
    for number in count():
        try:
            _, trace = plan.drawn(learner.source(), "learning") if learner else plan.draw(number)
            engine = spec.open(trace.header)
        except UsageError:
            continue
        ran, found, features = _run(engine, trace, way)
        if found is not None:
            return min(operations + found, CAP)
        operations += ran
        if operations >= CAP:
            break
        if learner:
            learner.learn(features)
    return CAP


def _run(
    engine: Engine, trace: Trace, way: Way | None
) -> tuple[int, int | None, Collection[Hashable]]:
    """Run a trace; return its operations, how many it took to a finding, and what it showed."""
    header = described(engine, trace.header)
    sees = way.feedback(header) if way else None
    checkers = [*fresh(), *(sees.checkers if sees else ())]
    result = drive(fitting(trace, header.capabilities), engine, checkers=checkers, keep=False)
    found = min((finding.op for finding in result.findings), default=None)
    return (
        result.activity.operations,
        None if found is None else found + 1,
        sees.features() if sees else (),
    )


def main() -> int:
    """Measure what is missing, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kept",
        type=Path,
        required=True,
        metavar="FILE",
        help="store results here, and go on from there",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the page here, and its chart beside it"
    )
    given = parser.parse_args()
    known: dict[str, dict[str, list[int]]] = (
        json.loads(given.kept.read_text("utf-8")) if given.kept.exists() else {}
    )
    faults = {
        m.name: m
        for m in all_mutants().values()
        if m.engine == "reference" and not {"vllm", "sglang"} & {*m.engines}
    }
    for name_of_way, way in WAYS.items():
        counts = known.setdefault(name_of_way, {})
        for name in faults if way is None else hardest(known[BLIND]):
            if name not in counts:
                counts[name] = [operations_to_kill(faults[name], seed, way) for seed in SEEDS]
                given.kept.write_text(json.dumps(known), encoding="utf-8")
                print(name_of_way, name, counts[name], flush=True)
    text, chart = write(known, hardest(known[BLIND]), CAP)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
        given.write.with_suffix(".svg").write_text(chart, encoding="utf-8")
    else:
        print(text)
    return 0


def hardest(blind: dict[str, list[int]]) -> list[str]:
    """Return the faults that blind drawing finds last, by the median over the seeds."""
    return sorted(blind, key=lambda name: (-median(blind[name]), name))[:HARDEST]


if __name__ == "__main__":
    raise SystemExit(main())
