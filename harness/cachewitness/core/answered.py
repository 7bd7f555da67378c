"""Whether a history at answers level can be followed: prompts go in, answers come out, and no page
is told.

The engine says `answer`, and `resume` in front of it if it declares so. The harness writes down
what it asked (`submit`, `finish`, `abort`) and what the uncached baseline answered (`cold`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachewitness.core.declared import check_declared
from cachewitness.core.events import (
    Aborted,
    Answer,
    Cold,
    Died,
    Event,
    Finished,
    Header,
    Resumed,
    Submitted,
)
from cachewitness.core.malformed import (
    MalformedHistory,
    at_least_nothing,
    check_tokens,
    media_problem,
    name_problem,
)

VOCABULARY_MIN = 16
"""With fewer tokens, texts that are different would often be equal."""


class AnswerSense:
    """Follows such a history, event by event. `live`: the events come from an engine, which says
    these alone.

    Raises MalformedHistory for a header that names pages, or does not say what the answers are.
    """

    def __init__(self, header: Header, *, live: bool = False) -> None:
        check_declared(header)
        if header.pools or header.groups:
            raise MalformedHistory(
                "pools or groups - at `$.pools` or `$.groups`; an engine at answers level tells no"
                " pages"
            )
        answering = header.rules.answering
        if answering is None:
            raise MalformedHistory(
                "nothing - at `$.rules.answering`; say the dtype and the vocabulary of the answers"
            )
        if answering.vocabulary < VOCABULARY_MIN:
            least = f"it has at least {VOCABULARY_MIN} tokens"
            raise MalformedHistory(
                f"{answering.vocabulary} - at `$.rules.answering.vocabulary`; {least}"
            )
        if answering.repeats < 0:
            raise MalformedHistory(
                f"{answering.repeats} - at `$.rules.answering.repeats`; a number of tokens, or 0"
            )
        if answering.shortest < 1 or not answering.texts.isprintable():
            raise MalformedHistory(
                "less than a token, or no line - at `$.rules.answering.shortest` or"
                " `$.rules.answering.texts`"
            )
        if (answering.resumes == "sliding") != (answering.window > 0):
            raise MalformedHistory(
                f"{answering.window} - at `$.rules.answering.window`; of `sliding`, the tokens of a"
                " window"
            )
        self._live = live
        self._resumes = bool(answering.resumes)
        self._prompts: dict[str, int] = {}
        self._generate: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        """How many tokens the answer of a request has."""
        self._resumed: dict[str, int] = {}
        """How many tokens a request did not compute when it first went on from a kept state."""
        self._ended: set[str] = set()
        self._rules: dict[type, Callable[[Any], None]] = {
            Submitted: self._submit,
            Resumed: self._resume,
            Answer: self._answer,
            Cold: self._cold,
            Finished: self._end,
            Aborted: self._end,
            Died: lambda event: None,
        }

    def follow(self, event: Event) -> None:
        """Take one event in. Raises MalformedHistory if it refers to something that does not exist,
        or cannot come here.
        """
        if self._live and not isinstance(event, Answer | Resumed):
            raise MalformedHistory(
                "an engine at answers level reports `answer` alone, or `resume`; leave this"
                " event out"
            )
        self.note(event)

    def note(self, event: Event) -> None:
        """Take in an event that the harness itself writes down. Raises MalformedHistory as
        `follow`.
        """
        rule = self._rules.get(type(event))
        if rule is None:
            raise MalformedHistory(
                "an event of pages or steps; at answers level there are none of them"
            )
        rule(event)

    def operation_over(self) -> None:
        """Note that an operation is over."""

    def rest(self) -> None:
        """Judge the end of the history."""

    def _submit(self, event: Submitted) -> None:
        if problem := name_problem(event.r, self._prompts) or media_problem(event.media):
            raise MalformedHistory(problem)
        if not event.tokens:
            raise MalformedHistory("no tokens - at `$.tokens`; a request has at least one")
        if event.generate < 1:
            raise MalformedHistory(
                f"{event.generate} - at `$.generate`; a request generates at least one token"
            )
        check_tokens(event.tokens)
        self._prompts[event.r] = len(event.tokens)
        self._generate[event.r] = event.generate

    def _resume(self, event: Resumed) -> None:
        self._under_way(event.r)
        if not self._resumes:
            raise MalformedHistory(
                "the header declares no `$.rules.answering.resumes`; declare it, or leave this"
                " event out"
            )
        if event.r in self._answered:
            raise MalformedHistory(
                f"{event.r!r} is answered - at `$.r`; what it goes on from comes in front of that"
            )
        if not 0 < event.at <= self._prompts[event.r] + self._generate[event.r]:
            raise MalformedHistory(
                f"{event.at} - at `$.at`; with its answer {event.r!r} has not so many tokens"
            )
        if event.of and event.of not in self._prompts:
            raise MalformedHistory(
                f"request {event.of!r} was never submitted - at `$.of`; name whose tokens the state"
                " has seen"
            )
        at_least_nothing(event.taken, "taken")
        if event.first < -1:
            raise MalformedHistory(f"{event.first} - at `$.first`; −1 if the engine does not say")
        self._resumed.setdefault(event.r, event.at)

    def _answer(self, event: Answer) -> None:
        self._under_way(event.r)
        if event.r in self._answered:
            raise MalformedHistory(f"{event.r!r} is answered twice - at `$.r`")
        if len(event.tokens) > self._generate[event.r]:
            asked = f"{event.r!r} was to generate {self._generate[event.r]}"
            raise MalformedHistory(f"{len(event.tokens)} tokens - at `$.tokens`; {asked}")
        if event.ended == "length" and len(event.tokens) < self._generate[event.r]:
            asked = (
                f"{event.r!r} was to generate {self._generate[event.r]}; say `stop` if it ended"
                " before"
            )
            raise MalformedHistory(
                f"'length' after {len(event.tokens)} tokens - at `$.ended`; {asked}"
            )
        check_tokens(event.tokens)
        _check_logprobs(event)
        if event.restored > self._prompts[event.r]:
            raise MalformedHistory(
                f"{event.restored} - at `$.restored`; the prompt has {self._prompts[event.r]}"
                " tokens"
            )
        resumed = self._resumed.get(event.r, 0)
        if self._resumes and event.restored > 0 and event.restored != resumed:
            reason = f"its `resume` said {resumed}" if resumed else "no `resume` of it came"
            raise MalformedHistory(f"{event.restored} of {event.r!r} - at `$.restored`; {reason}")
        self._answered[event.r] = len(event.tokens)

    def _cold(self, event: Cold) -> None:
        self._under_way(event.r)
        if event.r not in self._answered:
            raise MalformedHistory(
                f"{event.r!r} has no answer yet - at `$.r`; what it is compared with comes"
                " behind it"
            )
        if not 0 <= event.start <= self._answered[event.r]:
            raise MalformedHistory(
                f"{event.start} - at `$.start`; the answer has {self._answered[event.r]} tokens"
            )
        check_tokens(event.tokens)
        _check_logprobs(event)
        for field in ("floor", "tolerance", "ceiling"):
            at_least_nothing(getattr(event, field), field)

    def _end(self, event: Finished | Aborted) -> None:
        self._under_way(event.r)
        self._ended.add(event.r)

    def _under_way(self, r: str) -> None:
        if r not in self._prompts:
            raise MalformedHistory(
                f"request {r!r} was never submitted - at `$.r`; name a request that a `submit`"
                " named before"
            )
        if r in self._ended:
            raise MalformedHistory(
                f"request {r!r} has ended - at `$.r`; nothing happens to it any more"
            )


def _check_logprobs(event: Answer | Cold) -> None:
    if event.logprobs and len(event.logprobs) != len(event.tokens):
        raise MalformedHistory(
            f"{len(event.logprobs)} of {len(event.tokens)} tokens - at `$.logprobs`; one for each,"
            " or none at all"
        )
    if event.restored < -1:
        raise MalformedHistory(f"{event.restored} - at `$.restored`; −1 if the engine does not say")
    at_least_nothing(event.again, "again")
