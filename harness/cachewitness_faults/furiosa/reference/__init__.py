"""Faults in the policy of Furiosa-LLM."""

from __future__ import annotations

from cachewitness_faults.furiosa.reference import mutants, near_miss

MUTANTS = (*mutants.MUTANTS, *near_miss.MUTANTS)
