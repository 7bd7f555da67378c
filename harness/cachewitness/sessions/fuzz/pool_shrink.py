"""Fewer and smaller calls that show the same violation of a pool.

Hypothesis shrinks numbers that it drew one by one; here a call goes together with what counts on
it, such as the index of a key among all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

from cachewitness.sessions.fuzz.pool_calls import Call, Plan

_UNITS = 6_000_000
"""What all attempts may cost: each as much as its pool has blocks, and `_ATTEMPT`."""
_ATTEMPT = 1_000
_PAIRS_MAX = 16
"""The most calls of which two are changed at a time."""
_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)
_INDEXES = 16
"""Indexes below this one are tried one by one; larger ones name what smaller ones name as well."""
_AMOUNT_MAX = 9

Weight = tuple[int, int, int]
"""How long the calls read: their lines, the size of the pool, their characters."""
Weigh = Callable[[Plan], Weight | None]
"""Makes the calls of a plan; None if they do not show the violation."""


class _Best(NamedTuple):
    weight: tuple[Weight, int, list[Call]]
    plan: Plan


def shrink(plan: Plan, weigh: Weigh) -> Plan:
    """Return the plan that reads shortest of those tried; every rule of a plan must be in it."""
    return _Shrinking(plan, weigh).done()


class _Shrinking:
    def __init__(self, plan: Plan, weigh: Weigh) -> None:
        self._weigh = weigh
        self._left = _UNITS
        self._seen: set[object] = set()
        self._best = _Best(((1 << 62, 0, 0), 0, []), plan)
        self._try(plan)

    def done(self) -> Plan:
        """Return the shortest plan once no change makes it shorter."""
        while any([self._sizes(), self._fewer(), self._smaller()]) or self._pairs():
            pass
        return self._best.plan

    def _try(self, plan: Plan) -> bool:
        """Return whether a plan is shorter than the shortest, which it then is."""
        seen = (plan.size, tuple(plan.calls), plan.last)
        cost = plan.size + _ATTEMPT
        if seen in self._seen or cost > self._left:
            return False
        self._seen.add(seen)
        self._left -= cost
        weight = self._weigh(plan)
        if weight is None:
            return False
        rated = (weight, len(plan.calls), _calls(plan))
        if self._best.weight <= rated:
            return False
        self._best = _Best(rated, plan)
        return True

    def _sizes(self) -> bool:
        size = self._best.plan.size
        smaller = sorted({*_SIZES, size // 2, size - 1} - {0})
        return any(
            self._try(self._best.plan._replace(size=less)) for less in smaller if less < size
        )

    def _fewer(self) -> bool:
        """Leave runs of calls out, long ones first."""
        shorter = False
        length = len(self._best.plan.calls)
        while length:
            start = 0
            while start < len(self._best.plan.calls):
                calls = self._best.plan.calls
                left = calls[:start] + calls[start + length :]
                if self._try(self._best.plan._replace(calls=left)):
                    shorter = True
                else:
                    start += length
            length //= 2
        return shorter

    def _smaller(self) -> bool:
        """Make the numbers of single calls smaller."""
        places = range(len(self._best.plan.calls) + 1)
        shorter = [self._first(_changed(self._best.plan, place)) for place in places]
        return any(shorter)

    def _pairs(self) -> bool:
        """Change two numbers at a time, or one as another call is left out."""
        plan = self._best.plan
        if len(plan.calls) > _PAIRS_MAX:
            return False
        return self._first(_two_changed(plan))

    def _first(self, plans: Iterator[Plan]) -> bool:
        return any(map(self._try, plans))


def _changed(plan: Plan, place: int) -> Iterator[Plan]:
    call = _calls(plan)[place]
    for smaller in _numbers(call):
        yield _with(plan, {place: smaller})


def _numbers(call: Call) -> Iterator[Call]:
    for fewer in range(call.amount):
        yield call._replace(amount=fewer)
    if call.flag:
        yield call._replace(flag=False)
    for less in sorted({*range(_INDEXES), call.which // 2, call.which - 1}):
        if 0 <= less < call.which:
            yield call._replace(which=less)


def _two_changed(plan: Plan) -> Iterator[Plan]:
    calls = _calls(plan)
    places = range(len(plan.calls))
    for first, second in combinations(places, 2):
        yield _without(plan, {first, second})
    for gone in places:
        for other in range(len(calls)):
            if other != gone:
                for changed in _near(calls[other]):
                    yield _without(_with(plan, {other: changed}), {gone})
    smaller = plan._replace(size=max(plan.size - 1, 1))
    lower = {place: _lower(call) for place, call in enumerate(calls) if call.amount}
    for one, call in lower.items():
        for other in range(len(calls)):
            for changed in _near(calls[other]) if other != one else [call]:
                yield _with(plan, {one: call, other: changed})
                yield _with(smaller, {one: call, other: changed})
    for other in places:
        for changed in _near(calls[other]):
            yield _with(smaller, {other: changed})
    for one, call in lower.items():
        least = call._replace(amount=0)
        for other in range(one + 1, len(calls)):
            for changed in _near(calls[other]):
                yield _with(plan, {one: least, other: changed})


def _near(call: Call) -> Iterator[Call]:
    """Return what a call may be once another is changed: it takes over, or counts one less."""
    for index in sorted({0, 1, 2, call.which - 1} - {call.which, -1}):
        yield call._replace(which=index)
    if call.amount < _AMOUNT_MAX:
        yield call._replace(amount=call.amount + 1)
    if call.amount:
        yield _lower(call)


def _lower(call: Call) -> Call:
    return call._replace(amount=call.amount - 1)


def _calls(plan: Plan) -> list[Call]:
    return [Call.of(number) for number in (*plan.calls, plan.last)]


def _with(plan: Plan, changed: dict[int, Call]) -> Plan:
    numbers = [*plan.calls, plan.last]
    for place, call in changed.items():
        numbers[place] = call.number
    return plan._replace(calls=numbers[:-1], last=numbers[-1])


def _without(plan: Plan, gone: set[int]) -> Plan:
    return plan._replace(calls=[call for place, call in enumerate(plan.calls) if place not in gone])
