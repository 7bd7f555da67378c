"""What is asked: prompts behind several shared prefixes, as tokens of the server's own tokenizer.

The problems of the fixture bring eight contexts. gsm8k has no prefix of its own, so its first rows
become the examples of `PREFIXES` prefixes, each with examples of its own: a prefix is what varies
independently, and with one prefix nothing could be significant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.parity.scores.tasks import Doc, Task
from cachewitness.toy.problems.fixture import PROMPT

PREFIXES = 8
"""Prefixes that are made of gsm8k's rows."""
SHARED_MIN = 32
"""A prefix of fewer tokens is none."""
EXAMPLE = "Question: {question}\nAnswer: {answer}\n\n"


class Question(msgspec.Struct, frozen=True):
    """A question: its row, the prefix that it shares and how many tokens that has, all its tokens,
    and how many of them some other question begins with as well.
    """

    row: int
    text: str
    prefix: str
    shared: int
    tokens: list[int]
    common: int


def behind_prefixes(task: Task) -> list[tuple[str, str, Doc]]:
    """Return each question with the name and the text of its prefix."""
    if task.name == "problems":
        return [(doc.tenant, doc.context, doc) for doc in task.asked]
    each = len(task.shots) // PREFIXES
    if not each:
        raise UsageError(
            f"--shots: --likelihood wants examples in front of gsm8k's questions, of its own for"
            f" each of {PREFIXES} prefixes"
        )
    texts = [
        "".join(
            EXAMPLE.format(question=shot.question, answer=shot.answer)
            for shot in task.shots[each * number : each * (number + 1)]
        )
        for number in range(PREFIXES)
    ]
    numbered = [(number % PREFIXES, doc) for number, doc in enumerate(task.asked)]
    return [(f"p{number}", texts[number], doc) for number, doc in numbered]


def text_of(task: Task, question: Question) -> str:
    """Return the text of a question's prompt."""
    return next(
        PROMPT.format(context=text, question=doc.question)
        for _, text, doc in behind_prefixes(task)
        if doc.row == question.row
    )


def questions(task: Task, tokens_of: Callable[[str], list[int]]) -> list[Question]:
    """Return the questions of a task by prefix, as tokens. Raises UsageError for a prefix that is
    none.
    """
    by_prefix: dict[str, list[tuple[str, Doc]]] = {}
    for name, text, doc in behind_prefixes(task):
        by_prefix.setdefault(name, []).append((text, doc))
    found = []
    for name, entries in by_prefix.items():
        found += _of_prefix(name, entries, tokens_of)
    return found


def _of_prefix(
    name: str, entries: Sequence[tuple[str, Doc]], tokens_of: Callable[[str], list[int]]
) -> list[Question]:
    prefix = tokens_of(entries[0][0])
    prompts = [
        tokens_of(PROMPT.format(context=text, question=doc.question)) for text, doc in entries
    ]
    shared = min(alike(prefix, prompt) for prompt in prompts)
    if shared < SHARED_MIN:
        raise UsageError(f"the prompts of prefix {name} share {shared} tokens; nothing can be hit")
    return [
        Question(
            row=doc.row,
            text=doc.question,
            prefix=name,
            shared=shared,
            tokens=prompt,
            common=max(
                [shared, *(alike(prompt, other) for other in prompts if other is not prompt)]
            ),
        )
        for prompt, (_, doc) in zip(prompts, entries, strict=True)
    ]


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
