"""Random traces that prefer boundaries.

Bugs of caches sit at the edges of blocks, chunks, windows and retention intervals, so lengths are drawn as a multiple of one
of them plus −1, 0 or +1: of whole prompts, of what they share, of chunks. Prompts are repeated, shortened, and continued after
what was generated; pools are so small that pages are evicted and reused. The generator never looks at an engine: a trace is
fixed before it runs, and the same seed gives the same trace everywhere (in one version of this file).

All draws go through `Source`, so that another source of choices (a property-based tester's, say) can write the same traces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from harness.trace.format import ResetTier, Trace, length_of
from harness.trace.scenarios.shape import Script, Shape, image

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
    """Choices from a seed: a number, or a text that names one of many streams."""

    def __init__(self, seed: int | str) -> None:
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
_RECENT = 6
"""From so many of the latest prompts a new one is made."""
_DECODED_MAX = 12
_ADAPTERS = ("tuned", "other")
_IMPATIENT, _LOST = 12, 10
"""Where copies take time, so many of a hundred requests are aborted a step after they came, and in so many of a hundred
operations the device loses what the second tier has kept."""
_FAILING, _UNDER_WAY = 15, 7
"""In so many of a hundred steps copies from or to another tier fail, among the first eight that are under way."""
_FIFTHS_OF_POOL: dict[str, tuple[int, ...]] = {
    "manager": (3, 4, 5, 5, 6, 7, 8, 10, 12),
    "scheduler": (5, 5, 6, 7, 8, 9, 10, 11, 12),
    "server": (5, 10),
}
"""The pool, in fifths of what the longest request takes. A queue in order of arrival would stand still behind one that does
not fit alone, so at scheduler height each does."""


def random_trace(shape: Shape, seed: int, *, withdraw: bool, operations: int = OPERATIONS) -> Trace:
    """Return the trace of a seed: about so many operations over a pool under pressure.

    `withdraw` says whether requests are now and then withdrawn from a step (the engine must know how).
    """
    trace = write(shape, Seeded(seed), withdraw=withdraw, operations=operations, name=f"random-{seed}")
    return Trace(msgspec.structs.replace(trace.header, seed=seed), trace.ops)


def write(shape: Shape, source: Source, *, withdraw: bool, operations: int, name: str) -> Trace:
    """Write one random trace from a source of choices."""
    script = Script(shape, name, "a random workload that prefers boundaries", "harness/trace/generate.py")
    if withdraw:
        script.needs.append("withdraw")
    _Workload(script, source, withdraw=withdraw).run(operations)
    longest = (_BLOCKS_MAX + (3 if shape.height == "scheduler" else 0)) * shape.unit
    return script.trace(max(shape.pages(longest) * source.choice(_FIFTHS_OF_POOL[shape.height]) // 5 + 1, 4))


class _Workload:
    """Grows a script one random operation at a time; keeps in mind who is live and what was said before."""

    def __init__(self, script: Script, source: Source, *, withdraw: bool) -> None:
        self._script, self._source, self._withdraw = script, source, withdraw
        self._live: list[str] = []
        self._said: list[tuple[str, str]] = []
        """Requests and their prompts, the latest at the end."""
        self._count = 0
        self._versions = 0
        self._adapters: dict[str, str] = {}
        """The adapters of requests that have one."""
        self._adapted = source.choice((4, 4, 40))
        """So many requests of a hundred have one: few, or in some traces many."""
        self._longest = (_BLOCKS_MAX - 1) * script.shape.unit

    def run(self, operations: int) -> None:
        """Write operations, then end every request."""
        while len(self._script.ops) < operations:
            self._one()
        for r in self._live:
            self._script.prefill(r)
            self._script.finish(r)

    def _one(self) -> None:
        if self._said and self._script.shape.tier_delay and self._source.chance(_LOST):
            self._lose()
            return
        draw = self._source.integer(0, 99)
        if not self._live or (draw < 21 and len(self._live) < _LIVE_MAX):
            self._submit()
        elif draw < 67:
            self._step()
        elif draw < 71:
            self._decode()
        elif draw < 80:
            self._end(self._script.finish)
        elif draw < 84:
            self._end(self._script.abort)
        elif draw < 88:
            self._come_back()
        elif draw < 94:
            self._script.preempt(self._source.choice(self._live))
        elif draw < 97:
            self._reset()
        else:
            self._load()

    def _lose(self) -> None:
        """Lose what the device has, and ask for some of it again, so that it comes from the second tier."""
        self._script.reset(running=True, tier="local")
        for _ in range(self._source.integer(1, 3)):
            if len(self._live) < _LIVE_MAX:
                before, prompt = self._source.choice(self._said[-_RECENT:])
                self._submit(prompt if self._source.chance(60) else self._continued(before, prompt, f"r{self._count + 1}"))
        if self._live:
            self._step()

    # --- who is there --------------------------------------------------------------------------------------------------

    def _end(self, how: Callable[[str], None]) -> str:
        r = self._source.choice(self._live)
        self._live.remove(r)
        how(r)
        return r

    def _come_back(self) -> None:
        """End a request between two steps, and let it come again at once, perhaps with what it generated."""
        gone = self._end(self._script.abort if self._source.chance(60) else self._script.finish)
        prompt = next(prompt for r, prompt in reversed(self._said) if r == gone)
        self._submit(prompt if self._source.chance(50) else self._continued(gone, prompt, f"r{self._count + 1}"), gone)

    def _reset(self) -> None:
        """Reset; where there is a second tier, mostly the device's cache alone."""
        running = self._source.chance(50)
        tiers: tuple[ResetTier, ...] = ("local", "local", "cpu", "")
        self._script.reset(running=running, tier=self._source.choice(tiers) if self._script.shape.tier_pages else "")

    def _load(self) -> None:
        """Load new weights, or an adapter anew: one that requests had of late, or any; perhaps one of those comes again."""
        self._versions += 1
        late = [self._adapters[r] for r, _ in self._said[-_RECENT:] if r in self._adapters]
        adapter = self._source.choice(["", "", *_ADAPTERS, *late])
        self._script.update_weights(self._versions, adapter)
        had = [(r, prompt) for r, prompt in self._said if self._adapters.get(r, "") == adapter]
        if had and len(self._live) < _LIVE_MAX and self._source.chance(60):
            r, prompt = had[-1]
            self._submit(prompt, r)

    def _submit(self, prompt: str = "", before: str = "") -> None:
        source, self._count = self._source, self._count + 1
        r = f"r{self._count}"
        if not prompt:
            prompt, before = self._prompt(r)
        self._said.append((r, prompt))
        identity: dict[str, object] = {}
        if source.chance(12):
            identity["salt"] = source.choice(["one", "two"])
        adapter = self._adapters.get(before, "") if source.chance(75) else ""
        if source.chance(self._adapted):
            adapter = source.choice(_ADAPTERS)
        if adapter:
            identity["adapter"] = self._adapters[r] = adapter
        if source.chance(10):
            tokens = length_of(prompt)
            at = source.integer(0, tokens - 1)
            length = source.integer(1, tokens - at)
            identity["media"] = image(at, length, f"{source.choice(['cat', 'dog'])}-{length}")  # one content has one length
        self._script.submit(r, prompt, **identity)
        self._live.append(r)
        if self._script.shape.tier_delay and source.chance(_IMPATIENT):
            self._script.step((r, length_of(prompt)), fail=self._failing())
            self._live.remove(r)
            self._script.abort(r)

    # --- what is said --------------------------------------------------------------------------------------------------

    def _length(self, least: int = 1) -> int:
        """Draw a length: a multiple of a measure of the layout, one less or one more."""
        shape, source = self._script.shape, self._source
        measures = [shape.unit, *(group.block_size for group in shape.layout.groups)]
        measures += [m for m in (shape.window, shape.interval) if m]
        measure = source.choice(measures)
        times = source.integer(1, max(1, self._longest // measure))
        return max(least, min(times * measure + source.integer(-1, 1), self._longest))

    def _prompt(self, r: str) -> tuple[str, str]:
        """Say something said before, a part of it, more than it, or something of which others may share the beginning.

        Return it, and the request that said it before.
        """
        source, draw = self._source, self._source.integer(0, 99)
        if self._said and draw < 60:
            before, prompt = source.choice(self._said[-_RECENT:])
            if draw < 22:
                return prompt, before
            if draw < 32:
                return cut(prompt, self._length()), before
            return self._continued(before, prompt, r), before
        whole = self._length()
        shared = min(self._length(), whole)
        rest = f"{r}:{whole - shared}"
        if source.chance(15):  # the same tokens behind another beginning, at the same or at another place
            rest = f"{source.choice('AB')}[{source.choice((0, shared))}]:{whole - shared}"
        return _joined(f"{source.choice('AB')}:{shared}", rest), ""

    def _continued(self, before: str, prompt: str, r: str) -> str:
        """Go on after a prompt, perhaps with what was generated from it; the whole ends at a boundary as often as not."""
        source, length = self._source, length_of(prompt)
        generated = source.integer(1, self._script.shape.unit + 1) if source.chance(40) else 0
        prompt = _joined(prompt, f"@{before}:{min(generated, self._longest - length)}")
        left = self._longest - length_of(prompt)
        if left <= 0:
            return prompt
        more = self._length() - length_of(prompt) if source.chance(60) else 0
        return _joined(prompt, f"{r}:{more if 0 < more <= left else source.integer(1, min(left, self._script.shape.unit + 1))}")

    # --- what is run ---------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        source = self._source
        asked = [r for r in self._live if source.chance(75)] or [source.choice(self._live)]
        run = [(r, self._length() if source.chance(60) else 1) for r in asked]
        withdraw = tuple(r for r in asked if self._withdraw and source.chance(6))
        for _ in range(source.integer(1, 3)):
            self._script.step(*run, withdraw=withdraw, fail=self._failing())
            withdraw = ()

    def _failing(self) -> list[int]:
        """Say which copies under way fail with a step, where copies take time."""
        if not self._script.shape.tier_delay or not self._source.chance(_FAILING):
            return []
        return sorted({self._source.integer(0, _UNDER_WAY) for _ in range(self._source.integer(1, 3))})

    def _decode(self) -> None:
        """Let one request, or all of them, generate past a boundary."""
        live = self._live if self._source.chance(40) else [self._source.choice(self._live)]
        self._script.decode(min(self._length(), _DECODED_MAX), *live)


def cut(prompt: str, length: int) -> str:
    """Return the first tokens of a prompt, or all of it if it has no more."""
    terms: list[str] = []
    for term in prompt.split():
        text, _, count = term.rpartition(":")
        taken = min(int(count), length)
        if taken <= 0:
            break
        terms.append(f"{text}:{taken}")
        length -= taken
    return " ".join(terms)


def _joined(*terms: str) -> str:
    """Return segments as one prompt, without those of no token."""
    return " ".join(term for term in terms if not term.endswith(":0"))
