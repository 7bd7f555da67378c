"""Seeded faults in vLLM's policy, by what they break."""

from __future__ import annotations

from cachewitness_faults.vllm.reference.mutants import (
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
    sizes,
    tiers,
    transfers,
)

_MODULES = (
    *(publication, retention, lookup, ownership, identity, scheduling, drafts, tiers, transfers),
    *(eviction, near_miss, in_flight, key_events, sizes),
)
MUTANTS = tuple(mutant for module in _MODULES for mutant in module.MUTANTS)
"""Every fault, in the order in which they are listed."""
