"""A backend that knows the answers, caches prompts by blocks of words for real, and can be told
what to get wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from cachewitness.engines.answers import Answer, Ask, Backend, BackendError, Opening
from cachewitness.parity.scores.tasks import Task
from cachewitness.toy.problems.fixture import PROMPT

BLOCK = 4
GROUPS = ("full", "recurrent", "window")


class Stub:
    """Answers what it knows. `wrong(ask, restored, question number)` says which answers it gets
    wrong.
    """

    name = "stub"

    def __init__(
        self,
        answers: Mapping[str, str],
        opening: Opening,
        wrong: Callable[[Ask, int], bool] = lambda ask, restored: False,
        dies_after: int = -1,
        forgets: bool = True,
    ) -> None:
        self.answers = answers
        self.opening = opening
        self.wrong = wrong
        self.dies_after = dies_after
        self.forgets = forgets
        self.cached: set[str] = set()
        self.tier: set[str] = set()
        self.batches: list[int] = []
        self.asked: list[str] = []

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        self.batches.append(len(asks))
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Answer:
        if self.dies_after == len(self.asked):
            raise BackendError(f"question {ask.id}: the stub has died")
        self.asked.append(ask.id)
        words = ask.prompt.split()
        keys = []
        key = ask.salt
        for end in range(BLOCK, len(words) + 1, BLOCK):
            key = hashlib.sha256(" ".join([key, *words[end - BLOCK : end]]).encode()).hexdigest()
            keys.append(key)
        usable = keys[: (len(words) - 1) // BLOCK]
        local = next((i for i, key in enumerate(usable) if key not in self.cached), len(usable))
        total = next(
            (i for i, key in enumerate(usable) if key not in self.cached and key not in self.tier),
            len(usable),
        )
        if self.opening.caching:
            self.cached |= set(keys)
            self.tier |= set(keys) if self.opening.tier else set()
        restored = total * BLOCK
        question = ask.prompt.rpartition("Question: ")[2].removesuffix("\nAnswer:")
        text = " " + (self.answers.get(ask.prompt) or self.answers.get(question, "I do not know"))
        if self.wrong(ask, restored):
            text += "9"
        return Answer(
            id=ask.id,
            text=text,
            tokens=tuple(text.encode()),
            prompt_tokens=len(words),
            restored={"": restored, **dict.fromkeys(GROUPS, restored)},
            from_tier=(total - local) * BLOCK,
            preemptions=int(self.opening.preempt),
            margins=(1.0,) * len(text.encode()),
        )

    def reset(self, *, external: bool = False) -> bool:
        self.cached.clear()
        if external:
            self.tier.clear()
        return self.forgets

    def versions(self) -> Mapping[str, str]:
        return {"engine": "stub 1", "caching": str(self.opening.caching)}

    def close(self) -> None:
        self.asked.append("closed")


def knowing(task: Task) -> dict[str, str]:
    """Return the answers to a task's questions, by question and, since tenants may ask the same,
    by prompt.
    """
    by_prompt = {
        PROMPT.format(context=doc.context, question=doc.question): doc.answer
        for doc in task.docs
        if doc.context
    }
    return {doc.question: doc.answer for doc in task.docs} | by_prompt


def wrong_in(task: Task, group: str, share: int = 1) -> Callable[[Ask, int], bool]:
    """Return a fault that spoils one group's answers as soon as anything is restored, one in
    `share` of them.
    """
    groups = {str(number): doc.group for number, doc in enumerate(task.asked)}
    return lambda ask, restored: (
        bool(restored) and groups.get(ask.id) == group and int(ask.id) % share == 0
    )


def opener(
    task: Task, opened: list[Stub] | None = None, **faults: object
) -> Callable[[Opening], Backend]:
    """Return what opens a stub; every stub that was opened is put into `opened`."""

    def open_one(opening: Opening) -> Backend:
        stub = Stub(knowing(task), opening, **faults)  # type: ignore[arg-type]
        if opened is not None:
            opened.append(stub)
        return stub

    return open_one


class Silent:
    """A listener that remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def begins(self, arm: str, questions: int, reused: int) -> None:
        self.heard.append((arm, questions, reused))

    def answered(self, count: int) -> None:
        pass

    def measured(self, cold: object, again: object) -> None:
        self.heard.append("measured")
