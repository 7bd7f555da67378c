"""Traces for lifecycle vectors: a prompt served twice, a conversation continued, and the
hand-written scenarios.

In the first two the pool is large enough that nothing is evicted, so nothing in them is the
engine's choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cachewitness.core.trace_format import Level
from cachewitness.vectors.case import Case
from cachewitness.vectors.form import LifecycleInput
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.scenarios.shape import Script
from cachewitness.workloads.scenarios.stories import SCENARIOS

SOURCE = "chosen at boundaries"


def replays(
    configuration: Configuration,
    level: Level,
    lengths: Sequence[int],
    flags: Sequence[str],
    chunk: int = 0,
) -> list[Case]:
    """Return questions in which a prompt is served twice, for each length; prefilled `chunk`
    tokens at a time, or whole.
    """
    out = []
    for tokens in lengths:
        script = _script(
            configuration,
            level,
            f"replay/{configuration.name}/{tokens}",
            f"a prompt of {tokens} tokens is served twice",
        )
        for r in ("first", "again"):
            script.serve(
                r, f"doc:{tokens}", chunk=chunk or max(tokens, 2 * script.shape.unit), decode=1
            )
        out.append(_case(script, flags))
    return out


def turns(
    configuration: Configuration, level: Level, generated: Sequence[int], flags: Sequence[str]
) -> list[Case]:
    """Return questions in which 33 tokens are asked, some computed behind them, and the
    conversation goes on from there.
    """
    out = []
    for tokens in generated:
        story = (
            f"33 tokens are asked, {tokens} more steps run, and 20 tokens are asked behind what"
            " they generated"
        )
        script = _script(configuration, level, f"turn/{configuration.name}/{tokens}", story)
        _first_turn(script, tokens)
        script.serve("turn2", f"sys:33 @turn1:{tokens + 1} more:20", chunk=64, decode=1)
        out.append(_case(script, flags))
    return out


def returns(
    configuration: Configuration, lengths: Sequence[int], flags: Sequence[str]
) -> list[Case]:
    """Return questions in which a prompt is served before and after a reset of the device's
    cache, the tier left alone.
    """
    out = []
    for tokens in lengths:
        story = f"a prompt of {tokens} tokens comes back from the second tier"
        script = _script(configuration, "scheduler", f"return/{configuration.name}/{tokens}", story)
        script.serve("cold", f"doc:{tokens}", chunk=2 * script.shape.unit, decode=1)
        script.reset(tier="local")
        script.serve("warm", f"doc:{tokens}", chunk=2 * script.shape.unit, decode=1)
        out.append(_case(script, flags))
    return out


def siblings(
    configuration: Configuration,
    level: Level,
    tokens: int,
    shared: Sequence[int],
    flags: Sequence[str],
) -> list[Case]:
    """Return questions in which a prompt of so many tokens is served, and then one that shares
    its beginning alone.
    """
    out = []
    for share in shared:
        story = f"a prompt shares the first {share} of {tokens} tokens that were served"
        script = _script(
            configuration, level, f"sibling/{configuration.name}/{share}-of-{tokens}", story
        )
        script.serve("whole", f"doc:{tokens}", chunk=script.shape.unit, decode=1)
        script.serve("part", f"doc:{share} own:20", chunk=4 * script.shape.unit, decode=1)
        out.append(_case(script, flags))
    return out


def continued_twice(
    configuration: Configuration, level: Level, generated: Sequence[int], flags: Sequence[str]
) -> list[Case]:
    """Return questions in which two requests go on at once from where a third has ended, perhaps
    inside a block.
    """
    out = []
    for tokens in generated:
        story = (
            f"33 tokens are asked, {tokens} more steps run; two requests go on from there at once"
        )
        script = _script(
            configuration, level, f"continued-twice/{configuration.name}/{tokens}", story
        )
        _first_turn(script, tokens)
        for r in ("left", "right"):
            script.submit(r, f"sys:33 @turn1:{tokens + 1} {r}:5")
        for _ in range(4):
            script.step(("left", 64), ("right", 64))
        script.finish("left")
        script.finish("right")
        out.append(_case(script, flags))
    return out


def departures(
    configuration: Configuration, level: Level, orders: Sequence[str], flags: Sequence[str]
) -> list[Case]:
    """Return questions in which requests a to d decode together and leave in an order, such as
    `dcab`.
    """
    out = []
    for order in orders:
        story = f"four requests decode together and leave one by one: {', '.join(order)}"
        script = _script(configuration, level, f"departure/{configuration.name}/{order}", story)
        for index, r in enumerate("abcd"):
            script.submit(r, f"{r}:{20 + 7 * index}")
        staying = list("abcd")
        script.step(*((r, 64) for r in staying))
        for r in order:
            script.decode(2, *staying)
            script.finish(r)
            staying.remove(r)
        out.append(_case(script, flags))
    return out


def stories(
    configuration: Configuration,
    level: Level,
    flags: Mapping[str, Sequence[str]],
    names: Collection[str] | None = None,
) -> list[Case]:
    """Return the scenarios that apply to a cell, those of the names alone if some are given;
    `flags` by scenario.
    """
    shape = configuration.shape(level)
    out = []
    for scenario in SCENARIOS:
        if scenario.applies(shape) and (
            scenario.name in flags if names is None else scenario.name in names
        ):
            asked = scenario.trace(shape)
            name = f"lifecycle/{level}/{configuration.name}/{scenario.name}"
            out.append(
                Case(
                    name,
                    scenario.story,
                    flags[scenario.name],
                    LifecycleInput(asked.header, asked.ops),
                )
            )
    return out


def _first_turn(script: Script, steps: int) -> None:
    script.submit("turn1", "sys:33")
    script.step(("turn1", 64))
    script.decode(steps, "turn1")
    script.finish("turn1")


def _script(configuration: Configuration, level: Level, name: str, story: str) -> Script:
    return Script(configuration.shape(level), f"lifecycle/{name}", story, SOURCE)


def _case(script: Script, flags: Sequence[str]) -> Case:
    asked = script.trace()
    return Case(
        asked.header.name, asked.header.story, flags, LifecycleInput(asked.header, asked.ops)
    )
