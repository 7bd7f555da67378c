"""Faults in the policy of TensorRT-Edge-LLM."""

from __future__ import annotations

from cachewitness_faults.tensorrt_edge.reference import mutants, near_miss

MUTANTS = (*mutants.MUTANTS, *near_miss.MUTANTS)
