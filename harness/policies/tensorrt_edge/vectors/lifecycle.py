"""Whole lives on a few rows: requests with a common beginning, rows that move when somebody ends, rows that are taken away."""

from __future__ import annotations

from typing import Any

from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.vectors import scripts
from harness.vectors.case import Case

FLAGS: dict[str, list[str]] = {
    "exact-replay": ["whole-input", "state-position"],
    "siblings-in-a-block": ["state-position", "partial-hit"],
    "siblings-at-a-block": ["state-position", "partial-hit"],
    "siblings-in-one-step": ["rows"],
    "preempt-and-resume": ["lost-work"],
    "abort-and-retry": ["rows"],
    "reset-with-running": ["stale"],
    "new-weights": ["stale"],
    "identities": ["identity"],
    "crowded": ["rows", "overwritten"],
}
"""What each scenario hunts."""


KEPT = 16
"""Places for captures: more than there are system prompts, so that which one makes room is no question."""


def cases() -> list[Case]:
    """Return every question."""
    three = _configuration("full-swa-mamba")
    few = _configuration("full-mamba", max_batch_size=2)
    downwards = _configuration("full-mamba", survivors="descending")
    return [
        *scripts.replays(three, "manager", (1, 2, 16, 17, 33), ["whole-input", "state-position"]),
        *scripts.replays(
            _configuration("full-mamba", replay_last_token=True), "manager", (1, 2, 17), ["whole-input", "state-position"]
        ),
        *scripts.departures(downwards, "manager", ("dcba", "cdab", "abcd"), ["overwritten", "torn"]),
        *scripts.departures(three, "manager", ("abcd", "badc"), ["overwritten", "torn"]),
        *scripts.turns(three, "manager", (1, 16), ["partial-hit"]),
        *scripts.stories(three, "manager", FLAGS),
        *scripts.stories(few, "manager", FLAGS, ("identities", "crowded")),
        *scripts.stories(downwards, "scheduler", FLAGS, ("crowded", "preempt-and-resume", "siblings-in-one-step")),
    ]


def _configuration(layout: str, **options: Any) -> Configuration:
    return Configuration(layouts.load(layout), {"system_prompts": KEPT} | options, "tensorrt_edge")
