"""Random traces at answers level, which prefer lengths around boundaries.

They repeat prompts, shorten them, change one token, continue after answers, let clients go away,
and run several at once in a pool that is roomy or under pressure. The option `avoid` of a
configuration names what is left out (`cachewitness.workloads.avoided`), so that a known fault does
not hide the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachewitness.core.trace_format import Step, Trace
from cachewitness.workloads.answer_stories import as_asked, tokens_of
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness.workloads.source import Seeded, Source

REQUESTS, RECENT = 14, 5
_LIVE = (1, 2, 3, 4, 6)
_POOLS = (5, 5, 5, 6, 7, 10, 40)
"""The pool, in fifths of what the longest request takes."""
_BLOCKS = 4
_ANSWERS = (1, 2, 5, 9)
_SALTS = ("", "", "", "one", "two")


@dataclass(frozen=True)
class _Asked:
    r: str
    prompt: str
    generate: int
    salt: str


def random_answers(shape: Shape, seed: int) -> Trace:
    """Return the trace of a seed."""
    source = Seeded(seed)
    script = Script(shape, f"random-{seed}", "random requests around boundaries", __name__)
    _Workload(script, source).run()
    longest = max(tokens_of(op) for op in script.ops)
    return as_asked(
        script, shape.pages(longest + shape.unit) * source.choice(_POOLS) // 5 + 1, seed
    )


class _Workload:
    """Grows a script one random operation at a time; keeps in mind who is live and who was
    answered.
    """

    def __init__(self, script: Script, source: Source) -> None:
        self._script = script
        self._source = source
        self._live: list[_Asked] = []
        self._requests: list[_Asked] = []
        self._answered: list[_Asked] = []

    def run(self) -> None:
        """Write requests until there are enough, then wait for all of them."""
        source = self._source
        most = self._source.choice(_LIVE)
        while len(self._requests) < REQUESTS:
            if len(self._live) < most and source.chance(60):
                self._submit(f"r{len(self._requests) + 1}")
            elif self._live and source.chance(12):
                self._script.abort(self._is_gone().r)
            elif self._live and source.chance(50):
                self._answered.append(self._is_gone())
                self._script.finish(self._answered[-1].r)
            else:
                self._script.ops += [Step() for _ in range(source.integer(1, 3))]
        for asked in self._live:
            self._script.finish(asked.r)

    def _is_gone(self) -> _Asked:
        return self._live.pop(self._source.integer(0, len(self._live) - 1))

    def _submit(self, r: str) -> None:
        source = self._source
        unit = self._script.shape.unit
        generate = source.choice((*_ANSWERS, unit - 1, unit, unit + 1))
        prompt, salt = self._prompt(r)
        asked = _Asked(r, prompt, max(generate, 1), salt)
        self._live.append(asked)
        self._requests.append(asked)
        self._script.submit(r, prompt, generate=asked.generate, **({"salt": salt} if salt else {}))

    def _prompt(self, r: str) -> tuple[str, str]:
        """Return a prompt and a salt: new, or like an earlier one in one of the ways that caches
        get wrong.
        """
        source = self._source
        unit = self._script.shape.unit
        before = (
            source.choice(self._requests[-RECENT:])
            if self._requests and source.chance(80)
            else None
        )
        if before is None:
            return (
                f"t{source.integer(0, 2)}:{self._length()} {r}:{source.integer(1, unit)}",
                source.choice(_SALTS),
            )
        salt = before.salt if source.chance(85) else source.choice(_SALTS)
        if source.chance(25):
            return before.prompt, salt
        if before in self._answered and source.chance(50):
            kept = before.generate - source.choice((0, 0, 1)) or 1
            return f"{before.prompt} @{before.r}:{kept} {r}:{source.integer(1, unit)}", salt
        return f"{cut(before.prompt, self._length())} {r}:{source.integer(1, unit + 1)}", salt

    def _length(self) -> int:
        source = self._source
        unit = self._script.shape.unit
        return max(source.integer(1, _BLOCKS) * unit + source.choice((-1, 0, 0, 1, unit // 2)), 1)


def cut(prompt: str, tokens: int) -> str:
    """Return the first so many tokens of a prompt, all of it if it has no more."""
    kept: list[str] = []
    for term in prompt.split():
        text, _, count = term.rpartition(":")
        here = min(int(count), tokens)
        if here:
            kept.append(f"{text}:{here}")
        tokens -= here
    return " ".join(kept)
