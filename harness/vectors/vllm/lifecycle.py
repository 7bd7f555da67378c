"""Whole lives: short traces around boundaries, and the hand-written scenarios.

In the short ones a prompt is served, and served again: what is hit the second time says what was kept of the first. The pool is
large enough that nothing is evicted, so nothing in them is the engine's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness import layouts
from harness.scenarios.shape import Script, Shape
from harness.scenarios.stories import SCENARIOS
from harness.trace import Height
from harness.vectors.case import Case
from harness.vectors.form import LifecycleInput

SOURCE = "chosen at boundaries"


def cases() -> list[Case]:
    """Return every question."""
    return [*_replays(), *_turns(), *_stories()]


def _replays() -> list[Case]:
    """Serve a prompt twice, at lengths around multiples of the block, the interval and the window."""
    lengths = {
        ("full", ()): (1, 15, 16, 17, 32, 33),
        ("full-mamba", (("retention_interval", 0),)): (1, 15, 16, 17, 31, 32, 33, 48),
        ("full-mamba", (("retention_interval", 64),)): (63, 64, 65, 127, 128, 129),
        ("full-mamba", (("hash_block_size", 4), ("retention_interval", 0))): (20, 21, 33),
        ("full-mamba", (("retention_interval", 0), ("use_eagle", True))): (32, 33, 48, 49),
        ("full-swa", (("retention_interval", 0),)): (16, 17, 31, 32, 33, 47, 48, 49),
        ("full-swa-mamba", (("retention_interval", None),)): (16, 17, 48, 49),
        ("full-mamba-unequal", (("retention_interval", 0),)): (63, 64, 65, 80, 81),
    }
    return [_replay(layout, dict(options), tokens) for (layout, options), chosen in lengths.items() for tokens in chosen]


def _replay(layout: str, options: dict[str, Any], tokens: int) -> Case:
    shape = Shape(layouts.load(layout), options, "manager")
    name = f"lifecycle/replay/{_named(layout, options)}/{tokens}"
    script = Script(shape, name, f"a prompt of {tokens} tokens, twice", SOURCE)
    for r in ("first", "again"):
        script.serve(r, f"doc:{tokens}", chunk=max(tokens, 2 * shape.unit), decode=1)
    return _case(
        name, f"a prompt of {tokens} tokens is served twice", ["replay-boundary", "last-token", "block-boundary"], script
    )


def _turns() -> list[Case]:
    """Continue a conversation whose first turn ended around a block."""
    out = []
    for layout, options in (("full-mamba", {"retention_interval": 0}), ("full-swa", {"retention_interval": 0})):
        for generated in (15, 16, 17, 32):
            shape = Shape(layouts.load(layout), options, "manager")
            name = f"lifecycle/turn/{_named(layout, options)}/{generated}"
            script = Script(shape, name, f"{generated} tokens are generated, then asked about", SOURCE)
            script.serve("turn1", "sys:33", chunk=64, decode=generated)
            script.serve("turn2", f"sys:33 @turn1:{generated} more:20", chunk=64, decode=1)
            out.append(_case(name, f"33 tokens, {generated} generated, 20 more", ["block-boundary", "interval"], script))
    return out


_FLAGS = {
    "exact-replay": ["replay-boundary", "last-token"],
    "siblings-in-a-block": ["junction"],
    "siblings-at-a-block": ["junction", "block-boundary"],
    "siblings-in-one-step": ["same-step"],
    "generated-and-shared": ["drafts"],
    "second-tier": ["tier"],
    "multi-turn": ["counts"],
    "preempt-and-resume": ["lost-work", "recomputed-output"],
    "abort-and-retry": ["counts", "never-written", "drafts"],
    "withdrawn": ["never-written"],
    "one-group-evicted": ["state-without-attention"],
    "reset-with-running": ["stale", "in-flight"],
    "new-weights": ["stale", "tier"],
    "identities": ["identity"],
    "long-decode": ["interval", "window-edge", "in-flight"],
    "long-chunks": ["chunk-end", "junction"],
    "crowded": ["evicts-what-it-hit", "admission"],
}
"""What each scenario hunts."""

_MANAGER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-mamba", {"retention_interval": 0}),
    ("full-swa", {"retention_interval": 64}),
)
"""On these every scenario that applies is told at manager height."""

_SCHEDULER: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    (
        "full-mamba",
        {"retention_interval": 0},
        ("siblings-in-one-step", "preempt-and-resume", "crowded", "long-chunks", "new-weights"),
    ),
    ("full-mamba", {"retention_interval": 0, "num_speculative_tokens": 3}, ("generated-and-shared", "exact-replay")),
    ("full-swa-mamba", {"retention_interval": None, "num_speculative_tokens": 4}, ("long-decode", "abort-and-retry")),
    ("full-swa-mamba", {"retention_interval": None, "async_depth": 1}, ("long-decode", "reset-with-running")),
    ("full-swa-mamba", {"retention_interval": None, "tier_slots": 96}, ("second-tier", "new-weights")),
)
"""And on these the named ones at scheduler height: plain, with drafts, with a step in flight, with a second tier."""


def _stories() -> list[Case]:
    out = []
    for layout, options in _MANAGER:
        out += _told(layout, options, "manager", [scenario.name for scenario in SCENARIOS])
    for layout, options, names in _SCHEDULER:
        out += _told(layout, options, "scheduler", names)
    return out


def _told(layout: str, options: dict[str, Any], height: Height, names: Sequence[str]) -> list[Case]:
    shape, out = Shape(layouts.load(layout), options, height), []
    for scenario in SCENARIOS:
        if scenario.name in names and scenario.applies(shape):
            asked = scenario.trace(shape)
            name = f"lifecycle/{height}/{_named(layout, options)}/{scenario.name}"
            out.append(Case(name, scenario.story, _FLAGS[scenario.name], LifecycleInput(asked.header, asked.ops)))
    return out


def _case(name: str, comment: str, flags: list[str], script: Script) -> Case:
    asked = script.trace()
    return Case(name, comment, flags, LifecycleInput(asked.header, asked.ops))


def _named(layout: str, options: dict[str, Any]) -> str:
    """Return a layout and options in short: the interval first, by its value alone."""
    rest = [f"{key}={value}" for key, value in options.items() if key != "retention_interval"]
    interval = [str(options["retention_interval"])] if "retention_interval" in options else []
    return f"{layout}[{','.join([*interval, *rest])}]" if options else layout
