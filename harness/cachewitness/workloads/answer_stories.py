"""The stories of the suite `answers`: what a serving engine is asked around the places where its
cache resumes.

Lengths lie one before, at and one behind the multiples of the layout's unit. A seed varies texts
and the parts of lengths that no story is about. Requests end by themselves, so a story says how
much each generates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import product
from zlib import crc32

import msgspec

from cachewitness.core.trace_format import Op, Step, Submit, Trace, length_of
from cachewitness.workloads.scenarios.shape import Script, Shape

GENERATED = 6
"""Tokens that a request generates where a story is not about that."""
LEAST_UNIT = 4
"""Stories ask for a few tokens less than a unit; where the scheduler's blocks are smaller, several
of them are one."""

DEEP, DEEP_TOKENS = 13, 2048
"""One prefix has so many units, unless these are so large that it would have more tokens than
these."""


class AnswerStory:
    """Writes one story."""

    def __init__(self, script: Script, name: str, seed: int) -> None:
        shape = script.shape
        self.unit = shape.unit * max(1, -(-LEAST_UNIT // shape.unit))
        self.seed = seed
        self.random = random.Random(crc32(f"{seed} {name} {shape.layout.name}".encode()))
        self.script = script

    def text(self, name: str, length: int) -> str:
        """Return a segment of a text that no other seed has."""
        return f"{name}.{self.seed}:{length}"

    def own(self) -> int:
        """Draw a length that ends in the block behind a boundary."""
        return self.random.randint(2, max(2, self.unit // 2))

    def submit(self, r: str, prompt: str, generate: int = GENERATED, salt: str = "") -> None:
        """Submit a request."""
        self.script.submit(r, prompt, generate=generate, **({"salt": salt} if salt else {}))

    def finish(self, *requests: str) -> None:
        """Wait for answers."""
        for r in requests:
            self.script.finish(r)

    def serve(self, r: str, prompt: str, generate: int = GENERATED, salt: str = "") -> None:
        """Ask and wait for the answer."""
        self.submit(r, prompt, generate, salt)
        self.finish(r)

    def steps(self, count: int) -> None:
        """Let the engine make some steps."""
        self.script.ops += [Step() for _ in range(count)]


def replays(s: AnswerStory) -> None:
    """Ask the same twice, of every length around a boundary and one behind a far one; then once
    more with one token more.
    """
    deep = min(DEEP, max(DEEP_TOKENS // s.unit, 4))
    for k, off in [*product((1, 2, 3), (-1, 0, 1)), (deep, 1)]:
        length = k * s.unit + off
        name = f"doc{k}{off:+d}"
        for r in "ab":
            s.serve(f"{r}{name}", s.text(name, length))
        s.serve(f"c{name}", f"{s.text(name, length)} {s.text('more', 1)}")


def parting(s: AnswerStory) -> None:
    """Let two prompts part at every place around a boundary, and inside a block."""
    for k in (1, 2):
        for off in (-1, 0, 1, s.unit // 2):
            shared = k * s.unit + off
            for r in "ab":
                s.serve(
                    f"{r}{k}{off:+d}",
                    f"{s.text(f'sys{k}{off:+d}', shared)}"
                    f" {s.text(f'{r}{k}{off:+d}', s.own() + s.unit)}",
                )


def siblings(s: AnswerStory) -> None:
    """Let siblings of one prefix come at once: with its first asker, after it, and in turn."""
    shared = s.text("sys", 2 * s.unit + s.unit // 2)
    cold = [f"w{index}" for index in range(3)]
    for r in cold:
        s.submit(r, f"{shared} {s.text(r, s.own())}")
    s.finish(*cold)
    warm = [f"x{index}" for index in range(4)]
    for index, r in enumerate(warm):
        s.submit(r, f"{shared} {s.text(r, s.own() + index * s.unit // 3)}", GENERATED + index)
    s.finish(*reversed(warm))
    for index in range(3):
        s.serve(f"y{index}", f"{shared} {s.text(f'y{index}', s.own())}")


def single_tokens(s: AnswerStory) -> None:
    """Ask for one token: with a prompt of one, of a block, of what is cached, and one behind it."""
    for length in (1, s.unit, s.unit + 1, 2 * s.unit, 2 * s.unit + 1):
        for r in "ab":
            s.serve(f"{r}{length}", s.text("doc", length), 1)


def answered_prompts(s: AnswerStory) -> None:
    """Ask with an earlier prompt and its answer, whole, without its last token, and with a token
    more.
    """
    for length in (s.unit - 2, s.unit, 2 * s.unit + 1):
        generate = s.unit + 2
        prompt = s.text(f"doc{length}", length)
        s.serve(f"p{length}", prompt, generate)
        for r, count in (("a", generate), ("b", generate - 1), ("c", generate - 2)):
            s.serve(f"{r}{length}", f"{prompt} @p{length}:{count}")
        s.serve(f"d{length}", f"{prompt} @p{length}:{generate} {s.text('more', s.own())}")


def cancelled(s: AnswerStory) -> None:
    """Let clients go away: at once, in the middle of a prompt, in the middle of an answer;
    others then ask the same.
    """
    for index, steps in enumerate((0, 1, 2, 4)):
        prompt = s.text(f"doc{index}", 3 * s.unit + s.unit // 2 + 1)
        s.submit(f"p{index}", prompt, 2 * s.unit)
        s.steps(steps)
        s.script.abort(f"p{index}")
        s.serve(f"c{index}", prompt)
        s.serve(f"d{index}", f"{prompt} {s.text(f'd{index}', s.own())}")


def conversations(s: AnswerStory) -> None:
    """Hold two conversations in turn: every request is the one before, what it said, and
    something more.
    """
    prompts = {name: f"{s.text('sys', s.unit + 3)} {s.text(name, s.own())}" for name in "ab"}
    for turn in range(4):
        for name in "ab":
            r = f"{name}{turn}"
            generate = s.unit // 2 + s.own()
            s.serve(r, prompts[name], generate)
            prompts[name] += f" @{r}:{generate} {s.text(f'more{name}{turn}', s.own())}"


def pressure(s: AnswerStory) -> None:
    """Ask again and again for prefixes that a small pool keeps in part, several at a time."""
    prefixes = [s.text(f"doc{index}", 2 * s.unit + index) for index in range(4)]
    for turn in range(3):
        s.random.shuffle(prefixes)
        running = [f"r{turn}.{index}" for index in range(3)]
        for index, (r, prefix) in enumerate(zip(running, prefixes, strict=False)):
            s.submit(r, f"{prefix} {s.text(r, s.own())}", s.unit + index)
            s.steps(1)
        s.finish(*running)
    for prefix in prefixes:
        s.serve(f"z{prefix.partition('.')[0]}", f"{prefix} {s.text('z', s.own())}")


def idle(s: AnswerStory) -> None:
    """Fill the cache, let the engine make steps with nothing to do, and come back to what was
    asked first.
    """
    for index in range(5):
        s.serve(f"p{index}", s.text(f"doc{index}", 2 * s.unit + 1))
    s.steps(6)
    for index in (0, 4, 2, 0):
        r = f"c{index}.{len(s.script.ops)}"
        s.serve(r, f"{s.text(f'doc{index}', 2 * s.unit + 1)} {s.text(r, s.own())}")


def tenants(s: AnswerStory) -> None:
    """Let tenants with salts of their own ask what others asked; each of them finds what is its
    own.
    """
    prompt = s.text("doc", 2 * s.unit + 1)
    for turn in range(2):
        for salt in ("", "one", "two"):
            s.serve(f"r{turn}{salt}", f"{prompt} {s.text(f'{turn}{salt}', s.own())}", salt=salt)


def taken_back(s: AnswerStory) -> None:
    """Ask with ever less of an earlier prompt, another text behind it or none; then with the
    beginning of a much longer one.
    """
    for r, goes_on in (("a", True), ("b", False)):
        for k in (2, 3):
            length = k * s.unit + s.unit // 2
            for cut in sorted({0, 1, 2, 5, s.unit // 2 + 1}):
                left = s.text(f"{r}said{k}", length - cut)
                s.serve(
                    f"{r}{k}-{cut}",
                    f"{left} {s.text(f'{r}{k}-{cut}', s.own())}" if goes_on else left,
                )
    for cut in sorted({1, 5, s.unit // 2}):
        length = 3 * s.unit
        for r, tokens in (("c", length + cut), ("d", 8 * s.unit), ("e", length)):
            s.serve(f"{r}{cut}", s.text(f"long{cut}", tokens))


def newcomers(s: AnswerStory) -> None:
    """Let requests come while others run, long prompts beside answers under way."""
    running = list[str]()
    for index in range(6):
        r = f"r{index}"
        shared = s.text(f"sys{index % 2}", (1 + index % 3) * s.unit)
        s.submit(r, f"{shared} {s.text(r, s.own() + (index % 2) * s.unit)}", s.unit + index)
        s.steps(1 + index % 3)
        running.append(r)
    s.finish(*running)


STORIES: Mapping[str, tuple[str, Callable[[AnswerStory], None]]] = {
    "replays": (
        "the same prompt again, at every length around a boundary, and once of many blocks",
        replays,
    ),
    "answered-prompts": ("prompts that are an earlier prompt with its answer", answered_prompts),
    "taken-back": (
        "a prompt that is an earlier one without its end, alone or with another text behind it",
        taken_back,
    ),
    "single-tokens": ("requests for one token", single_tokens),
    "parting": ("prompts part around boundaries", parting),
    "siblings": ("several consumers of one prefix, at once and in turn", siblings),
    "cancelled": ("clients go away in mid-prefill and in mid-answer", cancelled),
    "conversations": ("conversations that grow by the engine's own answers", conversations),
    "pressure": ("a pool that is too small for all prefixes", pressure),
    "idle": ("a cache that is left alone, and asked again", idle),
    "tenants": ("tenants with salts of their own", tenants),
    "newcomers": ("requests come while others are computed and answered", newcomers),
}
"""In the order of a run, of which each configuration begins at another. Exact replays find most in
the fewest requests."""
SMALL_POOL = ("pressure",)
"""Stories whose pool holds little more than the longest request."""


def write(shape: Shape, name: str, seed: int) -> Trace:
    """Return a story as a trace."""
    script = Script(
        shape, name, STORIES[name][0], "harness/cachewitness/workloads/answer_stories.py"
    )
    story = AnswerStory(script, name, seed)
    STORIES[name][1](story)
    tokens = [tokens_of(op) for op in story.script.ops]
    room = max(tokens) if name in SMALL_POOL else sum(tokens)
    return as_asked(story.script, shape.pages(room + shape.unit) + 1, seed)


def as_asked(script: Script, pages: int, seed: int) -> Trace:
    """Return a script as a trace at answers level: no policy, and no option but those of the
    configuration.
    """
    trace = script.trace(pages)
    return Trace(
        msgspec.structs.replace(
            trace.header, seed=seed, policy="", options=dict(script.shape.options)
        ),
        trace.ops,
    )


def tokens_of(op: Op) -> int:
    """Return how many tokens a request has when it ends; 0 for other operations."""
    return length_of(op.prompt) + op.generate if isinstance(op, Submit) else 0
