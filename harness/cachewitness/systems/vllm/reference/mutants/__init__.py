"""Seeded faults in vLLM's policy, by what they break."""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness.engines.mutant import Mutant


def all_of_them() -> Sequence[Mutant]:
    """Return every fault, in the order in which they are listed."""
    from cachewitness.systems.vllm.reference.mutants import (
        drafts,
        eviction,
        identity,
        in_flight,
        key_events,
        lookup,
        near_miss,
        ownership,
        publication,
        retention,
        scheduling,
        tiers,
        transfers,
    )

    modules = (
        publication,
        retention,
        lookup,
        ownership,
        identity,
        scheduling,
        drafts,
        tiers,
        transfers,
        eviction,
    )
    further = (near_miss, in_flight, key_events)
    return [mutant for module in (*modules, *further) for mutant in module.MUTANTS]
