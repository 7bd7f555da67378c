"""Conversations of two turns: a question, the engine's own answer to it, and the question that
counts.

What an answer leaves in a cache is read by nothing but a prompt that goes on behind it. The first
turn of a question is the one that is asked just before it behind the same prefix, so each has a
first turn of its own. The second turn is asked as a conversation is, as one text: the first turn's
prompt, its answer as it came, and the question without the prefix. A cold run asks the same text.

A hit counts if it ends inside the first turn's answer or shortly behind it. One that ends in front
of the answer has read nothing of it, and one that goes far into the question has been asked the
same before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Answer, Ask

BATCH = 16
"""Second turns are asked as soon as so many first ones are answered, while a small cache still has
these; of a server, as many as it gets requests at a time."""
GAP = "\n\n"
"""What stands between an answer and the next question, as between lm-eval's examples."""


class FirstTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of a first turn in tokens, and how many of its answer's were guessed."""

    prompt_tokens: int
    answer_tokens: int
    drafted: int

    @property
    def end(self) -> int:
        """Return where its answer ends."""
        return self.prompt_tokens + self.answer_tokens

    def reached_by(self, answer: Answer) -> bool:
        """Whether every cache group of the second turn resumed behind the first turn's prompt, and
        in front of what is asked now.

        Behind the answer, half of what follows may be restored: an engine may have gone on for a
        few tokens before it heard that the answer is over. An answer that is made into so few
        tokens that nothing follows is another one than was generated.
        """
        resumed = min(answer.restored.values(), default=0)
        follows = answer.prompt_tokens - self.end
        known = self.answer_tokens > 0 and follows > 0
        return known and self.prompt_tokens < resumed <= self.end + follows // 2

    def ended_by(self, answer: Answer) -> bool:
        """Whether the hit has all of the answer but its last token, which engines do not compute
        as a rule.
        """
        return self.reached_by(answer) and min(answer.restored.values()) >= self.end - 1


class Turn(NamedTuple):
    """A question with the one in front of it. `tail` is its text without the shared prefix."""

    first: Ask
    tail: str

    def second(self, ask: Ask, answer: Answer) -> Ask:
        """Return the question as it is asked behind the answer to the first turn."""
        text = answer.text
        there = len(text) - len(text.rstrip("\n"))
        gap = GAP[min(there, len(GAP)) :]
        return msgspec.structs.replace(ask, prompt=f"{self.first.prompt}{text}{gap}{self.tail}")


def paired(asks: Sequence[Ask], prefixes: Sequence[str]) -> dict[str, Turn]:
    """Return the turns by the question's id. Raises UsageError for a question that is alone behind
    its prefix.
    """
    members: dict[str, list[Ask]] = {}
    for ask in asks:
        members.setdefault(_prefix(ask, prefixes), []).append(ask)
    turns = {}
    for prefix, group in members.items():
        if len(group) == 1:
            raise UsageError(
                f"--arms: question {group[0].id} is the only one behind its prefix, and its first"
                " turn would be itself; give a larger --limit, or leave the arms of turns out"
            )
        for ask, before in zip(group, [group[-1], *group], strict=False):
            first = msgspec.structs.replace(ask, prompt=before.prompt)
            turns[ask.id] = Turn(first, _tail(ask.prompt, prefix))
    return turns


def first_turn(answer: Answer) -> FirstTurn:
    """Return what is known of a first turn by its answer."""
    return FirstTurn(
        prompt_tokens=answer.prompt_tokens,
        answer_tokens=len(answer.tokens) or answer.generated,
        drafted=answer.drafted,
    )


def _prefix(ask: Ask, prefixes: Sequence[str]) -> str:
    return max((p for p in prefixes if ask.prompt.startswith(p)), key=len, default="")


def _tail(prompt: str, prefix: str) -> str:
    """Return a question without what stands in front of it: the whole paragraphs of the prefix, or,
    if it has none, all but the last paragraph.
    """
    before = prefix if GAP in prefix else prompt
    head, gap, _ = before.rpartition(GAP)
    return prompt[len(head) + len(gap) :]
