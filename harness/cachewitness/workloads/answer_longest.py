"""Prompts as long as an engine at answers level says that it takes, asked alone, to their end."""

from __future__ import annotations

from msgspec.structs import replace as changed

from cachewitness.core.trace_format import Trace
from cachewitness.workloads.answer_stories import AnswerStory, as_asked
from cachewitness.workloads.scenarios.shape import Script, Shape

NAME = "longest-prompt"
UNITS = 6
"""The pool for which an engine is asked how much it takes has room for so many units."""


def roomy(shape: Shape) -> int:
    """Return the pages of a pool in which the longest prompt is some units long."""
    return shape.pages(UNITS * shape.unit)


def in_turn(shape: Shape, most: int, pages: int, seed: int) -> Trace:
    """Return a trace that asks for `most` tokens, one less and one more, and for an answer that
    ends where the longest prompt does; then the first again, which is hit if it is still there.
    """
    script = Script(
        shape, NAME, "prompts as long as the engine says that it takes, to their end", __name__
    )
    story = AnswerStory(script, NAME, seed)
    for index, length in enumerate((most, most - 1, most + 1)):
        story.serve(f"r{index}", story.text(f"doc{index}", max(length, 1)), 1)
    grown = min(story.unit, most - 1)
    story.serve("grown", story.text("grown", most - grown), grown + 1)
    story.serve("again", story.text("doc0", most), 1)
    return of_size(as_asked(script, pages, seed), pages)


def of_size(trace: Trace, pages: int) -> Trace:
    """Return a trace with just so many pages, the pool of which the engine spoke."""
    return Trace(changed(trace.header, pages=pages), trace.ops)
