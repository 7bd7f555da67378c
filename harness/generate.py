"""Random traces that prefer boundaries.

Bugs of caches sit at the edges of blocks, chunks, windows and retention intervals, so lengths are drawn as a multiple of one
of them plus −1, 0 or +1, prefixes are shared up to such a length, and pools are small enough that pages change hands. The
generator never looks at an engine: a trace is fixed before it runs, and the same seed gives the same trace everywhere.

All draws go through `Source`, so that another source of choices (a property-based tester's, say) can write the same traces.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from harness.scenarios.shape import Script, Shape, image
from harness.trace import ResetTier, Trace, length_of

T = TypeVar("T")


class Source(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""


class Seeded:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return self._random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return self._random.choice(options)

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""
        return self._random.randrange(100) < percent


OPERATIONS = 60
_LIVE_MAX = 4
_BLOCKS_MAX = 7


def random_trace(shape: Shape, seed: int, *, withdraw: bool, operations: int = OPERATIONS) -> Trace:
    """Return the trace of a seed: about so many operations over a pool under pressure.

    `withdraw` says whether requests are now and then withdrawn from a step (the engine must know how).
    """
    trace = write(shape, Seeded(seed), withdraw=withdraw, operations=operations, name=f"random-{seed}")
    header = trace.header
    return Trace(type(header)(**{f: getattr(header, f) for f in header.__struct_fields__} | {"seed": seed}), trace.ops)


def write(shape: Shape, source: Source, *, withdraw: bool, operations: int, name: str) -> Trace:
    """Write one random trace from a source of choices."""
    script = Script(shape, name, "a random workload that prefers boundaries", "harness/generate.py")
    if withdraw:
        script.needs.append("withdraw")
    _Workload(script, source, withdraw=withdraw).run(operations)
    # At scheduler height requests that fit alone must not be blocked for ever by one that does not.
    longest = (_BLOCKS_MAX + (3 if shape.height == "scheduler" else 0)) * shape.unit
    return script.trace(shape.slots(longest) * source.integer(5, 12) // 5 + 1)


class _Workload:
    """Grows a script one random operation at a time; keeps in mind who is live and what was said before."""

    def __init__(self, script: Script, source: Source, *, withdraw: bool) -> None:
        self._script, self._source, self._withdraw = script, source, withdraw
        self._live: list[str] = []
        self._prompts: list[str] = []
        self._count = 0
        self._weights = 0

    def run(self, operations: int) -> None:
        """Write operations, then end every request."""
        while len(self._script.ops) < operations:
            self._one()
        for r in self._live:
            self._script.prefill(r)
            self._script.finish(r)

    def _one(self) -> None:
        draw = self._source.integer(0, 99)
        if not self._live or (draw < 22 and len(self._live) < _LIVE_MAX):
            self._submit()
        elif draw < 78:
            self._step()
        elif draw < 90:
            self._end(self._script.finish)
        elif draw < 93:
            self._end(self._script.abort)
        elif draw < 97:
            self._script.preempt(self._source.choice(self._live))
        elif draw < 99:
            self._reset()
        else:
            self._weights += 1
            self._script.update_weights(self._weights)

    def _end(self, how: object) -> None:
        r = self._source.choice(self._live)
        self._live.remove(r)
        assert callable(how)
        how(r)

    def _reset(self) -> None:
        """Reset; where there is a second tier, mostly the device's cache alone."""
        running = self._source.chance(50)
        tiers: tuple[ResetTier, ...] = ("local", "local", "cpu", "")
        self._script.reset(running=running, tier=self._source.choice(tiers) if self._script.shape.tier_slots else "")

    def _length(self, least: int = 1) -> int:
        """Draw a length: a multiple of a measure of the layout, one less or one more."""
        shape, source = self._script.shape, self._source
        measures = [shape.unit, *(group.block_size for group in shape.layout.groups)]
        measures += [m for m in (shape.window, shape.interval) if m]
        measure = source.choice(measures)
        times = source.integer(1, max(1, (_BLOCKS_MAX - 1) * shape.unit // measure))
        return max(least, min(times * measure + source.integer(-1, 1), (_BLOCKS_MAX - 1) * shape.unit))

    def _submit(self) -> None:
        source, self._count = self._source, self._count + 1
        r = f"r{self._count}"
        prompt = self._prompt(r)
        self._prompts.append(prompt)
        identity: dict[str, object] = {}
        if source.chance(12):
            identity["salt"] = source.choice(["one", "two"])
        if source.chance(8):
            identity["adapter"] = source.choice(["tuned", "other"])
        if source.chance(10):
            tokens = length_of(prompt)
            at = source.integer(0, tokens - 1)
            identity["media"] = image(at, source.integer(1, tokens - at), source.choice(["cat", "dog"]))
        self._script.submit(r, prompt, **identity)
        self._live.append(r)

    def _prompt(self, r: str) -> str:
        source, longest = self._source, (_BLOCKS_MAX - 1) * self._script.shape.unit
        prompt = ""
        if self._prompts and source.chance(30):
            prompt = source.choice(self._prompts)
        elif self._prompts and source.chance(50):
            prompt = f"{source.choice(self._prompts[-4:])} {r}:{source.integer(1, self._script.shape.unit + 1)}"
        if prompt and length_of(prompt) <= longest:
            return prompt
        shared = self._length()
        own = min(self._length() if source.chance(40) else source.integer(1, 3), longest - shared + 1)
        return f"{source.choice('AB')}:{shared} {r}:{own}"

    def _step(self) -> None:
        source = self._source
        asked = [r for r in self._live if source.chance(75)] or [source.choice(self._live)]
        run = [(r, self._length() if source.chance(60) else 1) for r in asked]
        withdraw = tuple(r for r in asked if self._withdraw and source.chance(6))
        for _ in range(source.integer(1, 3)):
            self._script.step(*run, withdraw=withdraw)
            withdraw = ()
