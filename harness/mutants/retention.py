"""Faults in what is kept."""

from __future__ import annotations

from typing import Any

from harness.engines.manager_height import ManagerHeight
from harness.mutants import Mutant
from harness.mutants.tools import BOTH, bound, groups, wrap


def replay_boundary_masked(engine: ManagerHeight) -> None:
    """Ask for the interval's boundaries alone."""

    def reachable_block_mask(original: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = bound(original, args, kwargs)
        for name in ("reachable", "reachable_boundaries"):
            if name in arguments:
                arguments[name] = ()
        return original(**arguments)

    for manager in groups(engine, "Mamba") + groups(engine, "SlidingWindow"):
        wrap(manager, "reachable_block_mask", reachable_block_mask)


def denser_than_interval(engine: ManagerHeight) -> None:
    """Keep every boundary whatever the interval says."""

    def reachable_block_mask(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    for manager in groups(engine, "Mamba") + groups(engine, "SlidingWindow"):
        wrap(manager, "reachable_block_mask", reachable_block_mask)


MUTANTS = (
    Mutant(
        "replay-boundary-masked",
        "retention drops the boundary at which an exact replay resumes",
        "vllm-project/vllm#53504",
        "lost-replay-boundary",
        "replay-boundary-retained",
        replay_boundary_masked,
        BOTH,
        group="N",
    ),
    Mutant(
        "denser-than-interval",
        "snapshots are kept at every boundary, whatever the interval",
        "vllm-project/vllm#45845",
        "over-dense-retention",
        "interval-sparsity",
        denser_than_interval,
        BOTH,
        group="N",
    ),
)
