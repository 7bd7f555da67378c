"""What is asked: prompts behind several shared prefixes, as tokens of the server's own tokenizer.

The problems of the fixture bring eight contexts, a file of texts its own prefixes. gsm8k has none,
so its first rows become the examples of `PREFIXES` prefixes, each with examples of its own: a
prefix is what varies independently, and with one prefix nothing could be significant. Tasks of
lm-eval get theirs alike (`cachewitness.parity.scores.named_task`), and may give what is to follow a
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.parity.scores.tasks import Doc, Task

PREFIXES = 8
"""Prefixes that are made of gsm8k's rows."""
SHARED_MIN = 32
"""A prefix of fewer tokens is none."""
EXAMPLE = "Question: {question}\nAnswer: {answer}\n\n"


class Question(msgspec.Struct, frozen=True):
    """A question: its row, what is shown of it, the prefix that it shares and how many tokens that
    has, its whole prompt as text and as tokens, and how many of these some other question begins
    with as well.

    `given` are continuations as tokens, one of which the task calls right; without any, what the
    model itself answers is compared.
    """

    row: int
    text: str
    prefix: str
    shared: int
    prompt: str
    tokens: list[int]
    common: int
    given: list[list[int]] = []

    def nodes(self, most: int) -> list[tuple[list[int], list[int]]]:
        """Return up to so many places in the continuations, short ones first: the tokens in front
        of each, and those that follow there.
        """
        found: dict[tuple[int, ...], list[int]] = {}
        for depth in range(max(map(len, self.given), default=0)):
            for tokens in self.given:
                if depth < len(tokens):
                    found.setdefault(tuple(tokens[:depth]), []).append(tokens[depth])
        return [([*path], [*dict.fromkeys(after)]) for path, after in [*found.items()][:most]]


def behind_prefixes(task: Task) -> list[tuple[str, str, Doc]]:
    """Return each question with the name and the text of its prefix."""
    if all(doc.tenant for doc in task.asked):
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


def questions(task: Task, tokens_of: Callable[[str], list[int]]) -> list[Question]:
    """Return the questions of a task by prefix, as tokens. Raises UsageError for a prefix that is
    none.
    """
    by_prefix: dict[str, list[tuple[str, Doc]]] = {}
    for name, text, doc in behind_prefixes(task):
        by_prefix.setdefault(name, []).append((text, doc))
    found = []
    for name, entries in by_prefix.items():
        prompts = [task.prompt.format(context=text, question=doc.question) for text, doc in entries]
        bare = [
            Question(doc.row, doc.question, name, 0, prompt, tokens_of(prompt), 0)
            for prompt, (_, doc) in zip(prompts, entries, strict=True)
        ]
        found += sharing(bare, tokens_of(entries[0][0]))
    return found


def sharing(questions: Sequence[Question], prefix: Sequence[int]) -> list[Question]:
    """Return questions of one prefix with what they share of its tokens. Raises UsageError if that
    is next to nothing.
    """
    prompts = [question.tokens for question in questions]
    shared = min(alike(prefix, prompt) for prompt in prompts)
    if shared < SHARED_MIN:
        name = questions[0].prefix
        raise UsageError(
            f"the prompts of prefix {name} share {shared} tokens, fewer than {SHARED_MIN}; nothing"
            " can be hit (of a task, --shots puts examples in front)"
        )
    found = []
    for question in questions:
        others = [alike(question.tokens, other) for other in prompts if other != question.tokens]
        common = max([shared, *others])
        found.append(msgspec.structs.replace(question, shared=shared, common=common))
    return found


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
