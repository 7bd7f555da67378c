"""The uncached baseline of an engine that answers: what it says of the same tokens, alone, in a
roomy pool, in one chunk.

A baseline is kept for the run, as nothing of one request is left for the next. How far two right
answers of it lie apart is measured before it is believed: by asking again, and by asking beside
others. Computation that resumes or continues a chunk is no part of that, since it would take a
fault that is looked for into the tolerance.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.answers import BEYOND, compare, is_number
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Answer, Cold, Finished, Header, Resumed, Submitted
from cachewitness.core.intake import AnswerIntake, BadEvents, taken_in
from cachewitness.core.trace_format import Finish, Submit, TraceHeader
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers.words import spelling_of
from cachewitness.workloads.avoided import CHUNK, ROOMY
from cachewitness.workloads.scenarios.shape import Shape

KEPT = 6
"""Baselines that are kept at once."""
FACTOR = 8
"""The tolerance is so many times the floor."""
DECODED = 8
"""So many prompts are asked that continue an answer, to see how far apart decoding and prefill lie.
"""
BOUNDS: dict[str, tuple[float, float]] = {
    "float64": (1e-9, 1e-6),
    "float32": (2e-4, 2e-3),
    "float16": (1.6e-2, 6.4e-2),
    "bfloat16": (1.25e-1, 5e-1),
}
"""For logprobs in a dtype: the least tolerance, which other chunks and longer prompts take, and its
ceiling.

In half precision the least is the distance of two neighbouring logits between 16 and 32 (2^-6
and 2^-3): one that rounds the other way moves its logprob by so much, seldom, so that the few
prompts of a floor may not show it.
"""
COMPANIES = (2, 4)
"""The floor is measured alone, again, and beside so many others."""
GENERATED = 8


class Floor(NamedTuple):
    """How far right answers lie apart, what is tolerated for it, and the most that may be
    tolerated. It is that of a prompt of so many `tokens`, alone and `beside` so many others; 0:
    alone again.
    """

    floor: float
    tolerance: float
    ceiling: float
    tokens: int
    beside: int


class Apart(NamedTuple):
    """By how much two right answers differ, to a prompt of so many tokens, and beside how many
    others the second was asked.
    """

    by: float
    tokens: int
    beside: int


class BaselineFailed(Exception):
    """The baseline gave no answer; the message completes "without its cache the engine …"."""


class Baseline:
    """The uncached baseline of an engine, for traces of one configuration."""

    def __init__(self, spec: EngineSpec, header: TraceHeader) -> None:
        options = {name: value for name, value in header.options.items() if name != CHUNK}
        asked = msgspec.structs.replace(
            header, name="baseline", pages=ROOMY, options=options, needs=[]
        )
        self._shape = Shape(header.layout, options, "answers")
        self._spec = spec
        self._engine: Engine = spec.open(asked)
        self._header: Header = taken_in(self._engine.describe(), asked)
        self._intake = AnswerIntake(self._header)
        self._cold_answers: dict[tuple[Any, ...], Answer] = {}
        self._asked = self._again = 0
        self._floor: Floor | None = None
        self._decoded: float | None = None

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.close()

    @property
    def floor(self) -> Floor:
        """How far its right answers lie apart; measured when it is asked for."""
        if self._floor is None:
            assert self._header.rules.answering is not None
            least, ceiling = BOUNDS[self._header.rules.answering.dtype]
            floor, tokens, beside = self._measured()
            tolerance = max(least, FACTOR * floor)
            self._floor = Floor(floor, tolerance, ceiling, tokens, beside)
        return self._floor

    @property
    def decoded(self) -> float:
        """By how much logprobs differ behind tokens that were generated, and behind the same tokens
        in a prompt.

        Both without the cache. A block that an answer filled is cached as decoding computed it, and
        its baseline's is not.
        """
        if self._decoded is None:
            self._decoded = self._behind_answers()
        return self._decoded

    def cold(self, asked: Submitted, answer: Answer) -> list[Cold]:
        """Return what it answers to the tokens of a request: all of it, and what follows the
        engine's own token at a tie.

        Raises TwinFailed if it gives no answer, and whatever the engine raises.
        """
        wanted = len(answer.tokens) if answer.ended == "cancelled" else asked.generate
        if not wanted:
            return []
        floor = self.floor
        found = list[Cold]()
        start = 0
        while True:
            alone = self._ask(asked, answer.tokens[:start], wanted - start)
            cold = Cold(
                r=asked.r,
                start=start,
                tokens=alone.tokens,
                logprobs=alone.logprobs,
                restored=alone.restored,
                dtype=self._header.rules.answering.dtype if self._header.rules.answering else "",
                floor=floor.floor,
                tolerance=floor.tolerance,
                ceiling=floor.ceiling,
                floor_tokens=floor.tokens,
                floor_beside=floor.beside,
                again=self._again,
            )
            self._again = 0
            found.append(cold)
            parted = compare(answer, cold)
            if parted.kind != "near-tie" or parted.at + 1 >= len(answer.tokens):
                return found
            start = parted.at + 1

    def _ask(self, asked: Submitted, behind: Sequence[int], generate: int) -> Answer:
        tokens = [*asked.tokens, *behind]
        identity = asked.adapter, tuple((item.at, item.length, item.hash) for item in asked.media)
        place = (tuple(tokens), identity, generate)
        if place not in self._cold_answers:
            (self._cold_answers[place],) = self._together([_Question(tokens, generate, asked)])
        return self._cold_answers[place]

    def _together(self, questions: Sequence[_Question]) -> list[Answer]:
        """Ask all of these at once, and return the answers in their order."""
        names = list[str]()
        answers = dict[str, Answer]()
        for question in questions:
            self._asked += 1
            names.append(f"cold{self._asked}")
            submit = question.submit(names[-1])
            self._intake.note(
                Submitted(
                    r=submit.r, tokens=submit.tokens, media=submit.media, generate=submit.generate
                )
            )
            self._take(submit, answers)
        for r in names:
            if r not in answers:
                self._take(Finish(r), answers)
            if r not in answers or answers[r].ended in ("refused", "cancelled"):
                ended = f"calls it {answers[r].ended}" if r in answers else "does not answer"
                raise BaselineFailed(f"{ended}, alone in a pool of {ROOMY} pages")
            self._intake.note(Finished(r=r))
        return [answers[r] for r in names]

    def _take(self, op: Submit | Finish, answers: dict[str, Answer]) -> None:
        for event in self._intake.take(self._engine.apply(op), op, self._asked):
            assert isinstance(event, Answer | Resumed)
            kept = event.restored if isinstance(event, Answer) else event.at
            if kept > 0:
                raise self._unfit(
                    f"{event.r} goes on from {kept} tokens that are kept; it must compute every"
                    " prompt whole"
                )
            if isinstance(event, Answer):
                answers[event.r] = event
                self._again += event.again

    def _unfit(self, why: str) -> BadEvents:
        return BadEvents(
            f"engine {self._header.engine}, asked without its cache ({self._spec.text}): {why}"
        )

    # --- the floor --------------------------------------------------------------------------------

    def _texts(self, name: str, *lengths: int) -> list[list[int]]:
        answering = self._header.rules.answering
        assert answering is not None
        spelling = spelling_of(self._spec, answering)
        asked = [max(length, answering.shortest) for length in lengths]
        return [spelling.tokens(f"{name}{length}:{length}", (), {}) or [] for length in asked]

    def _behind_answers(self) -> float:
        unit = self._shape.unit
        apart = [0.0]
        for number in range(DECODED):
            (text,) = self._texts(f"decoded{number}.", unit // 2 + number * unit // 4)
            (generated,) = self._together([_Question(text, unit // 2 + GENERATED)])
            behind = len(generated.tokens) - GENERATED
            if behind > 0:
                (read,) = self._together(
                    [_Question([*text, *generated.tokens[:behind]], GENERATED)]
                )
                apart.append(
                    _logprob_difference(
                        replace(
                            generated,
                            tokens=generated.tokens[behind:],
                            logprobs=generated.logprobs[behind:],
                        ),
                        read,
                    )
                )
        return max(apart)

    def _measured(self) -> Apart:
        """Return by how much logprobs of the same answer differ between right computations, where
        they differ most.
        """
        unit = self._shape.unit
        texts = self._texts("floor", 1, unit - 1, unit, unit + 1, 2 * unit + unit // 2)
        questions = [_Question(tokens, GENERATED) for tokens in texts]
        alone = [self._together([question])[0] for question in questions]
        self._check_that_prompts_matter(alone)
        runs = {0: [self._together([question])[0] for question in questions]}
        for company in COMPANIES:
            others = [
                _Question([*tokens, *tokens[:3]], GENERATED)
                for tokens in (texts * company)[:company]
            ]
            runs[company] = [self._together([question, *others])[0] for question in questions]
        # Of what differs alike, what differs without company comes first.
        return max(
            (
                Apart(_logprob_difference(first, other), len(question.tokens), company)
                for company, run in runs.items()
                for question, first, other in zip(questions, alone, run, strict=True)
            ),
            key=lambda apart: apart.by,
        )

    def _check_that_prompts_matter(self, answers: Sequence[Answer]) -> None:
        """Raise BadEvents if different prompts are answered alike: such answers show nothing of
        what was read.
        """
        if len({(*answer.tokens, *filter(is_number, answer.logprobs)) for answer in answers}) == 1:
            common = f"with {answers[0].tokens[:3]} …" if answers[0].tokens else "with no token"
            why = (
                f"it answers {len(answers)} different prompts alike, {common}; take a model whose"
                " answers depend on the prompt"
            )
            raise self._unfit(why)


class _Question(NamedTuple):
    """Tokens, how many are to follow, and the request whose identity they have."""

    tokens: list[int]
    generate: int
    like: Submitted | None = None

    def submit(self, r: str) -> Submit:
        """Return the operation that asks it."""
        adapter, media = (self.like.adapter, self.like.media) if self.like else ("", [])
        return Submit(
            r=r, prompt="", adapter=adapter, media=media, generate=self.generate, tokens=self.tokens
        )


def _logprob_difference(one: Answer, other: Answer) -> float:
    """Return the largest difference of two answers' logprobs; BEYOND where one has another token
    that is no near-tie.
    """
    parted = compare(other, Cold(r=one.r, tokens=one.tokens, logprobs=one.logprobs, tolerance=inf))
    return min(parted.largest, BEYOND) if parted.kind in ("", "near-tie") else BEYOND


_TWINS: dict[int, dict[tuple[Any, ...], Baseline]] = {}
"""By process: a copy of one has none of those that it had, and must not close them either."""


def _own() -> dict[tuple[Any, ...], Baseline]:
    return _TWINS.setdefault(os.getpid(), {})


def baseline_of(spec: EngineSpec, header: TraceHeader) -> Baseline:
    """Return the baseline of an engine for a trace's configuration, opened if it is not there.

    Raises UsageError if the engine declares none, or refuses the configuration.
    """
    level = spec.kind.answers_level
    if level is None:
        raise UsageError(
            f"--engine {spec.text}: declares no uncached baseline (EngineKind.answers_level), so"
            " its answers cannot be compared"
        )
    cold = spec.variant(level.uncached)
    options = {name: value for name, value in header.options.items() if name != CHUNK}
    place = (cold.text, cold.isolation, msgspec.json.encode([header.layout, options]))
    baselines = _own()
    if place not in baselines:
        while len(baselines) >= KEPT:
            _let_go(next(iter(baselines)))
        baseline = Baseline(cold, header)
        _end_with_the_process()
        baselines[place] = baseline
    return baselines[place]


def refuses_alone(spec: EngineSpec, header: TraceHeader, asked: Submitted) -> bool:
    """Return whether a fresh engine with the same pool gives up a request that is alone. Raises
    what the engine raises.
    """
    engine = spec.open(header)
    intake = AnswerIntake(taken_in(engine.describe(), header))
    submit = _Question(asked.tokens, asked.generate, asked).submit(asked.r)
    intake.note(asked)
    events = [
        *intake.take(engine.apply(submit), submit, 0),
        *intake.take(engine.apply(Finish(asked.r)), Finish(asked.r), 1),
    ]
    engine.close()
    return any(isinstance(event, Answer) and event.ended == "refused" for event in events)


def drop(baseline: Baseline) -> None:
    """Forget a baseline that failed; another is opened when one is needed."""
    baselines = _own()
    for place in [place for place, other in baselines.items() if other is baseline]:
        del baselines[place]


def _let_go(place: tuple[Any, ...]) -> None:
    _own().pop(place).close()


@cache
def _end_with_the_process() -> None:
    """Have `_end` called, once, before the finalizers of the first baseline's engine, which would
    end its process.
    """
    atexit.register(_end)


def _end() -> None:
    """Let go of all baselines, also of those that fail in that: nobody is left to be told."""
    for place in list(_own()):
        with suppress(EngineFailure, UsageError):
            _let_go(place)
