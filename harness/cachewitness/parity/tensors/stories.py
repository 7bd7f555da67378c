"""Traces for cold against cached, by which prefix the requests share.

Faults show in different places: a lost window at the replay of a whole prompt, a swapped block at
the end of a shared prefix. So there are several stories, each in the measures of the layout: the
unit at which every group can be resumed, and lengths one token before, at and behind a multiple of
it. A seed varies multiples, lengths, texts and order; seed 0 is no exception.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import msgspec

from cachewitness.core.trace_format import COMPARE, Step, Submit, Trace, length_of
from cachewitness.parity.tensors.arms import Arm
from cachewitness.workloads.scenarios.shape import Script, Shape, image

SMALL_POOL = "pressure"
"""The story whose pool holds two requests and no more."""
LATE_STEPS = 3
"""Steps beyond those that a prefill needs, since an engine may stop at boundaries; what is left
over decodes."""


class TensorStory:
    """Writes one story for one arm."""

    def __init__(self, shape: Shape, arm: Arm, where: str, seed: int) -> None:
        self.arm = arm
        self.unit = shape.unit
        self.random = random.Random(crc32(f"{seed} {where} {shape.layout.name}".encode()))
        self.seed = seed
        self.script = Script(
            shape,
            f"{arm.name}/{where}",
            f"{arm.summary}; {STORIES[where][0]}",
            "harness/cachewitness/parity/tensors/stories.py",
        )
        self.script.needs += [COMPARE, *(("withdraw",) if where == "interrupted" else ())]

    @property
    def blocks(self) -> int:
        """Draw a small number of units."""
        return self.random.randint(2, 3)

    @property
    def own(self) -> int:
        """Draw a length of its own for a request: so short that it ends in the block after a
        boundary at which others share.
        """
        return self.random.randint(2, max(2, self.unit // 2 - 1))

    def text(self, name: str, length: int) -> str:
        """Return a segment of a text that no other seed has."""
        return f"{name}.{self.seed}:{length}"

    def submit(self, r: str, prompt: str, **identity: Any) -> None:
        """Submit a request, with a salt of its own in an arm that has them."""
        salt = {"salt": f"only {r}"} if self.arm.salted else {}
        self.script.submit(r, prompt, **salt, **identity)

    def step(self, budget: int) -> None:
        """Run one step of so many tokens, or of another number where chunks are to be odd."""
        odd = (self.unit + 5, 2 * self.unit - 1, 7, 3 * self.unit + 1, self.unit)
        self.script.ops.append(
            Step(budget=self.random.choice(odd) if self.arm.odd_chunks else budget)
        )

    def run(self, tokens: int, decode: int) -> None:
        """Run steps enough to compute so many tokens from nothing, and some tokens more, one by
        one.
        """
        chunk = 2 * self.unit
        least = 7 if self.arm.odd_chunks else chunk
        for _ in range(min(-(-tokens // least), 2 * -(-tokens // self.unit)) + LATE_STEPS):
            self.step(chunk)
        for _ in range(decode):
            self.script.ops.append(Step(budget=max(self.unit, 8)))

    def serve(self, r: str, prompt: str, decode: int = 2, **identity: Any) -> None:
        """Answer one request alone, from its submission to its end."""
        self.submit(r, prompt, **identity)
        tokens = length_of(prompt)
        if self.arm.preempts:
            self.script.ops.append(Step(budget=self.unit))
            self.script.preempt(r)
            self.run(tokens, decode)
            self.script.preempt(r)
        self.run(tokens, decode)
        self.script.finish(r)

    def evict(self) -> None:
        """Lose what the device has, in an arm that is to find it in the second tier."""
        if self.arm.evicts:
            self.script.reset(tier="local")


def prefix_end(s: TensorStory) -> None:
    """Compare where prompts part: shared lengths around a boundary, of one token, and the whole
    of the second prompt.
    """
    k = s.blocks
    u = s.unit
    shared = [k * u - 1, k * u, k * u + 1, 1]
    s.random.shuffle(shared)
    for index, length in enumerate(shared):
        s.serve(f"p{index}", f"{s.text(f'sys{index}', length)} {s.text(f'p{index}', s.own)}")
        s.evict()
        s.serve(f"c{index}", f"{s.text(f'sys{index}', length)} {s.text(f'c{index}', s.own + u)}")
    s.serve("p4", f"{s.text('whole', k * u)} {s.text('p4', s.own)}")
    s.evict()
    s.serve("c4", s.text("whole", k * u))


def replay(s: TensorStory) -> None:
    """Send the same prompt again, of lengths around a boundary and of one token."""
    k = s.blocks
    u = s.unit
    lengths = [k * u - 1, k * u, k * u + 1, 1, (k + 2) * u + s.own]
    s.random.shuffle(lengths)
    for index, length in enumerate(lengths):
        s.serve(f"p{index}", s.text(f"doc{index}", length))
        s.evict()
        s.serve(f"c{index}", s.text(f"doc{index}", length))


def together(s: TensorStory) -> None:
    """Let several consumers of one prefix run at once, in one batch."""
    k = s.blocks
    u = s.unit
    shared = s.text("sys", k * u)
    s.serve("p", f"{shared} {s.text('p', s.own)}")
    s.evict()
    prompts = {
        f"c{index}": f"{shared} {s.text(f'c{index}', s.own + index * u // 2)}" for index in range(4)
    }
    for r, prompt in prompts.items():
        s.submit(r, prompt)
    if s.arm.preempts:
        s.step(u)
        for r in prompts:
            s.script.preempt(r)
    for _ in range(k + 8):
        s.step(4 * u)
    if s.arm.preempts:
        for r in prompts:
            s.script.preempt(r)
        for _ in range(k + 8):
            s.step(4 * u)
    for r in prompts:
        s.script.finish(r)
    for r in ("d0", "d1"):
        s.submit(r, f"{s.text('new', k * u)} {s.text(r, s.own)}")
    for _ in range(k + 4):
        s.step(6 * u)
    for r in ("d0", "d1"):
        s.script.finish(r)


def siblings(s: TensorStory) -> None:
    """Let three requests part inside a block, and three at a boundary."""
    k = s.blocks
    u = s.unit
    for name, shared in (("in", k * u + u // 2), ("at", k * u)):
        for sibling in ("a", "b", "c"):
            s.serve(f"{sibling}.{name}", f"{s.text(name, shared)} {s.text(name + sibling, s.own)}")
            s.evict()


def turns(s: TensorStory) -> None:
    """Hold a conversation: every request is the one before, what it generated, and something
    more.
    """
    prompt = f"{s.text('sys', s.unit + 3)} {s.text('hello', s.own)}"
    u = s.unit
    for turn in range(3):
        decode = u // 2 + s.own
        s.serve(f"t{turn}", prompt, decode)
        s.evict()
        prompt += f" @t{turn}:{decode} {s.text(f'more{turn}', s.own)}"


def alike(s: TensorStory) -> None:
    """Send what looks like something else that is cached: behind other tokens, of an adapter, an
    image, other weights.
    """
    k = s.blocks
    u = s.unit
    s.serve("a", f"{s.text('one', u)} {s.text('doc', k * u)} {s.text('a', s.own)}")
    s.evict()
    s.serve("b", f"{s.text('two', u)} {s.text('doc', k * u)} {s.text('b', s.own)}")
    s.evict()
    s.serve("c", f"{s.text('doc', k * u)} {s.text('c', s.own)}")
    for r, adapter in (("plain", ""), ("tuned", "tuned"), ("tuned'", "tuned")):
        s.evict()
        s.serve(r, f"{s.text('task', k * u)} {s.text(r, s.own)}", adapter=adapter)
    for r, picture in (("cat", "cat"), ("dog", "dog"), ("cat'", "cat")):
        s.evict()
        s.serve(r, f"{s.text('see', u)} <image>:{u} {s.text(r, s.own)}", media=image(u, u, picture))
    for version in (1, 2):
        s.script.update_weights(version)
        for r in ("old", "new"):
            s.evict()
            s.serve(f"{r}{version}", f"{s.text('weights', k * u)} {s.text(r, s.own)}")


def pressure(s: TensorStory) -> None:
    """Ask again and again for prefixes that a small pool can only keep in part, two at a time,
    and for one twice in a row.
    """
    k = s.blocks
    u = s.unit
    prefixes = [s.text(f"doc{index}", (k + 1) * u) for index in range(3)]
    for turn in range(4):
        s.random.shuffle(prefixes)
        running = [f"r{turn}.{index}" for index in range(2)]
        for r, prefix in zip(running, prefixes, strict=False):
            s.submit(r, f"{prefix} {s.text(r, s.own + u // 2)}")
        for index in range(2 * k + 8):
            s.step(2 * u)
            if s.arm.preempts and index in (0, 2 * k + 4):
                s.script.preempt(running[0])
        for r in running:
            s.script.finish(r)
        s.evict()
    for r in ("y", "z"):
        s.serve(r, f"{prefixes[0]} {s.text(r, s.own)}")


def guessed(s: TensorStory) -> None:
    """Let others go on as a drafter guessed, right up to a boundary and wrong from there or a
    little before.
    """
    u = s.unit
    prompt = f"{s.text('sys', 2 * u)} {s.text('hello', u - 5)}"
    s.serve("g", prompt, decode=u)
    for wrong in range(1, 5):
        s.evict()
        s.serve(
            f"w{wrong}",
            f"{prompt} @g:{5 - wrong} ~@g[{5 - wrong}]:{wrong} {s.text(f'w{wrong}', s.own)}",
        )
    s.evict()
    s.serve("r", f"{prompt} @g:5 {s.text('r', s.own)}")


def interrupted(s: TensorStory) -> None:
    """Let producers be aborted in the middle of a block and withdrawn from a step; others then
    send the same prompt.
    """
    k = s.blocks
    u = s.unit
    for index, budget in enumerate((u + u // 2 + 1, 2 * u, 2 * u - 1)):
        prompt = f"{s.text(f'cut{index}', (k + 1) * u)} {s.text(f'cut{index}', s.own)}"
        s.submit(f"p{index}", prompt)
        s.script.ops.append(Step(budget=budget))
        s.script.abort(f"p{index}")
        s.evict()
        s.serve(f"c{index}", prompt)
    prompt = f"{s.text('gone', k * u)} {s.text('gone', s.own)}"
    s.submit("w", prompt)
    s.script.ops.append(Step(budget=2 * u, withdraw=["w"]))
    s.serve("v", prompt)
    s.run(length_of(prompt), 1)
    s.script.finish("w")
    s.serve("x", prompt)


STORIES: Mapping[str, tuple[str, Callable[[TensorStory], None]]] = {
    "prefix-end": ("prompts part around a boundary", prefix_end),
    "replay": ("the same prompt again", replay),
    "together": ("several consumers of one prefix at once", together),
    "siblings": ("siblings part in a block and at a boundary", siblings),
    "turns": ("a conversation continues from what was generated", turns),
    "alike": ("what looks like something cached, and is not", alike),
    "guessed": ("others go on as a drafter guessed", guessed),
    "interrupted": ("producers are aborted or withdrawn half way", interrupted),
    "pressure": ("a pool that is too small for all prefixes", pressure),
}


def write(shape: Shape, arm: Arm, where: str, seed: int) -> Trace:
    """Return a story as a trace of an arm."""
    options = {**shape.options, **arm.options}
    if not options.get("enable_caching", True):
        options.pop("retention_interval", None)
    story = TensorStory(Shape(shape.layout, options, shape.level, shape.policy), arm, where, seed)
    STORIES[where][1](story)
    lengths = [
        length_of(op.prompt) + 4 * shape.unit for op in story.script.ops if isinstance(op, Submit)
    ]
    tokens = max(lengths) * 6 // 5 if where == SMALL_POOL else sum(lengths)
    trace = story.script.trace(story.script.shape.pages(tokens) + 1)
    return Trace(msgspec.structs.replace(trace.header, seed=seed), trace.ops)
