"""An engine that tells nothing but its answers, asked for likelihoods as a server is.

It gives the logarithm of the token that it chose and of no other, so a position is compared by that
token alone: where the cached run chooses another one, by the least that the two lie apart. An
engine that keeps salts apart is asked cold by a salt that nobody used, so that cold and cached
requests are computed alike; another one by its uncached twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from operator import index
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure, describe_error
from cachewitness.core.events import Answer, Event, Finished, Resumed, Submitted
from cachewitness.core.intake import AnswerIntake, taken_in
from cachewitness.core.trace_format import Finish, Submit, TraceHeader
from cachewitness.engines.answers import BackendError
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.likelihood.steps import Answered, step_of
from cachewitness.workloads.avoided import ROOMY
from cachewitness.workloads.configurations import Configuration


@contextmanager
def opened(spec: EngineSpec) -> Iterator[tuple[EngineServed, EngineServed | None]]:
    """Give an engine, and its uncached twin if salts do not keep cold requests apart.

    Raises UsageError if the engine has no text to ask, and whatever opening it raises.
    """
    level = spec.kind.answers_level
    if level is None or level.texts is None:
        raise UsageError(
            f"--engine {spec.text}: has no tokens for a text; --likelihood asks engines that have"
            " (transformers:checkpoint=…), or a server, --base-url http://HOST:PORT"
        )
    with _tokenizing(spec.text):
        tokens = level.texts.tokens(spec.options)
    with closing(EngineServed(spec, level.texts.configuration, tokens)) as cached:
        if cached.salts:
            yield cached, None
            return
        twin = spec.variant(level.uncached)
        with closing(EngineServed(twin, level.texts.configuration, tokens)) as cold:
            yield cached, cold


@contextmanager
def _tokenizing(engine: str) -> Iterator[None]:
    """Make a UsageError of whatever a tokenizer raises."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"--engine {engine}: makes no tokens of a text: {describe_error(error)}"
        ) from error


class EngineServed:
    """An engine at answers level, in a pool from which little is evicted."""

    zero_left_out = False
    uncounted = "(`restored` of an answer)"
    warm = "it declares salts, and a new salt finds what another one left"

    def __init__(
        self, spec: EngineSpec, configuration: Configuration, tokens: Callable[[str], list[int]]
    ) -> None:
        """Open the engine. Raises what opening it raises."""
        self.name = self.url = spec.text
        self._tokens = tokens
        header = TraceHeader(
            "likelihood",
            configuration.layout,
            ROOMY,
            level="answers",
            options=dict(configuration.options),
        )
        self._engine = spec.open(header)
        try:
            described = taken_in(self._called(self._engine.describe, "what it is"), header)
        except BaseException:
            self.close()
            raise
        self.salts = "salt" in described.capabilities
        self._intake = AnswerIntake(described)
        self._asked = 0

    def close(self) -> None:
        """Let go of the engine; one that fails at that has answered all that is judged."""
        with suppress(Exception):
            self._engine.close()

    def tokens(self, text: str) -> list[int]:
        """Return a text as tokens of the model. Raises UsageError if the tokenizer fails."""
        with _tokenizing(self.name):
            return [index(token) for token in self._tokens(text)]

    def ask(self, prompt: list[int], tokens: int, what: str, **fields: Any) -> Answered:
        """Return the tokens that the engine chooses behind a prompt; of `fields` it knows
        `cache_salt`.

        Raises BackendError if it does not answer, UsageError if its answer cannot be followed or
        has no logarithms of probabilities.
        """
        salt = str(fields.get("cache_salt", "")) if self.salts else ""
        events = self._answered(
            Submit(f"q{self._asked}", "", salt=salt, generate=tokens, tokens=prompt), what
        )
        answers = [event for event in events if isinstance(event, Answer)]
        if not answers or answers[0].ended not in ("length", "stop") or not answers[0].tokens:
            ended = answers[0].ended if answers else "no answer"
            raise BackendError(
                f"{what}: {self.url} ends a prompt of {len(prompt):,} tokens by: {ended}"
            )
        answer = answers[0]
        if len(answer.logprobs) != len(answer.tokens):
            raise UsageError(
                f"--engine {self.name}: tells no logprobs of its answers, which --likelihood"
                " compares"
            )
        resumed = [event.at for event in events if isinstance(event, Resumed)]
        return Answered(
            [
                step_of(token, {token: value}, self.url)
                for token, value in zip(answer.tokens, answer.logprobs, strict=True)
            ],
            max([answer.restored, *resumed]),
        )

    def _answered(self, submit: Submit, what: str) -> list[Event]:
        self._intake.note(
            Submitted(submit.r, submit.tokens, salt=submit.salt, generate=submit.generate)
        )
        events: list[Event] = []
        for op in (submit, Finish(submit.r)):
            if not any(isinstance(event, Answer) for event in events):
                reply = self._called(partial(self._engine.apply, op), what)
                events += self._intake.take(reply, op, self._asked)
        self._intake.note(Finished(submit.r))
        self._asked += 1
        return events

    def _called(self, method: Callable[[], Any], what: str) -> Any:
        """Return what a method of the engine does. Raises BackendError if it fails."""
        try:
            return method()
        except UsageError:
            raise
        except Exception as failure:
            failed = isinstance(failure, EngineFailure)
            why = str(failure) if failed else describe_error(failure)
            raise BackendError(f"{what}: {self.url}: {why}") from failure
