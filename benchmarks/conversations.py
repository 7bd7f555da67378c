"""Serves conversations on an engine, closed loop, and records what the pool is used for.

A client cannot say its next turn before it has read the last answer, so the operations depend on
the engine: a request that hits less takes more steps to prefill. The loop writes down what it asks,
so that what was run is a trace like any other.

Each turn's prompt is the conversation so far: the prompt before, the answer that was generated, and
new words. A model that reasons generates thoughts before its answer, and chat templates drop them
from the next prompt. Conversations take turns: whoever was answered goes to the back of the queue,
and `running` of them are served at once, which is what continuous batching makes of many clients.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import msgspec

from cachewitness.core.driving import Observer, applied
from cachewitness.core.engine import Engine
from cachewitness.core.events import Accept, Acquire, Event, Hit, Unpublish, Write
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import Finish, Op, Step, Submit, Trace, TraceHeader
from cachewitness.core.worker import Worker

LIVE_ATTENTION, LIVE_STATE, CACHED_ATTENTION, CACHED_STATE, FREE = KINDS = (
    "live attention",
    "live state",
    "cached attention",
    "cached state",
    "free",
)
"""What a page is used for. Live: some request holds it. Cached: a key alone keeps it. Free:
neither."""


@dataclass(frozen=True)
class Plan:
    """Who talks how much. Lengths in tokens; they vary a little from turn to turn so as to end
    anywhere in a block.
    """

    talkers: int
    turns: int
    running: int
    system: int
    words: int
    thoughts: int
    answer: int
    chunk: int

    def words_of(self, talker: int, turn: int) -> int:
        """Return how many new words a turn brings."""
        return self.words - 8 + (7 * talker + 5 * turn) % 17

    def answer_of(self, talker: int, turn: int) -> int:
        """Return how many tokens a turn's answer has."""
        return self.answer - 16 + (11 * talker + 3 * turn) % 33

    def generated_in(self, talker: int, turn: int) -> int:
        """Return how many tokens are decoded in a turn, thoughts and answer."""
        return self.thoughts + self.answer_of(talker, turn)

    def longest(self) -> int:
        """Return how many tokens the longest conversation has when it ends, the last thoughts
        included.
        """
        lengths = [
            sum(
                self.words_of(talker, turn) + self.answer_of(talker, turn)
                for turn in range(self.turns)
            )
            for talker in range(self.talkers)
        ]
        return self.system + max(lengths) + self.thoughts


@dataclass
class Turn:
    """What became of one turn, over all conversations. Tokens of prompts alone are looked up."""

    looked_up: int = 0
    hit: int = 0
    prefilled: int = 0
    evicted_attention: int = 0
    evicted_state: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of looked-up tokens that were hit."""
        return self.hit / self.looked_up if self.looked_up else 0.0


@dataclass
class Served:
    """What a run came to. `samples` are (turn, pages by kind) over time; `digest` is of the
    operations and all events.
    """

    engine: str
    turns: list[Turn]
    samples: list[tuple[float, list[int]]]
    steps: int = 0
    operations: int = 0
    events: int = 0
    findings: list[str] = field(default_factory=list)
    opportunities: dict[str, int] = field(default_factory=dict)
    digest: str = ""

    @property
    def hit_rate(self) -> float:
        """The share of looked-up tokens that were hit, over all turns."""
        return sum(turn.hit for turn in self.turns) / sum(turn.looked_up for turn in self.turns)

    def plain(self) -> dict[str, Any]:
        """Return the run as plain data."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Served:
        """Read what `plain` wrote."""
        samples = [(at, pages) for at, pages in data["samples"]]
        return cls(
            **{**data, "turns": [Turn(**turn) for turn in data["turns"]], "samples": samples}
        )


class Census:
    """Counts the pages of the pool by what they are used for. A page that was taken but not yet
    written counts too.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._state = [group.kind == "recurrent" for group in ledger.groups]
        self._taken_for: dict[int, int] = {}

    def see(self, event: Event) -> None:
        """Note for which group a page was taken last."""
        if isinstance(event, Acquire):
            for page in event.pages:
                self._taken_for[page] = event.group

    def count(self) -> list[int]:
        """Return how many pages there are of each kind; the null block is none of them."""
        counts = dict.fromkeys(KINDS, 0)
        records = self._ledger.records[0]
        for page, record in records.usable.items():
            if record.holders:
                counts[LIVE_STATE if self._state[self._taken_for[page]] else LIVE_ATTENTION] += 1
            elif record.keys:
                counts[CACHED_STATE if self._state[record.keys[0].group] else CACHED_ATTENTION] += 1
        counts[FREE] = records.capacity - sum(counts.values())
        return [counts[kind] for kind in KINDS]


class Loop:
    """Serves a plan on an engine under all checkers."""

    SAMPLE_STEPS = 8

    def __init__(self, header: TraceHeader, engine: Engine, plan: Plan) -> None:
        described = engine.describe()
        self.header = header
        self.engine = engine
        self.plan = plan
        self.ops: list[Op] = []
        self.served = Served(
            f"{described.engine} {described.engine_version}",
            [Turn() for _ in range(plan.turns)],
            [],
        )
        self._worker = Worker(described)
        self._observer = Observer(described, keep=False)
        self._census = Census(self._observer.checkers.ledger)
        self._state = [group.kind == "recurrent" for group in described.groups]
        self._attention = self._state.index(False)
        self._digest = sha256()
        self._encode = msgspec.json.Encoder().encode
        self._generated: Counter[str] = Counter()
        self._turn_of: dict[str, int] = {}
        self._answered = 0

    def run(self) -> Served:
        """Serve everybody to the end and return what it came to."""
        plan = self.plan
        prompts = [
            f"sys:{plan.system} c{talker}.0:{plan.words_of(talker, 0)}"
            for talker in range(plan.talkers)
        ]
        waiting = deque((talker, 0) for talker in range(plan.talkers))
        running: list[tuple[int, int]] = []
        while waiting or running:
            while waiting and len(running) < plan.running:
                talker, turn = waiting.popleft()
                self._submit(_name(talker, turn), prompts[talker], turn)
                running.append((talker, turn))
            self._step([_name(*one) for one in running])
            for talker, turn in list(running):
                if self._generated[_name(talker, turn)] >= plan.generated_in(talker, turn):
                    self._do(Finish(_name(talker, turn)))
                    self._answered += 1
                    running.remove((talker, turn))
                    if turn + 1 < plan.turns:
                        prompts[talker] += self._continuation(talker, turn)
                        waiting.append((talker, turn + 1))
        return self._conclude()

    def _continuation(self, talker: int, turn: int) -> str:
        answer = self.plan.answer_of(talker, turn)
        words = self.plan.words_of(talker, turn + 1)
        return (
            f" @{_name(talker, turn)}[{self.plan.thoughts}]:{answer} c{talker}.{turn + 1}:{words}"
        )

    def _submit(self, r: str, prompt: str, turn: int) -> None:
        self._turn_of[r] = turn
        self._do(Submit(r=r, prompt=prompt))

    def _step(self, names: list[str]) -> None:
        self._do(Step(run=[(r, 1 if self._generated[r] else self.plan.chunk) for r in names]))
        self.served.steps += 1
        if self.served.steps % self.SAMPLE_STEPS == 0:
            self.served.samples.append((self._answered / self.plan.talkers, self._census.count()))

    def _do(self, op: Op) -> None:
        index = len(self.ops)
        self.ops.append(op)
        self._digest.update(self._encode(op))
        events = applied(self.engine, op, index, self._observer)
        if events is None:
            raise RuntimeError(self._observer.findings[-1].sentence)
        seen = self._worker.extend(events)
        self._observer.see(seen, index)
        for event in seen:
            self._digest.update(self._encode(event))
            self._census.see(event)
            self._note(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, Hit):
            turn = self.served.turns[self._turn_of[event.r]]
            turn.looked_up += self._observer.checkers.ledger.requests[event.r].prompt_tokens
            turn.hit += event.resume
        elif isinstance(event, Accept):
            self._generated[event.r] += len(event.tokens)
        elif (
            isinstance(event, Write)
            and event.group == self._attention
            and not self._generated[event.r]
        ):
            self.served.turns[self._turn_of[event.r]].prefilled += event.stop - event.start
        elif isinstance(event, Unpublish) and event.reason == "evict":
            turn = self.served.turns[min(self._answered // self.plan.talkers, self.plan.turns - 1)]
            if self._state[event.group]:
                turn.evicted_state += 1
            else:
                turn.evicted_attention += 1

    def _conclude(self) -> Served:
        self.engine.close()
        result = self._observer.close(Trace(self.header, self.ops))
        served = self.served
        served.operations = result.activity.operations
        served.events = result.activity.events
        served.findings = [finding.sentence for finding in result.findings]
        served.findings += [
            f"{tally.checker} crashed: {tally.crashed}" for tally in result.tallies if tally.crashed
        ]
        served.opportunities = {tally.checker: tally.opportunities for tally in result.tallies}
        served.digest = self._digest.hexdigest()
        return served


def _name(talker: int, turn: int) -> str:
    return f"c{talker}t{turn}"
