"""Traces for lifecycle vectors: a prompt served twice, a conversation continued, and the hand-written scenarios.

In the first two the pool is large enough that nothing is evicted, so nothing in them is the engine's choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from harness.cells import Cell
from harness.scenarios.shape import Script
from harness.scenarios.stories import SCENARIOS
from harness.trace import Height
from harness.vectors.case import Case
from harness.vectors.form import LifecycleInput

SOURCE = "chosen at boundaries"


def replays(cell: Cell, height: Height, lengths: Sequence[int], flags: Sequence[str], chunk: int = 0) -> list[Case]:
    """Return questions in which a prompt is served twice, for each length; prefilled `chunk` tokens at a time, or whole."""
    out = []
    for tokens in lengths:
        script = _script(cell, height, f"replay/{cell.name}/{tokens}", f"a prompt of {tokens} tokens is served twice")
        for r in ("first", "again"):
            script.serve(r, f"doc:{tokens}", chunk=chunk or max(tokens, 2 * script.shape.unit), decode=1)
        out.append(_case(script, flags))
    return out


def turns(cell: Cell, height: Height, generated: Sequence[int], flags: Sequence[str]) -> list[Case]:
    """Return questions in which 33 tokens are asked, some generated, and 20 more asked behind them."""
    out = []
    for tokens in generated:
        story = f"33 tokens are asked, {tokens} generated, and 20 more asked behind them"
        script = _script(cell, height, f"turn/{cell.name}/{tokens}", story)
        script.serve("turn1", "sys:33", chunk=64, decode=tokens)
        script.serve("turn2", f"sys:33 @turn1:{tokens} more:20", chunk=64, decode=1)
        out.append(_case(script, flags))
    return out


def returns(cell: Cell, lengths: Sequence[int], flags: Sequence[str]) -> list[Case]:
    """Return questions in which a prompt is served before and after a reset of the device's cache, the tier left alone."""
    out = []
    for tokens in lengths:
        story = f"a prompt of {tokens} tokens comes back from the second tier"
        script = _script(cell, "scheduler", f"return/{cell.name}/{tokens}", story)
        script.serve("cold", f"doc:{tokens}", chunk=2 * script.shape.unit, decode=1)
        script.reset(tier="local")
        script.serve("warm", f"doc:{tokens}", chunk=2 * script.shape.unit, decode=1)
        out.append(_case(script, flags))
    return out


def stories(cell: Cell, height: Height, flags: Mapping[str, Sequence[str]], names: Collection[str] | None = None) -> list[Case]:
    """Return the scenarios that apply to a cell, those of the names alone if some are given; `flags` by scenario."""
    shape, out = cell.shape(height), []
    for scenario in SCENARIOS:
        if scenario.applies(shape) and (scenario.name in flags if names is None else scenario.name in names):
            asked = scenario.trace(shape)
            name = f"lifecycle/{height}/{cell.name}/{scenario.name}"
            out.append(Case(name, scenario.story, flags[scenario.name], LifecycleInput(asked.header, asked.ops)))
    return out


def _script(cell: Cell, height: Height, name: str, story: str) -> Script:
    return Script(cell.shape(height), f"lifecycle/{name}", story, SOURCE)


def _case(script: Script, flags: Sequence[str]) -> Case:
    asked = script.trace()
    return Case(asked.header.name, asked.header.story, flags, LifecycleInput(asked.header, asked.ops))
