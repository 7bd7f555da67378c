"""The configurations that SGLang's cache is run on: each kind of group, pages of one token and
of several.
"""

from __future__ import annotations

from typing import Any

from cachewitness.core.trace_format import GroupSpec, Layout
from cachewitness.workloads.configurations import Configuration

SOURCE = "SGLang 0.5.23, mem_cache/unified_radix_cache.py"


def configurations() -> list[Configuration]:
    """Return them."""
    return [
        _of("sglang-full", "full attention, pages of 4", GroupSpec("full", 4)),
        _of(
            "sglang-full-state",
            "a state at the end of a request, pages of 1",
            GroupSpec("full", 1),
            GroupSpec("recurrent", 8),
        ),
        _of(
            "sglang-window",
            "a sliding window, pages of 4",
            GroupSpec("full", 4),
            GroupSpec("sliding", 4, window=9),
        ),
    ]


def _of(name: str, story: str, *groups: GroupSpec, **options: Any) -> Configuration:
    return Configuration(Layout(name, list(groups), story=story, source=SOURCE), options)
