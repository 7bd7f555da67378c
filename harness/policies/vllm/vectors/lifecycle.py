"""Whole lives: prompts served twice at lengths around the block, the interval and the window, and the told scenarios."""

from __future__ import annotations

from typing import Any

from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.vectors import scripts
from harness.vectors.case import Case

REPLAYS: tuple[tuple[str, dict[str, Any], tuple[int, ...]], ...] = (
    ("full", {}, (1, 15, 16, 17, 32, 33)),
    ("full-mamba", {"retention_interval": 0}, (1, 15, 16, 17, 31, 32, 33, 48)),
    ("full-mamba", {"retention_interval": 64}, (63, 64, 65, 127, 128, 129)),
    ("full-mamba", {"retention_interval": 0, "hash_block_size": 4}, (20, 21, 33)),
    ("full-mamba", {"retention_interval": 0, "use_eagle": True}, (32, 33, 48, 49)),
    ("full-swa", {"retention_interval": 0}, (16, 17, 31, 32, 33, 47, 48, 49)),
    ("full-swa-mamba", {"retention_interval": None}, (16, 17, 48, 49)),
    ("full-mamba-unequal", {"retention_interval": 0}, (63, 64, 65, 80, 81)),
)

FLAGS: dict[str, list[str]] = {
    "exact-replay": ["replay-boundary", "last-token"],
    "siblings-in-a-block": ["shared-prefix-boundary"],
    "siblings-at-a-block": ["shared-prefix-boundary", "block-boundary"],
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
    "long-chunks": ["chunk-end", "shared-prefix-boundary"],
    "crowded": ["evicts-what-it-hit", "admission"],
}
"""What each scenario hunts."""

MANAGER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-mamba", {"retention_interval": 0}),
    ("full-swa", {"retention_interval": 64}),
)
"""On these every scenario that applies is told at manager height."""

SCHEDULER: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    (
        "full-mamba",
        {"retention_interval": 0},
        ("siblings-in-one-step", "preempt-and-resume", "crowded", "long-chunks", "new-weights"),
    ),
    ("full-mamba", {"retention_interval": 0, "num_speculative_tokens": 3}, ("generated-and-shared", "exact-replay")),
    ("full-swa-mamba", {"retention_interval": None, "num_speculative_tokens": 4}, ("long-decode", "abort-and-retry")),
    ("full-swa-mamba", {"retention_interval": None, "async_depth": 1}, ("long-decode", "reset-with-running")),
    ("full-swa-mamba", {"retention_interval": None, "tier_pages": 96}, ("second-tier", "new-weights")),
)
"""And on these the named ones at scheduler height: plain, with drafts, with a step in flight, with a second tier."""


def cases() -> list[Case]:
    """Return every question."""
    out = []
    for layout, options, lengths in REPLAYS:
        out += scripts.replays(
            _configuration(layout, options), "manager", lengths, ["replay-boundary", "last-token", "block-boundary"]
        )
    for layout, interval in (("full-mamba", None), ("full-swa", 64)):
        configuration = _configuration(layout, {"retention_interval": interval})
        out += scripts.turns(configuration, "manager", (15, 16, 17, 32), ["block-boundary", "interval"])
    for layout, options in MANAGER:
        out += scripts.stories(_configuration(layout, options), "manager", FLAGS)
    for layout, options, names in SCHEDULER:
        out += scripts.stories(_configuration(layout, options), "scheduler", FLAGS, names)
    return out


def _configuration(layout: str, options: dict[str, Any]) -> Configuration:
    return Configuration(layouts.load(layout), options)
