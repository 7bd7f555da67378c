"""Rows of a cache that are chosen anew behind every pass, as a search by beams does.

A request has one row. The others go on with other tokens from where it has been, and are given up
for copies of it in turn, so that whatever of a row is not chosen with the rest is read by another
text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from cachewitness.core.engine_failure import native

How = Literal["one", "reordered", "selected"]
ROWS = 3
METHODS: Mapping[How, Sequence[str]] = {
    "one": (),
    "reordered": ("reorder_cache",),
    "selected": ("batch_repeat_interleave", "batch_select_indices"),
}
"""What a layer of the library's caches must have."""


@dataclass
class Rows:
    """How rows are chosen: `one`: there is no choice; `reordered`: by `reorder_cache`, which beams
    use; `selected`: by the methods for batches. `vocabulary`: how many tokens there are.
    """

    how: How
    vocabulary: int

    def spread(self, cache: Any) -> None:
        """Make the row of a cache all rows."""
        if self.how == "selected":
            with native(), torch.inference_mode():
                cache.batch_repeat_interleave(ROWS)
        else:
            self.choose(cache, [0] * ROWS)

    def texts(self, tokens: Sequence[int], own: int) -> list[list[int]]:
        """Return what the rows go on with: a request's tokens in its own row, others elsewhere."""
        return [
            [(token + (row - own) % ROWS) % self.vocabulary for token in tokens]
            for row in range(ROWS)
        ]

    def turned(self, cache: Any, own: int) -> int:
        """Choose anew: every row takes the one in front of it, and one is given up for a request's
        own; return where that is now.
        """
        chosen = [(row - 1) % ROWS for row in range(ROWS)]
        chosen[(own + 2) % ROWS] = own
        self.choose(cache, chosen)
        return (own + 1) % ROWS

    def alone(self, cache: Any, own: int) -> None:
        """Leave one row in a cache."""
        self.choose(cache, [own])

    def choose(self, cache: Any, rows: Sequence[int]) -> None:
        """Let the rows of a cache be these of its rows."""
        with native(), torch.inference_mode():
            if self.how == "reordered":
                cache.reorder_cache(torch.tensor(rows))
            else:
                cache.batch_select_indices(torch.tensor(rows))
