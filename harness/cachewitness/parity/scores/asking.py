"""Asks the questions of one arm: opens the engine, warms its cache, and keeps every answer as it
comes.

In an arm of turns lm-eval's request is the second turn's question. What is sent for it has the
first turn and the engine's answer in front, so it is known only once that was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Answer, Ask, Backend, BackendError
from cachewitness.parity.scores import turns
from cachewitness.parity.scores.answer_store import AnswerStore
from cachewitness.parity.scores.arms import Arm
from cachewitness.parity.scores.turns import FirstTurn, Turn

BATCH = 128
"""How many questions are asked before their answers are kept."""
MAX_TOKENS = 256
"""lm-eval's own limit where a task names none."""


class Asking:
    """One arm while it runs. `first` keeps the answers to first turns, in an arm that has any;
    `nonce` makes its salts differ from those of any other run; `tell(n)` hears of n new answers.
    """

    def __init__(
        self,
        arm: Arm,
        kept: AnswerStore,
        open_backend: Callable[[], Backend],
        *,
        first: AnswerStore | None = None,
        nonce: str = "",
        tell: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.arm = arm
        self.kept = kept
        self._first = first
        self._open = open_backend
        self._nonce = nonce
        self._tell = tell
        self._prefixes: Sequence[str] = ()
        self._turns: Mapping[str, Turn] = {}
        self._backend: Backend | None = None

    def ask(self, doc: int, prompt: str, generation: Mapping[str, Any]) -> Ask:
        """Return one request of lm-eval as this arm asks it."""
        until = generation.get("until") or ()
        return Ask(
            id=str(doc),
            prompt=prompt,
            stop=(until,) if isinstance(until, str) else tuple(until),
            max_tokens=int(generation.get("max_gen_toks", MAX_TOKENS)),
            salt=self.salt(doc),
        )

    def salt(self, doc: int | str) -> str:
        """Return the salt of a question: its own, or that of the arm."""
        return ".".join(
            filter(None, (self._nonce, self.arm.name, str(doc) if self.arm.own_salts else ""))
        )

    def take(self, asks: Sequence[Ask], prefixes: Sequence[str]) -> None:
        """Learn all questions and what they share. Raises UsageError if they make no turns."""
        self._prefixes = prefixes
        self._turns = turns.paired(asks, prefixes) if self.arm.turns_of else {}

    def sent(self, ask: Ask) -> Ask | None:
        """Return a question as it is sent; None before its first turn was answered."""
        if not self._turns:
            return ask
        answer = self._first_answer(ask)
        return self._turns[ask.id].second(ask, answer) if answer else None

    def missing(self, asks: Sequence[Ask]) -> list[Ask]:
        """Return what has no answer yet."""
        return [ask for ask in asks if self._found(ask) is None]

    def begin(self, asks: Sequence[Ask]) -> None:
        """Open the engine and warm its cache as the arm demands, unless everything is answered
        already.

        Raises BackendError if the engine does not answer or refuses to forget.
        """
        if not self.missing(asks):
            return
        self._backend = self._open()
        self.kept.keep_versions(self._backend.versions())
        salted = {
            "prefix": [(p, self.salt("")) for p in self._prefixes],
            "replay": [(a.prompt, a.salt) for a in asks],
        }
        warming = [
            Ask(f"warm-{i}", p, max_tokens=1, salt=salt)
            for i, (p, salt) in enumerate(salted.get(self.arm.warm, []))
        ]
        for start in range(0, len(warming), BATCH):
            self._answers(warming[start : start + BATCH])
        if self.arm.reset and not self._backend.reset():
            raise BackendError(
                f"arm {self.arm.name}: the engine did not forget its cached prefixes when it was"
                " told to"
            )

    def ask_missing(self, asks: Sequence[Ask]) -> None:
        """Ask what has no answer yet, and keep what comes.

        Raises BackendError if an answer cannot be had; those before it are kept.
        """
        for batch in self.parts(self.missing(asks), BATCH, turns.BATCH):
            sent = self.led_to(batch)
            for ask, answer in zip(sent, self._answers(sent), strict=True):
                self.keep(ask, answer)

    def parts(self, asks: Sequence[Ask], most: int, of_turns: int) -> list[Sequence[Ask]]:
        """Return what is asked at a time: so many at most, and so many that have first turns."""
        size = of_turns if self.arm.warm == "turn" else max(1, most)
        return [asks[start : start + size] for start in range(0, len(asks), size)]

    def led_to(self, asks: Sequence[Ask]) -> list[Ask]:
        """Return questions as they are sent, after their first turns were asked if the arm does
        that. Raises BackendError if one of these is not answered.
        """
        if self.arm.warm == "turn" and self._first is not None:
            firsts = [self._turns[ask.id].first for ask in asks]
            for first, answer in zip(firsts, self._answers(firsts), strict=True):
                self._first.keep(first, answer)
        return [self._sent(ask) for ask in asks]

    def _answers(self, asks: Sequence[Ask]) -> list[Answer]:
        """Let the engine answer; one that dies at it, in whatever way, is an engine that did not
        answer.
        """
        assert self._backend is not None, "begin() opens the engine if anything is missing"
        try:
            answers = self._backend.answer([self._with_shares(ask) for ask in asks])
        except (BackendError, UsageError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise BackendError(f"arm {self.arm.name}: the engine died: {why}") from error
        if [answer.id for answer in answers] != [ask.id for ask in asks]:
            raise BackendError(
                f"arm {self.arm.name}: {self._backend.name} answered other questions than it was"
                " asked"
            )
        return answers

    def _with_shares(self, ask: Ask) -> Ask:
        """Return the question, saying how much of it others share."""
        shared = max(
            (len(prefix) for prefix in self._prefixes if ask.prompt.startswith(prefix)), default=0
        )
        return msgspec.structs.replace(ask, shared=shared)

    def keep(self, ask: Ask, answer: Answer) -> None:
        """Take one answer."""
        self.kept.keep(ask, answer)
        self._tell(1)

    def texts(self, asks: Sequence[Ask]) -> list[str]:
        """Return the text of every answer."""
        return [self.answer(ask).text for ask in asks]

    def answer(self, ask: Ask) -> Answer:
        """Return the answer to a question. Raises BackendError if there is none."""
        found = self._found(ask)
        if found is None:
            raise self._unanswered(ask)
        return found

    def first_turn(self, ask: Ask) -> FirstTurn | None:
        """Return what is known of a question's first turn; None in an arm that asks none."""
        answer = self._first_answer(ask) if self.arm.warm == "turn" else None
        return turns.first_turn(answer) if answer else None

    def _first_answer(self, ask: Ask) -> Answer | None:
        return self._first.answer_to(self._turns[ask.id].first) if self._first else None

    def _found(self, ask: Ask) -> Answer | None:
        sent = self.sent(ask)
        return self.kept.answer_to(sent) if sent else None

    def _sent(self, ask: Ask) -> Ask:
        sent = self.sent(ask)
        if sent is None:
            raise self._unanswered(ask)
        return sent

    def _unanswered(self, ask: Ask) -> BackendError:
        return BackendError(f"arm {self.arm.name}: question {ask.id} was not answered")

    def close(self) -> None:
        """Let go of the engine."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None
