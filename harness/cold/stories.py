"""Where cold and cached are compared: who shares how much with whom.

Faults show in different places: a lost window at the replay of a whole prompt, a swapped block at the end of a shared prefix.
So there are several stories, each told in the measures of the layout: the unit at which every group can be resumed, and lengths
one token before, at and behind a multiple of it. A seed varies multiples, lengths, texts and order; seed 0 is no exception.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from zlib import crc32

import msgspec

from harness.cold.arms import Arm
from harness.scenarios.shape import Script, Shape
from harness.trace import Step, Submit, Trace, length_of

NEEDS = "compare"
LATE_STEPS = 3
"""Steps beyond those that a prefill needs, since an engine may stop at boundaries; what is left over decodes."""


class Story:
    """Writes one story for one arm."""

    def __init__(self, shape: Shape, arm: Arm, where: str, seed: int) -> None:
        self.arm, self.unit = arm, shape.unit
        self.random = random.Random(crc32(f"{seed} {where} {shape.layout.name}".encode()))
        self.seed = seed
        self.script = Script(shape, f"{arm.name}/{where}", f"{arm.summary}; {STORIES[where][0]}", "harness/cold/stories.py")
        self.script.needs.append(NEEDS)

    @property
    def blocks(self) -> int:
        """Draw a small number of units."""
        return self.random.randint(2, 3)

    @property
    def own(self) -> int:
        """Draw a length of its own for a request: so short that it ends in the block after a boundary at which others share."""
        return self.random.randint(2, max(2, self.unit // 2 - 1))

    def text(self, name: str, length: int) -> str:
        """Return a segment of a text that no other seed has."""
        return f"{name}.{self.seed}:{length}"

    def submit(self, r: str, prompt: str) -> None:
        """Submit a request; those that are to be preempted in their prefill get a longer one."""
        identity = {"salt": f"only {r}"} if self.arm.salted else {}
        self.script.submit(r, prompt, **identity)

    def step(self, budget: int) -> None:
        """Run one step of so many tokens, or of another number where chunks are to be odd."""
        odd = (self.unit + 5, 2 * self.unit - 1, 7, 3 * self.unit + 1, self.unit)
        self.script.ops.append(Step(budget=self.random.choice(odd) if self.arm.odd_chunks else budget))

    def run(self, tokens: int, decode: int) -> None:
        """Run steps enough to compute so many tokens from nothing, and some tokens more, one by one."""
        chunk = 2 * self.unit
        least = 7 if self.arm.odd_chunks else chunk
        for _ in range(min(-(-tokens // least), 2 * -(-tokens // self.unit)) + LATE_STEPS):
            self.step(chunk)
        for _ in range(decode):
            self.script.ops.append(Step(budget=max(self.unit, 8)))

    def serve(self, r: str, prompt: str, decode: int = 2) -> None:
        """Answer one request alone, from its submission to its end."""
        self.submit(r, prompt)
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


def prefix_end(s: Story) -> None:
    """Compare where prompts part: shared lengths around a boundary, of one token, and the whole of the second prompt."""
    k, u = s.blocks, s.unit
    shared = [k * u - 1, k * u, k * u + 1, 1]
    s.random.shuffle(shared)
    for index, length in enumerate(shared):
        s.serve(f"p{index}", f"{s.text(f'sys{index}', length)} {s.text(f'p{index}', s.own)}")
        s.evict()
        s.serve(f"c{index}", f"{s.text(f'sys{index}', length)} {s.text(f'c{index}', s.own + u)}")
    s.serve("p4", f"{s.text('whole', k * u)} {s.text('p4', s.own)}")
    s.evict()
    s.serve("c4", s.text("whole", k * u))


def replay(s: Story) -> None:
    """Send the same prompt again, of lengths around a boundary and of one token."""
    k, u = s.blocks, s.unit
    lengths = [k * u - 1, k * u, k * u + 1, 1, (k + 1) * u + s.own]
    s.random.shuffle(lengths)
    for index, length in enumerate(lengths):
        s.serve(f"p{index}", s.text(f"doc{index}", length))
        s.evict()
        s.serve(f"c{index}", s.text(f"doc{index}", length))


def together(s: Story) -> None:
    """Let several consumers of one prefix run at once, in one batch."""
    k, u = s.blocks, s.unit
    shared = s.text("sys", k * u)
    s.serve("p", f"{shared} {s.text('p', s.own)}")
    s.evict()
    prompts = {f"c{index}": f"{shared} {s.text(f'c{index}', s.own + index * u // 2)}" for index in range(4)}
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


def siblings(s: Story) -> None:
    """Let three requests part inside a block, and three at a boundary."""
    k, u = s.blocks, s.unit
    for name, shared in (("in", k * u + u // 2), ("at", k * u)):
        for sibling in ("a", "b", "c"):
            s.serve(f"{sibling}.{name}", f"{s.text(name, shared)} {s.text(name + sibling, s.own)}")
            s.evict()


def turns(s: Story) -> None:
    """Hold a conversation: every request is the one before, what it generated, and something more."""
    said, u = f"{s.text('sys', s.unit + 3)} {s.text('hello', s.own)}", s.unit
    for turn in range(3):
        decode = u // 2 + s.own
        s.serve(f"t{turn}", said, decode)
        s.evict()
        said += f" @t{turn}:{decode} {s.text(f'more{turn}', s.own)}"


STORIES: Mapping[str, tuple[str, Callable[[Story], None]]] = {
    "prefix-end": ("prompts part around a boundary", prefix_end),
    "replay": ("the same prompt again", replay),
    "together": ("several consumers of one prefix at once", together),
    "siblings": ("siblings part in a block and at a boundary", siblings),
    "turns": ("a conversation continues from what was generated", turns),
}


def write(shape: Shape, arm: Arm, where: str, seed: int) -> Trace:
    """Return a story as a trace of an arm."""
    options = {**shape.options, **arm.options}
    if not options.get("enable_caching", True):
        options.pop("retention_interval", None)
    story = Story(Shape(shape.layout, options, shape.height, shape.policy), arm, where, seed)
    STORIES[where][1](story)
    tokens = sum(length_of(op.prompt) + 4 * shape.unit for op in story.script.ops if isinstance(op, Submit))
    trace = story.script.trace(story.script.shape.slots(tokens) + 1)
    return Trace(msgspec.structs.replace(trace.header, seed=seed), trace.ops)
