"""What a run enters of a change: which suites, on which configurations, enter which line."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cachewitness.engines.entered import Place, Seen, asked_in
from cachewitness.engines.isolation.engine import begin_afresh
from cachewitness.report.change import NAMED_MAX, Change, ChangedFunction
from cachewitness.sessions.change.entered_map import Configured, EnteredMap
from cachewitness.sessions.change.touched import Touch, Touched, Touching

BESIDE = 2
"""Of the engines with other options of their names that enter a function, connectors for example,
so many are run where the run's own engine enters it too; else all."""
PER_ENGINE, PER_ENGINE_ALONE = 1, 4
"""Of each of them, so many configurations of a suite."""


@dataclass
class Measured:
    """A change, what is run first for it, and what was entered so far."""

    change: Touching
    first: Sequence[Configured] = ()
    by_map: str = ""
    _by: dict[Seen, dict[str, None]] = field(default_factory=dict)
    """Who entered a place, in the order in which they came."""
    _ran: set[tuple[str, str]] = field(default_factory=set)

    def take(self, suite: str, configuration: str, seen: Iterable[Seen]) -> None:
        """Take in what a suite entered on a configuration."""
        self._ran.add((suite, configuration))
        for place in seen:
            self._by.setdefault(place, {}).setdefault(f"{suite}@{configuration}")

    def report(self) -> Change:
        """Return what came of it so far."""
        first = [one for one in self.first if (one.suite, one.name) in self._ran]
        return Change(
            base=self.change.base,
            functions=[self._function(one) for one in self.change.functions],
            beside=self.change.beside,
            first=len(first),
            first_beside=sum(bool(one.engine) for one in first),
            by_map=self.by_map,
        )

    def _function(self, one: Touched) -> ChangedFunction:
        reached = [touch for touch in one.touches if self._reached(one, touch)]
        entered = [touch for touch in reached if touch.places[0][2] != "import"]
        called = self._who(one, [one.owner.called] if one.owner.called else [])
        places = [place for touch in entered for place in touch.places]
        by = self._who(one, places) or called
        return ChangedFunction(
            name=one.name,
            file=one.file,
            imports=not one.owner.called and not one.deleted,
            deleted=one.deleted,
            lines=[touch.line for touch in one.touches],
            entered=[touch.line for touch in entered],
            imported=[touch.line for touch in reached if touch not in entered],
            called=bool(called),
            by=by[:NAMED_MAX],
            by_count=len(by),
        )

    def _reached(self, one: Touched, touch: Touch) -> bool:
        return all((str(one.path), *place) in self._by for place in touch.places)

    def _who(self, one: Touched, places: Iterable[Place]) -> list[str]:
        found = [self._by.get((str(one.path), *place), {}) for place in places]
        return list(dict.fromkeys(who for by in found for who in by))

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Have the processes of engines that are started in the block asked what they enter."""
        asked: dict[str, set[Place]] = {}
        for one in self.change.functions:
            asked.setdefault(str(one.path), set()).update(one.asked)
        begin_afresh()
        with tempfile.TemporaryDirectory() as folder, asked_in(Path(folder, "asked"), asked):
            try:
                yield
            finally:
                begin_afresh()


def planned(change: Touching, by: EnteredMap | None, options: dict[str, str]) -> Measured:
    """Return a change with what is run first for it. `options` are those of the engine's name.

    Of what the run does anyway, all that enters a function comes first. Beside it run, if the
    engine's name has none of the options that the map knows, some of what enters it with others.
    """
    if by is None:
        return Measured(change)
    known = {name for one in by.configurations for name in one.engine}
    own = {name: value for name, value in options.items() if name in known}
    chosen: set[int] = set()
    for function in change.functions:
        entering = by.entering(_in_map(function))
        chosen.update(id(one) for one in entering if one.engine == own)
        if not own:
            chosen.update(map(id, _beside(entering)))
    first = [one for one in by.configurations if id(one) in chosen]
    return Measured(change, [_plain(one, own) for one in first], by.release)


def _beside(entering: list[Configured]) -> Iterator[Configured]:
    """Yield what is run of other engines that enter a function."""
    alone = all(one.engine for one in entering)
    engines = list(dict.fromkeys(one.beside for one in entering if one.engine))
    taken: Counter[tuple[str, str]] = Counter()
    for one in entering:
        taken[one.suite, one.beside] += 1
        most = PER_ENGINE_ALONE if alone else PER_ENGINE
        if (
            one.beside in engines[: None if alone else BESIDE]
            and taken[one.suite, one.beside] <= most
        ):
            yield one


def _in_map(function: Touched) -> str:
    """Return what a function is called in a map: without the package in front."""
    name = function.owner.name if function.owner.called else ""
    return f"{function.module.partition('.')[2]}:{name}"


def _plain(one: Configured, own: dict[str, str]) -> Configured:
    """Return what is run first, without the options that the run's engine has anyway."""
    return msgspec.structs.replace(one, engine={}) if one.engine == own else one
