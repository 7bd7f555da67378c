"""What snapshots of several pages take of a pool.

In vLLM the page is made for the state (`cachewitness_reference.vllm.sizing`). Where attention
blocks were forced to be smaller, as in the test setting of PR 45845, a snapshot takes as many pages
as it needs, and dense retention fills the pool with them.
"""

from __future__ import annotations

import math
from fractions import Fraction

from cachewitness_reference.vllm.sizing import checked


def pages_per_snapshot(state_bytes: int, page_bytes: int) -> int:
    """Return how many pages a snapshot takes; 1 where the page was made for it."""
    return math.ceil(
        Fraction(checked("state_bytes", state_bytes), checked("page_bytes", page_bytes))
    )


def pool_share(
    snapshots: int, pages: int, recurrent_groups: int, attention_blocks: int, attention_groups: int
) -> Fraction:
    """Return which share of one sequence's cached pages is snapshots, each of `pages` pages in
    every recurrent group.
    """
    state = snapshots * pages * recurrent_groups
    return Fraction(state, state + attention_blocks * attention_groups)
