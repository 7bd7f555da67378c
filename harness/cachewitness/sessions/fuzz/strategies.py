"""Hypothesis strategies for what is asked of a cache: configurations, traces, and prompts that
share their beginnings.

They draw with the generators of `cachewitness fuzz` (`workloads`), so lengths prefer the boundaries
of blocks, windows and retention intervals. Everything shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, Layout, Level, Trace, Vocabulary
from cachewitness.sessions.fuzz.draw import Restriction, draw
from cachewitness.sessions.fuzz.drawn import Drawn
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import write
from cachewitness.workloads.prompts import Talk
from cachewitness.workloads.scenarios.shape import Shape


@st.composite
def configurations(
    drawer: st.DrawFn,
    policy: str = "vllm",
    level: Level = "manager",
    layouts: Sequence[Layout] = (),
    options: Mapping[str, Any] | None = None,
) -> Configuration:
    """Draw a layout with options that a policy accepts at a level; `layouts` and `options` are
    what is not to be drawn.
    """
    try:
        return draw(Drawn(drawer), policy, level, Restriction(layouts, options or {}))
    except UsageError:
        reject()


def layouts(policy: str = "vllm", level: Level = "manager") -> st.SearchStrategy[Layout]:
    """Draw a layout that a policy accepts at a level."""
    return configurations(policy, level).map(lambda configuration: configuration.layout)


@st.composite
def traces(
    drawer: st.DrawFn,
    policy: str = "vllm",
    level: Level = "manager",
    layouts: Sequence[Layout] = (),
    options: Mapping[str, Any] | None = None,
    operations: int = 30,
    withdraw: bool = False,
) -> Trace:
    """Draw a trace of about so many operations, with its configuration and a pool that is too
    small. `withdraw`: requests may be taken back out of a step.
    """
    configuration = drawer(configurations(policy, level, layouts, options))
    return write(
        configuration.shape(level),
        Drawn(drawer),
        withdraw=withdraw,
        operations=operations,
        name="drawn",
    )


@st.composite
def prompts(
    drawer: st.DrawFn, block_size: int = 16, count_max: int = 8, blocks_max: int = 6
) -> list[list[int]]:
    """Draw from 1 to `count_max` prompts of at most `blocks_max` blocks, each as token ids.

    Later ones repeat, shorten, continue or change earlier ones, so that prefixes are shared up to a
    block's boundary, one token short of it, or one beyond.
    """
    layout = Layout("drawn", [GroupSpec("full", block_size)])
    talk = Talk(Shape(layout), Drawn(drawer), block_size * blocks_max)
    vocabulary = Vocabulary()
    drawn = []
    for number in range(drawer(st.integers(1, count_max))):
        name = f"r{number}"
        sent = talk.say(name, talk.anything(name))
        drawn.append(vocabulary.tokens(sent.prompt))
    return drawn
