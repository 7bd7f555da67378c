"""Whole lives: prompts served twice around blocks and windows, continued conversations, and scenarios."""

from __future__ import annotations

from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.vectors import scripts
from harness.vectors.case import Case

FLAGS: dict[str, list[str]] = {
    "exact-replay": ["last-token", "token-match"],
    "siblings-in-a-block": ["shared-write", "token-match"],
    "siblings-at-a-block": ["shared-write"],
    "preempt-and-resume": ["lost-work"],
    "abort-and-retry": ["counts"],
    "one-group-evicted": ["hole", "active-evicted"],
    "reset-with-running": ["stale"],
    "new-weights": ["stale"],
    "identities": ["identity"],
    "long-decode": ["released-early", "released-late"],
    "crowded": ["counts", "active-evicted"],
}
"""What each scenario hunts."""


def cases() -> list[Case]:
    """Return every question."""
    layout = layouts.load("full-swa")
    configuration = Configuration(layout, {"expected_average_seq_length": 64}, "furiosa")
    blocks = Configuration(layout, {"expected_average_seq_length": 64, "hit_granularity": "block"}, "furiosa")
    freed = Configuration(layout, {"expected_average_seq_length": 64, "out_of_window": "freed"}, "furiosa")
    return [
        *scripts.replays(configuration, "manager", (1, 2, 16, 17, 31, 32, 33, 47, 48, 49), ["last-token", "token-match"]),
        *scripts.replays(blocks, "manager", (16, 17, 32, 33), ["last-token", "token-match"]),
        *scripts.turns(configuration, "manager", (1, 15, 16, 32), ["token-match", "shared-write"]),
        *scripts.siblings(freed, "manager", 97, (64, 80, 88, 95, 96), ["hole", "window-edge"]),
        *scripts.stories(configuration, "manager", FLAGS),
        *scripts.stories(configuration, "scheduler", FLAGS, ("crowded", "exact-replay", "preempt-and-resume")),
    ]
