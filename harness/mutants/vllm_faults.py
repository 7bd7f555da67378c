"""Every fault that is planted into a real vLLM's own classes, and nowhere else."""

from __future__ import annotations

from harness.mutants import Mutant
from harness.mutants.vllm_shipped import SHIPPED
from harness.mutants.vllm_simple import SIMPLE

FAULTS = {mutant.name: mutant for mutant in SIMPLE + SHIPPED}


def kind_of(mutant: Mutant) -> str:
    """Return `shipped` for the mechanism of a bug that passed vLLM's own tests, `simple` for one wrong method."""
    return "shipped" if mutant in SHIPPED else "simple"
