"""Faults in the policy of OpenVINO GenAI."""

from __future__ import annotations

from cachewitness_faults.openvino_genai.reference import mutants, near_miss

MUTANTS = (*mutants.MUTANTS, *near_miss.MUTANTS)
