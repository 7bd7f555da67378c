"""Stories at answers level that are an order of magnitude larger than the others: a long prompt, a
long answer, many requests of one engine.

Some faults begin with a size: a digest of the first tokens alone, a state that is stale behind many
generated tokens, a table that is full. Each story is told once in a run, on one configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cachewitness.core.trace_format import Trace
from cachewitness.workloads.answer_stories import AnswerStory, as_asked, tokens_of
from cachewitness.workloads.scenarios.shape import Script, Shape

PROMPT, PARTS = 512, 300
"""Tokens of a long prompt, and behind how many another leaves it."""
ANSWER = 160
REQUESTS, AT_ONCE, OLD = 1000, 4, 9
"""How many requests there are, how many of them at a time, and after how many such groups a text is
asked for again."""
_SALTS = ("", "one", "two", "tow")


class LargeStory(NamedTuple):
    """A story; `pool` are the requests that its pool has room for, 0: all of them. `full_alone`: a
    run without `--full` leaves it out, which would take minutes where answers are slow.
    """

    name: str
    story: str
    tell: Callable[[AnswerStory], None]
    pool: int = 0
    full_alone: bool = False

    def applies(self, shape: Shape) -> bool:
        """Whether it can be told on a configuration."""
        return shape.level == "answers"

    def trace(self, shape: Shape) -> Trace:
        """Return it as a trace."""
        script = Script(
            shape, self.name, self.story, "harness/cachewitness/workloads/answer_large.py"
        )
        self.tell(AnswerStory(script, self.name, 0))
        tokens = [tokens_of(op) for op in script.ops]
        room = max(tokens) * self.pool if self.pool else sum(tokens)
        return as_asked(script, shape.pages(room + shape.unit) + 1, 0)


def long_prompt(s: AnswerStory) -> None:
    """Ask a long prompt, then others that leave it in the middle and in front of its end, and the
    same again.
    """
    length = max(PROMPT, 8 * s.unit)
    name = "doc.0"
    s.serve("a", f"{name}:{length}")
    for index, at in enumerate((max(PARTS, length // 2), length - s.unit)):
        s.serve(f"b{index}", f"{name}:{at} x{index}:1 {name}[{at + 1}]:{length - at - 1}")
    s.serve("c", f"{name}:{length}")
    s.serve("d", f"{name}:{length} more:{s.own()}")


def long_answer(s: AnswerStory) -> None:
    """Let a long answer be generated, and go on behind all of it and behind most of it."""
    prompt = s.text("ask", 2 * s.unit)
    s.serve("a", prompt, ANSWER)
    for r, count in (("b", ANSWER), ("c", ANSWER - s.unit), ("d", ANSWER - 1)):
        s.serve(r, f"{prompt} @a:{count} {s.text(r, s.own())}")


def many_requests(s: AnswerStory) -> None:
    """Ask short prompts, four at a time, over a pool for a few of them: two of their own, one of
    the group before, and one that others have displaced; each with the salt of its group.
    """
    length = s.unit + 1
    for group in range(REQUESTS // AT_ONCE):
        texts = (
            (f"own{group}a", group),
            (f"own{group}b", group),
            (f"own{max(group - 1, 0)}a", group),
            (f"old{group % OLD}", group // OLD),
        )
        names = [f"r{group}.{place}" for place in range(AT_ONCE)]
        for r, (text, salt) in zip(names, texts, strict=True):
            s.submit(r, f"{text}:{length}", 2, _SALTS[salt % len(_SALTS)])
        s.finish(*names)


LARGE_STORIES = (
    LargeStory("long-prompt", "a prompt of 500 tokens and more, and who leaves it", long_prompt),
    LargeStory("long-answer", "an answer of 160 tokens, and who goes on behind it", long_answer),
    LargeStory(
        "many-requests", "a thousand requests over a small pool", many_requests, 8, full_alone=True
    ),
)
