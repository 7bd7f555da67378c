"""Whether a request can be given what it asks for, so that no call of SGLang's runs out of slots
in the middle.
"""

from __future__ import annotations

from typing import Any

from cachewitness.systems.sglang.build import Built
from cachewitness.systems.sglang.observed import RECURRENT, Shown

NO_LIMIT = 1 << 30


class Room:
    """Counts what is free or can be evicted, as SGLang's admission does. `extending` are those
    who compute in this step.
    """

    def __init__(self, built: Built, shown: Shown, groups: dict[str, int]) -> None:
        self._built = built
        self._shown = shown
        self._groups = groups
        self.extending: set[str] = set()

    def fits(self, req: Any, tokens: int) -> bool:
        """Whether so many tokens more of a prompt can be given slots, a page more for each request
        counted as SGLang's `PrefillAdder` does.
        """
        asked = self._built.asked
        need = (
            tokens
            if asked.page_size == 1
            else -(-tokens // asked.page_size) * asked.page_size + asked.page_size
        )
        return self.states_left() >= self._states_needed(req) and self._holds(need)

    def fits_next(self, req: Any) -> bool:
        """Whether a request can generate a token: it takes a page if its last one is full
        (`new_page_count_next_decode`).
        """
        size = self._built.asked.page_size
        return self._holds(0 if req.kv.kv_committed_len % size else size)

    def _holds(self, need: int) -> bool:
        """Whether so many slots are free or can be evicted, of every kind of attention."""
        tree = self._built.tree
        allocator = self._built.allocator
        if not self._built.asked.window:
            return bool(need <= allocator.available_size() + tree.full_evictable_size())
        full = allocator.full_available_size() + tree.full_evictable_size()
        return bool(
            need <= full and need <= allocator.swa_available_size() + tree.swa_evictable_size()
        )

    def states_left(self) -> int:
        """Return how many slots of states are free or can be evicted; without recurrent groups,
        more than anybody needs.
        """
        if RECURRENT not in self._groups:
            return NO_LIMIT
        return int(
            self._built.requests.mamba_allocator.available_size()
            + self._built.tree.mamba_evictable_size()
        )

    def _states_needed(self, candidate: Any) -> int:
        """Return how many must be left when a request computes more of its prompt.

        The state that a chunk leaves in the tree is taken before the one is let go that the request
        had locked there. So one is needed for each chunk of this step of a request that shares that
        lock or has none, and one more. Who joins needs a slot of its own, and leaves one for
        everybody who has still to compute.
        """
        if RECURRENT not in self._groups or prefilled(candidate):
            return 0
        joins = not candidate.kv.holds_kv
        forking = {candidate.rid, *self.extending}
        if joins:
            forking |= {
                r
                for r, req in self._shown.requests.items()
                if req.kv.holds_kv and not prefilled(req)
            }
        more = sum(not self._shown.locks_alone(self._shown.requests[r]) for r in forking)
        return int(not candidate.kv.holds_mamba) * joins + more + 1


def prefilled(req: Any) -> bool:
    """Whether all that a request was given, and generated before it was retracted, is computed:
    it forks no state any more.
    """
    return bool(req.output_ids) and req.kv.kv_committed_len >= req.seqlen - 1
