"""Rows in the form of gsm8k, and the documented command that scores a server on them."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator
from pathlib import Path


def documented(url: str) -> list[str]:
    """Return the command that the documentation gives for a capable model's server, for another
    server.
    """
    text = (Path(__file__).resolve().parents[2] / "docs" / "score.md").read_text(encoding="utf-8")
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith("cachewitness score --base-url") and "--gsm8k" in line
    )
    return [url if word.startswith("http://") else word for word in shlex.split(line)[1:]]


def rows_like_gsm8k(n: int) -> Iterator[dict[str, str]]:
    """Yield word problems as gsm8k writes them: worked in steps, `<<a*b=c>>` beside every
    result, `#### n` at the end.
    """
    draw = random.Random("gsm8k-like")
    for i in range(n):
        name = draw.choice(["Ada", "Ben", "Cleo", "Dan"])
        thing = draw.choice(["apples", "books", "coins", "stamps"])
        boxes = draw.randint(2, 40)
        each = draw.randint(2, 30)
        given = draw.randint(1, 3)
        total = boxes * each
        yield {
            "question": (
                f"{name} has {boxes} boxes with {each} {thing} each, and gives {given} away on day"
                f" {i + 1}. How many {thing} are left?"
            ),
            "answer": (
                f"{name} has {boxes} * {each} = <<{boxes}*{each}={total}>>{total} {thing}.\n"
                f"After giving some away {total} - {given} = <<{total}-{given}={total - given}>>{total - given} are left.\n"  # noqa: E501
                f"#### {total - given}"
            ),
        }
