"""Every fault that is planted into a real vLLM's own classes, and nowhere else."""

from __future__ import annotations

from harness.engines.mutant import Mutant
from harness.engines.real_vllm.shipped_faults import SHIPPED
from harness.engines.real_vllm.simple_faults import SIMPLE

FAULTS = {mutant.name: mutant for mutant in SIMPLE + SHIPPED}


def kind_of(mutant: Mutant) -> str:
    """Return `shipped` for the mechanism of a bug that passed vLLM's own tests, `simple` for one wrong method."""
    return "shipped" if mutant in SHIPPED else "simple"
