"""Visits every state that a scope can reach, in walks that begin at the state met first in which
something is left to try.

The search returns to a state by running its trace again on a fresh engine. That works for engines
with a planted fault, whose patches a copy would not have, and it is faster than copying the whole
engine.

Any engine that can be rebuilt from a trace is searched this way: the reference goes beside it and
says which states there are, and everything that can be asked in each of them is asked of the
engine. What the engine alone keeps in mind is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cachewitness.core.checkers import OF_PAGES
from cachewitness.core.checkers.anomalies import gravest_first
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import LiveRequests, Observer, applied, let_go
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import NoAnswer
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import Op, Trace
from cachewitness.core.worker import Worker
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.sessions.fuzz.fingerprint import fingerprint
from cachewitness.sessions.fuzz.scope import Scope
from cachewitness.workloads.capabilities import lacking

Path = tuple[Op, ...]
WALK_MAX, WAY_MAX, NEAR_MAX = 24, 4, 120
"""A walk becomes so much longer than it need be, at most, and looks for something to try so many
operations and states away."""


@dataclass
class Found:
    """What a search came to: states met, operations tried from them, and of the shortest ways that
    it found the longest.

    `states` are the fingerprints, so that those of several searches can be counted once. `hits` are
    those of the engine. `complete`: nothing was left.
    """

    states: set[bytes] = field(default_factory=set)
    transitions: int = 0
    operations: int = 0
    hits: int = 0
    depth: int = 0
    complete: bool = False
    crashed: str = ""
    """What a checker crashed with, which ends the search."""
    failure: tuple[Trace, Finding] | None = None


class Watched:
    """An engine in some state of a scope, and those who judge it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        header = engine.describe()
        self._worker = Worker(header)
        self._applicable = LiveRequests()
        self.checkers = [kind() for kind in OF_PAGES]
        self._observer = Observer(header, self.checkers, keep=False)
        self._count = 0

    @property
    def ledger(self) -> Ledger:
        """What is known of its pages and requests."""
        return self._observer.checkers.ledger

    @property
    def findings(self) -> list[Finding]:
        """What was found so far."""
        return self._observer.findings

    @property
    def hits(self) -> int:
        """How many look-ups hit something so far."""
        return self._observer.activity.hits

    def take(self, op: Op) -> None:
        """Carry out one operation; none after something was found."""
        asked = None if self.findings else self._applicable.filter(op)
        if asked is not None:
            events = applied(self.engine, asked, self._count, self._observer)
            if events is not None:
                self._observer.see(self._worker.extend(events), self._count)
        self._count += 1

    def rest(self) -> None:
        """Judge what can be judged only at rest, as if nothing more were asked."""
        self._observer.at_rest(max(self._count - 1, 0))

    def close(self) -> None:
        """Let go of the engine; to fail in that is found as well. What was found before outranks
        what is no answer to it.
        """
        try:
            let_go(self.engine, self._observer, max(self._count - 1, 0))
        except NoAnswer:
            if not self.findings:
                raise

    def crashed(self) -> str:
        """Return what a checker crashed with; empty if none did."""
        return next(
            (
                tally.unjudged
                for tally in self._observer.checkers.tallies.values()
                if tally.unjudged
            ),
            "",
        )


class Position:
    """An engine in some state of a scope. The state is that of the reference, which another
    engine has beside it.
    """

    def __init__(self, spec: EngineSpec, scope: Scope) -> None:
        self._scope = scope
        header = scope.header()
        self._judged = Watched(spec.open(header))
        self._named = self._judged if read_off(spec) else Watched(parse("reference").open(header))
        self._capabilities = self._judged.engine.describe().capabilities
        vocabulary = self._named.engine._vocabulary  # type: ignore[attr-defined]
        for text in scope.texts():
            vocabulary.token(text, 0)

    @property
    def findings(self) -> list[Finding]:
        """What was found in the engine so far."""
        return self._judged.findings

    def take(self, op: Op) -> None:
        """Carry out one operation."""
        for one in (self._judged,) if self._named is self._judged else (self._judged, self._named):
            one.take(op)

    def rest(self) -> None:
        """Judge the engine as if nothing more were asked of it."""
        self._judged.rest()

    def crashed(self) -> str:
        """Return what a checker crashed with; empty if none did."""
        return self._judged.crashed()

    def hits(self) -> int:
        """Return how many look-ups of the engine hit something on the way here."""
        return self._judged.hits

    def offered(self) -> list[Op]:
        """Return what can be asked next of an engine with these capabilities."""
        header = self._scope.header()
        ops = self._scope.operations(self._named.ledger)
        return [op for op in ops if not lacking(Trace(header, [op]), self._capabilities)]

    def fingerprint(self) -> bytes:
        """Return the name of the state."""
        named = self._named
        return fingerprint(
            named.engine, named.ledger, named.checkers, last=self._scope.last(named.ledger)
        )

    def close(self) -> None:
        """Let go of the engine."""
        self._judged.close()


def read_off(spec: EngineSpec) -> bool:
    """Whether states are read off the engine itself: off the reference, in this process. Others
    have it beside them.
    """
    return spec.kind.is_reference and spec.isolation is None


def reached(spec: EngineSpec, scope: Scope, path: Path) -> Position:
    """Return a fresh engine that has carried out a path."""
    position = Position(spec, scope)
    for op in path:
        position.take(op)
    return position


class _Walk:
    """The states that were met, what was not yet tried in each, a way to it, and where what was
    tried leads.
    """

    def __init__(self) -> None:
        self.paths: dict[bytes, Path] = {}
        self.untried: dict[bytes, list[Op]] = {}
        self.leads: dict[bytes, list[tuple[Op, bytes]]] = {}
        self._waiting: deque[bytes] = deque()

    def meet(self, name: bytes, path: Path, position: Position) -> bool:
        """Take note of a state; return whether it is new."""
        if name in self.paths:
            if len(path) < len(self.paths[name]):
                self.paths[name] = path
            return False
        self.paths[name] = path
        self.untried[name] = position.offered()[::-1]
        self.leads[name] = []
        self._waiting.append(name)
        return True

    def next(self) -> bytes | None:
        """Return the state met first in which something is left to try; None if there is none."""
        while self._waiting and not self.untried[self._waiting[0]]:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None

    def onward(self, name: bytes) -> Path | None:
        """Return a short way from a state to one in which something is left to try; None if
        there is none near.
        """
        seen: set[bytes] = {name}
        ways: deque[tuple[bytes, Path]] = deque([(name, ())])
        while ways and len(seen) < NEAR_MAX:
            at, way = ways.popleft()
            if self.untried[at]:
                return way
            for op, to in self.leads[at] if len(way) < WAY_MAX else ():
                if to not in seen:
                    seen.add(to)
                    ways.append((to, (*way, op)))
        return None


def explore(
    spec: EngineSpec,
    scope: Scope,
    start: Path = (),
    *,
    stop: Callable[[], bool] = lambda: False,
    on_merge: Callable[[Path, Path], None] | None = None,
) -> Found:
    """Try everything in every state behind a path until something fails, nothing is left, or `stop`
    says so.

    From a state the search walks on as long as there is something new to try near it, and then
    begins again. `on_merge` is shown two paths to what is taken to be one state.
    """
    found = Found()
    walk = _Walk()
    position = reached(spec, scope, start)
    position.rest()
    if not position.findings:
        walk.meet(position.fingerprint(), start, position)
    _conclude(position, found, scope, start)
    while (name := walk.next()) is not None and not (found.failure or found.crashed):
        if stop():
            break
        _walk(walk, found, spec, scope, name, on_merge)
    found.states = set(walk.paths)
    found.depth = max(map(len, walk.paths.values()), default=0)
    found.complete = walk.next() is None and not (found.failure or found.crashed)
    return found


def _walk(
    walk: _Walk,
    found: Found,
    spec: EngineSpec,
    scope: Scope,
    name: bytes,
    on_merge: Callable[[Path, Path], None] | None,
) -> None:
    """Go to a state and try what is untried there and near it, so many operations at most."""
    path = walk.paths[name]
    position = reached(spec, scope, path)
    found.operations += len(path)
    while (
        not position.findings
        and len(path) < len(walk.paths[name]) + WALK_MAX
        and (way := walk.onward(name)) is not None
    ):
        for op in way:
            position.take(op)
            name = next(to for tried, to in walk.leads[name] if tried is op)
        op, path = walk.untried[name].pop(), (*path, *way)
        path, before = (*path, op), name
        position.take(op)
        position.rest()
        found.transitions, found.operations = found.transitions + 1, found.operations + len(way) + 1
        found.crashed = position.crashed()
        if position.findings or found.crashed:
            break
        name = position.fingerprint()
        if not walk.meet(name, path, position) and on_merge:
            on_merge(walk.paths[name], path)
        if name != before:
            walk.leads[before].append((op, name))
    _conclude(position, found, scope, path)


def _conclude(position: Position, found: Found, scope: Scope, path: Path) -> None:
    """Let go of an engine that has carried out a path, and take in what was found and what it
    hit.
    """
    position.close()
    found.hits += position.hits()
    if position.findings:
        first = gravest_first(position.findings)[0]
        found.failure = (Trace(scope.header(), list(path[: first.op + 1])), first)
