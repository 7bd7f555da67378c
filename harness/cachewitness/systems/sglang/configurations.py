"""The configurations that SGLang's cache is run on: each kind of group, pages of one token and
of several.
"""

from __future__ import annotations

from functools import partial

from cachewitness.core.trace_format import GroupSpec
from cachewitness.workloads.configurations import Configuration, of_groups

SOURCE = "SGLang 0.5.23, mem_cache/unified_radix_cache.py"
_of = partial(of_groups, SOURCE)


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
        _of(
            "sglang-window-in-a-page",
            "a sliding window that is shorter than a page",
            GroupSpec("full", 8),
            GroupSpec("sliding", 8, window=5),
        ),
        _of(
            "sglang-window-tokens",
            "a sliding window, pages of 1",
            GroupSpec("full", 1),
            GroupSpec("sliding", 1, window=9),
        ),
        _of(
            "sglang-window-state",
            "a sliding window and a state, pages of 1",
            GroupSpec("full", 1),
            GroupSpec("sliding", 1, window=9),
            GroupSpec("recurrent", 8),
        ),
    ]
