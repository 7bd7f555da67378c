"""Whole lives behind vLLM's scheduler: a prompt is served, the engine's cache is reset, and the tier serves it again."""

from __future__ import annotations

from typing import Any

from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.vectors import scripts
from harness.vectors.case import Case

FLAGS: dict[str, list[str]] = {
    "second-tier": ["tier", "vacuous"],
    "siblings-at-a-block": ["not-monotone"],
    "preempt-and-resume": ["lost-work"],
    "identities": ["identity"],
    "new-weights": ["stale"],
    "reset-with-running": ["stale"],
}
"""What each scenario hunts."""


def cases() -> list[Case]:
    """Return every question."""
    flags = ["tier", "vacuous", "last-token", "partial-chunk"]
    return [
        *scripts.returns(_configuration("full"), (15, 16, 17, 32, 33), flags),
        *scripts.returns(_configuration("full-mamba", retention_interval=None), (16, 17, 31, 32, 33, 48, 49), flags),
        *scripts.returns(_configuration("full-mamba", retention_interval=None, chunk_size=32), (32, 33, 64, 65), flags),
        *scripts.returns(_configuration("full-swa", retention_interval=None), (32, 33, 48, 49), flags),
        *scripts.stories(_configuration("full-mamba", retention_interval=None), "scheduler", FLAGS),
        *scripts.stories(
            _configuration("full-swa", retention_interval=None), "scheduler", FLAGS, ("second-tier", "identities")
        ),
    ]


def _configuration(layout: str, **options: Any) -> Configuration:
    apart = {"separate_object_groups": True, "tier_pages": 96}
    return Configuration(layouts.load(layout), apart | options, "lmcache")
