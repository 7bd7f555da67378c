"""A backend with a cache of words that knows what its entries have really read, for conversations.

An entry is found under the words that it says it has read. What it has read in truth is kept beside
it; an answer is right if the two are the same for the whole prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from cachewitness.engines.answers import Answer, Ask, Backend, BackendError, Opening
from cachewitness.parity.scores.tasks import Task


class Talker:
    """Answers what it knows. Hits end at multiples of `block` words.

    `fault`: `drafts` leaves a guess behind an answer in its entry, `last token` leaves the last
    word out of it. `keeps_answers` False: prompts alone are kept; `claims`: says of every prompt
    that it was restored, and computes it. It dies after so many answers.
    """

    name = "talker"

    def __init__(
        self,
        task: Task,
        opening: Opening,
        *,
        block: int = 1,
        fault: str = "",
        keeps_answers: bool = True,
        claims: bool = False,
        named: bool = True,
        dies_after: int = -1,
    ) -> None:
        self.opening = opening
        self.asked: list[Ask] = []
        self._docs = task.docs
        self._block = block
        self._fault = fault
        self._keeps_answers = keeps_answers
        self._claims = claims
        self._named = named
        self._dies_after = dies_after
        self._cached: dict[int, int] = {}

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Answer:
        if len(self.asked) == self._dies_after:
            raise BackendError(f"question {ask.id}: the talker has died")
        self.asked.append(ask)
        words = ask.prompt.split()
        keys = _read(words, _read([ask.salt], 0)[-1])
        hit = next((end for end in self._ends(len(words) - 1) if keys[end] in self._cached), 0)
        states = [0] * hit + _read(words[hit:], self._cached[keys[hit]] if hit else 0)
        text = " " + self._known(ask.prompt)
        if states[-1] != _read(words, 0)[-1]:
            text += "9"
        spoken = text.split()[: ask.max_tokens]
        if self.opening.caching:
            for end in range(hit + 1, len(words) + 1):
                self._keep(keys, states, end)
            if self._keeps_answers:
                self._keep_answer(keys[-1], states[-1], len(words), spoken)
        restored = len(words) - 1 if self._claims and self.opening.caching else hit
        return Answer(
            id=ask.id,
            text=text,
            tokens=tuple(map(hash, spoken)) if self._named else (),
            prompt_tokens=len(words),
            restored={"": restored},
            generated=len(spoken),
        )

    def _ends(self, most: int) -> range:
        return range(most // self._block * self._block, 0, -self._block)

    def _keep(self, keys: Sequence[int], states: Sequence[int], end: int) -> None:
        if end % self._block == 0:
            self._cached.setdefault(keys[end], states[end])

    def _keep_answer(self, key: int, state: int, start: int, spoken: list[str]) -> None:
        keys = _read(spoken, key)
        states = _read(spoken, state)
        last = max(
            end for end in range(len(spoken) + 1) if (start + end) % self._block == 0 or not end
        )
        if self._fault == "drafts":
            states[last] = _read(["guess"], states[last])[-1]
        elif self._fault == "last token":
            states[last] = states[max(0, last - 1)]
        for end in range(1, len(spoken) + 1):
            if (start + end) % self._block == 0:
                self._cached[keys[end]] = states[end]

    def _known(self, prompt: str) -> str:
        found = (
            doc.answer
            for doc in self._docs
            if prompt.startswith(doc.context)
            and prompt.endswith(f"Question: {doc.question}\nAnswer:")
        )
        return next(found, "I do not know")

    def reset(self, *, external: bool = False) -> bool:
        self._cached.clear()
        return True

    def versions(self) -> Mapping[str, str]:
        return {"engine": "talker 1"}

    def close(self) -> None:
        pass


def _read(words: Sequence[str], state: int) -> list[int]:
    """Return the states before, between and behind words."""
    return list(accumulate(words, lambda before, word: hash((before, word)), initial=state))


def opener(
    task: Task, opened: list[Talker] | None = None, **how: Any
) -> Callable[[Opening], Backend]:
    """Return what opens a talker; every one that was opened is put into `opened`."""

    def open_one(opening: Opening) -> Backend:
        talker = Talker(task, opening, **how)
        if opened is not None:
            opened.append(talker)
        return talker

    return open_one
