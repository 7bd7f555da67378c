"""Whole lives: prompts served twice around blocks of 16 tokens and intervals of 32, tails continued, and scenarios."""

from __future__ import annotations

from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.vectors import scripts
from harness.vectors.case import Case

FLAGS: dict[str, list[str]] = {
    "exact-replay": ["last-token", "checkpoint-edge"],
    "siblings-in-a-block": ["common-position", "shared-write"],
    "siblings-at-a-block": ["checkpoint-edge"],
    "preempt-and-resume": ["lost-work"],
    "abort-and-retry": ["counts", "lost-work"],
    "reset-with-running": ["stale"],
    "new-weights": ["stale"],
    "identities": ["identity"],
    "long-decode": ["tail-checkpoint", "shared-write"],
    "crowded": ["counts", "lost-work", "room"],
}
"""What each scenario hunts."""


def cases() -> list[Case]:
    """Return every question."""
    mamba = layouts.load("full-mamba")
    by_two = Configuration(mamba, {"cache_interval_multiplier": 2}, "openvino_genai")
    plain = Configuration(layouts.load("full"), {}, "openvino_genai")
    off = Configuration(mamba, {"enable_prefix_caching": False}, "openvino_genai")
    edges = ["checkpoint-edge", "last-token"]
    return [
        *scripts.replays(by_two, "manager", (1, 16, 31, 32, 33, 63, 64, 65), edges),
        *scripts.replays(plain, "manager", (15, 16, 17, 32), edges),
        *scripts.replays(off, "manager", (33,), ["counts"]),
        *scripts.turns(by_two, "manager", (1, 15, 31, 32), ["tail-checkpoint"]),
        *scripts.continued_twice(by_two, "manager", (7, 15), ["shared-write", "tail-checkpoint"]),
        *scripts.stories(by_two, "manager", FLAGS),
        *scripts.stories(by_two, "scheduler", FLAGS, ("crowded", "exact-replay", "preempt-and-resume")),
    ]
