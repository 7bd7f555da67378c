"""Faults in the second tier."""

from __future__ import annotations

from typing import Any

from harness.engines.observe_tier import TIER
from harness.engines.scheduler_height import SchedulerHeight
from harness.mutants import Mutant
from harness.mutants.tools import REFERENCE, core, wrap


def stored_before_the_step(engine: SchedulerHeight) -> None:
    """Store what a step is to write before it has run."""

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.copies, begin.stores = begin.copies + begin.stores, []

    wrap(engine, "_begin", begin_step)


def load_forgotten(engine: SchedulerHeight) -> None:
    """Hit what the tier has, and never bring it back."""

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.copies = [move for move in begin.copies if move.src_pool != TIER]

    wrap(engine, "_begin", begin_step)


def tier_survives_new_weights(engine: SchedulerHeight) -> None:
    """Load new weights, and keep what the tier has of the old ones."""

    def reset_tier(original: Any, reason: str = "reset") -> None:
        if reason != "version":
            original(reason)

    wrap(engine.manager, "reset_tier", reset_tier)


def tier_never_asked(engine: SchedulerHeight) -> None:
    """Store everything and look nothing up."""
    tier = core(engine).tier
    if tier is not None:
        wrap(tier, "get", lambda original, key: None)


MUTANTS = (
    Mutant(
        "stored-before-the-step",
        "a block is stored before the step that fills it has run",
        "vllm-project/vllm#45704",
        "partial-commit",
        "commit-order",
        stored_before_the_step,
        REFERENCE,
        "scheduler",
        group="K",
    ),
    Mutant(
        "load-forgotten",
        "a hit in the second tier is reported and never brought back",
        "vllm-project/vllm#34526",
        "stale-hit",
        "safety-law",
        load_forgotten,
        REFERENCE,
        "scheduler",
        group="K",
    ),
    Mutant(
        "tier-survives-new-weights",
        "new weights end the keys of the device alone",
        "vllm-project/vllm#57727",
        "cross-identity-hit",
        "identity",
        tier_survives_new_weights,
        REFERENCE,
        "scheduler",
        group="L",
    ),
    Mutant(
        "tier-never-asked",
        "everything is stored in the second tier, nothing is looked up there",
        "vllm-project/vllm#43650",
        "lost-hit",
        "reuse-floor",
        tier_never_asked,
        REFERENCE,
        "scheduler",
        group="N",
    ),
)
