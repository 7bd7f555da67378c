"""Scenarios that are an order of magnitude larger than the others: long prompts, long answers, many
requests and many images of one engine, and pages that are reused often.

Some faults begin with a size: a digest of the first tokens alone, a counter that wraps, a table
that is full, a name that is cut to some bits. Each scenario is cheap where a block is short, and is
run once at each level, on one configuration. Where blocks are long there are fewer requests, so
that the tokens of a trace stay as many.
"""

from __future__ import annotations

from cachewitness.workloads.prompts import ADAPTERS, NEAR_ADAPTERS
from cachewitness.workloads.scenarios.shape import Script, Shape, image

PROMPT = 4096
ANSWER = 1000
REQUESTS = 1000
"""Lengths in tokens; how many requests, or images, there are."""
_TOKENS_MAX = 64_000
"""So many tokens of prompts a scenario has at most, if that leaves a hundred requests."""
_AT_ONCE = 4
_OLD = 9
"""After so many groups of requests a text is asked for again."""
_IDENTITIES: tuple[dict[str, str], ...] = (
    {},
    {"salt": "one"},
    {"salt": "two"},
    *({"adapter": name} for name in (*ADAPTERS, *NEAR_ADAPTERS)),
)


def long_prompt(s: Script, shape: Shape) -> int:
    """Send a long prompt, the same with one token changed or one image exchanged far behind its
    beginning, and the same again.
    """
    u = shape.unit
    length = max(PROMPT, 8 * u)
    chunk = max(length // 4, u)
    s.serve("a", f"doc:{length}", chunk=chunk, decode=1)
    for index, at in enumerate((length // 8, length - u)):
        changed = f"doc:{at} x{index}:1 doc[{at + 1}]:{length - at - 1}"
        s.serve(f"b{index}", changed, chunk=chunk, decode=1)
    s.serve("c", f"doc:{length} more:3", chunk=chunk, decode=1)
    behind = length // 2
    for picture in ("cat", "dog"):
        s.serve(
            picture,
            f"doc:{behind} <image>:{u} ask:{u + 1}",
            chunk=chunk,
            media=image(behind, u, picture),
        )
    return 0


def many_requests(s: Script, shape: Shape) -> int:
    """Send many short requests over a small pool, so that every page is reused often.

    Of four requests at a time two have a text of their own, under two identities of which most
    differ in one letter; one comes again as it was in the group before, and one asks for a text
    that the others have displaced meanwhile.
    """
    u = shape.unit
    for first in range(0, _count(u + 1), _AT_ONCE):
        group = first // _AT_ONCE
        here, other, before = (_IDENTITIES[(group + k) % len(_IDENTITIES)] for k in (0, 1, -1))
        asked = [
            (f"doc{group}", here),
            (f"doc{group}", other),
            (f"doc{max(group - 1, 0)}", before),
            (f"old{group % _OLD}", {}),
        ]
        names = [f"r{first + place}" for place in range(_AT_ONCE)]
        for r, (text, identity) in zip(names, asked, strict=True):
            s.submit(r, f"{text}:{u + 1}", **identity)
        for _ in range(2):
            s.step(*((r, u + 1) for r in names))
        for r in names:
            s.finish(r)
    return _AT_ONCE * shape.pages(u + 1) * 7 // 8 + 1


def many_images(s: Script, shape: Shape) -> int:
    """Send many prompts that differ in one image alone, all images being of one length; the pool
    keeps all of them.
    """
    u = shape.unit
    count = _count(u + 1)
    for first in range(0, count, _AT_ONCE):
        names = [f"r{number}" for number in range(first, first + _AT_ONCE)]
        for r in names:
            s.submit(r, f"look:{u + 1}", media=image(0, max(u // 2, 1), f"picture-{r}"))
        for _ in range(2):
            s.step(*((r, u + 1) for r in names))
        for r in names:
            s.finish(r)
    return shape.pages(u + 1) * (count + _AT_ONCE)


def long_answer(s: Script, shape: Shape) -> int:
    """Generate two long answers side by side, take both requests their pages, let them come back,
    and quote one of the answers.
    """
    u = shape.unit
    for r in ("a", "b"):
        s.submit(r, f"{r}:{u}")
    s.step(("a", u), ("b", u))
    drafts = int(shape.options.get("num_speculative_tokens", 0))
    s.decode(ANSWER // (1 + drafts), "a", "b")
    for r in ("a", "b"):
        s.preempt(r)
    for _ in range(6):
        s.step(("a", ANSWER // 2), ("b", ANSWER // 2))
    for r in ("a", "b"):
        s.finish(r)
    s.serve("c", f"a:{u} @a:{ANSWER - u} c:{u}", chunk=ANSWER // 2, decode=1)
    return 3 * shape.pages(u + 2 * ANSWER)


def _count(length: int) -> int:
    """Return how many requests of so many tokens there are."""
    return max(min(REQUESTS, _TOKENS_MAX // length), 100) // _AT_ONCE * _AT_ONCE
