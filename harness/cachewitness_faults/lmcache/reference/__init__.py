"""Faults in the policy of LMCache."""

from __future__ import annotations

from cachewitness_faults.lmcache.reference import mutants, near_miss

MUTANTS = (*mutants.MUTANTS, *near_miss.MUTANTS)
