"""An engine that tells nothing but its answers, asked for likelihoods as a server is.

It gives the logarithm of the token that it chose and of no other, so a position is compared by that
token alone: where the cached run chooses another one, by the least that the two lie apart. An
engine that keeps salts apart is asked cold by a salt that nobody used, so that cold and cached
requests are computed alike; another one by its uncached twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Answer, Event, Finished, Resumed, Submitted
from cachewitness.core.intake import AnswerIntake, BadEvents, taken_in
from cachewitness.core.trace_format import Finish, Submit, TraceHeader
from cachewitness.engines.answers import BackendError
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.likelihood.steps import Answered, Step
from cachewitness.workloads.avoided import ROOMY


@contextmanager
def opened(spec: EngineSpec) -> Iterator[tuple[EngineServed, EngineServed | None]]:
    """Give an engine, and its uncached twin if salts do not keep cold requests apart.

    Raises UsageError if the engine has no text to ask, and whatever opening it raises.
    """
    level = spec.kind.answers_level
    with closing(EngineServed(spec)) as cached:
        if cached.salts or level is None:
            yield cached, None
        else:
            with closing(EngineServed(spec.variant(level.uncached))) as twin:
                yield cached, twin


class EngineServed:
    """An engine at answers level, in a pool from which little is evicted."""

    zero_left_out = False

    def __init__(self, spec: EngineSpec) -> None:
        """Open the engine. Raises as `opened`."""
        level = spec.kind.answers_level
        if level is None or level.texts is None:
            raise UsageError(
                f"--engine {spec.text}: has no tokens for a text; --likelihood asks engines that"
                " have (transformers:checkpoint=…), or a server, --base-url http://HOST:PORT"
            )
        self.name = self.url = spec.text
        self._tokens = level.texts.tokens(spec.options)
        configuration = level.texts.configuration
        header = TraceHeader(
            "likelihood",
            configuration.layout,
            ROOMY,
            level="answers",
            options=dict(configuration.options),
        )
        self._engine = spec.open(header)
        described = taken_in(self._engine.describe(), header)
        self.salts = "salt" in described.capabilities
        self._intake = AnswerIntake(described)
        self._numbers = count()

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.close()

    def tokens(self, text: str) -> list[int]:
        """Return a text as tokens of the model."""
        return self._tokens(text)

    def ask(self, prompt: list[int], tokens: int, what: str, **fields: Any) -> Answered:
        """Return the tokens that the engine chooses behind a prompt; of `fields` it knows
        `cache_salt`.

        Raises BackendError if it does not answer.
        """
        salt = str(fields.get("cache_salt", "")) if self.salts else ""
        r = f"q{next(self._numbers)}"
        submit = Submit(r=r, prompt="", salt=salt, generate=tokens, tokens=prompt)
        try:
            events = self._asked(submit)
        except (EngineFailure, BadEvents) as failure:
            raise BackendError(f"{what}: {self.url}: {failure}") from failure
        answers = [event for event in events if isinstance(event, Answer)]
        if not answers or answers[0].ended not in ("length", "stop") or not answers[0].tokens:
            ended = answers[0].ended if answers else "no answer"
            raise BackendError(
                f"{what}: {self.url} ends a prompt of {len(prompt):,} tokens by: {ended}"
            )
        (answer,) = answers
        resumed = [event.at for event in events if isinstance(event, Resumed)]
        return Answered(
            [
                Step(token, {} if value is None or not math.isfinite(value) else {token: value})
                for token, value in zip(answer.tokens, answer.logprobs, strict=True)
            ],
            max([answer.restored, *resumed]),
        )

    def _asked(self, submit: Submit) -> list[Event]:
        self._intake.note(
            Submitted(r=submit.r, tokens=submit.tokens, salt=submit.salt, generate=submit.generate)
        )
        events = self._intake.take(self._engine.apply(submit), submit, 0)
        if not any(isinstance(event, Answer) for event in events):
            finish = Finish(submit.r)
            events += self._intake.take(self._engine.apply(finish), finish, 0)
        self._intake.note(Finished(r=submit.r))
        return events
