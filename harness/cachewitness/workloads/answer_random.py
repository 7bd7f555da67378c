"""Random traces at answers level, which prefer lengths around boundaries.

They repeat prompts, shorten them, change one token, continue after answers, let clients go away,
and run several at once in a pool that is roomy or under pressure. Of an engine that says how long a
prompt may be, some are as long, a token shorter or longer, and asked when nobody else is there. The
option `avoid` of a configuration names what is left out (`cachewitness.workloads.avoided`), so that
a known fault does not hide the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachewitness.core.trace_format import Step, Trace, length_of
from cachewitness.workloads.answer_longest import of_size
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
_LONGEST = 30
"""So many prompts of a hundred are as long as the engine takes, if that is known."""


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


def longest_answers(shape: Shape, source: Source, name: str, most: int, pages: int) -> Trace:
    """Return a trace over so many pages, of an engine that takes prompts of `most` tokens with
    them.
    """
    script = Script(shape, name, "random requests, some as long as may be", __name__)
    _Workload(script, source, most).run()
    return of_size(as_asked(script, pages, 0), pages)


class _Workload:
    """Grows a script one random operation at a time; keeps in mind who is live and who was
    answered. `most`: the longest prompt that the engine takes, 0 if that is not known.
    """

    def __init__(self, script: Script, source: Source, most: int = 0) -> None:
        self._script = script
        self._source = source
        self._most = most
        self._longest: list[tuple[str, str]] = []
        """Prompts that were as long, and their salts."""
        self._live: list[_Asked] = []
        self._requests: list[_Asked] = []
        self._answered: list[_Asked] = []

    def run(self) -> None:
        """Write requests until there are enough, then wait for all of them."""
        source = self._source
        most = self._source.choice(_LIVE)
        while len(self._requests) < REQUESTS:
            if self._most and source.chance(_LONGEST):
                self._ask_longest(f"r{len(self._requests) + 1}")
            elif len(self._live) < most and source.chance(60):
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

    def _ask_longest(self, r: str) -> None:
        """Ask a prompt around the longest, or one whose answer ends there, alone."""
        source = self._source
        while self._live:
            self._answered.append(self._live.pop())
            self._script.finish(self._answered[-1].r)
        length = self._most + source.choice((0, 0, -1, 1, -self._script.shape.unit))
        again = self._longest and source.chance(40)
        before, salt = source.choice(self._longest) if again else self._prompt(r)
        prompt = cut(before, max(length, 1))
        if missing := length - length_of(prompt):
            prompt = f"{prompt} {r}.more:{missing}".strip()
        generate = max(self._most - length, 0) + 1
        self._longest.append((prompt, salt))
        self._requests.append(_Asked(r, cut(prompt, self._length()), generate, salt))
        self._script.submit(r, prompt, generate=generate, **({"salt": salt} if salt else {}))
        self._script.finish(r)

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
