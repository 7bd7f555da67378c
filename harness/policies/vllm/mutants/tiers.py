"""Faults in the second tier."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.engines.fault_tools import REFERENCE, core, wrap
from harness.engines.mutant import Mutant
from harness.engines.observe_tier import TIER
from harness.engines.scheduler_height import SchedulerHeight
from harness.history.events import Move


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
    tier = getattr(core(engine), "tier", None)
    if tier is not None:
        wrap(tier, "get", lambda original, key: None)


def stored_a_step_late(engine: SchedulerHeight) -> None:
    """Store what a step has written after the next one, from blocks that nobody holds for that."""
    late: list[Any] = []

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.stores, late[:] = list(late), list(begin.stores)

    wrap(engine, "_begin", begin_step)


def loads_the_place_beside(engine: SchedulerHeight) -> None:
    """Read one place further than the one that was found."""
    places = next((pool.pages for pool in engine.header.pools if pool.id == TIER), 0)

    def beside(move: Move) -> Move:
        return msgspec.structs.replace(move, src=(move.src + 1) % places)

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.copies = [beside(move) if move.src_pool == TIER else move for move in begin.copies]

    wrap(engine, "_begin", begin_step)


def stores_share_a_place(engine: SchedulerHeight) -> None:
    """Store all that a step has written where the first of it belongs."""

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.stores = [msgspec.structs.replace(move, dst=begin.stores[0].dst) for move in begin.stores]

    wrap(engine, "_begin", begin_step)


def reset_of_all_spares_the_tier(engine: SchedulerHeight) -> None:
    """Say that every tier was reset, and reset the device alone."""

    def reset_tier(original: Any, reason: str = "reset") -> None:
        if reason != "reset":
            original(reason)

    wrap(engine.manager, "reset_tier", reset_tier)


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
    Mutant(
        "stored-a-step-late",
        "what a step wrote is stored after the next, when its blocks may be another's",
        "vllm-project/vllm#42959",
        "partial-commit",
        "commit-order",
        stored_a_step_late,
        REFERENCE,
        "scheduler",
        group="K",
    ),
    Mutant(
        "loads-the-place-beside",
        "what comes back from the tier is the neighbour of what was found",
        "dingodb/DingoCache#231",
        "stale-hit",
        "safety-law",
        loads_the_place_beside,
        REFERENCE,
        "scheduler",
        group="K",
    ),
    Mutant(
        "stores-share-a-place",
        "two blocks of a step are stored in one place",
        "NVIDIA/TensorRT-LLM#8813",
        "partial-commit",
        "commit-order",
        stores_share_a_place,
        REFERENCE,
        "scheduler",
        group="K",
    ),
    Mutant(
        "reset-of-all-spares-the-tier",
        "a reset of every tier reports success while one still serves",
        "vllm-project/vllm#57727",
        "stale-hit",
        "safety-law",
        reset_of_all_spares_the_tier,
        REFERENCE,
        "scheduler",
        group="L",
    ),
)
