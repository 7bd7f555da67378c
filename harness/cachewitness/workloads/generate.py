"""Random traces that prefer boundaries.

Bugs of caches sit at the edges of blocks, chunks, windows and retention intervals, so lengths are
drawn as a multiple of one of them plus −1, 0 or +1: of whole prompts, of what they share, of
chunks. Prompts are repeated, shortened, continued after what was generated, and changed in one
place or part (`near_misses`); pools are so small that pages are evicted and reused. The generator
never looks at an engine: a trace is fixed before it runs, and the same seed gives the same trace
everywhere (in one version of this file).

Every second trace is of a *swarm*: some kinds of operations are left out of it and others are
frequent, since some faults show only where something does not happen (Groce et al., Swarm Testing,
ISSTA 2012). Some traces have many live requests, and a few are a gallery: many images of one length
behind the same tokens.

All draws go through `Source`, so that another source of choices (a property-based tester's, say)
can write the same traces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from cachewitness.core.trace_format import Media, ResetTier, Trace, length_of
from cachewitness.workloads.near_misses import SentPrompt
from cachewitness.workloads.prompts import ADAPTERS, PATH_MARK, RECENT, Talk, joined
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness.workloads.source import Seeded, Source

OPERATIONS = 60
_BLOCKS_MAX = 7
_LONGEST = 100
"""A prompt that is scaled may have so many tokens times the scale, however short blocks are."""
_DECODED_MAX = 12
_CHATTED_MAX = 24
_CROWDS = (*[4] * 30, *[8] * 6, *[16] * 3, 64)
"""How many requests may be live at a time; the more, the shorter their prompts."""
_MANY = 16
_GALLERIES = (64, 320)
"""So many images of one length may be in a gallery; 320 of them share 16 bits of a digest as often
as not."""
_WEIGHTS = {
    "submit": 21,
    "step": 46,
    "decode": 4,
    "finish": 9,
    "abort": 4,
    "come back": 4,
    "preempt": 6,
    "reset": 3,
    "load": 3,
    "chain": 2,
}
"""How often each operation is drawn where all are."""
SWARM = (0, 0, 1, 1, 3)
"""By what the weight of an operation is multiplied in a swarm; submits and steps are never left
out."""
_IMPATIENT, _LOST = 12, 10
"""Where copies take time, so many of a hundred requests are aborted a step after they came. Where
there is a second tier, in so many of a hundred operations the device loses what the tier has
kept."""
_FAILING, _UNDER_WAY = 15, 7
"""In so many of a hundred steps copies from or to another tier fail, among the first eight that are
under way."""
_PRIORITIES, _GUIDED, _COMPILING = 3, 30, 3
"""How many priorities there are beside the first; so many of a hundred outputs follow a grammar,
which takes at most so many steps to be compiled."""
_PATHS = 2
"""How many paths an adapter of one name has beside the first."""
_WITH_LOGPROBS = 30
"""So many of a hundred requests ask for log-probabilities of their prompt."""
_SESSIONS, _ANSWERED, _GOING_ON = 40, 9, 30
"""So many of a hundred requests are sessions, whose answers have so many tokens or end where a
block does; in front of so many of a hundred steps one of them gets more input."""
_CANCELLING, _CANCELLED = 40, 8
"""In so many of a hundred traces clients go away while a step is scheduled: in so many of a hundred
steps of theirs."""
_CHATS, _MOVED = 20, 30
"""So many of a hundred traces end in a conversation; in front of so many of a hundred turns its
template moves, so that the prompt does not go on from the last one."""
_FIFTHS_OF_POOL: dict[str, tuple[int, ...]] = {
    "manager": (3, 4, 5, 5, 6, 7, 8, 10, 12),
    "scheduler": (5, 5, 6, 7, 8, 9, 10, 11, 12),
    "answers": (5, 10),
}
"""The pool, in fifths of what the longest request takes. A queue in order of arrival would stand
still behind one that does not fit alone, so at scheduler level each does."""


def random_trace(shape: Shape, seed: int, *, withdraw: bool, operations: int = OPERATIONS) -> Trace:
    """Return the trace of a seed: about so many operations over a pool under pressure.

    `withdraw` says whether requests are now and then withdrawn from a step (the engine must know
    how).
    """
    trace = write(
        shape, Seeded(seed), withdraw=withdraw, operations=operations, name=f"random-{seed}"
    )
    return Trace(msgspec.structs.replace(trace.header, seed=seed), trace.ops)


def write(
    shape: Shape,
    source: Source,
    *,
    withdraw: bool,
    operations: int,
    name: str,
    scale: int = 1,
    most: int = 0,
) -> Trace:
    """Write one random trace from a source of choices; prompts and answers are `scale` times as
    long as usual.

    `most` is the longest prompt that an engine declares that it takes: prompts go up to it and a
    token beyond, a few at a time.
    """
    script = Script(
        shape,
        name,
        "a random workload that prefers boundaries",
        "harness/cachewitness/workloads/generate.py",
    )
    if withdraw:
        script.needs.append("withdraw")
    live_max = source.choice(_CROWDS) if not most else source.integer(1, 4)
    workload = _Workload(script, source, live_max, withdraw=withdraw, scale=scale, most=most)
    workload.run(operations if live_max < _MANY else operations + 2 * live_max)
    longest = workload.longest + (4 if shape.level == "scheduler" else 1) * shape.unit
    fifths = source.choice(_FIFTHS_OF_POOL[shape.level])
    if source.chance(_CHATS):
        workload.chat()
    return script.trace(max(shape.pages(longest) * fifths * live_max // 20 + 1, 4))


def write_gallery(shape: Shape, source: Source, *, name: str) -> Trace:
    """Write a trace in which many requests differ in one image, all images being of one length;
    no tier evicts anything.
    """
    count = source.choice(_GALLERIES)
    at = source.integer(0, shape.unit - 1)
    length = source.integer(1, shape.unit)
    pages = shape.pages(3 * shape.unit) * (count + 4)
    if shape.tier_pages:
        shape = replace(shape, options={**shape.options, "tier_pages": pages})
    script = Script(
        shape, name, "many images of one length behind the same tokens", "LMCache/LMCache#4086"
    )
    prompt = joined(f"A:{shape.unit + source.integer(1, shape.unit)}", f"A:{length}")
    for first in range(0, count, 4):
        numbers = range(first, first + 4)
        names = [f"r{number}" for number in numbers]
        for number, r in zip(numbers, names, strict=True):
            script.submit(r, prompt, media=[Media(at, length, f"picture-{number}")])
        for _ in range(3):
            script.step(*((r, 2 * shape.unit) for r in names))
        for r in names:
            script.finish(r)
    return script.trace(pages)


class _Workload:
    """Grows a script one random operation at a time; keeps in mind who is live and what was said
    before.
    """

    def __init__(
        self,
        script: Script,
        source: Source,
        live_max: int,
        *,
        withdraw: bool,
        scale: int,
        most: int,
    ) -> None:
        self._script = script
        self._source = source
        self._withdraw = withdraw
        self._live: list[str] = []
        self._live_max = live_max
        self._count = 0
        self._versions = 0
        self._sessions: dict[str, tuple[str, int]] = {}
        """By session: its prompt, what it said before and what came behind that among it, and how
        long its answer is."""
        self._scale = scale
        self._blocks = _BLOCKS_MAX if live_max < _MANY else 2
        if scale > 1:
            self._blocks = max(self._blocks * scale, _LONGEST * scale // script.shape.unit)
        self.longest = self._blocks * script.shape.unit
        longest = max(self._blocks - 1, 1) * script.shape.unit + (live_max >= _MANY)
        limit = script.shape.options.get(
            "max_model_len", longest + 1
        )  # a prompt leaves one token of it to generate
        self._talk = Talk(script.shape, source, most or min(longest, limit - 1), most)
        self._cancels = source.chance(_CANCELLING)
        self._operations: dict[str, Callable[[], object]] = {
            "submit": self._submit,
            "step": self._step,
            "decode": self._decode,
            "finish": lambda: self._end(self._script.finish),
            "abort": lambda: self._end(self._script.abort),
            "come back": self._come_back,
            "preempt": lambda: self._script.preempt(self._source.choice(self._live)),
            "reset": self._reset,
            "load": self._load,
            "chain": self._chain,
        }
        self._weights = self._swarm() if source.chance(50) else dict(_WEIGHTS)

    def _swarm(self) -> dict[str, int]:
        weights = {name: weight * self._source.choice(SWARM) for name, weight in _WEIGHTS.items()}
        return weights | {name: max(weights[name], _WEIGHTS[name]) for name in ("submit", "step")}

    def run(self, operations: int) -> None:
        """Write operations, then end every request."""
        if self._live_max >= _MANY:
            for _ in range(self._live_max):
                self._submit()
        while len(self._script.ops) < operations:
            self._one()
        for r in self._live:
            self._script.prefill(r)
            self._script.finish(r)
        if any(op.cancel for op in self._script.steps()):
            self._script.needs.append("cancel")

    def chat(self) -> None:
        """Hold a conversation when all others have ended: each prompt is the last one, the whole
        answer and more, as long as there is room.

        It comes last, so that what is drawn before it does not depend on it.
        """
        source = self._source
        unit = self._script.shape.unit
        history = joined(f"{source.choice('AB')}:{unit}", f"chat:{source.integer(1, unit)}")
        for turn in range(4):
            header = f"header{turn}:{source.integer(1, unit)}" if source.chance(_MOVED) else ""
            prompt = f"{history} {header}".strip()
            steps = min(source.integer(1, unit + 1), _CHATTED_MAX) * self._scale
            if length_of(prompt) + steps > self._talk.longest:
                return
            answer = self._script.converse(f"chat{turn}", prompt, steps)
            history = f"{history} {answer} more{turn}:{source.integer(1, unit)}"

    def _one(self) -> None:
        if self._talk.sent and self._script.shape.tier_pages and self._source.chance(_LOST):
            self._lose()
            return
        name = self._drawn()
        crowded = name in ("submit", "chain") and len(self._live) >= self._live_max
        if not self._live:
            self._submit()
        else:
            self._operations["step" if crowded else name]()

    def _drawn(self) -> str:
        draw = self._source.integer(1, sum(self._weights.values()))
        for name, weight in self._weights.items():
            draw -= weight
            if draw <= 0:
                return name
        raise AssertionError("the weights do not add up to their sum")

    def _lose(self) -> None:
        """Lose what the device has, and ask for some of it again, so that it comes from the
        second tier.
        """
        self._script.reset(running=True, tier="local")
        for _ in range(self._source.integer(1, 3)):
            if len(self._live) < self._live_max:
                before, sent = self._source.choice(self._talk.sent[-RECENT:])
                self._submit(sent if self._source.chance(60) else self._continued(before, sent))
        if self._live:
            self._step()

    # --- who is there -----------------------------------------------------------------------------

    def _end(self, how: Callable[[str], None]) -> str:
        r = self._source.choice(self._live)
        self._live.remove(r)
        how(r)
        return r

    def _come_back(self) -> None:
        """End a request between two steps, and let it come again at once, perhaps with what it
        generated.
        """
        gone = self._end(self._script.abort if self._source.chance(60) else self._script.finish)
        sent = next(sent for r, sent in reversed(self._talk.sent) if r == gone)
        self._submit(sent if self._source.chance(50) else self._continued(gone, sent))

    def _continued(self, before: str, sent: SentPrompt) -> SentPrompt:
        return sent.with_prompt(self._talk.continued(before, sent.prompt, self._next))

    def _chain(self) -> None:
        """Submit several requests, each beginning with all of the one before it, and run them in
        one step.
        """
        source = self._source
        unit = self._script.shape.unit
        sent = SentPrompt(f"c{self._count}:{unit + source.integer(0, 1)}")
        asked = []
        for _ in range(min(source.integer(3, 4), self._live_max - len(self._live))):
            self._submit(sent)
            asked.append(self._live[-1])
            sent = (
                sent.with_prompt(f"{sent.prompt} {self._next}:{unit + source.integer(-1, 1)}")
                if unit > 1
                else sent
            )
        asked = [r for r in asked if r in self._live]
        if asked:
            self._script.step(*((r, 5 * unit + 5) for r in asked))

    def _reset(self) -> None:
        """Reset; where there is a second tier, mostly the device's cache alone."""
        running = self._source.chance(50)
        tiers: tuple[ResetTier, ...] = ("local", "local", "cpu", "")
        self._script.reset(
            running=running,
            tier=self._source.choice(tiers) if self._script.shape.tier_pages else "",
        )

    def _load(self) -> None:
        """Load new weights, or an adapter anew: one that requests had of late, or any; perhaps
        one of those comes again.
        """
        self._versions += 1
        late = [sent.adapter for _, sent in self._talk.sent[-RECENT:] if sent.adapter in ADAPTERS]
        adapter = self._source.choice(["", "", *ADAPTERS, *late])
        self._script.update_weights(self._versions, adapter)
        had = [sent for _, sent in self._talk.sent if sent.adapter == adapter]
        if had and len(self._live) < self._live_max and self._source.chance(60):
            self._submit(had[-1])

    @property
    def _next(self) -> str:
        return f"r{self._count + 1}"

    def _submit(self, sent: SentPrompt | None = None) -> None:
        r = self._next
        self._count += 1
        sent = self._talk.say(r, sent or self._talk.anything(r))
        parts: dict[str, Any] = {
            "salt": sent.salt,
            "adapter": sent.adapter + self._path(sent.adapter),
            "media": list(sent.media),
            "kernels": sent.kernels,
        }
        parts |= self._special() | self._session(r, sent.prompt)
        self._script.submit(r, sent.prompt, **{name: part for name, part in parts.items() if part})
        self._live.append(r)
        if self._script.shape.tier_delay and self._source.chance(_IMPATIENT):
            self._script.step((r, sent.length), fail=self._failing())
            self._live.remove(r)
            self._script.abort(r)

    def _path(self, adapter: str) -> str:
        """Return which of several adapters of one name a request has, where the options ask for
        it.
        """
        paths = self._script.shape.options.get("adapter_paths")
        number = self._source.integer(0, _PATHS) if adapter and paths else 0
        return f"{PATH_MARK}{number}" if number else ""

    def _special(self) -> dict[str, int | bool]:
        """Return the priority of a request, the steps that its grammar takes, and whether it asks
        for log-probabilities of its prompt, where the options ask for them.
        """
        options = self._script.shape.options
        source = self._source
        by_priority = options.get("scheduling_policy") == "priority"
        return {
            "priority": source.integer(0, _PRIORITIES) if by_priority else 0,
            "grammar": (
                source.integer(1, _COMPILING)
                if options.get("structured_output") and source.chance(_GUIDED)
                else 0
            ),
            "prompt_logprobs": bool(
                options.get("prompt_logprobs") and source.chance(_WITH_LOGPROBS)
            ),
        }

    def _session(self, r: str, prompt: str) -> dict[str, int]:
        """Make some requests sessions, where the options ask for them."""
        source = self._source
        if not self._script.shape.options.get("sessions") or not source.chance(_SESSIONS):
            return {}
        generate = self._answer(length_of(prompt))
        self._sessions[r] = prompt, generate
        return {"session": True, "generate": generate}

    def _answer(self, length: int) -> int:
        """Draw how many tokens are generated behind so many: often up to the end of a block."""
        unit = self._script.shape.unit
        return (
            self._source.integer(1, _ANSWERED)
            if unit > 2 * _ANSWERED or self._source.chance(40)
            else unit - length % unit
        )

    def _go_on(self) -> None:
        """Give a session more input; perhaps somebody asks on behind its whole answer, whose
        last token it lost.
        """
        source = self._source
        sessions = [r for r in self._live if r in self._sessions]
        if not sessions or not source.chance(_GOING_ON):
            return
        r = source.choice(sessions)
        before, answered = self._sessions[r]
        text = f"{before} @{r}:{answered - 1}" if answered > 1 else before
        room = self.longest + 3 * self._script.shape.unit - length_of(text) - _ANSWERED
        if room < 1:
            return
        more = f"more{source.integer(0, 1)}:{min(self._talk.length(), room)}"
        generate = self._answer(length_of(f"{text} {more}"))
        self._sessions[r] = f"{text} {more}", generate
        self._script.extend(r, more, generate)
        if len(self._live) < self._live_max and source.chance(40):
            self._submit(SentPrompt(f"{before} @{r}:{answered} {self._next}:1"))

    # --- what is run ------------------------------------------------------------------------------

    def _step(self) -> None:
        source = self._source
        self._go_on()
        asked = [r for r in self._live if source.chance(75)] or [source.choice(self._live)]
        run = [(r, self._talk.length() if source.chance(60) else 1) for r in asked]
        withdraw = tuple(r for r in asked if self._withdraw and source.chance(6))
        for _ in range(source.integer(1, 3)):
            cancel = [
                r
                for r, _ in run
                if self._cancels and r not in withdraw and source.chance(_CANCELLED)
            ]
            self._script.step(*run, withdraw=withdraw, cancel=cancel, fail=self._failing())
            # Once only: a script that withdraws a request in every step never gets it on.
            withdraw, run = (), [entry for entry in run if entry[0] not in cancel]
            self._live = [r for r in self._live if r not in cancel]
            if not run:
                return

    def _failing(self) -> list[int]:
        """Say which copies under way fail with a step, where copies take time."""
        if not self._script.shape.tier_delay or not self._source.chance(_FAILING):
            return []
        return sorted(
            {self._source.integer(0, _UNDER_WAY) for _ in range(self._source.integer(1, 3))}
        )

    def _decode(self) -> None:
        """Let one request, or all of them, generate past a boundary."""
        live = self._live if self._source.chance(40) else [self._source.choice(self._live)]
        self._script.decode(min(self._talk.length(), _DECODED_MAX * self._scale), *live)
