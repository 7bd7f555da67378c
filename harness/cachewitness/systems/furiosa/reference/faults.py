"""The fault in Furiosa's policy that the documentation shows.

All others are in `cachewitness_faults.furiosa`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import adapter, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.furiosa.hybrid_match import NO_HIT


@mutant(
    name="furiosa-matched-in-one-pool",
    mirrors="sgl-project/sglang#31108, #30339",
    anomaly="window-hole",
    checker="window-liveness",
    group="C",
    engines=("furiosa",),
)
def matched_in_one_pool(engine: Driver) -> None:
    """A match of the global pool is reused whole, although the sliding pool has holes."""
    manager = adapter(engine).manager

    def match(original: Any, request: Any) -> Any:
        limit = request.num_tokens - 1
        path = manager.tree.match(request.identity, request.symbols, limit)
        matched = (
            manager.tree.matched(path, request.symbols, limit)
            // manager.block_size
            * manager.block_size
        )
        kept = tuple(entry for entry in path if entry.start < matched)
        return replace(NO_HIT, length=matched, matched=matched, path=kept) if matched else NO_HIT

    wrap(manager, "match", match)


MUTANTS = declared(globals())
