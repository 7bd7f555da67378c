"""The measures of a layout, and a script that writes traces in them.

Scenarios are about boundaries, so their lengths are in units of the layout: `unit` is the scheduler
block size (the least common multiple of the groups' block sizes), at which every group can be
resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    GroupSpec,
    Layout,
    Level,
    Media,
    Op,
    Preempt,
    Reset,
    ResetTier,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
    length_of,
)

MODEL_LEN, BATCHED_TOKENS = 4096, 2048
"""The policies' default limits, in tokens."""


LeastPages = Callable[[Layout, Mapping[str, Any]], int]
"""Given a layout and a trace's options: the smallest pool, in pages, that a policy accepts."""


@dataclass(frozen=True)
class Shape:
    """A layout, the options of the policy and the level at which a trace is to run."""

    layout: Layout
    options: dict[str, Any] = field(default_factory=dict)
    level: Level = "manager"
    policy: str = "vllm"
    least_pages: LeastPages | None = None
    """The smallest pool that the policy accepts with a trace's options; None: any."""

    @property
    def unit(self) -> int:
        """The scheduler block size in tokens."""
        return lcm(*(group.block_size for group in self.layout.groups))

    @property
    def window(self) -> int:
        """The widest window in tokens; 0 without one."""
        return max((group.window for group in self.layout.groups), default=0)

    @property
    def interval(self) -> int:
        """The retention interval in tokens; 0 if it is unset or keeps reachable boundaries
        alone.
        """
        return int(self.options.get("retention_interval") or 0)

    @property
    def tier_pages(self) -> int:
        """The places of the second tier; 0 without one."""
        return int(self.options.get("tier_pages", 0))

    @property
    def tier_delay(self) -> int:
        """How many steps a copy from or to the second tier takes; 0 if it is part of one."""
        return int(self.options.get("tier_delay", 0))

    @property
    def engines(self) -> int:
        """How many engines, each with kernels of its own, share the second tier."""
        return int(self.options.get("engines", 1))

    def has(self, kind: str) -> bool:
        """Whether some group of the layout is of that kind."""
        return any(group.kind == kind for group in self.layout.groups)

    def pages(self, tokens: int) -> int:
        """Return how many pages a request of so many tokens takes at most, drafts counted, one
        spare block for every group.
        """
        return sum(self._blocks(group, tokens) for group in self.layout.groups)

    def _blocks(self, group: GroupSpec, tokens: int) -> int:
        drafts = int(self.options.get("num_speculative_tokens", 0))
        if group.kind == "recurrent":
            return (-(-tokens // group.block_size) + 1) * int(
                self.options.get("pages_per_snapshot", 1)
            ) + drafts
        return -(-(tokens + 2 * drafts) // group.block_size) + 1


class Script:
    """Writes a trace: `script.prefill("r1", 64)` reads as it runs."""

    def __init__(self, shape: Shape, name: str, story: str, source: str) -> None:
        self.shape = shape
        self.ops: list[Op] = []
        self.pages = 0
        self.needs: list[str] = []
        self._name = name
        self._story = story
        self._source = source
        self._lengths: dict[str, int] = {}

    def submit(self, r: str, prompt: str, **identity: Any) -> None:
        """Submit a request; `prompt` in segments, identity as in
        `cachewitness.core.trace_format.Submit`.
        """
        self.ops.append(Submit(r=r, prompt=prompt, **identity))
        self._lengths[r] = length_of(prompt)

    def extend(self, r: str, prompt: str, generate: int) -> None:
        """Give a session more input, after which it generates so many tokens."""
        self.ops.append(Extend(r, prompt, generate))

    def step(
        self,
        *run: tuple[str, int],
        withdraw: Sequence[str] = (),
        cancel: Sequence[str] = (),
        fail: Sequence[int] = (),
    ) -> None:
        """Run one step; at scheduler level the budget is the sum of what is asked. The rest is
        as in `cachewitness.workloads.Step`.
        """
        if self.shape.level == "manager":
            self.ops.append(Step(run=list(run), withdraw=list(withdraw), cancel=list(cancel)))
        else:
            budget = max(sum(n for _, n in run), self.shape.unit)
            self.ops.append(
                Step(budget=budget, withdraw=list(withdraw), cancel=list(cancel), fail=list(fail))
            )

    def steps(self) -> Iterator[Step]:
        """Yield the steps so far."""
        return (op for op in self.ops if isinstance(op, Step))

    def prefill(self, r: str, chunk: int = 0) -> None:
        """Run r until its prompt is computed, `chunk` tokens a step (all at once if 0), and some
        steps more.

        An engine may stop earlier than asked (at a block boundary, where a shared prefix ends), so
        there are more steps than chunks; whatever is left over decodes.
        """
        tokens = self._lengths[r]
        chunk = chunk or tokens
        for _ in range(-(-tokens // chunk) + 3):
            self.step((r, chunk))

    def serve(self, r: str, prompt: str, chunk: int = 0, decode: int = 0, **identity: Any) -> None:
        """Submit, prefill, decode and finish one request."""
        self.submit(r, prompt, **identity)
        self.prefill(r, chunk)
        self.decode(decode, r)
        self.finish(r)

    def converse(self, r: str, prompt: str, steps: int) -> str:
        """Serve a request whole in so many steps and return its answer as the next prompt quotes
        it: `@r:N`.

        The answer is quoted whole. An engine that takes several steps for the prompt generates
        fewer tokens, and the quote then goes on beyond them.
        """
        self.submit(r, prompt)
        self.step((r, length_of(prompt)))
        self.decode(steps - 1, r)
        self.finish(r)
        drafts = int(self.shape.options.get("num_speculative_tokens", 0))
        return f"@{r}:{steps * (1 + drafts)}"

    def decode(self, steps: int, *requests: str) -> None:
        """Run so many steps of one token for each request."""
        for _ in range(steps):
            self.step(*((r, 1) for r in requests))

    def finish(self, r: str) -> None:
        """End the request as intended."""
        self.ops.append(Finish(r))

    def abort(self, r: str) -> None:
        """End the request early."""
        self.ops.append(Abort(r))

    def preempt(self, r: str) -> None:
        """Take the request's pages away."""
        self.ops.append(Preempt(r))

    def reset(self, *, running: bool = False, tier: ResetTier = "") -> None:
        """Forget every cached prefix, of one tier or of all."""
        self.ops.append(Reset(running=running, tier=tier))

    def update_weights(self, version: int, adapter: str = "") -> None:
        """Load new weights, of one adapter if it is named."""
        self.ops.append(UpdateWeights(version, adapter))

    def trace(self, pages: int = 0) -> Trace:
        """Return the trace over a pool of so many pages (by default enough for two of the longest
        request).

        The pool is larger if the policy accepts no smaller one.
        """
        longest = 2 * max(self._lengths.values(), default=self.shape.unit)
        roomy = 2 * self.shape.pages(longest) + 1
        options = {**_room(longest, self.shape.unit), **self.shape.options}
        least = self.shape.least_pages(self.shape.layout, options) if self.shape.least_pages else 0
        header = TraceHeader(
            name=self._name,
            layout=self.shape.layout,
            pages=max(pages or roomy, least),
            level=self.shape.level,
            policy=self.shape.policy,
            options=options,
            needs=list(self.needs),
            story=self._story,
            source=self._source,
        )
        return Trace(header, self.ops)


def _room(longest: int, unit: int) -> dict[str, int]:
    """Return the limits that a layout with long blocks needs raised; nothing if the policy's own
    suffice.
    """
    limits = {}
    if longest > MODEL_LEN:
        limits["max_model_len"] = longest
    if 4 * unit > BATCHED_TOKENS:
        limits["max_num_batched_tokens"] = 4 * unit
    return limits


def image(at: int, length: int, name: str) -> list[Media]:
    """Return one multimodal item as `Script.submit` takes it."""
    return [Media(at=at, length=length, hash=name)]
