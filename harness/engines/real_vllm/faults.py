"""Every fault that is planted into a real vLLM's own classes, and nowhere else."""

from __future__ import annotations

from harness.engines.mutant import Mutant
from harness.engines.real_vllm.scheduler_faults import SCHEDULED
from harness.engines.real_vllm.shipped_faults import SHIPPED
from harness.engines.real_vllm.simple_faults import SIMPLE

FAULTS = {mutant.name: mutant for mutant in SIMPLE + SHIPPED + SCHEDULED}


def kind_of(mutant: Mutant) -> str:
    """Return `shipped` for the mechanism of a bug that passed vLLM's own tests, `scheduler` for one of its scheduler's lines.

    Any other is `simple`: one wrong method.
    """
    return "shipped" if mutant in SHIPPED else "scheduler" if mutant in SCHEDULED else "simple"
